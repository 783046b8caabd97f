//! How many connections there may be, in all and from one address. Where there is no room for one more, the one gives way that has
//! been idle for the longest time.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use belljar_keeper::ServiceWall;
use parking_lot::{Mutex, MutexGuard};

use super::io::Activity;

/// How long a connection must have been idle to give way: a client that sends one request after another keeps it.
const MIN_IDLE: Duration = Duration::from_secs(1);

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
    /// By number, those that came first in front.
    connections: BTreeMap<u64, Known>,
    last: u64,
    by_client: HashMap<IpAddr, usize>,
}

/// A connection that counts.
struct Known {
    client: Option<IpAddr>,
    activity: Arc<Activity>,
}

/// One connection. It counts for as long as this is held, or until it gives way to another.
pub(super) struct Slot {
    inner: Arc<Inner>,
    number: u64,
}

impl Slots {
    pub(crate) fn new(most: usize, most_per_client: usize) -> Self {
        let inner = Inner { most, most_per_client, open: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Room for one more, if there is. Whoever has no address comes by the server's own socket, and finds room when strangers
    /// have taken all that there is for them.
    pub(super) fn take(&self, client: Option<IpAddr>, activity: &Arc<Activity>) -> Option<Slot> {
        let mut open = self.inner.open();
        let of_client = client.and_then(|client| open.by_client.get(&client)).copied().unwrap_or_default();
        if client.is_some() && of_client >= self.inner.most_per_client {
            // Its own ones are all that it can make room among.
            open.evict(|known| known.client == client)?;
        }
        let reserve = if client.is_some() { self.inner.most / RESERVED_PART } else { 0 };
        if open.connections.len() >= self.inner.most - reserve {
            // Nobody comes in for the server's own user.
            open.evict(|known| known.client.is_some())?;
        }
        open.last += 1;
        let number = open.last;
        open.connections.insert(number, Known { client, activity: Arc::clone(activity) });
        if let Some(client) = client {
            *open.by_client.entry(client).or_default() += 1;
        }
        Some(Slot { inner: Arc::clone(&self.inner), number })
    }
}

impl Open {
    /// Ends the connection, of those that may be, that has been idle for the longest time. Nothing if each of them is in use.
    fn evict(&mut self, may_be: impl Fn(&Known) -> bool) -> Option<()> {
        let idle = |known: &Known| known.activity.idle().filter(|idle| *idle >= MIN_IDLE);
        let candidates = self.connections.iter().filter(|(_, known)| may_be(known));
        let longest = candidates.filter_map(|(number, known)| Some((idle(known)?, *number))).max()?;
        if ServiceWall::EvictIdle.is_down() {
            return None;
        }
        let known = self.connections.get(&longest.1)?;
        known.activity.evict();
        self.forget(longest.1);
        Some(())
    }

    fn forget(&mut self, number: u64) {
        let Some(Known { client: Some(client), .. }) = self.connections.remove(&number) else { return };
        if let Some(count) = self.by_client.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.inner.open().forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    /// Connections in use.
    fn busy(slots: &Slots, from: Option<IpAddr>) -> Option<(Slot, super::super::io::UnderWay)> {
        let activity = Activity::new(10);
        let under_way = activity.begin(false);
        Some((slots.take(from, &activity)?, under_way))
    }

    #[tokio::test]
    async fn connections_are_bounded() {
        let slots = Slots::new(3, 2);
        let first = busy(&slots, client(1)).unwrap();
        let _second = busy(&slots, client(1)).unwrap();
        assert!(busy(&slots, client(1)).is_none());
        let _third = busy(&slots, client(2)).unwrap();
        assert!(busy(&slots, client(3)).is_none());
        assert!(busy(&slots, None).is_none());
        drop(first);
        assert!(busy(&slots, client(1)).is_some());
        assert_eq!(slots.inner.open().by_client.len(), 2);
    }

    #[tokio::test]
    async fn strangers_leave_room_for_the_operator() {
        let slots = Slots::new(128, 1000);
        let strangers: Vec<_> = std::iter::from_fn(|| busy(&slots, client(1))).collect();
        assert_eq!(strangers.len(), 126);
        let operator: Vec<_> = std::iter::from_fn(|| busy(&slots, None)).collect();
        assert_eq!(operator.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_gives_way() {
        let slots = Slots::new(3, 2);
        let mut held = Vec::new();
        for from in [client(1), client(1), client(2)] {
            let activity = Activity::new(10);
            held.push((slots.take(from, &activity).unwrap(), activity));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // A share for each address: it makes room among its own.
        let activity = Activity::new(10);
        let _own = slots.take(client(1), &activity).unwrap();
        assert!(held[0].1.is_evicted() && !held[1].1.is_evicted());
        // In all: the longest idle, whose ever it is; not one in use.
        let _in_use = held[1].1.begin(false);
        let other = Activity::new(10);
        let _other = slots.take(client(3), &other).unwrap();
        assert!(held[2].1.is_evicted() && !held[1].1.is_evicted());
        // Those that were idle for less than that stay.
        assert!(slots.take(client(4), &Activity::new(10)).is_none());
        // What gave way is not counted twice when it ends.
        held.remove(0);
        assert_eq!(slots.inner.open().connections.len(), 3);
    }
}
