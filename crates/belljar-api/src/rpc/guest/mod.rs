//! The guest's own services, forwarded.
//!
//! ```text
//!  caller ──► key, sandbox, slot ──► decoded, checked ───► guest
//!         ◄── errors converted ◄─────── decoded, bounded ◄──
//! ```
//!
//! Each message is decoded and encoded anew on its way, in both directions: nothing outside of the protocol passes, no
//! header of either side does, and no message exceeds the limit. A stream is read no faster than its reader consumes
//! it.

mod filesystem;
mod health;
mod interpreter;
mod ports;
mod process;
mod relay;
mod session;

pub(super) use filesystem::Filesystem;
pub(super) use health::Health;
pub(super) use interpreter::Interpreter;
pub(super) use ports::Ports;
pub(super) use process::Process;
pub(super) use session::Session;
