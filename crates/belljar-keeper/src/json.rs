//! Serialization of values whose JSON form differs from the default.

use std::time::Duration;

use serde::{Serialize as _, Serializer};

/// Serializes an optional time span in seconds.
pub(crate) fn seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

/// Serializes a time span in milliseconds.
pub(crate) fn milliseconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(belljar_model::milliseconds(*span))
}

/// Timestamps in RFC 3339 with six fractional digits.
pub(crate) mod time {
    use jiff::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{at:.6}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        Timestamp::deserialize(deserializer)
    }

    /// Optional timestamps.
    pub(crate) mod option {
        use super::{Deserializer, Serializer, Timestamp};
        use serde::Deserialize as _;

        pub(crate) fn serialize<S: Serializer>(
            at: &Option<Timestamp>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match at {
                Some(at) => super::serialize(at, serializer),
                None => serializer.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Timestamp>, D::Error> {
            Option::deserialize(deserializer)
        }
    }
}
