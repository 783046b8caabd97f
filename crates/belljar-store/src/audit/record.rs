//! One record.

use belljar_model::SandboxId;
use jiff::Timestamp;

use super::details::{Details, bounded};
use super::head::Head;

/// What is to be recorded. Texts may be anybody's: they are cut to
/// [`MAX_FIELD_BYTES`](super::MAX_FIELD_BYTES), and written so that none looks like another record.
///
/// No secret belongs into it. Where one was, put [`Redacted`](super::Redacted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRecord {
    /// When it happened. Parts smaller than a microsecond are lost.
    pub at: Timestamp,
    /// Whom it concerns.
    pub tenant: String,
    /// The id of the key that was used, if there was a good one.
    pub key_id: Option<String>,
    /// From where and by what: the client's address, the agent.
    pub actor: String,
    /// What was done or tried, as in `sandbox.create` or `policy.refused`.
    pub action: String,
    /// The sandbox that it was about.
    pub sandbox: Option<SandboxId>,
    /// The request, as in the logs.
    pub request_id: String,
    /// What came of it: `ok`, or a code as callers get it.
    pub outcome: String,
    /// The walls that were in force.
    pub isolation: Option<String>,
    /// SHA-256 of the policy that was in force, in hexadecimal.
    pub policy_digest: Option<String>,
    /// SHA-256 of the code that was run, in hexadecimal.
    pub code_digest: Option<String>,
    /// SHA-256 of what it wrote, in hexadecimal.
    pub output_digest: Option<String>,
    /// What else there is to say.
    pub details: Details,
}

impl NewRecord {
    /// A record with what every record has. The rest is empty.
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

/// A record of the chain. The fields are those of [`NewRecord`], and its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its place. The first record is 1, and there are no gaps.
    pub seq: i64,
    /// When it happened. It may be earlier than the one before, if a clock was set back.
    pub at: Timestamp,
    /// Whom it concerns.
    pub tenant: String,
    /// The id of the key that was used, if there was a good one.
    pub key_id: Option<String>,
    /// From where and by what.
    pub actor: String,
    /// What was done or tried.
    pub action: String,
    /// The sandbox that it was about.
    pub sandbox: Option<SandboxId>,
    /// The request.
    pub request_id: String,
    /// What came of it.
    pub outcome: String,
    /// The walls that were in force.
    pub isolation: Option<String>,
    /// SHA-256 of the policy.
    pub policy_digest: Option<String>,
    /// SHA-256 of the code.
    pub code_digest: Option<String>,
    /// SHA-256 of the output.
    pub output_digest: Option<String>,
    /// What else there is to say.
    pub details: Details,
    /// The hash of the record before; zeros for the first.
    pub prev: [u8; 32],
    /// The hash of this record: SHA-256 of its canonical form without this field.
    pub hash: [u8; 32],
}

impl AuditRecord {
    /// Makes the record that comes after `head`, and its canonical form, which the hash is of.
    pub(crate) fn after(head: Head, new: &NewRecord) -> (Self, String) {
        let optional = |text: &Option<String>| text.as_deref().map(bounded);
        let micros = Timestamp::from_microsecond(new.at.as_microsecond()).unwrap_or(new.at);
        let mut record = Self {
            seq: head.seq + 1,
            at: micros,
            tenant: bounded(&new.tenant),
            key_id: optional(&new.key_id),
            actor: bounded(&new.actor),
            action: bounded(&new.action),
            sandbox: new.sandbox.clone(),
            request_id: bounded(&new.request_id),
            outcome: bounded(&new.outcome),
            isolation: optional(&new.isolation),
            policy_digest: optional(&new.policy_digest),
            code_digest: optional(&new.code_digest),
            output_digest: optional(&new.output_digest),
            details: new.details.clone(),
            prev: head.hash,
            hash: [0; 32],
        };
        let body = super::canonical::body(&record);
        record.hash = super::canonical::digest(&body);
        (record, body)
    }

    /// The record as it stands in an export: one line of JSON, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        super::canonical::line(self)
    }

    /// The record as a head of the chain up to it.
    pub fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash }
    }

    /// The record as one line of an export, without the line's end.
    pub fn to_line(&self) -> String {
        super::canonical::line(self)
    }
}
