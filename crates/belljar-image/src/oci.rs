//! Parsing of an OCI image layout: the layers of an image, and its settings for containers.

use std::collections::BTreeMap;

use belljar_model::{ImageInfo, ImageLayer};
use serde::Deserialize;

use crate::definition::sanitize;
use crate::error::BuildError;

/// Limit of a document, in bytes.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 4 << 20;
/// Limit of layers in an image.
const MAX_LAYERS: usize = 256;
/// Limit of texts in a list of an image's configuration that is kept, and of a text, in characters.
const MAX_TEXTS: (usize, usize) = (128, 1024);

/// Media types of the image specification.
pub(crate) const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const GZIP_LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A reference to a blob of the layout.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    /// Its size in bytes.
    pub(crate) size: Option<u64>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Platform {
    fn is_this_machine(&self) -> bool {
        self.os == "linux" && self.architecture == architecture()
    }
}

/// Returns this machine's architecture, as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
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
struct ConfigFile {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    config: Option<Config>,
    rootfs: Option<RootFs>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// Settings of an image for its containers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Config {
    pub(crate) env: Option<Vec<String>>,
    pub(crate) user: Option<String>,
    pub(crate) working_dir: Option<String>,
    entrypoint: Option<Words>,
    cmd: Option<Words>,
    volumes: Option<BTreeMap<String, serde_json::Value>>,
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
    stop_signal: Option<String>,
}

/// The words of a command. Docker once wrote a single one as a text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Words {
    Several(Vec<String>),
    One(String),
}

impl Words {
    fn words(&self) -> &[String] {
        match self {
            Self::Several(words) => words,
            Self::One(word) => std::slice::from_ref(word),
        }
    }
}

impl Config {
    /// Returns what is shown of an image, of which nothing can be longer than what people read.
    pub(crate) fn describe(&self, digest: &str, layers: &[Descriptor]) -> ImageInfo {
        let text = |text: &String| sanitize(text, MAX_TEXTS.1);
        let texts = |list: &[String]| -> Vec<String> { list.iter().take(MAX_TEXTS.0).map(text).collect() };
        let words =
            |words: &Option<Words>| words.as_ref().map(|words| texts(words.words())).unwrap_or_default();
        let keys = |map: &Option<BTreeMap<String, serde_json::Value>>| -> Vec<String> {
            map.iter().flat_map(BTreeMap::keys).take(MAX_TEXTS.0).map(text).collect()
        };
        let given = |value: &Option<String>| value.as_ref().filter(|value| !value.is_empty()).map(text);
        let mut info = ImageInfo {
            digest: digest.to_owned(),
            layers: layers
                .iter()
                .map(|layer| ImageLayer { digest: layer.digest.clone(), bytes: layer.size })
                .collect(),
            env: texts(self.env.as_deref().unwrap_or_default()),
            user: given(&self.user),
            workdir: given(&self.working_dir),
            entrypoint: words(&self.entrypoint),
            cmd: words(&self.cmd),
            volumes: keys(&self.volumes),
            ports: keys(&self.exposed_ports),
            stop_signal: given(&self.stop_signal),
            ..ImageInfo::default()
        };
        info.ignored = info.find_ignored();
        info
    }
}

pub(crate) fn invalid(reason: impl Into<String>) -> BuildError {
    BuildError::input("image", sanitize(&reason.into(), 1000))
}

