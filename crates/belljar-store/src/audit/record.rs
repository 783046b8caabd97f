//! Audit records.

use belljar_model::SandboxId;
use jiff::Timestamp;

use super::details::{Details, truncate};
use super::head::Head;

/// A record to append. Texts may come from anybody: they are cut to [`MAX_FIELD_BYTES`](super::MAX_FIELD_BYTES), and escaped so
/// that none can imitate another record.
///
/// Must not contain secrets. In place of one, use [`Redacted`](super::Redacted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRecord {
    /// Time of the event, stored to the microsecond.
    pub at: Timestamp,
    /// Tenant that the event concerns.
    pub tenant: String,
    /// Id of the API key that was used, if it was valid.
    pub key_id: Option<String>,
    /// Origin of the request: the client's address and user agent.
    pub actor: String,
    /// Action that was performed or attempted, as in `sandbox.create` or `policy.refused`.
    pub action: String,
    /// Sandbox that the event concerns.
    pub sandbox: Option<SandboxId>,
    /// Id of the request, as in the logs.
    pub request_id: String,
    /// Outcome: `ok`, or an error code of the API.
    pub outcome: String,
    /// Isolation that was in force.
    pub isolation: Option<String>,
    /// SHA-256 of the policy that was in force, in hexadecimal.
    pub policy_digest: Option<String>,
    /// SHA-256 of the code that was run, in hexadecimal.
    pub code_digest: Option<String>,
    /// SHA-256 of its output, in hexadecimal.
    pub output_digest: Option<String>,
    /// Further details.
    pub details: Details,
}

impl NewRecord {
    /// Creates a record with the mandatory fields. The others are empty.
    pub fn new(at: Timestamp, tenant: &str, action: &str, outcome: &str) -> Self {
        Self {
            at,
            tenant: tenant.to_owned(),
            key_id: None,
            actor: String::new(),
            action: action.to_owned(),
            sandbox: None,
            request_id: String::new(),
            outcome: outcome.to_owned(),
            isolation: None,
            policy_digest: None,
            code_digest: None,
            output_digest: None,
            details: Details::new(),
        }
    }
}

/// A record of the chain: the fields of [`NewRecord`], and its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Number of the record. The first one is 1, and there are no gaps.
    pub seq: i64,
    /// Time of the event. It may be earlier than that of the record before, if a clock was set back.
    pub at: Timestamp,
    /// Tenant that the event concerns.
    pub tenant: String,
    /// Id of the API key that was used, if it was valid.
    pub key_id: Option<String>,
    /// Origin of the request.
    pub actor: String,
    /// Action that was performed or attempted.
    pub action: String,
    /// Sandbox that the event concerns.
    pub sandbox: Option<SandboxId>,
    /// Id of the request.
    pub request_id: String,
    /// Outcome.
    pub outcome: String,
    /// Isolation that was in force.
    pub isolation: Option<String>,
    /// SHA-256 of the policy.
    pub policy_digest: Option<String>,
    /// SHA-256 of the code.
    pub code_digest: Option<String>,
    /// SHA-256 of the output.
    pub output_digest: Option<String>,
    /// Further details.
    pub details: Details,
    /// Hash of the previous record; zeros for the first.
    pub prev: [u8; 32],
    /// Hash of this record: SHA-256 of its canonical form without this field.
    pub hash: [u8; 32],
}

impl AuditRecord {
    /// Returns the record that follows `head`, and its canonical form, of which the hash is.
    pub(crate) fn after(head: Head, new: &NewRecord) -> (Self, String) {
        let optional = |text: &Option<String>| text.as_deref().map(truncate);
        let micros = Timestamp::from_microsecond(new.at.as_microsecond()).unwrap_or(new.at);
        let mut record = Self {
            seq: head.seq + 1,
            at: micros,
            tenant: truncate(&new.tenant),
            key_id: optional(&new.key_id),
            actor: truncate(&new.actor),
            action: truncate(&new.action),
            sandbox: new.sandbox.clone(),
            request_id: truncate(&new.request_id),
            outcome: truncate(&new.outcome),
            isolation: optional(&new.isolation),
            policy_digest: optional(&new.policy_digest),
            code_digest: optional(&new.code_digest),
            output_digest: optional(&new.output_digest),
            details: new.details.clone(),
            prev: head.hash,
            hash: [0; 32],
        };
        let body = super::canonical::serialize_body(&record);
        record.hash = super::canonical::digest(&body);
        (record, body)
    }

    /// Returns the record as one line of an export, without the newline.
    #[must_use]
    pub fn line(&self) -> String {
        super::canonical::serialize_line(self)
    }

    /// Returns the head of the chain before this record.
    pub(crate) fn before(&self) -> Head {
        Head { seq: self.seq - 1, hash: self.prev }
    }

    /// Returns the head of a chain that ends with this record.
    pub fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash }
    }

    /// Returns the record as one line of an export, without the newline.
    pub fn to_line(&self) -> String {
        super::canonical::serialize_line(self)
    }
}
