//! Limits concurrent sandbox starts and screenings, with round-robin turns between keys: a key that requests a hundred sandboxes delays
//! other keys by one turn only.
//!
//! ```text
//!   key a: ●●●●●●●●         turns: a b c a b a b a …
//!   key b: ●●●         ──►                             ──► at most `limit` under way
//!   key c: ●
//! ```
//!
//! When the queue is full, the newest request of the key with the most waiting requests is evicted in favour of a key with
//! fewer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use belljar_store::ServiceWall;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Maximum number of screenings at once. Each uses a processor for milliseconds. Source: docs/screening.md.
const MAX_SCREENINGS: usize = 2;

/// Maximum number of screenings that wait, of all keys. Source: docs/screening.md.
const MAX_WAITING_SCREENINGS: usize = 64;

/// The gate. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    shared: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Maximum number of starts in flight.
    limit: usize,
    /// Maximum number of waiting requests.
    max_waiting: usize,
    in_flight: usize,
    waiting: usize,
    /// Keys with waiting requests; the front has the next turn.
    turns: VecDeque<String>,
    queues: HashMap<String, VecDeque<oneshot::Sender<Permit>>>,
}

/// Permit to start one sandbox; dropping it passes the turn on.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Gate,
}

/// Error when too many requests are waiting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueFull {
    /// Number of waiting requests.
    pub(crate) waiting: usize,
}

impl State {
    /// Makes room in the queue for one request of `key`; reports whether that succeeded.
    fn make_room(&mut self, key: &str) -> bool {
        // Cancelled requests take no room.
        for queue in self.queues.values_mut() {
            queue.retain(|place| !place.is_closed());
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.turns.retain(|key| self.queues.contains_key(key));
        self.waiting = self.queues.values().map(VecDeque::len).sum();
        if self.waiting < self.max_waiting {
            return true;
        }
        let own = self.queues.get(key).map_or(0, VecDeque::len);
        let longest = self.queues.values_mut().max_by_key(|queue| queue.len());
        let Some(longest) =
            longest.filter(|queue| queue.len() > own + 1 && !ServiceWall::FairQueue.is_down())
        else {
            return false;
        };
        // At least one request stays in the queue, and with it the key's turn.
        drop(longest.pop_back());
        self.waiting -= 1;
        true
    }
}

impl Gate {
    /// Creates a gate with at most `limit` starts in flight and `max_waiting` waiting requests.
    pub(crate) fn new(limit: usize, max_waiting: usize) -> Self {
        let state = State {
            limit: limit.max(1),
            max_waiting,
            in_flight: 0,
            waiting: 0,
            turns: VecDeque::new(),
            queues: HashMap::new(),
        };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// Creates the gate of screenings.
    pub(crate) fn of_screenings() -> Self {
        Self::new(MAX_SCREENINGS, MAX_WAITING_SCREENINGS)
    }

    /// Waits for `key`'s turn. Cancelling the future gives up the queue slot.
    pub(crate) async fn acquire(&self, key: &str) -> Result<Permit, QueueFull> {
        let place = {
            let mut state = self.lock();
            if state.in_flight < state.limit && state.waiting == 0 {
                state.in_flight += 1;
                return Ok(Permit { gate: self.clone() });
            }
            if state.waiting >= state.max_waiting && !state.make_room(key) {
                return Err(QueueFull { waiting: state.waiting });
            }
            let (sender, place) = oneshot::channel();
            state.waiting += 1;
            let queue = state.queues.entry(key.to_owned()).or_default();
            queue.push_back(sender);
            if queue.len() == 1 {
                state.turns.push_back(key.to_owned());
            }
            place
        };
        // The sender is kept until used or evicted: each slot in the queue gets its turn.
        place.await.map_err(|_| QueueFull { waiting: self.lock().waiting })
    }

    /// Returns a permit only if no request is waiting: for work that must not delay requests.
    pub(crate) fn try_acquire_idle(&self) -> Option<Permit> {
        let mut state = self.lock();
        (state.in_flight < state.limit && state.waiting == 0).then(|| {
            state.in_flight += 1;
            Permit { gate: self.clone() }
        })
    }

    /// Returns the number of requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().queues.values().flatten().filter(|place| !place.is_closed()).count()
    }

    /// Changes the limits. Starts in flight and waiting requests are kept.
    pub(crate) fn resize(&self, limit: usize, max_waiting: usize) {
        let free = {
            let mut state = self.lock();
            state.limit = limit.max(1);
            state.max_waiting = max_waiting;
            let free = state.limit.saturating_sub(state.in_flight);
            state.in_flight += free;
            free
        };
        for _ in 0..free {
            self.next();
        }
    }

    /// Returns the numbers of starts in flight and of waiting requests.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        (state.in_flight, state.waiting)
    }

