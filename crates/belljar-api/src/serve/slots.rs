//! How many connections there may be, in all and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Counts connections.
#[derive(Clone)]
pub(super) struct Slots {
    inner: Arc<Inner>,
}

struct Inner {
    most: usize,
    most_per_client: usize,
    open: Mutex<Open>,
    cut: CancellationToken,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// One connection. It counts for as long as this is held.
pub(super) struct Slot {
    inner: Arc<Inner>,
    client: Option<IpAddr>,
}

impl Slots {
    pub(super) fn new(most: usize, most_per_client: usize) -> Self {
        let inner = Inner { most, most_per_client, open: Mutex::default(), cut: CancellationToken::new() };
        Self { inner: Arc::new(inner) }
    }

    /// Room for one more, if there is.
    pub(super) fn take(&self, client: Option<IpAddr>) -> Option<Slot> {
        let mut open = self.inner.open();
        if open.all >= self.inner.most {
            return None;
        }
        if let Some(client) = client {
            let count = open.by_client.entry(client).or_default();
            if *count >= self.inner.most_per_client {
                return None;
            }
            *count += 1;
        }
        open.all += 1;
        Some(Slot { inner: Arc::clone(&self.inner), client })
    }

    /// Ends all connections at once.
    pub(super) fn cut(&self) {
        self.inner.cut.cancel();
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Runs a connection in this slot, until it is through or all are cut off.
    pub(super) async fn run(self, connection: impl Future<Output = ()>) {
        tokio::select! {
            () = connection => {}
            () = self.inner.cut.cancelled() => {}
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.inner.open();
        open.all = open.all.saturating_sub(1);
        let Some(client) = self.client else { return };
        if let Some(count) = open.by_client.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_bounded() {
        let slots = Slots::new(3, 2);
        let client = |last| Some(IpAddr::from([192, 0, 2, last]));
        let first = slots.take(client(1)).unwrap();
        let _second = slots.take(client(1)).unwrap();
        assert!(slots.take(client(1)).is_none());
        let _third = slots.take(client(2)).unwrap();
        assert!(slots.take(client(3)).is_none());
        assert!(slots.take(None).is_none());
        drop(first);
        assert!(slots.take(client(1)).is_some());
        assert_eq!(slots.inner.open().by_client.len(), 2);
    }
}
