//! Approvals as callers see them: the call that waits, the decision, and the configuration.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belljar_model::{ApprovalState, BudgetScope, Encoding, NetworkMode, NetworkPolicy, SandboxSpec};
use belljar_screen::{Finding, Severity};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use utoipa::ToSchema;

use crate::json;

/// Maximum length of what the person who decides sees of a call, in bytes of JSON.
/// Source: docs/spec.md; held by `waits::waiting_calls_are_bounded` of this crate's tests.
pub const MAX_APPROVAL_BYTES: usize = 256 << 10;

/// Maximum length of what is shown of the code that makes a call, in bytes.
/// Source: docs/spec.md; held by `tests::long_calling_code_is_cut`.
pub const MAX_CALLING_CODE_BYTES: usize = 32 << 10;

/// Maximum length of a note in bytes. Source: docs/spec.md; held by `budgets::budgets_end_at_their_edge` of this crate's tests.
pub const MAX_NOTE_BYTES: usize = 1024;

/// Maximum number of calls of a budget. Source: docs/spec.md; held by `budgets::budgets_end_at_their_edge` of this crate's tests.
pub const MAX_BUDGET_USES: u32 = 1000;

/// Longest time of a budget. Source: docs/spec.md; held by `budgets::budgets_end_at_their_edge` of this crate's tests.
pub const MAX_BUDGET_TIME: Duration = Duration::from_secs(24 * 3600);

/// The operator's configuration of approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApprovalsConfig {
    /// Time after which a call about which nobody has decided is refused.
    pub timeout: Duration,
    /// Maximum number of waiting calls of one tenant.
    pub max_pending: u32,
    /// Time for which the record of an approval is kept after its end.
    pub keep: Duration,
}

impl Default for ApprovalsConfig {
    /// 5 minutes, 100 calls, 7 days.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(300), max_pending: 100, keep: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// Bytes of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ApprovalContent)]
pub struct ApprovalContent {
    /// Encoding of `data`: `utf-8` or `base64`.
    #[schema(value_type = String, example = "utf-8")]
    pub encoding: Encoding,
    /// The bytes.
    pub data: String,
}

impl ApprovalContent {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (encoding, data) = Encoding::encode(bytes);
        Self { encoding, data }
    }
}

/// A call, as the person who decides sees it. The digest of an approval is the SHA-256 of its JSON without `calling_code` and
/// `screening`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalRequest {
    /// Its action: `tool.call`, `code`, `exec`, or `exec.start` for a command in the background.
    #[schema(example = "tool.call")]
    pub action: String,
    /// The tool, as `NAME@VERSION`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Whether the tool was named without a version: it has to be the current one then when the call begins.
    #[serde(skip)]
    pub(crate) is_by_name: bool,
    /// SHA-256 of the tool's definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_sha256: Option<String>,
    /// The sandbox, if it is there already. It is frozen while the call waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Template of the sandbox.
    pub template: String,
    /// Id of the template from which the sandbox is created for this call. A template that was built again has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
    /// The mode of the sandbox's network policy, and the policy in JSON if there is a network. Values of secrets are left out.
    pub network: String,
    /// SHA-256 of the sandbox's whole specification: limits, mounts, volumes, network and the content of its template.
    pub policy_sha256: String,
    /// Language of the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Context of the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ApprovalContent>,
    /// The line for the shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<ApprovalContent>,
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<ApprovalContent>>,
    /// The session in which the command runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// Tools that the code may call, as `NAME@VERSION`. Each of its calls may wait for approval itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// How often it may call them, if not 100 times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u32>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<ApprovalContent>,
    /// User as whom the command runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Environment: the sandbox's, and that of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Input of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<ApprovalContent>,
    /// Timeout in milliseconds; the sandbox's if absent, none if 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Files that are written before, by their paths below the home directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, ApprovalContent>,
    /// The running code that makes the call, if code does. It ran before, so that it is no part of the digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calling_code: Option<CallingCode>,
    /// What screening has found, if the call waits because of that. It is advice, and no part of the digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub screening: Option<ApprovalScreening>,
}

