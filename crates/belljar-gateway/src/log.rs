//! Log of the gateway's decisions, for the host to read.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use belljar_model::{NetworkEvent, NetworkEventKind, NetworkRecord};
use tokio::sync::Notify;

/// Maximum number of retained records.
const MAX_RECORDS: usize = 1024;

/// The most recent records. If there are too many, the oldest of the most frequent kind is dropped: many denials do not push out the
/// connections that were allowed.
#[derive(Default)]
pub(crate) struct Log {
    records: RefCell<VecDeque<Rc<NetworkRecord>>>,
    last: Cell<u64>,
    written: Notify,
    is_closed: Cell<bool>,
}

impl Log {
    /// Creates an empty log, whose numbers are greater than those of earlier generations.
    pub(crate) fn of_generation(generation: u32) -> Self {
        Self { last: Cell::new(NetworkRecord::first_of(generation)), ..Self::default() }
    }

    pub(crate) fn write(&self, event: NetworkEvent) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut records = self.records.borrow_mut();
        if records.len() == MAX_RECORDS {
            drop_oldest(&mut records);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        records.push_back(Rc::new(NetworkRecord { number, unix_ms, event }));
        self.written.notify_waiters();
    }

    /// Returns the records after number `after`.
    pub(crate) fn after(&self, after: u64) -> Vec<Rc<NetworkRecord>> {
        self.records.borrow().iter().filter(|record| record.number > after).map(Rc::clone).collect()
    }

    /// Waits until there is a record after number `after` or the log is closed.
    pub(crate) async fn wait_after(&self, after: u64) {
        loop {
            let written = self.written.notified();
            let is_there = self.records.borrow().back().is_some_and(|record| record.number > after);
            if is_there || self.is_closed.get() {
                return;
            }
            written.await;
        }
    }

    /// Closes the log and releases its followers: nothing is written after this.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        self.written.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }
}

/// Drops the oldest record of the kind with the most records.
fn drop_oldest(records: &mut VecDeque<Rc<NetworkRecord>>) {
    let mut counts: BTreeMap<NetworkEventKind, usize> = BTreeMap::new();
    for record in records.iter() {
        *counts.entry(record.event.kind()).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(kind, _)| kind);
    let oldest = records.iter().position(|record| Some(record.event.kind()) == most);
    drop(records.remove(oldest.unwrap_or(0)));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn log_keeps_most_recent_records() {
        let log = Log::default();
        for number in 0..MAX_RECORDS + 3 {
            let (host, rule, reason) = (number.to_string(), String::new(), String::new());
            log.write(NetworkEvent::Lookup { host, rule, reason });
        }
        let numbers: Vec<u64> = log.after(0).iter().map(|record| record.number).collect();
        assert_eq!((numbers[0], numbers.len()), (4, MAX_RECORDS));
        assert_eq!(log.after(1026).len(), 1);
        assert!(log.after(1027).is_empty());
    }

    #[test]
    fn many_denials_do_not_hide_other_events() {
        let log = Log::default();
        let connection = |host: &str, allowed, rule: &str| NetworkEvent::Connection {
            flow: 1,
            host: host.to_owned(),
            port: 443,
            allowed,
            address: None,
            rule: rule.to_owned(),
            reason: String::new(),
        };
        log.write(connection("good.example", true, "allow: good.example"));
        log.write(connection("169.254.169.254", false, "always denied: metadata service"));
        for number in 0..3 * MAX_RECORDS {
            let (host, rule, reason) =
                (number.to_string(), "not in the allow list".to_owned(), String::new());
            log.write(NetworkEvent::Lookup { host, rule, reason });
        }
        let kept: Vec<_> = log.after(0).iter().map(|record| record.event.kind()).collect();
        assert_eq!(kept.len(), MAX_RECORDS);
        assert_eq!(kept[..2], [NetworkEventKind::Allowed, NetworkEventKind::AlwaysDenied]);
    }

    #[tokio::test]
    async fn follower_of_an_earlier_gateway_waits_for_the_first_record() {
        let log = Log::of_generation(1);
        let is_there = async || tokio::time::timeout(Duration::ZERO, log.wait_after(5)).await.is_ok();
        assert!(!is_there().await);
        let (host, rule, reason) = (String::new(), String::new(), String::new());
        log.write(NetworkEvent::Lookup { host, rule, reason });
        assert!(is_there().await);
        assert_eq!(log.after(5)[0].number, (1 << 32) + 1);
    }
}
