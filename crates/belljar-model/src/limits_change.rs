//! Changes of the limits of a running sandbox.

use std::num::NonZeroU16;

use crate::limits::{Cpus, Memory, Pids};

/// New limits for a running sandbox: those that can change while it runs. Missing ones stay unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    /// Memory and swap of all processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Processor time per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<Pids>,
    /// Number of sandboxes that share one weight, of which this is one: when processors are scarce, they together get what one
    /// sandbox of another tenant gets. It is set by the operator, and is not a limit that callers set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<NonZeroU16>,
}

impl LimitsChange {
    /// Returns a change of the memory limit only.
    #[must_use]
    pub fn memory(memory: Memory) -> Self {
        Self { memory: Some(memory), ..Self::default() }
    }

    /// Reports whether nothing is to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_validated_like_limits() {
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
