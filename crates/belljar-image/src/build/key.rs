//! Cache keys of bases and steps: everything that determines their result.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::BuildInput;
use crate::definition::{Step, StepKind};
use crate::error::BuildError;
use crate::steps;

/// Part of every cache key. Changing it invalidates everything that was built before.
pub(super) const GENERATION: &str = "belljar template 3";

/// Limit of files in a folder of the mirror.
const MAX_MIRROR_FILES: usize = 200_000;

/// Returns the key of the result of applying `text` to the result with key `key`.
pub(super) fn next_key(key: &str, text: &str) -> String {
    let mut hash = Sha256::new();
    hash.update((key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(text);
    hex::encode(hash.finalize())
}

/// Returns the folder of the mirror for a kind of step, named after the kind, and the script that installs its packages.
pub(super) fn mirror_folder(kind: &StepKind) -> Option<(&'static str, &'static str)> {
    match kind {
        StepKind::Apt(_) => Some(("apt", steps::APT)),
        StepKind::Pip(_) => Some(("pip", steps::PIP)),
        StepKind::Npm(_) => Some(("npm", steps::NPM)),
        _ => None,
    }
}

/// Reports whether a step installs from the mirror.
pub(super) fn uses_mirror(step: &Step) -> bool {
    mirror_folder(&step.kind).is_some() && !step.has_network()
}

/// Returns everything that determines the result of a step, except whose it is. A network contributes its policy, so that a result from a wider
/// policy is not reused with a narrower one. The content of registries is unknown beforehand; `fresh` fetches it again.
pub(super) fn step_text(step: &Step, input: &BuildInput) -> Result<String, BuildError> {
    let kind = &step.kind;
    let mut text = format!("{kind:?}");
    if let Some((folder, script)) = mirror_folder(kind) {
        text = format!("{text} {script}");
        if !step.has_network() {
            text = format!("{text} {}", mirror_digest(input.mirror.as_deref(), folder)?);
        }
    }
    if step.has_network() {
        text = format!("{text} {}", step.network.canonical_json());
    }
    if !step.env.is_empty() {
        text = format!("{text} env {:?}", step.env);
    }
    if let StepKind::Copy(copy) = kind {
        for (name, (mode, content)) in &input.files {
            if copy.target(name).is_some() {
                text = format!("{text} {name:?} {mode:o} {}", hex::encode(Sha256::digest(content)));
            }
        }
    }
    Ok(format!("{text} {} {}", steps::FINISH, steps::COMPILE))
}

/// Returns a digest of the names and sizes in a folder of the mirror. Packages of one name and version do not change.
pub(super) fn mirror_digest(mirror: Option<&Path>, folder: &str) -> Result<String, BuildError> {
    let Some(mirror) = mirror else { return Ok(String::new()) };
    let mut files = BTreeMap::new();
    let mut pending = vec![mirror.join(folder)];
    while let Some(dir) = pending.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            // The step itself reports the missing folder.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(BuildError::File { action: "list", path: dir, source }),
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                pending.push(entry.path());
            }
            files.insert(entry.path(), metadata.len());
            if files.len() > MAX_MIRROR_FILES {
                return Err(BuildError::input(
                    "mirror",
                    format!("it has more than {MAX_MIRROR_FILES} files"),
                ));
            }
        }
    }
    let mut hash = Sha256::new();
    for (path, length) in files {
        let name = path.strip_prefix(mirror).unwrap_or(&path);
        hash.update(format!("{name:?} {length}\n"));
    }
    Ok(hex::encode(hash.finalize()))
}

/// Returns a digest that identifies the machine's own tree: of its packages, or else of its release.
pub(super) fn host_digest() -> String {
    let text = std::fs::read("/var/lib/dpkg/status").or_else(|_| std::fs::read("/etc/os-release"));
    hex::encode(Sha256::digest(text.unwrap_or_default()))
}
