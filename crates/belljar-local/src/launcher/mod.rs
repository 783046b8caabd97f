//! The launcher: a small process that launches sandboxes and holds them, so that a server can be killed, restarted or
//! upgraded while they live on, and need not fork itself.
//!
//! ```text
//! server ──frames over a Unix socket──► launcher ──clone──► supervisor ──clone──► first process (the guest)
//!   │                                      │ control socket: connections, one a message ────────▲
//!   └──── streams that the launcher passed on: the guest's traffic goes straight ───────────────┘
//!
//!  no client and no sandbox ──linger──► exit        shut_down, SIGTERM ──► end all, exit
//!  launcher killed ──► each supervisor sees its end, and takes its sandbox away
//! ```
//!
//! It has one thread, always: what it forks must be small. It takes orders from its own user only.

mod client;
mod engine;
mod frame;
mod held;
mod link;
mod messages;
mod place;
mod server;
mod start;
mod walls;
mod wire_error;

pub use engine::{LauncherConfig, LauncherEngine};

/// The generation of the protocol between server and launcher. A launcher outlives the server that started it, so a newer
/// server adapts: what an older launcher cannot do is refused by name.
pub const LAUNCHER_GENERATION: u32 = 6;

/// The first argument by which this program knows that it is to be the launcher.
const ARGUMENT: &str = "launcher";

/// Becomes the launcher, and never returns, if this process was started as one. Call it at the very beginning of `main`,
/// right after `belljar_guest::enter`: it must never have a second thread.
pub fn enter_launcher() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(std::ffi::OsStr::new(ARGUMENT)) {
        std::process::exit(start::main(arguments));
    }
}
