//! Volumes.

use std::str::FromStr as _;

use belljar_keeper::NewVolume;
use belljar_model::{ByteSize, VolumeFile, VolumeMount};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Scalar;
use crate::problem::Problem;

/// A request for a new volume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewVolume, example = json!({"name": "data", "size": "64m"}))]
pub(crate) struct NewVolumeBody {
    /// Name, unique in the tenant, and not in the form of an id.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,128}$")]
    name: String,
    /// Size from 16 MiB to 16 TiB, reserved on the server's disk at once. The operator's default if not given.
    #[serde(default)]
    size: Option<Scalar>,
}

impl NewVolumeBody {
    pub(crate) fn into_request(self) -> Result<NewVolume, Problem> {
        let refused = |size: &str| {
            Problem::field(
                "size",
                format!("{size:?} is not allowed; give a number of bytes or a text such as 1g"),
            )
        };
        let bytes =
            |size: Scalar| ByteSize::from_str(&size.0).map(ByteSize::bytes).map_err(|_| refused(&size.0));
        Ok(NewVolume { name: self.name, bytes: self.size.map(bytes).transpose()? })
    }
}

/// A volume for a sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = VolumeMount)]
pub(crate) struct VolumeMountBody {
    /// The volume, by its name or id.
    #[schema(example = "data")]
    name: String,
    /// Absolute path in the sandbox.
    #[schema(example = "/mnt/data")]
    path: String,
    /// `rw` or `ro`. `rw` if not given.
    #[serde(default)]
    #[schema(pattern = "^r[ow]$", example = "rw")]
    mode: Option<String>,
}

impl From<VolumeMountBody> for VolumeFile {
    fn from(VolumeMountBody { name, path, mode }: VolumeMountBody) -> Self {
        Self { name, path, mode }
    }
}

/// A volume that a sandbox mounts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MountedVolume)]
pub(crate) struct MountedVolumeBody {
    /// Id.
    id: String,
    /// Name.
    name: String,
    /// Path in the sandbox.
    path: String,
    /// `rw` or `ro`.
    #[schema(pattern = "^r[ow]$")]
    mode: &'static str,
}

impl From<&VolumeMount> for MountedVolumeBody {
    fn from(volume: &VolumeMount) -> Self {
        Self {
            id: volume.image.as_ref().map(|image| image.id.to_string()).unwrap_or_default(),
            name: volume.name.clone(),
            path: volume.path.to_string_lossy().into_owned(),
            mode: volume.mode.as_str(),
        }
    }
}
