//! Volumes.

use belljar_keeper::NewVolume;
use belljar_model::{ByteSize, Scalar};
use serde::Deserialize;
use utoipa::ToSchema;

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
    #[schema(value_type = Option<Scalar>)]
    size: Option<ByteSize>,
}

impl NewVolumeBody {
    pub(crate) fn into_request(self) -> NewVolume {
        NewVolume { name: self.name, bytes: self.size.map(ByteSize::bytes) }
    }
}
