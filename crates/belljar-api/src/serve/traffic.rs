//! Counts of open and accepted connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Connection counts of a server at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Open connections, without those that were upgraded to a WebSocket or a tunnel.
    pub open: usize,
    /// Connections accepted since the start.
    pub accepted: u64,
}

/// Counter of connections.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    open: AtomicUsize,
    accepted: AtomicU64,
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Traffic>);

impl Traffic {
    /// Counts an accepted connection.
    pub(crate) fn begin(self: &Arc<Self>) -> OpenConnection {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Returns the current counts.
    pub(crate) fn now(&self) -> Connections {
        Connections {
            open: self.open.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_while_they_last() {
        let traffic = Arc::new(Traffic::default());
        let (first, second) = (traffic.begin(), traffic.begin());
        drop(first);
        assert_eq!(traffic.now(), Connections { open: 1, accepted: 2 });
        drop(second);
        assert_eq!(traffic.now(), Connections { open: 0, accepted: 2 });
    }
}
