//! The event bus: events of sandboxes, processes, templates and keys, for any number of followers.
//!
//! One ring of the last events serves all followers. A slow or reconnecting follower continues where it was as long as the ring
//! reaches back so far, and else learns how many events it missed. Events are in memory only; the audit log is durable.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use belljar_model::{Role, SandboxId};
use futures::Stream;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::action::EVENTS_FOLLOW;
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::json;
use crate::keeper::{Keeper, Result};

/// Maximum number of kept events.
const MAX_EVENTS: usize = 4096;

/// Maximum size of all kept events, in bytes.
const MAX_BYTES: usize = 4 << 20;

/// Number of events read at a time.
const PAGE: usize = 256;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its id, after which a follower can go on.
    #[schema(example = "5d0c6a3f-17")]
    pub id: String,
    /// Time of the event.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Kind, such as `sandbox.created`, `process.exited` or `template.build`.
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// Owning tenant.
    pub tenant: String,
    /// The sandbox concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// The sandbox's labels at that time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The process concerned, by its number in the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u64>,
    /// Details, such as the reason of an end or the id of a template.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Event {
    /// Creates an event of this kind with the current time. It gets its id when it is published.
    pub(crate) fn new(kind: impl Into<Cow<'static, str>>, tenant: &str) -> Self {
        Self {
            id: String::new(),
            at: Timestamp::now(),
            kind: kind.into(),
            tenant: tenant.to_owned(),
            sandbox: None,
            labels: BTreeMap::new(),
            process: None,
            detail: String::new(),
        }
    }

    /// Returns its approximate size in bytes.
    fn weight(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len() + 96).sum();
        size_of::<Self>() + self.id.len() + self.kind.len() + self.tenant.len() + self.detail.len() + labels
    }
}

/// Selection of events to follow.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Kinds, or prefixes of them up to a dot, such as `sandbox` for `sandbox.created`. All if empty.
    pub kinds: Vec<String>,
    /// Labels that the sandbox must have.
    pub labels: BTreeMap<String, String>,
    /// The sandbox, by id.
    pub sandbox: Option<SandboxId>,
}

