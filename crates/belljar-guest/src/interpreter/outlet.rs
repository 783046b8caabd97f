//! Where an execution's events go: to a reader who may be slow, stand still, or be gone.

use std::collections::VecDeque;
use std::time::Duration;

use belljar_proto::{ConnectError, v1};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long a reader may take for what is left when the context is being ended.
const LEFT_WITHIN: Duration = Duration::from_secs(2);

pub(super) type Events = mpsc::Sender<Result<v1::CodeEvent, ConnectError>>;

/// The way out.
pub(super) struct Outlet {
    events: Events,
    /// What the reader has not taken yet.
    waiting: VecDeque<v1::CodeEvent>,
    reader: Reader,
    /// When what is left is thrown away.
    until: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    There,
    Gone,
    /// It has missed something.
    Late,
}

/// What has happened at the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivered {
    One,
    /// The reader has gone.
    Gone,
    /// What the reader did not take in time was thrown away.
    TooLate,
}

impl Outlet {
    pub(super) const fn new(events: Events) -> Self {
        Self { events, waiting: VecDeque::new(), reader: Reader::There, until: None }
    }

    /// Whether nothing waits for the reader.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the reader has missed something, so that it must not be told that it has seen the end.
    pub(super) fn has_missed(&self) -> bool {
        self.reader == Reader::Late
    }

    /// Adds an event, if somebody reads.
    pub(super) fn push(&mut self, event: v1::CodeEvent) {
        if self.reader == Reader::There {
            self.waiting.push_back(event);
        }
    }

    /// The context is being ended: whoever waits for that does not wait for the reader.
    pub(super) fn hurry(&mut self) {
        self.until = self.until.or_else(|| Instant::now().checked_add(LEFT_WITHIN));
    }

    /// Waits until the reader takes an event or goes away. Nothing is lost if this is dropped.
    pub(super) async fn deliver(&mut self) -> Delivered {
        if self.reader != Reader::There {
            return std::future::pending().await;
        }
        let waits = !self.waiting.is_empty();
        let reader = tokio::select! {
            permit = self.events.reserve(), if waits => match permit {
                Ok(permit) => {
                    if let Some(event) = self.waiting.pop_front() {
                        permit.send(Ok(event));
                    }
                    return Delivered::One;
                }
                Err(_) => Reader::Gone,
            },
            () = self.events.closed(), if !waits => Reader::Gone,
            () = sleep_until(self.until), if waits => Reader::Late,
        };
        self.reader = reader;
        self.waiting.clear();
        if reader == Reader::Gone { Delivered::Gone } else { Delivered::TooLate }
    }
}

/// Sleeps until then, or for ever.
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
    async fn a_reader_is_waited_for_until_there_is_no_time() {
        let (events, mut reader) = mpsc::channel(1);
        let mut outlet = Outlet::new(events.clone());
        outlet.push(event());
        outlet.push(event());
        assert_eq!(outlet.deliver().await, Delivered::One);
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, outlet.deliver()).await.is_err(), "there is no room");
        assert!(reader.recv().await.is_some());
        assert_eq!(outlet.deliver().await, Delivered::One);
        assert!(outlet.is_empty() && !outlet.has_missed());
        outlet.push(event());
        outlet.hurry();
        let begun = Instant::now();
        assert_eq!(outlet.deliver().await, Delivered::TooLate);
        assert!(begun.elapsed() >= LEFT_WITHIN - soon);
        outlet.push(event());
        assert!(outlet.is_empty() && outlet.has_missed());
    }

    #[tokio::test]
    async fn a_reader_that_goes_is_noticed() {
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
