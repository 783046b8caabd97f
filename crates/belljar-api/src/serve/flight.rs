//! Limits on response bytes in flight, which clients have not read yet: per connection, per key and in all, and
//! on the time that they may stay.
//!
//! The body of a response acquires permits before it hands over its next bytes, and releases them when the bytes have
//! been written to the socket. A connection with nothing in flight never waits: clients that read are not blocked by
//! clients that do not.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::Executor;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

/// Maximum number of bytes in flight on one connection.
const MAX_CONNECTION_BYTES: usize = 2 << 20;

/// Maximum number of bytes in flight for one key.
const MAX_KEY_BYTES: usize = 8 << 20;

/// Maximum number of bytes in flight for all clients together.
const MAX_TOTAL_BYTES: usize = 32 << 20;

/// Maximum number of bytes of a response that are handed over at once.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// Bytes in flight, of all connections.
#[derive(Clone)]
pub(crate) struct Flights {
    all: Arc<Semaphore>,
    keys: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

impl Default for Flights {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_TOTAL_BYTES)), keys: Arc::default() }
    }
}

impl Flights {
    /// Returns a counter for one connection.
    pub(super) fn connection(&self) -> Arc<Flight> {
        Arc::new(Flight {
            flights: self.clone(),
            own: Arc::new(Semaphore::new(MAX_CONNECTION_BYTES)),
            since: Mutex::default(),
        })
    }

    fn key(&self, key: &str) -> Arc<Semaphore> {
        let mut keys = self.keys.lock();
        if let Some(known) = keys.get(key).and_then(Weak::upgrade) {
            return known;
        }
        keys.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(MAX_KEY_BYTES));
        keys.insert(key.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

/// Bytes in flight, of one connection.
pub(super) struct Flight {
    flights: Flights,
    own: Arc<Semaphore>,
    since: Mutex<HandoverTimes>,
}

/// Time at which each piece was handed over.
#[derive(Default)]
struct HandoverTimes {
    last: u64,
    pieces: BTreeMap<u64, Instant>,
}

type Permits = Vec<OwnedSemaphorePermit>;

impl Flight {
    /// Returns how long the oldest piece has been in flight.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.since().pieces.first_key_value().map(|(_, since)| since.elapsed())
    }

    /// Waits until a piece of a response to this key may be in flight.
    async fn acquire(self: Arc<Self>, key: Option<Arc<Semaphore>>, bytes: u32) -> Permits {
        let is_first = self.own.available_permits() == MAX_CONNECTION_BYTES;
        let mut permits = Vec::with_capacity(3);
        let shared = [key, Some(Arc::clone(&self.flights.all))];
        let shared = shared.into_iter().flatten().filter(|_| !is_first);
        for semaphore in std::iter::once(Arc::clone(&self.own)).chain(shared) {
            // The semaphores are never closed.
            permits.extend(semaphore.acquire_many_owned(bytes).await);
        }
        permits
    }

    /// Wraps the bytes so that they count as in flight until they are dropped.
    fn track(self: &Arc<Self>, bytes: Bytes, permits: Permits) -> Bytes {
        let mut since = self.since();
        since.last += 1;
        let number = since.last;
        since.pieces.insert(number, Instant::now());
        drop(since);
        Bytes::from_owner(Tracked { bytes, flight: Arc::clone(self), number, _permits: permits })
    }

    fn since(&self) -> MutexGuard<'_, HandoverTimes> {
        self.since.lock()
    }
}

struct Tracked {
    bytes: Bytes,
    flight: Arc<Flight>,
    number: u64,
    _permits: Permits,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.flight.since().pieces.remove(&self.number);
    }
}

/// Bytes of one response on their way to the connection.
pub(super) struct Outgoing {
    flight: Arc<Flight>,
    key: Option<Arc<Semaphore>>,
    /// Bytes that were not handed over yet.
    rest: Bytes,
    /// Pending acquisition of permits for the first bytes of the rest.
    waiting: Option<Pin<Box<dyn Future<Output = Permits> + Send>>>,
}

impl Outgoing {
    pub(super) fn new(flight: &Arc<Flight>, key: Option<&str>) -> Self {
        let key = key.map(|key| flight.flights.key(key));
        Self { flight: Arc::clone(flight), key, rest: Bytes::new(), waiting: None }
    }

    /// Reports whether all bytes have been handed over.
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the number of remaining bytes.
    pub(super) fn len(&self) -> u64 {
        self.rest.len() as u64
    }

