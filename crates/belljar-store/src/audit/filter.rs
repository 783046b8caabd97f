//! Filter of audit records.

use belljar_model::SandboxId;
use jiff::Timestamp;

/// Filter of audit records. An empty field restricts nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Records of this tenant.
    pub tenant: Option<String>,
    /// Records of this key.
    pub key_id: Option<String>,
    /// Records of this action; if it ends with a dot, of all actions with that prefix, as in `sandbox.`
    pub action: Option<String>,
    /// Records of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Records at this time or later.
    pub since: Option<Timestamp>,
    /// Records before this time.
    pub until: Option<Timestamp>,
}
