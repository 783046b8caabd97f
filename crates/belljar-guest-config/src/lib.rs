//! The contract between a host and the guest of its sandboxes: the guest's configuration, its start and the exit statuses of a
//! failed start, and its build id.

mod config;
mod hello;

pub use config::{Domain, GuestConfig, MachineUser, OnHostLoss, WarmParentConfig, WatchedLimits};
pub use hello::{GENERATION, Hello, Welcome};

/// The build id that this program and the guest's program must share, as 40 hexadecimal digits: a digest of the guest's sources,
/// the versions of its dependencies, and its features. The guest's program carries it in `.note.gnu.build-id`.
pub const BUILD_ID: &str = env!("BELLJAR_GUEST_BUILD_ID");

/// The file name of the guest's program.
pub const GUEST_PROGRAM: &str = "belljar-guest";

/// First argument of a program that runs as the guest.
pub const GUEST_ARGUMENT: &str = "guest";

/// Second argument of a guest that listens on a Unix socket, before the socket's path.
pub const LISTEN_ARGUMENT: &str = "--listen";

/// First argument of a program that connects its standard streams to a guest's Unix socket, whose path is the second one.
pub const BRIDGE_ARGUMENT: &str = "bridge";

/// First argument of a program that runs as the parent of warm interpreters.
pub const WARM_PARENT_ARGUMENT: &str = "warm-parent";

/// Exit status of a guest that could not start.
pub const GUEST_FAILED: i32 = 125;

/// Exit status of a guest that could not make the Landlock domain of user code.
pub const GUEST_WITHOUT_LANDLOCK: i32 = 121;

/// Exit status of a guest that could not set up another of its walls.
pub const GUEST_WITHOUT_SETUP: i32 = 122;

/// Returns the number of the guest's threads, each of which counts against a process limit.
///
/// As the first process of its namespace it has one more, which starts user code; see `spawner.rs` of belljar-guest. It has not, as long
/// as it serves one program ([`GuestConfig::direct`]).
#[must_use]
pub const fn guest_threads(is_first_process: bool, is_direct: bool) -> u32 {
    if is_first_process && !is_direct { 2 } else { 1 }
}
