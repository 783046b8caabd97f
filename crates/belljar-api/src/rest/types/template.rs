//! Templates.

use std::collections::BTreeMap;

use belljar_keeper::{TemplateInfo, TemplateStep};
use belljar_model::ImageInfo;
use serde::Serialize;
use utoipa::ToSchema;

use super::time;

/// A template that sandboxes can start from.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TemplateInfo)]
pub(crate) struct TemplateInfoBody {
    /// Its id.
    id: String,
    /// Its name.
    name: Option<String>,
    /// `builtin`, `snapshot` or `built`.
    kind: &'static str,
    /// Base of its files: `host`, the machine's own file system, or `own`, none.
    base: &'static str,
    /// Modules that a pre-warmed interpreter of it has imported.
    warm: Vec<String>,
    /// Bytes on disk.
    bytes: u64,
    /// SHA-256 of its files, in hexadecimal.
    digest: String,
    /// Time of its creation.
    #[schema(format = DateTime)]
    created_at: String,
    /// The sandbox that it was created from.
    source: Option<String>,
    /// Description.
    note: Option<String>,
    /// Name of the template that it is based on, if its file names one.
    parent: Option<String>,
    /// Steps of its file, in order.
    steps: Vec<TemplateStep>,
    /// Limits of its sandboxes, where the request sets none: name and value, such as `memory` and `1 GiB`.
    limits: BTreeMap<String, String>,
    /// Environment variables of its sandboxes.
    env: BTreeMap<String, String>,
    /// Whether its sandboxes are machines.
    machine: bool,
    /// Command that is started in each sandbox, and keeps running.
    start: Option<String>,
    /// Command that succeeds once a sandbox is ready for use.
    ready: Option<String>,
    /// Directory of `start` and `ready`.
    workdir: Option<String>,
    /// The image that it was made of, if its file is based on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<ImageInfo>,
}

impl From<TemplateInfo> for TemplateInfoBody {
    fn from(info: TemplateInfo) -> Self {
        Self {
            id: info.id,
            name: info.name,
            kind: info.kind.as_str(),
            base: info.base,
            warm: info.warm,
            bytes: info.bytes,
            digest: info.digest,
            created_at: time(info.created_at),
            source: info.source,
            note: info.note,
            parent: info.parent,
            steps: info.steps,
            limits: info.limits,
            env: info.env,
            machine: info.machine,
            start: info.start,
            ready: info.ready,
            workdir: info.workdir,
            image: info.image,
        }
    }
}
