//! What the gateway has decided, for the host to read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use belljar_model::{NetworkEvent, NetworkRecord};
use tokio::sync::Notify;

/// The most records that are kept.
const MAX_RECORDS: usize = 1024;

/// The last records.
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

    /// The records after number `after`.
    pub(crate) fn after(&self, after: u64) -> Vec<Rc<NetworkRecord>> {
        self.records.borrow().iter().filter(|record| record.number > after).map(Rc::clone).collect()
    }

    /// Resolves when there is one after number `after`, or when none will come any more.
    pub(crate) async fn grown(&self, after: u64) {
        loop {
            let written = self.written.notified();
            if self.last.get() > after || self.is_closed.get() {
                return;
            }
            written.await;
        }
    }

    /// Lets those who follow it go: nothing is written after this.
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
    fn the_last_records_are_kept() {
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
