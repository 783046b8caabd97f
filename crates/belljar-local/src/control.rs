//! Commands to the supervisor of a sandbox.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use belljar_linux::{CLEAN, KILL};
use parking_lot::Mutex;
use rustix::net::SendFlags;

/// Our end of the control socket, and the last command sent on it.
pub(crate) struct Control {
    socket: OwnedFd,
    sent: Mutex<Option<u8>>,
    /// Why this process ended the sandbox, if it did so by itself.
    pub(crate) reason: OnceLock<EndReason>,
}

/// Why this process ended a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// Its deadline has passed.
    Deadline,
    /// Connections that are not accepted held too much memory.
    Unaccepted,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, sent: Mutex::new(None), reason: OnceLock::new() }
    }

    /// Commands the supervisor to end the sandbox, unless the same or a stronger command was sent before.
    pub(crate) fn send(&self, byte: u8) {
        let mut sent = self.sent.lock();
        if sent.is_none() || (*sent == Some(KILL) && byte == CLEAN) {
            // A supervisor that is gone has removed everything.
            let _ = rustix::net::send(&self.socket, &[byte], SendFlags::NOSIGNAL);
            *sent = Some(byte);
        }
    }

    /// Ends the sandbox for a reason of its own.
    pub(crate) fn end_because(&self, reason: EndReason) {
        self.reason.get_or_init(|| reason);
        self.send(CLEAN);
    }
}
