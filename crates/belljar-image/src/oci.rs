//! Parsing of an OCI image layout: the layers of an image, and its settings for containers.

use serde::Deserialize;

use crate::definition::sanitize;
use crate::error::BuildError;

/// Limit of a document, in bytes.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 4 << 20;
/// Limit of layers in an image.
const MAX_LAYERS: usize = 256;

/// A reference to a blob of the layout.
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

/// Settings of an image that apply to its sandboxes.
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

fn invalid(reason: impl Into<String>) -> BuildError {
    BuildError::input("image", sanitize(&reason.into(), 1000))
}

impl Descriptor {
    /// Returns the blob's file name below `blobs/sha256`: 64 hexadecimal digits and nothing else.
    pub(crate) fn hex(&self) -> Result<&str, BuildError> {
        let hex = self.digest.strip_prefix("sha256:").unwrap_or_default();
        let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if hex.len() == 64 && hex.bytes().all(digits) {
            return Ok(hex);
        }
        let shown: String = self.digest.chars().take(80).collect();
        Err(invalid(format!("invalid digest {shown:?}; only sha256 is supported")))
    }

    /// Returns the option with which tar reads this layer.
    pub(crate) fn tar_option(&self) -> Result<&'static str, BuildError> {
        match self.media_type.as_str() {
            kind if kind.ends_with("tar+gzip") || kind.ends_with("tar.gzip") => Ok("-z"),
            kind if kind.ends_with(".tar") => Ok(""),
            kind => {
                let shown: String = kind.chars().take(80).collect();
                Err(invalid(format!(
                    "a layer has the unsupported type {shown:?}; tar and tar+gzip are supported"
                )))
            }
        }
    }

    fn is_index(&self) -> bool {
        self.media_type.ends_with("image.index.v1+json") || self.media_type.ends_with("manifest.list.v2+json")
    }
}

/// The selected entry of an index: another index, or a manifest.
pub(crate) enum Chosen {
    Index(Descriptor),
    Manifest(Descriptor),
}

/// Selects from an index the image that matches `reference` and this machine's architecture.
pub(crate) fn choose(text: &[u8], reference: Option<&str>) -> Result<Chosen, BuildError> {
    let index: Index =
        serde_json::from_slice(text).map_err(|error| invalid(format!("its index is invalid: {error}")))?;
    let matches_reference = |one: &&Descriptor| {
        let name = one.annotations.get("org.opencontainers.image.ref.name").map(String::as_str);
        reference.is_none_or(|reference| name == Some(reference) || one.digest == reference)
    };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let matches_platform = |one: &&Descriptor| {
        one.platform
            .as_ref()
            .is_none_or(|platform| platform.os == "linux" && platform.architecture == architecture)
    };
    let found: Vec<&Descriptor> =
        index.manifests.iter().filter(matches_reference).filter(matches_platform).collect();
    match found.as_slice() {
        [one] if one.is_index() => Ok(Chosen::Index((*one).clone())),
        [one] => Ok(Chosen::Manifest((*one).clone())),
        [] => Err(invalid(format!("no image matches the reference and linux/{architecture}"))),
        many => Err(invalid(format!("{} images match; select one with `reference`", many.len()))),
    }
}

/// Parses a manifest into its configuration and its layers, the lowest layer first.
pub(crate) fn parse_manifest(text: &[u8]) -> Result<(Descriptor, Vec<Descriptor>), BuildError> {
    let manifest: Manifest =
        serde_json::from_slice(text).map_err(|error| invalid(format!("its manifest is invalid: {error}")))?;
    if manifest.layers.is_empty() || manifest.layers.len() > MAX_LAYERS {
        return Err(invalid(format!(
            "it has {} layers; 1 to {MAX_LAYERS} are allowed",
            manifest.layers.len()
        )));
    }
    for layer in &manifest.layers {
        layer.hex()?;
        layer.tar_option()?;
    }
    Ok((manifest.config, manifest.layers))
}

/// Parses the configuration of an image.
pub(crate) fn parse_config(text: &[u8]) -> Result<Config, BuildError> {
    let file: ConfigFile = serde_json::from_slice(text)
        .map_err(|error| invalid(format!("its configuration is invalid: {error}")))?;
    Ok(file.config.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_digests_are_refused() {
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
    fn image_is_selected_by_reference_and_platform() {
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
            ("{}", None, "its index is invalid"),
            ("[", None, "its index is invalid"),
        ] {
            let error = choose(text.as_bytes(), reference).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
