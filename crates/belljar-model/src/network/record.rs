//! What has been decided about the connections of a sandbox.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// One line of the log of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRecord {
    /// Counts up from 1; what is missing between two was too old to be kept.
    pub number: u64,
    /// When it happened, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: NetworkEvent,
}

/// What has happened on a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NetworkEvent {
    /// A name was not resolved.
    Lookup {
        /// The name.
        host: String,
        /// What decided, as [`DecidedBy`](crate::DecidedBy) says it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        let event =
            NetworkEvent::Ended { flow: 1, host: "h".into(), port: 1, sent: 2, received: 3, error: None };
        let record = NetworkRecord { number: 1, unix_ms: 5, event };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""event":"ended""#), "{text}");
        assert_eq!(serde_json::from_str::<NetworkRecord>(&text).unwrap(), record);
    }
}
