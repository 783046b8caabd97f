//! Access to private parsers, for the checks of `belljar-fuzz`. Not part of any release.

use std::path::{Path, PathBuf};

use crate::cgroup::{self, CgroupLayout};
use crate::seccomp::interpreter::{Call, run, value};
use crate::seccomp::{Action, Program};

/// Detects the layout from a mount table and a process's own groups, on a machine on which every directory is writable, or
/// none is.
#[must_use]
pub fn cgroup_layout(
    mountinfo: &str,
    own: &str,
    base: Option<&Path>,
    privileged: bool,
    writable: bool,
) -> CgroupLayout {
    cgroup::fuzzing::layout(mountinfo, own, base, privileged, writable)
}

/// Parses the root and the mount point of a hierarchy from a line of the mount table.
#[must_use]
pub fn cgroup_mount(line: &str) -> Option<(PathBuf, PathBuf)> {
    cgroup::fuzzing::mount(line)
}

/// Parses a number in a file of a control group: the whole file, or the line that begins with `name`.
#[must_use]
pub fn cgroup_number(text: &str, name: Option<&str>) -> Option<u64> {
    cgroup::fuzzing::number_in(text, name)
}

/// Returns the filter's return value for a call, as the kernel would run it.
#[must_use]
pub fn filter_answer(program: &Program, arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
    run(&program.instructions, &Call { number, arch, arguments }).value
}

/// Returns the return value of a filter that stands for `action`.
#[must_use]
pub fn answer_for(action: Action) -> u32 {
    value(action)
}
