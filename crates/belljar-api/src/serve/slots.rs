//! Limits on connections, in all and from one address. If a limit is reached, the connection that has been idle longest
//! is evicted.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use belljar_keeper::ServiceWall;
use parking_lot::{Mutex, MutexGuard};

use super::io::Activity;

/// Minimum idle time before a connection may be evicted: clients that send one request after another keep theirs.
const MIN_IDLE: Duration = Duration::from_secs(1);

/// Share of connections reserved for the server's own socket, as a divisor: 32 of 2048.
const RESERVED_DIVISOR: usize = 64;

/// Counter of the connections of all listeners of a server.
#[derive(Clone)]
pub(crate) struct Slots {
    inner: Arc<Inner>,
}

struct Inner {
    max: usize,
    max_per_client: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    /// Open connections by number, oldest first.
    connections: BTreeMap<u64, OpenConnection>,
    last: u64,
    by_client: HashMap<IpAddr, usize>,
}

/// A counted connection.
struct OpenConnection {
    client: Option<IpAddr>,
    activity: Arc<Activity>,
}

/// Slot of one connection. The connection is counted until this is dropped, or until it is evicted.
pub(super) struct Slot {
    inner: Arc<Inner>,
    number: u64,
}

impl Slots {
    pub(crate) fn new(max: usize, max_per_client: usize) -> Self {
        let inner = Inner { max, max_per_client, open: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Takes a slot, if one is free or can be freed. Clients without an address use the server's own socket, and get a
    /// slot even if others have taken all theirs.
    pub(super) fn take(&self, client: Option<IpAddr>, activity: &Arc<Activity>) -> Option<Slot> {
        let mut open = self.inner.open();
        let of_client = client.and_then(|client| open.by_client.get(&client)).copied().unwrap_or_default();
        if client.is_some() && of_client >= self.inner.max_per_client {
            // Only this address's own connections may be evicted for it.
            open.evict(|connection| connection.client == client)?;
        }
        let reserve = if client.is_some() { self.inner.max / RESERVED_DIVISOR } else { 0 };
        if open.connections.len() >= self.inner.max - reserve {
            // Connections of the server's own user are never evicted.
            open.evict(|connection| connection.client.is_some())?;
        }
        open.last += 1;
        let number = open.last;
        open.connections.insert(number, OpenConnection { client, activity: Arc::clone(activity) });
        if let Some(client) = client {
            *open.by_client.entry(client).or_default() += 1;
        }
        Some(Slot { inner: Arc::clone(&self.inner), number })
    }
}

impl OpenConnections {
    /// Evicts the connection that has been idle longest among the candidates. Returns `None` if all of them are in use.
    fn evict(&mut self, is_candidate: impl Fn(&OpenConnection) -> bool) -> Option<()> {
        let idle = |connection: &OpenConnection| connection.activity.idle().filter(|idle| *idle >= MIN_IDLE);
        let candidates = self.connections.iter().filter(|(_, connection)| is_candidate(connection));
        let longest =
            candidates.filter_map(|(number, connection)| Some((idle(connection)?, *number))).max()?;
        if ServiceWall::EvictIdle.is_down() {
            return None;
        }
        let connection = self.connections.get(&longest.1)?;
        connection.activity.evict();
        self.remove(longest.1);
        Some(())
    }

    fn remove(&mut self, number: u64) {
        let Some(OpenConnection { client: Some(client), .. }) = self.connections.remove(&number) else {
            return;
        };
        if let Some(count) = self.by_client.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.inner.open().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    /// Connections in use.
    fn busy(slots: &Slots, from: Option<IpAddr>) -> Option<(Slot, super::super::io::InFlight)> {
        let activity = Activity::new(10);
        let in_flight = activity.begin(false);
        Some((slots.take(from, &activity)?, in_flight))
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
    async fn operator_slots_are_reserved() {
        let slots = Slots::new(128, 1000);
        let strangers: Vec<_> = std::iter::from_fn(|| busy(&slots, client(1))).collect();
        assert_eq!(strangers.len(), 126);
        let operator: Vec<_> = std::iter::from_fn(|| busy(&slots, None)).collect();
        assert_eq!(operator.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn longest_idle_connection_is_evicted() {
        let slots = Slots::new(3, 2);
        let mut held = Vec::new();
        for from in [client(1), client(1), client(2)] {
            let activity = Activity::new(10);
            held.push((slots.take(from, &activity).unwrap(), activity));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // A limit for each address: only its own connections are evicted.
        let activity = Activity::new(10);
        let _own = slots.take(client(1), &activity).unwrap();
        assert!(held[0].1.is_evicted() && !held[1].1.is_evicted());
        // The total limit: the longest idle of all addresses is evicted; not one in use.
        let _in_use = held[1].1.begin(false);
        let other = Activity::new(10);
        let _other = slots.take(client(3), &other).unwrap();
        assert!(held[2].1.is_evicted() && !held[1].1.is_evicted());
        // Connections idle for less than that stay.
        assert!(slots.take(client(4), &Activity::new(10)).is_none());
        // An evicted connection is not counted twice when it ends.
        held.remove(0);
        assert_eq!(slots.inner.open().connections.len(), 3);
    }
}