/// Running code that makes a call, as `belljar.tools.NAME(…)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallingCode {
    /// Its sandbox, which is frozen while the call waits.
    pub sandbox: String,
    /// Its context.
    pub context: String,
    /// The context's language.
    pub language: String,
    /// Number of the execution.
    pub execution: u64,
    /// The code, or its first 32 KiB.
    pub code: ApprovalContent,
    /// Length of the whole code in bytes.
    pub code_bytes: u64,
    /// SHA-256 of the whole code, as in the audit record of the execution.
    pub code_sha256: String,
    /// Why its calls have ended, once they have.
    #[serde(skip)]
    pub(crate) end: Arc<OnceLock<&'static str>>,
}

impl CallingCode {
    /// Returns an execution of code, of which a bounded part is shown.
    pub(crate) fn new(
        sandbox: String,
        (context, language, execution): (String, String, u64),
        code: &[u8],
        end: Arc<OnceLock<&'static str>>,
    ) -> Self {
        let mut shown = code.len().min(MAX_CALLING_CODE_BYTES);
        // Not within a character.
        while code.get(shown).is_some_and(|byte| byte & 0xc0 == 0x80) {
            shown -= 1;
        }
        Self {
            sandbox,
            context,
            language,
            execution,
            code: ApprovalContent::new(&code[..shown]),
            code_bytes: u64::try_from(code.len()).unwrap_or(u64::MAX),
            code_sha256: hex::encode(Sha256::digest(code)),
            end,
        }
    }

    /// Returns the details for audit records of the call.
    pub(crate) fn details(&self) -> [(&'static str, String); 4] {
        [
            ("calling_sandbox", self.sandbox.clone()),
            ("calling_context", self.context.clone()),
            ("calling_execution", self.execution.to_string()),
            ("calling_code_sha256", self.code_sha256.clone()),
        ]
    }
}

/// What screening has found in a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ApprovalScreening)]
pub struct ApprovalScreening {
    /// The gravest severity of a finding; `high` if a part of the call could not be read.
    pub risk: Severity,
    /// The risk from which on calls wait: `medium` or `high`.
    pub threshold: Severity,
    /// The findings, by their places, at most 100, the gravest ones if there are more.
    pub findings: Vec<ApprovalFinding>,
    /// Number of findings that were left out.
    pub left_out: usize,
    /// What could not be read, and why.
    pub unread: Vec<String>,
}

/// A finding in a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ApprovalFinding)]
pub struct ApprovalFinding {
    /// The part of the call: `code`, `command`, `arguments` or `file NAME`.
    #[schema(example = "code")]
    pub part: String,
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
}

impl ApprovalRequest {
    /// Returns a request without what is particular to its action. `sandbox` is that in which it runs, if it is there already.
    pub(crate) fn new(action: &str, template: &str, spec: &SandboxSpec, sandbox: Option<String>) -> Self {
        let env = spec.env.iter().map(|one| (one.name().to_owned(), one.value().to_owned())).collect();
        Self {
            action: action.to_owned(),
            sandbox,
            template: template.to_owned(),
            network: network_text(&spec.network),
            policy_sha256: policy_digest(spec),
            env,
            ..Self::default()
        }
    }

    /// Returns the sandbox that is frozen while the call waits: that in which it runs, else that of the code that makes it.
    pub(crate) fn frozen(&self) -> Option<&str> {
        let calling = self.calling_code.as_ref().map(|code| code.sandbox.as_str());
        self.sandbox.as_deref().or(calling)
    }

