//! Delivery of an execution's events to a reader that may be slow, stalled or gone.

use std::collections::VecDeque;
use std::time::Duration;

use belljar_proto::{ConnectError, v1};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Timeout for a reader to take the remaining events when the context is being ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) type Events = mpsc::Sender<Result<v1::CodeEvent, ConnectError>>;

/// Queue of events to one reader.
pub(super) struct Outlet {
    events: Events,
    /// Events that the reader has not taken yet.
    pending: VecDeque<v1::CodeEvent>,
    reader: Reader,
    /// Time at which the remaining events are dropped.
    flush_deadline: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Attached,
    Gone,
    /// Has missed events.
    Lagged,
}

/// Outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivered {
    One,
    /// The reader has gone.
    Gone,
    /// Events that the reader did not take in time were dropped.
    Dropped,
}

impl Outlet {
    pub(super) const fn new(events: Events) -> Self {
        Self { events, pending: VecDeque::new(), reader: Reader::Attached, flush_deadline: None }
    }

    /// Reports whether no event waits for the reader.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Reports whether the reader has missed events, so that it must get an error instead of the end.
    pub(super) fn has_missed(&self) -> bool {
        self.reader == Reader::Lagged
    }

    /// Adds an event, if a reader is attached.
    pub(super) fn push(&mut self, event: v1::CodeEvent) {
        if self.reader == Reader::Attached {
            self.pending.push_back(event);
        }
    }

    /// Starts the timeout for the remaining events, because the end of the context must not wait for the reader.
    pub(super) fn start_flush_timeout(&mut self) {
        self.flush_deadline = self.flush_deadline.or_else(|| Instant::now().checked_add(FLUSH_TIMEOUT));
    }

    /// Waits until the reader takes an event or disconnects. Cancel-safe.
    pub(super) async fn deliver(&mut self) -> Delivered {
        if self.reader != Reader::Attached {
            return std::future::pending().await;
        }
        let waits = !self.pending.is_empty();
        let reader = tokio::select! {
            permit = self.events.reserve(), if waits => match permit {
                Ok(permit) => {
                    if let Some(event) = self.pending.pop_front() {
                        permit.send(Ok(event));
                    }
                    return Delivered::One;
                }
                Err(_) => Reader::Gone,
            },
            () = self.events.closed(), if !waits => Reader::Gone,
            () = sleep_until(self.flush_deadline), if waits => Reader::Lagged,
        };
        self.reader = reader;
        self.pending.clear();
        if reader == Reader::Gone { Delivered::Gone } else { Delivered::Dropped }
    }
}

/// Sleeps until the given time, or forever.
pub(super) async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> v1::CodeEvent {
        v1::CodeEvent::default()
    }

    #[tokio::test]
    async fn slow_reader_is_waited_for_until_the_flush_timeout() {
        let (events, mut reader) = mpsc::channel(1);
        let mut outlet = Outlet::new(events.clone());
        outlet.push(event());
        outlet.push(event());
        assert_eq!(outlet.deliver().await, Delivered::One);
        let short_wait = Duration::from_millis(20);
        assert!(tokio::time::timeout(short_wait, outlet.deliver()).await.is_err(), "the channel is full");
        assert!(reader.recv().await.is_some());
        assert_eq!(outlet.deliver().await, Delivered::One);
        assert!(outlet.is_empty() && !outlet.has_missed());
        outlet.push(event());
        outlet.start_flush_timeout();
        let begun = Instant::now();
        assert_eq!(outlet.deliver().await, Delivered::Dropped);
        assert!(begun.elapsed() >= FLUSH_TIMEOUT - short_wait);
        outlet.push(event());
        assert!(outlet.is_empty() && outlet.has_missed());
    }

    #[tokio::test]
    async fn disconnected_reader_is_detected() {
        for waits in [true, false] {
            let (events, reader) = mpsc::channel(1);
            let mut outlet = Outlet::new(events);
            if waits {
                outlet.push(event());
            }
            drop(reader);
            assert_eq!(outlet.deliver().await, Delivered::Gone);
            assert!(outlet.is_empty() && !outlet.has_missed());
        }
    }
}
