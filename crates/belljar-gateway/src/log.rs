//! What the gateway has decided, for the host to read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::rc::Rc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The most records that are kept.
const MAX_RECORDS: usize = 1024;

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Counts up from 1; what is missing between two was too old to be kept.
    pub number: u64,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A name was not resolved.
    Lookup {
        /// The name.
        host: String,
        /// What decided, as [`belljar_model::DecidedBy`] says it.
        rule: String,
        /// One sentence for whoever asked.
        reason: String,
    },
    /// It was decided about a connection.
    Connection {
        /// Which connection.
        flow: u64,
        /// The name, or the address if the program gave that.
        host: String,
        /// The port.
        port: u16,
        /// Whether it was allowed.
        allowed: bool,
        /// The address that it goes to, once the gateway has looked the name up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Ipv4Addr>,
        /// What decided.
        rule: String,
        /// One sentence for whoever tried it.
        reason: String,
    },
    /// An allowed connection has ended.
    Ended {
        /// Which connection.
        flow: u64,
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// The bytes that the sandbox has sent.
        sent: u64,
        /// The bytes that it got.
        received: u64,
        /// Why, if it did not just end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// The last records.
#[derive(Default)]
pub(crate) struct Log {
    records: RefCell<VecDeque<Rc<Record>>>,
    last: Cell<u64>,
    written: Notify,
}

impl Log {
    pub(crate) fn write(&self, event: Event) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut records = self.records.borrow_mut();
        if records.len() == MAX_RECORDS {
            records.pop_front();
        }
        records.push_back(Rc::new(Record { number, at: Timestamp::now(), event }));
        self.written.notify_waiters();
    }

    /// The records after number `after`.
    pub(crate) fn after(&self, after: u64) -> Vec<Rc<Record>> {
        self.records.borrow().iter().filter(|record| record.number > after).map(Rc::clone).collect()
    }

    /// Resolves when there is one after number `after`.
    pub(crate) async fn grown(&self, after: u64) {
        loop {
            let written = self.written.notified();
            if self.last.get() > after {
                return;
            }
            written.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_records_are_kept() {
        let log = Log::default();
        for number in 0..MAX_RECORDS + 3 {
            log.write(Event::Lookup { host: number.to_string(), rule: String::new(), reason: String::new() });
        }
        let numbers: Vec<u64> = log.after(0).iter().map(|record| record.number).collect();
        assert_eq!((numbers[0], numbers.len()), (4, MAX_RECORDS));
        assert_eq!(log.after(1026).len(), 1);
        assert!(log.after(1027).is_empty());
    }

    #[test]
    fn a_record_reads_back() {
        let event = Event::Ended { flow: 1, host: "h".into(), port: 1, sent: 2, received: 3, error: None };
        let record = Record { number: 1, at: Timestamp::UNIX_EPOCH, event };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""event":"ended""#), "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