    /// Gives a freed permit to the next request in turn.
    fn next(&self) {
        loop {
            let sender = {
                let mut state = self.lock();
                // The limit may have been lowered below the number of starts in flight.
                let is_free = state.in_flight <= state.limit;
                let Some(key) = state.turns.pop_front_if(|_| is_free) else {
                    state.in_flight -= 1;
                    return;
                };
                let queue = state.queues.get_mut(&key);
                let sender = queue.and_then(VecDeque::pop_front);
                match state.queues.get(&key) {
                    Some(queue) if !queue.is_empty() => state.turns.push_back(key),
                    _ => drop(state.queues.remove(&key)),
                }
                state.waiting = state.waiting.saturating_sub(usize::from(sender.is_some()));
                sender
            };
            if let Some(sender) = sender
                && hand_over(sender, self)
            {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

/// Hands the permit to a waiting request; reports whether that was still waiting.
fn hand_over(sender: oneshot::Sender<Permit>, gate: &Gate) -> bool {
    if sender.is_closed() {
        return false;
    }
    match sender.send(Permit { gate: gate.clone() }) {
        Ok(()) => true,
        Err(permit) => {
            // The caller passes the permit on; dropping it here would do so twice.
            std::mem::forget(permit);
            false
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.next();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn limit_bounds_concurrent_starts() {
        let gate = Gate::new(2, 10);
        let first = gate.acquire("a").await.unwrap();
        let second = gate.acquire("a").await.unwrap();
        let mut third = spawn_acquire(&gate, "a");
        settle().await;
        assert_eq!(gate.load(), (2, 1));
        drop(first);
        let third = (&mut third).await.unwrap().unwrap();
        assert_eq!(gate.load(), (2, 0));
        drop((second, third));
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test]
    async fn keys_take_turns() {
        let gate = Gate::new(1, 100);
        let held = gate.acquire("x").await.unwrap();
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for key in ["a", "a", "a", "a", "b", "b", "c"] {
            let (gate, sender) = (gate.clone(), sender.clone());
            tokio::spawn(async move {
                let permit = gate.acquire(key).await.unwrap();
                sender.send(key).unwrap();
                drop(permit);
            });
            settle().await;
        }
        drop((held, sender));
        let mut seen = Vec::new();
        while let Some(key) = order.recv().await {
            seen.push(key);
        }
        assert_eq!(seen, ["a", "b", "c", "a", "b", "a", "a"]);
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test]
    async fn cancelled_request_loses_only_its_own_slot() {
        let gate = Gate::new(1, 10);
        let held = gate.acquire("a").await.unwrap();
        let gone = spawn_acquire(&gate, "a");
        settle().await;
        let next = spawn_acquire(&gate, "a");
        settle().await;
        gone.abort();
        settle().await;
        drop(held);
        let permit = tokio::time::timeout(Duration::from_secs(5), next).await.unwrap().unwrap().unwrap();
        drop(permit);
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test]
    async fn limit_can_be_resized() {
        let gate = Gate::new(2, 10);
        let first = gate.acquire("a").await.unwrap();
        let second = gate.acquire("a").await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(spawn_acquire(&gate, "a"));
            settle().await;
        }
        gate.resize(1, 10);
        drop(first);
        settle().await;
        assert_eq!(gate.load(), (1, 3));
        gate.resize(3, 0);
        settle().await;
        assert_eq!(gate.load(), (3, 1));
        assert!(gate.acquire("b").await.is_err());
        drop(second);
        for waiting in waiting {
            drop(tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap());
        }
        assert_eq!(gate.load(), (0, 0));
        gate.resize(5, 5);
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test]
    async fn requests_beyond_max_waiting_are_rejected() {
        let gate = Gate::new(1, 1);
        let held = gate.acquire("a").await.unwrap();
        let waiting = spawn_acquire(&gate, "a");
        settle().await;
        assert_eq!(gate.acquire("b").await.unwrap_err(), QueueFull { waiting: 1 });
        assert!(gate.try_acquire_idle().is_none());
        drop(held);
        drop(waiting.await.unwrap().unwrap());
        assert!(gate.try_acquire_idle().is_some());
    }

    #[tokio::test]
    async fn newest_request_of_busiest_key_is_evicted() {
        let gate = Gate::new(1, 4);
        let held = gate.acquire("a").await.unwrap();
        let mut greedy = Vec::new();
        for _ in 0..4 {
            greedy.push(spawn_acquire(&gate, "a"));
            settle().await;
        }
        assert!(gate.acquire("a").await.is_err(), "its own queue is full");
        let mut modest = Vec::new();
        for _ in 0..2 {
            modest.push(spawn_acquire(&gate, "b"));
            settle().await;
        }
        assert_eq!(gate.load(), (1, 4));
        assert!(gate.acquire("b").await.is_err(), "no more than its share");
        // Slots of cancelled requests are free.
        modest.pop().unwrap().abort();
        settle().await;
        modest.push(spawn_acquire(&gate, "c"));
        settle().await;
        drop(held);
        let waiting = greedy.into_iter().chain(modest);
        let passed = waiting.map(async |waiting| waiting.await.unwrap().map(drop).is_ok());
        let passed = futures::future::join_all(passed).await;
        assert_eq!(passed, [true, true, false, false, true, true]);
        assert_eq!(gate.load(), (0, 0));
    }

    fn spawn_acquire(gate: &Gate, key: &'static str) -> tokio::task::JoinHandle<Result<Permit, QueueFull>> {
        let gate = gate.clone();
        tokio::spawn(async move { gate.acquire(key).await })
    }
}
