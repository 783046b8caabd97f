//! The built-in tools.

mod claude;
mod code;
mod codex;
mod command;
mod files;
mod patch;
mod sandboxes;
pub(super) mod stored;

use super::call::{BuiltIn, Tool};

/// Name of the tool that ends a sandbox.
pub(super) const KILL: &str = <sandboxes::Kill as Tool>::NAME;

/// Belljar's own tools, in the order in which they are listed.
pub(super) const DEFAULT: &[BuiltIn] = &[
    BuiltIn::of::<code::RunCode>(),
    BuiltIn::of::<command::RunCommand>(),
    BuiltIn::of::<files::ReadFile>(),
    BuiltIn::of::<files::WriteFile>(),
    BuiltIn::of::<files::ListDirectory>(),
    BuiltIn::of::<sandboxes::Create>(),
    BuiltIn::of::<sandboxes::List>(),
    BuiltIn::of::<sandboxes::Kill>(),
    BuiltIn::of::<sandboxes::PublishPort>(),
];

/// The profile `claude`.
pub(super) const CLAUDE: &[BuiltIn] = &[
    BuiltIn::of::<claude::Bash>(),
    BuiltIn::of::<claude::Read>(),
    BuiltIn::of::<claude::Write>(),
    BuiltIn::of::<claude::Edit>(),
    BuiltIn::of::<claude::Glob>(),
    BuiltIn::of::<claude::Grep>(),
];

/// The profile `codex`.
pub(super) const CODEX: &[BuiltIn] = &[
    BuiltIn::of::<codex::ExecCommand>(),
    BuiltIn::of::<codex::WriteStdin>(),
    BuiltIn::of::<codex::ApplyPatch>(),
    BuiltIn::of::<codex::ViewImage>(),
];

/// Applies the changes of files that exist in a patch, all to the same text. Returns the lines before and after, and how many the patch
/// adds and removes.
///
/// # Errors
/// Fails if the patch cannot be parsed or applied.
#[cfg(feature = "fuzzing")]
pub fn patch_for_fuzzing(patch: &str, text: &str) -> Result<[usize; 4], String> {
    let mut all = [0; 4];
    for change in patch::parse(patch)? {
        if let patch::Change::Update { hunks, .. } = change {
            let patched = patch::apply(text, &hunks, usize::MAX)?;
            let (added, removed) = patch::counts(&hunks);
            for (sum, count) in all.iter_mut().zip([
                text.split_terminator('\n').count(),
                patched.split_terminator('\n').count(),
                added,
                removed,
            ]) {
                *sum += count;
            }
        }
    }
    Ok(all)
}
