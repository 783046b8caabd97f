//! Launcher: a small process that launches sandboxes and holds them, so that a server can be killed, restarted or upgraded
//! while they continue to run, and need not fork itself.
//!
//! ```text
//! server ──frames over a Unix socket──► launcher ──► fork server ──clone──► supervisor ──clone──► first process (the guest)
//!   │                                      │ control socket: connections, one a message ────────▲
//!   └──── streams that the launcher passed on: the guest's traffic goes straight ───────────────┘
//!
//!  no client and no sandbox ──linger──► exit        shut_down, SIGTERM ──► end all, exit
//!  launcher killed ──► each supervisor detects it, and removes its sandbox
//! ```
//!
//! It is always single-threaded. It accepts requests from its own user only.

mod client;
mod engine;
mod frame;
mod link;
mod messages;
mod run_dir;
mod server;
mod start;
mod table;
mod walls;
mod wire_error;

pub use engine::{LauncherConfig, LauncherEngine};

use crate::forks::FORK_SERVER;

/// Generation of the protocol between server and launcher. A launcher outlives the server that started it, so a newer server
/// adapts: what an older launcher cannot do is refused by name.
pub const LAUNCHER_GENERATION: u32 = 8;

/// First argument that makes this program the launcher.
const ARGUMENT: &str = "launcher";

/// Becomes the launcher or its fork server, and never returns, if this process was started as one. Call it at the very beginning of `main`, right
/// after `belljar_guest::enter`: the process must never have a second thread.
pub fn enter_launcher() {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(ARGUMENT) => std::process::exit(start::main(arguments)),
        Some(FORK_SERVER) => std::process::exit(start::serve_forks()),
        _ => {}
    }
}
