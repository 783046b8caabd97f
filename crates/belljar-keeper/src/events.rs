//! The event bus: events of sandboxes, processes, templates and keys, for any number of followers.
//!
//! ```text
//!   publish ──► the ring of the event's tenant ──► its followers
//!          └──► the ring of all tenants         ──► administrators
//! ```
//!
//! A slow or reconnecting follower continues where it was as long as its ring reaches back so far, and else learns how many events it
//! missed. Each ring numbers its events: a tenant can neither push another's events out, nor learn how many there were. Events are in
//! memory only; the audit log is durable.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belljar_model::{Role, SandboxId};
use belljar_store::ServiceWall;
use futures::Stream;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::action::EVENTS_FOLLOW;
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::json;
use crate::keeper::{Keeper, Result};

/// Maximum number of events in a ring.
const MAX_EVENTS: usize = 4096;

/// Maximum size of the events in a ring, in bytes.
const MAX_BYTES: usize = 4 << 20;

/// Maximum size of the events of all tenants, in bytes. Beyond that the largest ring gives way.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// Approximate size of the encoded form of an event without labels, in bytes.
const ENCODED_BYTES: usize = 256;

/// Number of events read at a time.
const PAGE: usize = 256;

/// Time from one page of new events until the next one for the same follower: events in quick succession wake a follower once.
const PAGE_INTERVAL: Duration = Duration::from_millis(10);

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

    /// Returns its approximate size in bytes, with its encoded form.
    fn weight(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| 2 * (key.len() + value.len()) + 96).sum();
        size_of::<Published>()
            + ENCODED_BYTES
            + self.id.len()
            + self.kind.len()
            + self.tenant.len()
            + 2 * self.detail.len()
            + labels
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

/// An event with its encoded form, which all followers share.
#[derive(Debug)]
pub struct Published {
    event: Event,
    json: OnceLock<String>,
}

impl Published {
    fn new(event: Event) -> Self {
        Self { event, json: OnceLock::new() }
    }

    /// Returns the event as JSON.
    #[must_use]
    pub fn json(&self) -> &str {
        // The type always serializes.
        self.json.get_or_init(|| serde_json::to_string(&self.event).unwrap_or_default())
    }
}

impl Deref for Published {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// An item of an event stream.
#[derive(Debug, Clone)]
pub enum Occurrence {
    /// An event.
    Event(Arc<Published>),
    /// Number of events that are no longer kept; unknown for those of an earlier server process.
    Missed(Option<u64>),
}

/// The event bus.
pub(crate) struct Events {
    /// Random number of this server process, from which the names of rings are derived.
    instance: [u8; 16],
    rings: Mutex<Rings>,
    /// Number of the last event of all tenants.
    last: watch::Sender<u64>,
}

#[derive(Default)]
struct Rings {
    all: Ring,
    tenants: HashMap<String, Ring>,
    /// Size of the events in `tenants`, in bytes.
    tenant_bytes: usize,
}

/// The events that a follower may see: of one tenant, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View<'a> {
    All,
    Tenant(&'a str),
}

#[derive(Default)]
struct Ring {
    /// First part of the ids of its events. It distinguishes rings and server processes.
    name: String,
    /// Events with the numbers `last + 1 - events.len()` to `last`.
    events: VecDeque<Arc<Published>>,
    bytes: usize,
    last: u64,
}

impl Ring {
    fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Adds an event with the next number.
    fn push(&mut self, event: &Event) {
        self.last += 1;
        let event = Event { id: format!("{}-{}", self.name, self.last), ..event.clone() };
        self.bytes += event.weight();
        self.events.push_back(Arc::new(Published::new(event)));
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES && self.events.len() > 1 {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(oldest) = self.events.pop_front() {
            self.bytes -= oldest.weight();
        }
    }
}

impl Rings {
    /// Adds an event to the ring of its tenant.
    fn push_for_tenant(&mut self, event: &Event, name: impl FnOnce() -> String) {
        let ring = self.tenants.entry(event.tenant.clone()).or_insert_with(|| Ring::new(name()));
        let before = ring.bytes;
        ring.push(event);
        self.tenant_bytes = self.tenant_bytes - before + ring.bytes;
        while self.tenant_bytes > MAX_TOTAL_BYTES {
            let Some(largest) = self.tenants.values_mut().max_by_key(|ring| ring.bytes) else { return };
            let before = largest.bytes;
            largest.pop();
            self.tenant_bytes -= before - largest.bytes;
        }
    }
}

impl Events {
    pub(crate) fn new() -> Result<Self> {
        let mut instance = [0; 16];
        crate::create::fill_random(&mut instance)?;
        let rings = Rings { all: Ring::new(ring_name(&instance, View::All)), ..Rings::default() };
        Ok(Self { instance, rings: Mutex::new(rings), last: watch::Sender::new(0) })
    }

