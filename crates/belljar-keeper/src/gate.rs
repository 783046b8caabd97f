//! Bounds how many sandboxes start at once, and lets the keys take turns: a key that asks for a hundred does not keep
//! another one waiting for more than its turn.
//!
//! ```text
//!   key a: ●●●●●●●●         turns: a b c a b a b a …
//!   key b: ●●●         ──►                             ──► at most `limit` under way
//!   key c: ●
//! ```
//!
//! Where the queue is full, the key with the most waiting gives way: its newest one is sent away for one of a key that has fewer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use belljar_store::ServiceWall;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// The gate. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    shared: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// How many may be under way.
    limit: usize,
    /// How many may wait.
    most_waiting: usize,
    under_way: usize,
    waiting: usize,
    /// Keys with somebody waiting, the one whose turn is next in front.
    turns: VecDeque<String>,
    queues: HashMap<String, VecDeque<oneshot::Sender<Permit>>>,
}

/// The right to start one sandbox; the next one's turn comes when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Gate,
}

/// Too many wait already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany {
    /// How many wait.
    pub(crate) waiting: usize,
}

impl State {
    /// Makes room in the queue for one of `key`, and says whether that went.
    fn make_room(&mut self, key: &str) -> bool {
        // Who has gone away takes none.
        for queue in self.queues.values_mut() {
            queue.retain(|place| !place.is_closed());
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.turns.retain(|key| self.queues.contains_key(key));
        self.waiting = self.queues.values().map(VecDeque::len).sum();
        if self.waiting < self.most_waiting {
            return true;
        }
        let own = self.queues.get(key).map_or(0, VecDeque::len);
        let longest = self.queues.values_mut().max_by_key(|queue| queue.len());
        let Some(longest) =
            longest.filter(|queue| queue.len() > own + 1 && !ServiceWall::FairQueue.is_down())
        else {
            return false;
        };
        // At least one stays, and with it the key's turn.
        drop(longest.pop_back());
        self.waiting -= 1;
        true
    }
}

impl Gate {
    /// Lets `limit` through at once, and `most_waiting` wait.
    pub(crate) fn new(limit: usize, most_waiting: usize) -> Self {
        let state = State {
            limit: limit.max(1),
            most_waiting,
            under_way: 0,
            waiting: 0,
            turns: VecDeque::new(),
            queues: HashMap::new(),
        };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// Waits for `key`'s turn. Whoever stops waiting loses his place.
    pub(crate) async fn pass(&self, key: &str) -> Result<Permit, TooMany> {
        let place = {
            let mut state = self.lock();
            if state.under_way < state.limit && state.waiting == 0 {
                state.under_way += 1;
                return Ok(Permit { gate: self.clone() });
            }
            if state.waiting >= state.most_waiting && !state.make_room(key) {
                return Err(TooMany { waiting: state.waiting });
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
        // The sender is kept until it is used: each place in the queue gets its turn.
        place.await.map_err(|_| TooMany { waiting: self.lock().waiting })
    }

    /// Passes only if nobody waits: for work that must not get in anybody's way.
    pub(crate) fn pass_if_free(&self) -> Option<Permit> {
        let mut state = self.lock();
        (state.under_way < state.limit && state.waiting == 0).then(|| {
            state.under_way += 1;
            Permit { gate: self.clone() }
        })
    }

    /// Lets `limit` through at once from now on, and `most_waiting` wait. Whoever is under way or waits stays so.
    pub(crate) fn resize(&self, limit: usize, most_waiting: usize) {
        let free = {
            let mut state = self.lock();
            state.limit = limit.max(1);
            state.most_waiting = most_waiting;
            let free = state.limit.saturating_sub(state.under_way);
            state.under_way += free;
            free
        };
        for _ in 0..free {
            self.next();
        }
    }

    /// How many are under way, and how many wait.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        (state.under_way, state.waiting)
    }

    /// Gives the right that has become free to the next in turn.
    fn next(&self) {
        loop {
            let sender = {
                let mut state = self.lock();
                // The limit may have become less than there are under way.
                let is_free = state.under_way <= state.limit;
                let Some(key) = state.turns.pop_front_if(|_| is_free) else {
                    state.under_way -= 1;
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

/// Whether the one who waited is still there to take it.
fn hand_over(sender: oneshot::Sender<Permit>, gate: &Gate) -> bool {
    if sender.is_closed() {
        return false;
    }
    match sender.send(Permit { gate: gate.clone() }) {
        Ok(()) => true,
        Err(permit) => {
            // It is our turn to pass it on, not the permit's.
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
    async fn no_more_than_the_limit_pass_at_once() {
        let gate = Gate::new(2, 10);
        let first = gate.pass("a").await.unwrap();
        let second = gate.pass("a").await.unwrap();
        let mut third = tokio_test_spawn(&gate, "a");
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
        let held = gate.pass("x").await.unwrap();
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for key in ["a", "a", "a", "a", "b", "b", "c"] {
            let (gate, sender) = (gate.clone(), sender.clone());
            tokio::spawn(async move {
                let permit = gate.pass(key).await.unwrap();
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
    async fn whoever_goes_away_loses_his_place_and_nobody_elses() {
        let gate = Gate::new(1, 10);
        let held = gate.pass("a").await.unwrap();
        let gone = tokio_test_spawn(&gate, "a");
        settle().await;
        let next = tokio_test_spawn(&gate, "a");
        settle().await;
        gone.abort();
        settle().await;
        drop(held);
        let permit = tokio::time::timeout(Duration::from_secs(5), next).await.unwrap().unwrap().unwrap();
        drop(permit);
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test]
    async fn the_limit_can_change() {
        let gate = Gate::new(2, 10);
        let first = gate.pass("a").await.unwrap();
        let second = gate.pass("a").await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(tokio_test_spawn(&gate, "a"));
            settle().await;
        }
        gate.resize(1, 10);
        drop(first);
        settle().await;
        assert_eq!(gate.load(), (1, 3));
        gate.resize(3, 0);
        settle().await;
        assert_eq!(gate.load(), (3, 1));
        assert!(gate.pass("b").await.is_err());
        drop(second);
        for waiting in waiting {
            drop(tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap());
        }
        assert_eq!(gate.load(), (0, 0));
        gate.resize(5, 5);
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test]
    async fn too_many_are_sent_away() {
        let gate = Gate::new(1, 1);
        let held = gate.pass("a").await.unwrap();
        let waiting = tokio_test_spawn(&gate, "a");
        settle().await;
        assert_eq!(gate.pass("b").await.unwrap_err(), TooMany { waiting: 1 });
        assert!(gate.pass_if_free().is_none());
        drop(held);
        drop(waiting.await.unwrap().unwrap());
        assert!(gate.pass_if_free().is_some());
    }

    #[tokio::test]
    async fn a_key_that_fills_the_queue_gives_way() {
        let gate = Gate::new(1, 4);
        let held = gate.pass("a").await.unwrap();
        let mut greedy = Vec::new();
        for _ in 0..4 {
            greedy.push(tokio_test_spawn(&gate, "a"));
            settle().await;
        }
        assert!(gate.pass("a").await.is_err(), "its own queue is full");
        let mut modest = Vec::new();
        for _ in 0..2 {
            modest.push(tokio_test_spawn(&gate, "b"));
            settle().await;
        }
        assert_eq!(gate.load(), (1, 4));
        assert!(gate.pass("b").await.is_err(), "no more than its share");
        // Places of those who went away are free.
        modest.pop().unwrap().abort();
        settle().await;
        modest.push(tokio_test_spawn(&gate, "c"));
        settle().await;
        drop(held);
        let waiting = greedy.into_iter().chain(modest);
        let passed = waiting.map(async |waiting| waiting.await.unwrap().map(drop).is_ok());
        let passed = futures::future::join_all(passed).await;
        assert_eq!(passed, [true, true, false, false, true, true]);
        assert_eq!(gate.load(), (0, 0));
    }

    fn tokio_test_spawn(gate: &Gate, key: &'static str) -> tokio::task::JoinHandle<Result<Permit, TooMany>> {
        let gate = gate.clone();
        tokio::spawn(async move { gate.pass(key).await })
    }
}