    /// Returns the digest of what a budget for a tool covers: its version, and the policy.
    pub(crate) fn tool_digest(&self) -> Option<String> {
        let tool = self.tool_sha256.as_ref()?;
        let template = self.template_id.as_deref().unwrap_or_default();
        Some(hex::encode(Sha256::digest(format!("{tool} {} {template}", self.policy_sha256))))
    }
}

fn network_text(policy: &NetworkPolicy) -> String {
    if policy.mode() == NetworkMode::Disabled {
        return policy.to_string();
    }
    format!("{policy} {}", policy.canonical_json())
}

/// Returns the SHA-256 of a specification, in hexadecimal.
pub(crate) fn policy_digest(spec: &SandboxSpec) -> String {
    // Cannot fail: it is what the store has of a sandbox.
    hex::encode(Sha256::digest(serde_json::to_vec(spec).unwrap_or_default()))
}

/// An approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Approval)]
pub struct ApprovalInfo {
    /// Its id.
    #[schema(example = "apr_5d0c6a3f1b2c4d5e")]
    pub id: String,
    /// Its state.
    pub state: ApprovalState,
    /// Tenant of the call.
    pub tenant: String,
    /// Id of the key that made the call.
    pub key: String,
    /// The person who made the call: the owner of the key, or its id without one.
    pub requester: String,
    /// SHA-256 of the JSON of `request` without `calling_code` and `screening`.
    pub digest: String,
    /// The call.
    pub request: ApprovalRequest,
    /// Time of the call.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Deadline of the decision, after which the call is refused.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    /// The decision of a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ApprovalDecision>,
    /// Id of the approval whose budget has allowed the call, which did not wait then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_by: Option<String>,
    /// Time at which the call began to run.
    #[serde(default, with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// Time at which it had ended, or could not run any more.
    #[serde(default, with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Outcome of the call, or the reason why it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

/// The decision of a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalDecision {
    /// Time of the decision.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Id of the key with which it was made.
    pub key: String,
    /// The person: the owner of the key, or its id without one.
    pub person: String,
    /// The person's note.
    pub note: String,
    /// Further calls that it covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<ApprovalBudget>,
}

/// Further calls that an approval covers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalBudget {
    /// Which calls.
    pub scope: BudgetScope,
    /// Number of calls, with the one that waited.
    pub uses: i64,
    /// Number of these that were used.
    pub used: i64,
    /// Time until which they may begin.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub until: Timestamp,
}

/// An approval that a person gives.
#[derive(Debug, Clone, Default)]
pub struct Approve {
    /// Note, at most [`MAX_NOTE_BYTES`].
    pub note: String,
    /// Further calls, if any are to be covered.
    pub budget: Option<NewBudget>,
}

/// Further calls that an approval is to cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewBudget {
    /// Which calls.
    pub scope: BudgetScope,
    /// Number of calls with the one that waits, 2 to [`MAX_BUDGET_USES`].
    pub uses: u32,
    /// Time within which they must begin, 1 s to [`MAX_BUDGET_TIME`].
    pub within: Duration,
}

/// Calls that wait on this server, by the ids of their approvals.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<String, Waiter>>);

struct Waiter {
    /// Id of the key that made the call.
    key: String,
    woken: Arc<Notify>,
}

impl Waiters {
    pub(crate) fn register(&self, id: &str, key: &str) -> Arc<Notify> {
        let new = || Waiter { key: key.to_owned(), woken: Arc::default() };
        Arc::clone(&self.0.lock().entry(id.to_owned()).or_insert_with(new).woken)
    }

    pub(crate) fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    pub(crate) fn wake(&self, id: &str) {
        if let Some(waiter) = self.0.lock().get(id) {
            waiter.woken.notify_one();
        }
    }

    /// Wakes those of a key, which may not be valid any more.
    pub(crate) fn wake_key(&self, key: &str) {
        self.0
            .lock()
            .values()
            .filter(|waiter| waiter.key == key)
            .for_each(|waiter| waiter.woken.notify_one());
    }

    /// Wakes all, as the server shuts down.
    pub(crate) fn wake_all(&self) {
        self.0.lock().values().for_each(|waiter| waiter.woken.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_calling_code_is_cut() {
        let shown = |code: &str| {
            let place = ("python".to_owned(), "python".to_owned(), 7);
            let shown = CallingCode::new("sbx".to_owned(), place, code.as_bytes(), Arc::default());
            assert_eq!(shown.code.encoding, Encoding::Utf8);
            assert_eq!(shown.code_sha256, hex::encode(Sha256::digest(code)));
            assert!(code.starts_with(&shown.code.data));
            (shown.code.data.len(), shown.code_bytes)
        };
        let most = MAX_CALLING_CODE_BYTES;
        let whole = "a".repeat(most);
        assert_eq!(shown(""), (0, 0));
        assert_eq!(shown(&whole), (most, 32768));
        assert_eq!(shown(&format!("{whole}b")), (most, 32769));
        // A character that does not fit is left out.
        assert_eq!(shown(&format!("{}ä", "a".repeat(most - 1))), (most - 1, 32769));
        assert_eq!(shown(&format!("{}🙂b", "a".repeat(most - 2))), (most - 2, 32771));
    }
}
