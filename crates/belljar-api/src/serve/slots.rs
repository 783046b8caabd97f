//! How many connections there may be, in all and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One in so many connections is kept for the server's own socket: 32 of 2048.
const RESERVED_PART: usize = 64;

/// Counts connections: those of all listeners of a server together.
#[derive(Clone)]
pub(crate) struct Slots {
    inner: Arc<Inner>,
}

struct Inner {
    most: usize,
    most_per_client: usize,
    open: Mutex<Open>,
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
    pub(crate) fn new(most: usize, most_per_client: usize) -> Self {
        let inner = Inner { most, most_per_client, open: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Room for one more, if there is. Whoever has no address comes by the server's own socket, and finds room when strangers
    /// have taken all that there is for them.
    pub(super) fn take(&self, client: Option<IpAddr>) -> Option<Slot> {
        let mut open = self.inner.open();
        let reserve = if client.is_some() { self.inner.most / RESERVED_PART } else { 0 };
        if open.all >= self.inner.most - reserve {
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
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn strangers_leave_room_for_the_operator() {
        let slots = Slots::new(128, 1000);
        let strangers: Vec<_> =
            std::iter::from_fn(|| slots.take(Some(IpAddr::from([192, 0, 2, 1])))).collect();
        assert_eq!(strangers.len(), 126);
        let operator: Vec<_> = std::iter::from_fn(|| slots.take(None)).collect();
        assert_eq!(operator.len(), 2);
    }
}
