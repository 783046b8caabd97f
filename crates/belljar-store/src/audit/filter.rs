//! Which records are asked for.

use belljar_model::SandboxId;
use jiff::Timestamp;

/// Which records are asked for. What is left empty restricts nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Those that concern this tenant.
    pub tenant: Option<String>,
    /// Those of this key.
    pub key_id: Option<String>,
    /// Those of this action; of all actions that begin so, if it ends with a dot, as in `sandbox.`
    pub action: Option<String>,
    /// Those about this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Those at this time or later.
    pub since: Option<Timestamp>,
    /// Those before this time.
    pub until: Option<Timestamp>,
}