impl EventFilter {
    fn matches(&self, event: &Event) -> bool {
        let is_of = |kind: &String| {
            event
                .kind
                .strip_prefix(kind.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        (self.kinds.is_empty() || self.kinds.iter().any(is_of))
            && self.sandbox.as_ref().is_none_or(|id| event.sandbox.as_ref() == Some(id))
            && self.labels.iter().all(|(key, value)| event.labels.get(key) == Some(value))
    }
}

/// An item of an event stream.
#[derive(Debug, Clone)]
pub enum Occurrence {
    /// An event.
    Event(Arc<Event>),
    /// Number of events that are no longer kept; unknown for those of an earlier server process.
    Missed(Option<u64>),
}

/// The event bus.
pub(crate) struct Events {
    /// Distinguishes this server process from others.
    instance: String,
    ring: Mutex<Ring>,
    /// Number of the last event.
    last: watch::Sender<u64>,
}

#[derive(Default)]
struct Ring {
    /// Events with the numbers `last + 1 - events.len()` to `last`.
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    last: u64,
}

impl Events {
    pub(crate) fn new() -> Result<Self> {
        let mut bytes = [0; 4];
        crate::create::fill_random(&mut bytes)?;
        Ok(Self { instance: hex::encode(bytes), ring: Mutex::default(), last: watch::Sender::new(0) })
    }

    /// Publishes an event to all followers.
    pub(crate) fn publish(&self, mut event: Event) {
        let last = {
            let mut ring = self.ring.lock();
            ring.last += 1;
            event.id = format!("{}-{}", self.instance, ring.last);
            ring.bytes += event.weight();
            ring.events.push_back(Arc::new(event));
            while ring.events.len() > MAX_EVENTS || ring.bytes > MAX_BYTES && ring.events.len() > 1 {
                let Some(oldest) = ring.events.pop_front() else { break };
                ring.bytes -= oldest.weight();
            }
            ring.last
        };
        // Concurrent publishers may get here in another order.
        self.last.send_if_modified(|seen| {
            let is_newer = last > *seen;
            *seen = last.max(*seen);
            is_newer
        });
    }

    /// Returns at most a page of events after number `after`, and how many before them are no longer kept.
    fn after(&self, after: u64) -> (Vec<(u64, Arc<Event>)>, u64) {
        let ring = self.ring.lock();
        let first = ring.last + 1 - ring.events.len() as u64;
        let missed = first.saturating_sub(after + 1);
        let skipped = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let numbered = (first..).zip(&ring.events).skip(skipped).take(PAGE);
        (numbered.map(|(number, event)| (number, Arc::clone(event))).collect(), missed)
    }

    /// Returns the number of an event by its id; `None` if it is of another server process.
    fn number(&self, id: &str) -> Result<Option<u64>> {
        let refused = || KeeperError::field("after", "invalid event id; begin without one");
        let (instance, number) = id.split_once('-').ok_or_else(refused)?;
        let number: u64 = number.parse().map_err(|_| refused())?;
        let last = *self.last.borrow();
        Ok((instance == self.instance).then_some(number.min(last)))
    }
}

impl Keeper {
    /// Streams the kept events after the one with the id `after`; with `follow`, new ones too, and without an id only new ones.
    ///
    /// Callers see events of their tenant; administrators also those of other tenants and of keys.
    ///
    /// # Errors
    /// Returns [`KeeperError::Forbidden`]; fails for an invalid id.
    pub fn follow(
        &self,
        caller: &Caller,
        filter: EventFilter,
        after: Option<&str>,
        follow: bool,
    ) -> Result<impl Stream<Item = Occurrence> + Send + 'static> {
        self.require(caller, EVENTS_FOLLOW)?;
        let events = Arc::clone(&self.inner.events);
        let mut seen = events.last.subscribe();
        let known = after.map(|id| events.number(id)).transpose()?;
        let mut at = match known {
            None if follow => *seen.borrow_and_update(),
            None => 0,
            Some(known) => known.unwrap_or(0),
        };
        let is_of_earlier_process = matches!(known, Some(None));
        let caller = caller.clone();
        Ok(async_stream::stream! {
            if is_of_earlier_process {
                yield Occurrence::Missed(None);
            }
            loop {
                seen.borrow_and_update();
                let (page, missed) = events.after(at);
                // Events missed before the first one were reported above.
                if missed > 0 && !(is_of_earlier_process && at == 0) {
                    yield Occurrence::Missed(Some(missed));
                }
                let is_end = page.is_empty();
                for (number, event) in page {
                    at = number;
                    if caller.may_follow(&event) && filter.matches(&event) {
                        yield Occurrence::Event(event);
                    }
                }
                if is_end && (!follow || seen.changed().await.is_err()) {
                    return;
                }
            }
        })
    }
}

impl Caller {
    fn may_follow(&self, event: &Event) -> bool {
        self.may_see_tenant(&event.tenant) && (self.role == Role::Admin || !event.kind.starts_with("key."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &'static str, detail: usize) -> Event {
        Event { detail: "d".repeat(detail), ..Event::new(kind, "t") }
    }

    #[test]
    fn kept_events_are_bounded() {
        let events = Events::new().expect("random numbers");
        for _ in 0..MAX_EVENTS + 10 {
            events.publish(event("sandbox.created", 1));
        }
        let (page, missed) = events.after(0);
        assert_eq!((page.len(), page[0].0, missed), (PAGE, 11, 10));
        let last = MAX_EVENTS as u64 + 10;
        let (page, missed) = events.after(last - 1);
        assert_eq!((page.len(), page[0].0, missed), (1, last, 0));
        assert_eq!(events.after(last).0.len(), 0);
        // Large events evict more.
        for _ in 0..100 {
            events.publish(event("sandbox.created", MAX_BYTES / 10));
        }
        let ring = events.ring.lock();
        assert!(ring.bytes <= MAX_BYTES && ring.events.len() < 10, "{} {}", ring.bytes, ring.events.len());
        assert_eq!(ring.bytes, ring.events.iter().map(|event| event.weight()).sum::<usize>());
    }

    #[test]
    fn single_large_event_is_kept() {
        let events = Events::new().expect("random numbers");
        events.publish(event("sandbox.created", 2 * MAX_BYTES));
        assert_eq!(events.after(0).0.len(), 1);
    }

    #[test]
    fn ids_of_other_processes_have_no_number() {
        let events = Events::new().expect("random numbers");
        events.publish(event("a", 0));
        let id = events.after(0).0[0].1.id.clone();
        assert_eq!(events.number(&id).ok(), Some(Some(1)));
        assert_eq!(
            events.number(&format!("{}-99", events.instance)).ok(),
            Some(Some(1)),
            "none is in the future"
        );
        assert_eq!(events.number("00-1").ok(), Some(None));
        for wrong in ["", "1", "a-b", "a-", "a--1"] {
            assert!(events.number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn filter_matches_kinds_by_prefix() {
        let filter = |kinds: &[&str]| EventFilter {
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            ..EventFilter::default()
        };
        let created = event("sandbox.created", 0);
        for (kinds, matches) in [
            (&[][..], true),
            (&["sandbox"], true),
            (&["sandbox.created"], true),
            (&["process", "sandbox"], true),
            (&["sand"], false),
            (&["sandbox.run"], false),
            (&["sandbox.created.x"], false),
        ] {
            assert_eq!(filter(kinds).matches(&created), matches, "{kinds:?}");
        }
    }
}
