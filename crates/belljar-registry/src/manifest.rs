//! Manifests: of an image, and of an image for several systems.

use serde::Deserialize;

use crate::error::{RegistryError, shown};
use belljar_model::ImageReference;

/// Types of a list of manifests, and of a manifest: of the image specification, and Docker's.
pub(crate) const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFEST_TYPES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];

/// Returns the header `Accept` of a request for a manifest.
pub(crate) fn accept() -> String {
    [INDEX_TYPES, MANIFEST_TYPES].concat().join(", ")
}

/// A blob of an image.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blob {
    /// Its type.
    #[serde(default)]
    pub media_type: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Its size in bytes, compressed.
    pub size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    urls: Vec<String>,
}

impl Blob {
    /// Returns the name of its file in a layout.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.digest.strip_prefix("sha256:").unwrap_or_default()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    manifests: Option<Vec<Blob>>,
    config: Option<Blob>,
    #[serde(default)]
    layers: Vec<Blob>,
}

/// An image in a registry, for this machine.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The image, by the digest of its manifest.
    pub digest: String,
    /// The manifest, as the digest says.
    pub(crate) manifest: Vec<u8>,
    /// Its type.
    pub(crate) media_type: String,
    /// Settings of its containers.
    pub config: Blob,
    /// Its layers, the lowest first.
    pub layers: Vec<Blob>,
}

impl Resolved {
    /// Returns the size of all blobs together, compressed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).fold(self.config.size, u64::saturating_add)
    }
}

/// What a manifest is.
pub(crate) enum Kind {
    /// A list, in which this is the one for this machine.
    Index(Blob),
    Image {
        config: Blob,
        layers: Vec<Blob>,
    },
}

/// Returns this machine's architecture, as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Parses a manifest. Every digest in it is one.
pub(crate) fn parse(
    reference: &ImageReference,
    text: &[u8],
    architecture: &str,
) -> Result<Kind, RegistryError> {
    let invalid = |what: String| RegistryError::Invalid { registry: reference.registry().to_owned(), what };
    let manifest: Manifest = serde_json::from_slice(text).map_err(|error| {
        invalid(format!("the manifest of {reference} cannot be read: {}", shown(&error.to_string())))
    })?;
    if manifest.schema_version == 1 {
        return Err(invalid(format!(
            "{reference} is in version 1 of the format, which registries no longer accept"
        )));
    }
    let check = |blob: &Blob| {
        if !ImageReference::is_digest(&blob.digest) {
            return Err(invalid(format!("{:?} is not a SHA-256 digest", shown(&blob.digest))));
        }
        Ok(())
    };
    if let Some(manifests) = manifest.manifests {
        let is_ours = |blob: &&Blob| {
            blob.platform.as_ref().is_none_or(|one| one.os == "linux" && one.architecture == architecture)
        };
        let Some(found) = manifests.iter().find(is_ours) else {
            let name = |one: &Platform| shown(&format!("{}/{}", one.os, one.architecture));
            let mut offered: Vec<String> =
                manifests.iter().filter_map(|blob| blob.platform.as_ref().map(name)).collect();
            // Statements about other entries have none.
            offered.retain(|one| one != "unknown/unknown");
            offered.sort_unstable();
            offered.dedup();
            let wanted = format!("linux/{architecture}");
            return Err(RegistryError::Platform { reference: reference.to_string(), wanted, offered });
        };
        check(found)?;
        return Ok(Kind::Index(found.clone()));
    }
    let config =
        manifest.config.ok_or_else(|| invalid(format!("the manifest of {reference} has no config")))?;
    for blob in manifest.layers.iter().chain([&config]) {
        check(blob)?;
    }
    if let Some(foreign) = manifest.layers.iter().find(|layer| !layer.urls.is_empty()) {
        return Err(invalid(format!("the layer {} is elsewhere, which is not supported", foreign.digest)));
    }
    Ok(Kind::Image { config, layers: manifest.layers })
}

/// Reads a type as the image specification names it.
pub(crate) fn media_type(given: Option<&str>) -> String {
    let given = given.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let known = [INDEX_TYPES, MANIFEST_TYPES].concat().into_iter().find(|known| *known == given);
    known.unwrap_or(MANIFEST_TYPES[0]).to_owned()
}