    /// Publishes an event to all followers.
    pub(crate) fn publish(&self, event: Event) {
        let last = {
            let mut rings = self.rings.lock();
            rings.all.push(&event);
            rings.push_for_tenant(&event, || ring_name(&self.instance, View::Tenant(&event.tenant)));
            rings.all.last
        };
        // Concurrent publishers may get here in another order.
        self.last.send_if_modified(|seen| {
            let is_newer = last > *seen;
            *seen = last.max(*seen);
            is_newer
        });
    }

    /// Returns the number of the last event in a view.
    fn last_of(&self, view: View<'_>) -> u64 {
        self.rings.lock().ring(view).map_or(0, |ring| ring.last)
    }

    /// Returns at most a page of events after number `after`, and how many before them are no longer kept.
    fn after(&self, view: View<'_>, after: u64) -> (Vec<(u64, Arc<Published>)>, u64) {
        let rings = self.rings.lock();
        let Some(ring) = rings.ring(view) else { return (Vec::new(), 0) };
        let first = ring.last + 1 - ring.events.len() as u64;
        let missed = first.saturating_sub(after + 1);
        let skipped = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let numbered = (first..).zip(&ring.events).skip(skipped).take(PAGE);
        (numbered.map(|(number, event)| (number, Arc::clone(event))).collect(), missed)
    }

