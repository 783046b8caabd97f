//! Records of decisions about the connections of a sandbox.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::decision::ALWAYS_DENIED_TEXT;

/// Record of the log of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRecord {
    /// Sequence number from 1; a gap means that older records were overwritten. Those of a gateway that was started again
    /// begin at the next multiple of 2^32, plus 1.
    pub number: u64,
    /// Time of the event, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The event.
    #[serde(flatten)]
    pub event: NetworkEvent,
}

impl NetworkRecord {
    /// Returns the number before the first one of a sandbox's gateway with this generation.
    #[must_use]
    pub fn first_of(generation: u32) -> u64 {
        u64::from(generation) << 32
    }

    /// Returns the generation of the gateway that wrote the record with this number.
    #[must_use]
    pub fn generation(number: u64) -> u64 {
        number >> 32
    }

    /// Returns how many records between `last` and this one were overwritten before they were read.
    #[must_use]
    pub fn lost_since(&self, last: u64) -> u64 {
        // The last records of a gateway that has ended unexpectedly are gone, however many they were.
        let last = last.max(Self::generation(self.number) << 32);
        self.number.saturating_sub(last.saturating_add(1))
    }
}

/// What the gateway of a network reports to whoever follows its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkReport {
    /// A record of the log.
    Record(NetworkRecord),
    /// Its totals so far. They follow the records that changed them, and are repeated while bytes are transferred.
    Totals(NetworkTotals),
}

impl NetworkReport {
    /// Returns the record, if this is one.
    #[must_use]
    pub fn record(self) -> Option<NetworkRecord> {
        match self {
            Self::Record(record) => Some(record),
            Self::Totals(_) => None,
        }
    }
}

/// Totals of one gateway since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkTotals {
    /// The gateway's generation: the number of gateways that the sandbox had before it.
    pub generation: u64,
    /// Number of allowed connections that are open.
    pub open: u64,
    /// Bytes sent by the sandbox, over open and ended connections.
    pub sent: u64,
    /// Bytes received by the sandbox, likewise.
    pub received: u64,
}

/// Event on a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NetworkEvent {
    /// A name was not resolved.
    Lookup {
        /// The name.
        host: String,
        /// The rule or mode that decided, as displayed by [`DecidedBy`](crate::DecidedBy).
        rule: String,
        /// One sentence for the user.
        reason: String,
    },
    /// A decision about a connection.
    Connection {
        /// Number of the connection.
        flow: u64,
        /// The name, or the address if the program used that.
        host: String,
        /// The port.
        port: u16,
        /// Whether it was allowed.
        allowed: bool,
        /// The destination address, once the gateway has resolved the name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Ipv4Addr>,
        /// The rule or mode that decided.
        rule: String,
        /// One sentence for the user.
        reason: String,
    },
    /// An allowed connection has ended.
    Ended {
        /// Number of the connection.
        flow: u64,
        /// The name or address.
        host: String,
        /// The port.
        port: u16,
        /// Bytes sent by the sandbox.
        sent: u64,
        /// Bytes received by the sandbox.
        received: u64,
        /// The error, if the connection did not end normally.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// Kind of an event. Each has room of its own in logs, so that code cannot hide events of one kind behind many of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkEventKind {
    /// A connection was allowed.
    Allowed,
    /// An allowed connection has ended.
    Ended,
    /// Denied whatever the policy, such as the address of a metadata service.
    AlwaysDenied,
    /// Denied by the policy.
    Denied,
}

impl NetworkEvent {
    /// Returns the kind of the event.
    #[must_use]
    pub fn kind(&self) -> NetworkEventKind {
        match self {
            Self::Ended { .. } => NetworkEventKind::Ended,
            Self::Connection { allowed: true, .. } => NetworkEventKind::Allowed,
            Self::Lookup { rule, .. } | Self::Connection { rule, .. }
                if rule.starts_with(ALWAYS_DENIED_TEXT) =>
            {
                NetworkEventKind::AlwaysDenied
            }
            Self::Lookup { .. } | Self::Connection { .. } => NetworkEventKind::Denied,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trip() {
        let event =
            NetworkEvent::Ended { flow: 1, host: "h".into(), port: 1, sent: 2, received: 3, error: None };
        let record = NetworkRecord { number: 1, unix_ms: 5, event };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""event":"ended""#), "{text}");
        assert_eq!(serde_json::from_str::<NetworkRecord>(&text).unwrap(), record);
    }
}
