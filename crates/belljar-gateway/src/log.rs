//! Log of the gateway's decisions, for the host to read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use belljar_model::{NetworkEvent, NetworkRecord};
use tokio::sync::Notify;

/// Maximum number of retained records.
const MAX_RECORDS: usize = 1024;

/// The most recent records.
#[derive(Default)]
pub(crate) struct Log {
    records: RefCell<VecDeque<Rc<NetworkRecord>>>,
    last: Cell<u64>,
    written: Notify,
    is_closed: Cell<bool>,
}

impl Log {
    pub(crate) fn write(&self, event: NetworkEvent) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut records = self.records.borrow_mut();
        if records.len() == MAX_RECORDS {
            records.pop_front();
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
            if self.last.get() > after || self.is_closed.get() {
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

#[cfg(test)]
mod tests {
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
}
