//! Tells a binary which walls to leave out. A release of belljar has this crate in it, for its self-test, and must not even
//! hold the name by which that is asked for.

use std::process::Command;

/// Has these walls left out, if there are any.
#[cfg(feature = "mutation")]
pub(crate) fn leave_out(command: &mut Command, walls: &[String]) {
    if !walls.is_empty() {
        command.env("BELLJAR_TEST_WITHOUT", walls.join(","));
    }
}

/// Nothing is left out of a release.
#[cfg(not(feature = "mutation"))]
pub(crate) const fn leave_out(_: &mut Command, _: &[String]) {}
