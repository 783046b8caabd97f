//! What engines share whose sandboxes run outside this process, under a daemon or a program of its own, with a guest that listens.

mod launch;
mod walls;

pub use launch::{Launches, Launching, New, Record, adopt, guest_config, random, start};
pub use walls::{Backend, NetworkControl, deadline_after, deadline_passed};