impl Descriptor {
    /// Returns a descriptor of a blob with this SHA-256, as it is written.
    pub(crate) fn json(media_type: &str, hex: &str, bytes: u64) -> serde_json::Value {
        serde_json::json!({ "mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes })
    }

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

    /// Returns the image's name, if the layout gives it a whole one; `ref.name` is often a tag alone.
    pub(crate) fn name(&self) -> Option<&str> {
        let named = self.annotations.get("io.containerd.image.name");
        let reference = self.reference().filter(|name| name.contains([':', '/']));
        named.map(String::as_str).or(reference)
    }

    fn reference(&self) -> Option<&str> {
        self.annotations.get("org.opencontainers.image.ref.name").map(String::as_str)
    }

    fn is_for_this_machine(&self) -> bool {
        self.platform.as_ref().is_none_or(Platform::is_this_machine)
    }

    pub(crate) fn is_index(&self) -> bool {
        self.media_type.ends_with("image.index.v1+json") || self.media_type.ends_with("manifest.list.v2+json")
    }
}

/// The selected entry of an index: another index, or a manifest.
pub(crate) enum Chosen {
    Index(Descriptor),
    Manifest(Descriptor),
}

/// Returns the images of an index for this machine's architecture. Statements about other entries are no images.
pub(crate) fn images_of(text: &[u8]) -> Result<Vec<Descriptor>, BuildError> {
    let index: Index =
        serde_json::from_slice(text).map_err(|error| invalid(format!("its index is invalid: {error}")))?;
    let offered = index.manifests.len();
    let ours: Vec<_> = index.manifests.into_iter().filter(Descriptor::is_for_this_machine).collect();
    if ours.is_empty() && offered > 0 {
        return Err(invalid(format!("no image matches linux/{}", architecture())));
    }
    Ok(ours)
}

/// Selects from an index the image that matches `reference` and this machine's architecture.
pub(crate) fn choose(text: &[u8], reference: Option<&str>) -> Result<Chosen, BuildError> {
    let matches_reference = |one: &Descriptor| {
        reference.is_none_or(|reference| one.reference() == Some(reference) || one.digest == reference)
    };
    let found: Vec<Descriptor> = images_of(text)?.into_iter().filter(matches_reference).collect();
    match found.as_slice() {
        [one] if one.is_index() => Ok(Chosen::Index(one.clone())),
        [one] => Ok(Chosen::Manifest(one.clone())),
        [] => Err(invalid(format!("no image matches the reference and linux/{}", architecture()))),
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

/// Parses the configuration of an image, which has to be one for this machine, if it says for which it is.
pub(crate) fn parse_config(text: &[u8]) -> Result<Config, BuildError> {
    Ok(config_file(text)?.config.unwrap_or_default())
}

/// Parses the digests of an image's layers, uncompressed, the lowest first.
pub(crate) fn diff_ids(config: &[u8]) -> Result<Vec<String>, BuildError> {
    Ok(config_file(config)?.rootfs.map(|rootfs| rootfs.diff_ids).unwrap_or_default())
}

fn config_file(text: &[u8]) -> Result<ConfigFile, BuildError> {
    let file: ConfigFile = serde_json::from_slice(text)
        .map_err(|error| invalid(format!("its configuration is invalid: {error}")))?;
    let fits = |given: &str, ours: &str| given.is_empty() || given == ours;
    if !fits(&file.architecture, architecture()) || !fits(&file.os, "linux") {
        let (os, other) = (&file.os, &file.architecture);
        return Err(invalid(format!("it is for {os}/{other}, and this machine is linux/{}", architecture())));
    }
    Ok(file)
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
            size: None,
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
    fn configuration_is_described_and_of_this_machine() {
        let text = br#"{"config":{"Env":["A=1"],"User":"app","WorkingDir":"/srv","Entrypoint":["/run"],"Cmd":["x\u0007"],
            "Volumes":{"/data":{}},"ExposedPorts":{"80/tcp":{}},"StopSignal":"SIGINT"}}"#;
        let info = parse_config(text).unwrap().describe("sha256:0", &[]);
        assert_eq!((info.user.as_deref(), info.workdir.as_deref()), (Some("app"), Some("/srv")));
        assert_eq!(info.cmd, ["x\u{fffd}"]);
        assert_eq!(info.ignored, ["USER", "ENTRYPOINT", "CMD", "VOLUME", "EXPOSE", "STOPSIGNAL"]);
        assert_eq!(parse_config(b"{}").unwrap().describe("", &[]).ignored, [""; 0]);
        let ours = format!(r#"{{"architecture":"{}","os":"linux"}}"#, architecture());
        assert_eq!(parse_config(ours.as_bytes()).unwrap(), Config::default());
        for other in
            [r#"{"architecture":"s390x","os":"linux"}"#, r#"{"architecture":"amd64","os":"windows"}"#]
        {
            let error = parse_config(other.as_bytes()).unwrap_err().to_string();
            assert!(
                error.starts_with("image: it is for ") && error.contains("this machine is linux/"),
                "{error}"
            );
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
