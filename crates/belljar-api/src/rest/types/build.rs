//! Template builds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_keeper::{BuildEvent, BuildTemplate};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bytes::decode_base64;
use super::{Mode, objects};
use crate::problem::Problem;

/// Maximum number of files in a build.
const MAX_FILES: usize = 1000;

/// A template to build.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BuildTemplate, example = json!({"definition": "name = \"stats\"\nbase = \"host\"\n"}))]
pub(crate) struct BuildBody {
    /// The text of the template's file, in TOML.
    #[serde(default)]
    #[schema(required = true)]
    definition: String,
    /// The template's name, if not the one of the file. A built template of that name is replaced.
    name: Option<String>,
    /// A directory of packages on the server's machine. For keys with the role admin.
    mirror: Option<String>,
    /// An OCI image layout, or a tar of one, on the server's machine. For keys with the role admin.
    image: Option<String>,
    /// The files of `copy` steps.
    #[serde(default, deserialize_with = "objects")]
    files: Option<Vec<BuildFileBody>>,
    /// Whether steps run even if their results are cached.
    #[serde(default)]
    fresh: bool,
}

/// A file of a `copy` step.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BuildFile)]
pub(crate) struct BuildFileBody {
    /// Its name in the step, or a path below that.
    path: String,
    /// Its content, in base64.
    content_base64: String,
    /// Permission bits in octal. `0644` if not given.
    #[serde(default)]
    mode: Option<Mode>,
}

impl BuildBody {
    pub(crate) fn into_request(self) -> Result<BuildTemplate, Problem> {
        let sent = self.files.unwrap_or_default();
        let mut files = Vec::with_capacity(sent.len().min(MAX_FILES));
        for (index, file) in sent.into_iter().enumerate() {
            let mode = file.mode.map_or(DEFAULT_MODE, |mode| mode.0);
            let content = decode_base64(&format!("files[{index}].content_base64"), &file.content_base64)?;
            files.push((file.path, mode, content));
        }
        Ok(BuildTemplate {
            definition: check_definition(self.definition)?,
            name: self.name.map(|name| name.parse()).transpose()?,
            mirror: self.mirror.map(PathBuf::from),
            image: self.image.map(PathBuf::from),
            files: check_build_files(files)?,
            fresh: self.fresh,
        })
    }
}

/// Default permission bits of a file.
pub(crate) const DEFAULT_MODE: u32 = 0o644;

/// Validates the text of a template's file.
pub(crate) fn check_definition(text: String) -> Result<String, Problem> {
    if text.is_empty() {
        return Err(Problem::field("definition", "it is missing; give the text of a template's file"));
    }
    Ok(text)
}

/// Validates the files of `copy` steps: their names, permission bits and contents.
pub(crate) fn check_build_files(
    sent: Vec<(String, u32, Bytes)>,
) -> Result<BTreeMap<String, (u32, Bytes)>, Problem> {
    if sent.len() > MAX_FILES {
        return Err(Problem::field("files", format!("at most {MAX_FILES} are allowed")));
    }
    let mut files = BTreeMap::new();
    for (index, (path, mode, content)) in sent.into_iter().enumerate() {
        let parts = path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !parts || path.chars().any(char::is_control) || path.len() > 1024 {
            return Err(Problem::field(
                format!("files[{index}].path"),
                "give a relative path without .. or control characters",
            ));
        }
        if mode > 0o7777 {
            return Err(Problem::field(format!("files[{index}].mode"), "give permission bits up to 0o7777"));
        }
        files.insert(path, (mode, content));
    }
    Ok(files)
}

/// An event of a build.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum BuildEventBody {
    /// Start of a step.
    Step { number: usize, total: usize, kind: &'static str, summary: String, cached: bool },
    /// A line of the step's output.
    Log { number: usize, line: String },
    /// Bytes of the step's changes that have been packed so far.
    Packing { number: usize, bytes: u64 },
    /// Result of the step.
    Layer { number: usize, digest: String, bytes: u64 },
}

impl BuildEventBody {
    /// Returns the event's name and its data.
    pub(crate) fn from_event(event: BuildEvent) -> (&'static str, Self) {
        match event {
            BuildEvent::Step { number, total, kind, summary, cached } => {
                ("step", Self::Step { number, total, kind, summary, cached })
            }
            BuildEvent::Log { number, line } => ("log", Self::Log { number, line }),
            BuildEvent::Packing { number, bytes } => ("packing", Self::Packing { number, bytes }),
            BuildEvent::Layer { number, digest, bytes } => ("layer", Self::Layer { number, digest, bytes }),
        }
    }
}
