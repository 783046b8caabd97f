//! The documents of an OCI image layout: which layers an image has, and what it says of its sandboxes.

use serde::Deserialize;

use crate::definition::shown;
use crate::error::BuildError;

/// The longest document that is read, in bytes.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 4 << 20;
/// The most layers.
const MAX_LAYERS: usize = 256;

/// Something in a layout.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct ConfigFile {
    #[serde(default, rename = "config")]
    config: Option<Config>,
}

/// What an image says of its sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) env: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) user: Option<String>,
    #[serde(default)]
    pub(crate) working_dir: Option<String>,
}

fn wrong(reason: impl Into<String>) -> BuildError {
    BuildError::input("image", shown(&reason.into(), 1000))
}

impl Descriptor {
    /// The file's name below `blobs/sha256`: 64 hexadecimal digits and nothing else.
    pub(crate) fn hex(&self) -> Result<&str, BuildError> {
        let hex = self.digest.strip_prefix("sha256:").unwrap_or_default();
        let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if hex.len() == 64 && hex.bytes().all(digits) {
            return Ok(hex);
        }
        let shown: String = self.digest.chars().take(80).collect();
        Err(wrong(format!("{shown:?} is no digest; only sha256 is known")))
    }

    /// The option with which tar reads such a layer.
    pub(crate) fn tar_option(&self) -> Result<&'static str, BuildError> {
        match self.media_type.as_str() {
            kind if kind.ends_with("tar+gzip") || kind.ends_with("tar.gzip") => Ok("-z"),
            kind if kind.ends_with(".tar") => Ok(""),
            kind => {
                let shown: String = kind.chars().take(80).collect();
                Err(wrong(format!("a layer is of the kind {shown:?}; tar and tar+gzip are known")))
            }
        }
    }

    fn is_index(&self) -> bool {
        self.media_type.ends_with("image.index.v1+json") || self.media_type.ends_with("manifest.list.v2+json")
    }
}

/// One document of an index: another index, or a manifest.
pub(crate) enum Chosen {
    Index(Descriptor),
    Manifest(Descriptor),
}

/// The image that is meant.
pub(crate) fn choose(text: &[u8], reference: Option<&str>) -> Result<Chosen, BuildError> {
    let index: Index =
        serde_json::from_slice(text).map_err(|error| wrong(format!("its index is wrong: {error}")))?;
    let named = |one: &&Descriptor| {
        let name = one.annotations.get("org.opencontainers.image.ref.name").map(String::as_str);
        reference.is_none_or(|wanted| name == Some(wanted) || one.digest == wanted)
    };
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fits = |one: &&Descriptor| {
        one.platform.as_ref().is_none_or(|platform| platform.os == "linux" && platform.architecture == here)
    };
    let found: Vec<&Descriptor> = index.manifests.iter().filter(named).filter(fits).collect();
    match found.as_slice() {
        [one] if one.is_index() => Ok(Chosen::Index((*one).clone())),
        [one] => Ok(Chosen::Manifest((*one).clone())),
        [] => Err(wrong(format!("no image of it is the one that is asked for and for linux/{here}"))),
        many => Err(wrong(format!("{} images of it would do; name one with `reference`", many.len()))),
    }
}

/// Configuration and layers of a manifest, the lowest layer first.
pub(crate) fn manifest(text: &[u8]) -> Result<(Descriptor, Vec<Descriptor>), BuildError> {
    let manifest: Manifest =
        serde_json::from_slice(text).map_err(|error| wrong(format!("its manifest is wrong: {error}")))?;
    if manifest.layers.is_empty() || manifest.layers.len() > MAX_LAYERS {
        return Err(wrong(format!("it has {} layers; 1 to {MAX_LAYERS} are allowed", manifest.layers.len())));
    }
    for layer in &manifest.layers {
        layer.hex()?;
        layer.tar_option()?;
    }
    Ok((manifest.config, manifest.layers))
}

/// What the configuration says.
pub(crate) fn config(text: &[u8]) -> Result<Config, BuildError> {
    let file: ConfigFile = serde_json::from_slice(text)
        .map_err(|error| wrong(format!("its configuration is wrong: {error}")))?;
    Ok(file.config.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_cannot_lead_anywhere() {
        let good = format!("sha256:{}", "a".repeat(64));
        let with = |digest: &str| Descriptor {
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
            digest: digest.to_owned(),
            annotations: Default::default(),
            platform: None,
        };
        assert_eq!(with(&good).hex().unwrap(), "a".repeat(64));
        for bad in [
            "",
            "sha256:",
            "sha256:../../etc/passwd",
            &good.replace('a', "A"),
            "sha512:00",
            &format!("{good}/"),
        ] {
            assert!(with(bad).hex().unwrap_err().to_string().starts_with("image: "), "{bad}");
        }
    }

    #[test]
    fn the_image_is_chosen_or_the_reason_is_told() {
        let one = |name: &str, os: &str| {
            format!(
                r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:{}",
                "annotations":{{"org.opencontainers.image.ref.name":"{name}"}},
                "platform":{{"architecture":"{}","os":"{os}"}}}}"#,
                "a".repeat(64),
                if std::env::consts::ARCH == "x86_64" { "amd64" } else { "arm64" }
            )
        };
        let index = |all: &[String]| format!(r#"{{"manifests":[{}]}}"#, all.join(","));
        let two = index(&[one("a", "linux"), one("b", "linux"), one("a", "windows")]);
        assert!(matches!(choose(two.as_bytes(), Some("a")).unwrap(), Chosen::Manifest(_)));
        for (text, reference, expected) in [
            (two.as_str(), None, "2 images"),
            (two.as_str(), Some("c"), "no image"),
            ("{}", None, "its index is wrong"),
            ("[", None, "its index is wrong"),
        ] {
            let error = choose(text.as_bytes(), reference).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
