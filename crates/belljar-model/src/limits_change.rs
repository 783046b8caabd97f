//! Limits of a running sandbox that are to become others.

use std::num::NonZeroU16;

use crate::limits::{Cpus, Memory, Pids};

/// New limits for a running sandbox: those that can change while it runs. What is not given stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    /// Memory and swap of all processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Processor time a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<Pids>,
    /// How many sandboxes share one weight, of which this is one: where processors are short, they get together what one sandbox
    /// of somebody else gets. It is the operator's affair, and no limit that a caller sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<NonZeroU16>,
}

impl LimitsChange {
    /// Changes the memory limit and nothing else.
    #[must_use]
    pub fn memory(memory: Memory) -> Self {
        Self { memory: Some(memory), ..Self::default() }
    }

    /// Whether nothing is to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_checked_like_a_limit() {
        let change: LimitsChange = serde_json::from_str(r#"{"memory":"64m","pids":"10"}"#).unwrap();
        assert_eq!((change.memory.unwrap().bytes(), change.pids.unwrap().get()), (64 << 20, 10));
        assert!(change.cpus.is_none() && !change.is_empty());
        assert_eq!(serde_json::to_string(&change).unwrap(), r#"{"memory":"64 MiB","pids":"10"}"#);
        assert!(serde_json::from_str::<LimitsChange>("{}").unwrap().is_empty());
        for bad in [r#"{"memory":"1m"}"#, r#"{"disk":"1g"}"#, r#"{"pids":"0"}"#, "[1]"] {
            assert!(serde_json::from_str::<LimitsChange>(bad).is_err(), "{bad}");
        }
    }
}
