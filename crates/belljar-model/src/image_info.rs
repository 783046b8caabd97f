//! Images that templates are made of, as people see them.

use serde::{Deserialize, Serialize};

/// An image that a template was made of, and its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageInfo {
    /// Digest of its manifest: `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Whether it was imported from a file, so that its name is not looked up at a registry.
    #[serde(default)]
    pub imported: bool,
    /// Its layers, the lowest first.
    #[serde(default)]
    pub layers: Vec<ImageLayer>,
    /// `ENV`, each as `NAME=value`: variables of its sandboxes.
    #[serde(default)]
    pub env: Vec<String>,
    /// `WORKDIR`: the directory of steps of templates that are based on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// `USER`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `ENTRYPOINT`.
    #[serde(default)]
    pub entrypoint: Vec<String>,
    /// `CMD`.
    #[serde(default)]
    pub cmd: Vec<String>,
    /// `VOLUME`.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// `EXPOSE`.
    #[serde(default)]
    pub ports: Vec<String>,
    /// `STOPSIGNAL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Which of these have no effect on its sandboxes, such as `ENTRYPOINT`. Of `USER`, only the variable of that name has one.
    #[serde(default)]
    pub ignored: Vec<String>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageLayer {
    /// Digest of the layer as the image has it: `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Its size in bytes, as the image has it; absent if the image does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl ImageInfo {
    /// Returns the settings that are given and have no effect, by their names in a Dockerfile.
    #[must_use]
    pub fn find_ignored(&self) -> Vec<String> {
        let all = [
            ("USER", self.user.is_some()),
            ("ENTRYPOINT", !self.entrypoint.is_empty()),
            ("CMD", !self.cmd.is_empty()),
            ("VOLUME", !self.volumes.is_empty()),
            ("EXPOSE", !self.ports.is_empty()),
            ("STOPSIGNAL", self.stop_signal.is_some()),
        ];
        all.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name.to_owned()).collect()
    }
}
