//! Passes a binary the list of walls to disable. A release of belljar contains this crate, for its self-test, and must not even
//! contain the name of that variable.

use std::process::Command;

/// Disables these walls in the command, if there are any.
#[cfg(feature = "mutation")]
pub(crate) fn disable_walls(command: &mut Command, walls: &[String]) {
    if !walls.is_empty() {
        command.env("BELLJAR_TEST_WITHOUT", walls.join(","));
    }
}

/// Does nothing: a release disables no walls.
#[cfg(not(feature = "mutation"))]
pub(crate) const fn disable_walls(_: &mut Command, _: &[String]) {}
