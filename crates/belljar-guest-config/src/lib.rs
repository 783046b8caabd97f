//! What a host and the guest of its sandboxes must agree on: the guest's configuration, how it is started and how it says that it
//! could not start, and the build that it is of.

mod config;

pub use config::{Domain, GuestConfig, WarmParentConfig, WatchedLimits, WhenAlone};

/// The build that this program and the guest's program must share, as 40 hexadecimal digits: a digest of the guest's sources, of
/// the versions of its dependencies, and of its features. The guest's program has it as its build id (`.note.gnu.build-id`).
pub const BUILD_ID: &str = env!("BELLJAR_GUEST_BUILD_ID");

/// The file name of the guest's program.
pub const GUEST_PROGRAM: &str = "belljar-guest";

/// The first argument that makes a program the guest.
pub const GUEST_ARGUMENT: &str = "guest";

/// The first argument that makes a program the parent of warm interpreters.
pub const WARM_PARENT_ARGUMENT: &str = "warm-parent";

/// The exit status of a guest that could not start.
pub const GUEST_FAILED: i32 = 125;

/// The exit status of one that could not make the Landlock domain of user code.
pub const GUEST_WITHOUT_LANDLOCK: i32 = 121;

/// The exit status of one that could not build another of its walls.
pub const GUEST_WITHOUT_SETUP: i32 = 122;

/// How many threads the guest has, each of which counts against a limit of processes.
///
/// As the first process of its namespace it has one more, that starts user code; see `spawner.rs` of belljar-guest.
#[must_use]
pub const fn guest_threads(is_first_process: bool) -> u32 {
    if is_first_process { 2 } else { 1 }
}