    /// Returns the number of an event by its id; `None` if it is of another server process or view.
    fn number(&self, view: View<'_>, id: &str) -> Result<Option<u64>> {
        let refused = || KeeperError::field("after", "invalid event id; begin without one");
        let (name, number) = id.split_once('-').ok_or_else(refused)?;
        let number: u64 = number.parse().map_err(|_| refused())?;
        Ok((name == ring_name(&self.instance, view)).then(|| number.min(self.last_of(view))))
    }
}

impl Rings {
    fn ring(&self, view: View<'_>) -> Option<&Ring> {
        match view {
            View::All => Some(&self.all),
            View::Tenant(tenant) => self.tenants.get(tenant),
        }
    }
}

/// Returns the name of a ring, the same for the life of the process.
fn ring_name(instance: &[u8; 16], view: View<'_>) -> String {
    let (kind, tenant) = match view {
        View::All => (0, ""),
        View::Tenant(tenant) => (1, tenant),
    };
    let digest = Sha256::new().chain_update(instance).chain_update([kind]).chain_update(tenant).finalize();
    hex::encode(digest.get(..4).unwrap_or_default())
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
        let caller = caller.clone();
        let known = after.map(|id| events.number(caller.view(), id)).transpose()?;
        let mut at = match known {
            None if follow => events.last_of(caller.view()),
            None => 0,
            Some(known) => known.unwrap_or(0),
        };
        let is_of_earlier_process = matches!(known, Some(None));
        Ok(async_stream::stream! {
            if is_of_earlier_process {
                yield Occurrence::Missed(None);
            }
            let mut next_page = Instant::now();
            loop {
                seen.borrow_and_update();
                let (page, missed) = events.after(caller.view(), at);
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
                if is_end {
                    if !follow || seen.changed().await.is_err() {
                        return;
                    }
                    tokio::time::sleep_until(next_page).await;
                    next_page = Instant::now() + PAGE_INTERVAL;
                }
            }
        })
    }
}

impl Caller {
    fn view(&self) -> View<'_> {
        match self.role {
            Role::Admin => View::All,
            _ if ServiceWall::Tenants.is_down() => View::All,
            _ => View::Tenant(&self.tenant),
        }
    }

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
        let (page, missed) = events.after(View::Tenant("t"), 0);
        assert_eq!((page.len(), page[0].0, missed), (PAGE, 11, 10));
        let last = MAX_EVENTS as u64 + 10;
        let (page, missed) = events.after(View::Tenant("t"), last - 1);
        assert_eq!((page.len(), page[0].0, missed), (1, last, 0));
        assert_eq!(events.after(View::Tenant("t"), last).0.len(), 0);
        // Large events evict more.
        for _ in 0..100 {
            events.publish(event("sandbox.created", MAX_BYTES / 10));
        }
        let rings = events.rings.lock();
        let ring = &rings.tenants["t"];
        assert_eq!(rings.tenant_bytes, ring.bytes);
        assert!(ring.bytes <= MAX_BYTES && ring.events.len() < 10, "{} {}", ring.bytes, ring.events.len());
        assert_eq!(ring.bytes, ring.events.iter().map(|event| event.weight()).sum::<usize>());
    }

    #[test]
    fn single_large_event_is_kept() {
        let events = Events::new().expect("random numbers");
        events.publish(event("sandbox.created", 2 * MAX_BYTES));
        assert_eq!(events.after(View::Tenant("t"), 0).0.len(), 1);
    }

    #[test]
    fn ids_of_other_processes_have_no_number() {
        let events = Events::new().expect("random numbers");
        events.publish(event("a", 0));
        let id = events.after(View::Tenant("t"), 0).0[0].1.id.clone();
        let view = View::Tenant("t");
        assert_eq!(events.number(view, &id).ok(), Some(Some(1)));
        let name = id.split_once('-').map_or("", |(name, _)| name);
        assert_eq!(events.number(view, &format!("{name}-99")).ok(), Some(Some(1)), "none is in the future");
        assert_eq!(events.number(view, "00-1").ok(), Some(None));
        assert_eq!(events.number(View::Tenant("u"), &id).ok(), Some(None));
        assert_eq!(events.number(View::All, &id).ok(), Some(None));
        for wrong in ["", "1", "a-b", "a-", "a--1"] {
            assert!(events.number(view, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tenants_do_not_see_each_others_number_of_events() {
        let events = Events::new().expect("random numbers");
        let other = |detail| Event { detail: "d".repeat(detail), ..Event::new("exec", "other") };
        events.publish(event("sandbox.created", 1));
        for _ in 0..2 * MAX_EVENTS {
            events.publish(other(1));
        }
        events.publish(event("sandbox.gone", 1));
        let (page, missed) = events.after(View::Tenant("t"), 0);
        let kinds: Vec<_> = page.iter().map(|(number, event)| (*number, event.kind.as_ref())).collect();
        assert_eq!((kinds, missed), (vec![(1, "sandbox.created"), (2, "sandbox.gone")], 0));
        assert_eq!(events.last_of(View::All), 2 * MAX_EVENTS as u64 + 2);
    }

    #[test]
    fn events_of_all_tenants_are_bounded() {
        let events = Events::new().expect("random numbers");
        for number in 0..2 * MAX_TOTAL_BYTES / MAX_BYTES {
            for _ in 0..4 {
                let event =
                    Event { detail: "d".repeat(MAX_BYTES / 8), ..Event::new("exec", &number.to_string()) };
                events.publish(event);
            }
        }
        let rings = events.rings.lock();
        assert!(rings.tenant_bytes <= MAX_TOTAL_BYTES, "{}", rings.tenant_bytes);
        assert_eq!(rings.tenant_bytes, rings.tenants.values().map(|ring| ring.bytes).sum::<usize>());
        assert!(rings.tenants.values().all(|ring| !ring.events.is_empty()));
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