    pub(super) fn put(&mut self, bytes: Bytes) {
        self.rest = bytes;
    }

    /// Returns the next piece as soon as it may be in flight.
    pub(super) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let count = self.rest.len().min(PIECE_BYTES);
        let waiting = self.waiting.get_or_insert_with(|| {
            let flight = Arc::clone(&self.flight);
            Box::pin(flight.acquire(self.key.clone(), u32::try_from(count).unwrap_or(u32::MAX)))
        });
        let permits = std::task::ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(self.flight.track(self.rest.split_to(count), permits))
    }
}

tokio::task_local! {
    static CLOCK: Arc<Clock>;
}

/// Time since which the client of an HTTP/2 stream has not read the bytes that were handed over last.
#[derive(Default)]
pub(super) struct Clock(Mutex<Option<Instant>>);

impl Clock {
    fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    /// Records whether the body that is being polled handed over bytes or waits for some.
    pub(super) fn note(is_handed_over: bool) {
        let now = is_handed_over.then(Instant::now);
        // Without a clock it is HTTP/1, where the socket shows a stall.
        let _ = CLOCK.try_with(|clock| *clock.0.lock() = now);
    }
}

/// Runs the streams of HTTP/2 connections, and ends those whose client reads less than a piece in `stall`. This resets
/// the stream and discards its unsent data.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    pub(super) stall: Duration,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let clock = Arc::new(Clock::default());
        let watched = WatchedStream {
            stream: Some(Box::pin(stream)),
            clock: Arc::clone(&clock),
            late: None,
            stall: self.stall,
        };
        tokio::spawn(CLOCK.scope(clock, watched));
    }
}

struct WatchedStream<F> {
    stream: Option<Pin<Box<F>>>,
    clock: Arc<Clock>,
    late: Option<Pin<Box<Sleep>>>,
    stall: Duration,
}

impl<F: Future> Future for WatchedStream<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(()) };
        if stream.as_mut().poll(context).is_ready() {
            self.stream = None;
            return Poll::Ready(());
        }
        let Some(at) = self.clock.since().map(|since| since + self.stall) else {
            self.late = None;
            return Poll::Pending;
        };
        let late = self.late.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if late.deadline() != at {
            late.as_mut().reset(at);
        }
        std::task::ready!(late.as_mut().poll(context));
        self.stream = None;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn take(outgoing: &mut Outgoing) -> Bytes {
        poll_fn(|context| outgoing.poll_piece(context)).await
    }

    fn now_or_never(outgoing: &mut Outgoing) -> Option<Bytes> {
        // A test is one task, which would otherwise have to yield now and then.
        futures::FutureExt::now_or_never(tokio::task::unconstrained(take(outgoing)))
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_in_flight_of_a_connection_are_bounded() {
        let flight = Flights::default().connection();
        let mut outgoing = Outgoing::new(&flight, Some("a"));
        outgoing.put(vec![b'x'; MAX_CONNECTION_BYTES * 2].into());
        let mut held = Vec::new();
        while let Some(piece) = now_or_never(&mut outgoing) {
            assert!(piece.len() <= PIECE_BYTES);
            held.push(piece);
        }
        assert_eq!(held.iter().map(Bytes::len).sum::<usize>(), MAX_CONNECTION_BYTES);
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(flight.oldest(), Some(Duration::from_secs(7)));
        held.remove(0);
        assert!(now_or_never(&mut outgoing).is_some());
        held.clear();
        assert_eq!(flight.oldest(), None);
    }

    #[tokio::test]
    async fn stalled_clients_do_not_block_others() {
        let flights = Flights::default();
        let mut held = Vec::new();
        // Many connections of many keys, none of which reads anything.
        for number in 0..40 {
            let flight = flights.connection();
            let mut outgoing = Outgoing::new(&flight, Some(&format!("key{}", number / 6)));
            outgoing.put(vec![b'x'; MAX_CONNECTION_BYTES * 2].into());
            while let Some(piece) = now_or_never(&mut outgoing) {
                held.push(piece);
            }
        }
        let all: usize = held.iter().map(Bytes::len).sum();
        assert!(all <= MAX_TOTAL_BYTES + 40 * PIECE_BYTES, "{all}");
        let flight = flights.connection();
        let mut honest = Outgoing::new(&flight, Some("honest"));
        honest.put(vec![b'x'; 4 << 20].into());
        // Each piece is read before the next one.
        for _ in 0..64 {
            assert!(now_or_never(&mut honest).is_some());
        }
        assert!(honest.is_empty());
    }
}
