//! Writing and reading the audit log.

use belljar_model::SandboxId;
use belljar_store::{AuditError, AuditFilter, AuditRecord, Head, NewRecord, StoreError, Verification};
use jiff::Timestamp;
use tracing::Instrument as _;

use crate::action::{AUDIT_READ, AUDIT_VERIFY, Action, SANDBOX_KILL};
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::events::Event;
use crate::keeper::{Keeper, Result};
use crate::steps::step;

/// Maximum number of records per page.
const MAX_RECORDS: u32 = 10_000;

// Names of details that have their own field in a record.
/// SHA-256 of the executed code or command.
pub(crate) const CODE_DIGEST: &str = "code_sha256";
/// SHA-256 of its output.
pub(crate) const OUTPUT_DIGEST: &str = "output_sha256";
/// SHA-256 of the policy in force.
pub(crate) const POLICY_DIGEST: &str = "policy_sha256";
/// The engine.
pub(crate) const ISOLATION: &str = "isolation";

/// An event for the audit log.
#[derive(Debug, Clone)]
pub(crate) struct AuditEvent<'a> {
    /// Name of the action, such as `file.write`.
    pub action: &'static str,
    /// The sandbox concerned.
    pub sandbox: Option<&'a SandboxId>,
    /// `ok`, or the stable code of the error.
    pub outcome: &'a str,
    /// Names and values; a value that is too long is truncated and marked as such.
    pub details: Vec<(&'static str, String)>,
}

impl Keeper {
    /// Records an action in the audit log. Returns when the record is written, or if the action is only counted
    /// ([`Action::counted`]).
    pub(crate) fn audit<'a, T>(
        &'a self,
        caller: &'a Caller,
        action: Action,
        sandbox: Option<&'a SandboxId>,
        outcome: &Result<T>,
        details: Vec<(&'static str, String)>,
    ) -> impl Future<Output = Result<()>> + Send + use<'a, T> {
        debug_assert!(action.audited, "{} is recorded, which docs/audit.md denies", action.name);
        let outcome = outcome.as_ref().err().map_or("ok", KeeperError::code);
        let is_counted = action.counted && outcome == "ok" && self.note_done(caller, action.name);
        let event = AuditEvent { action: action.name, sandbox, outcome, details };
        async move { if is_counted { Ok(()) } else { self.record(caller, event).await } }
    }

    /// Records an event in the audit log. Returns when the record is written.
    ///
    /// # Errors
    /// Fails if the store fails. An action without a record must not be reported as done.
    pub(crate) async fn record(&self, caller: &Caller, event: AuditEvent<'_>) -> Result<()> {
        if event.outcome != "ok" && self.note_refused(caller, event.action, event.outcome) {
            return Ok(());
        }
        let bus_event = self.to_bus_event(caller, &event);
        let mut record = NewRecord::new(Timestamp::now(), &caller.tenant, event.action, event.outcome);
        record.key_id = Some(caller.key.clone());
        record.actor = caller.client.clone();
        record.request_id = caller.request_id.clone();
        record.sandbox = event.sandbox.cloned();
        for (name, value) in event.details {
            match name {
                CODE_DIGEST => record.code_digest = Some(value),
                OUTPUT_DIGEST => record.output_digest = Some(value),
                POLICY_DIGEST => record.policy_digest = Some(value),
                ISOLATION => record.isolation = Some(value),
                name => record.details = record.details.with(name, value),
            }
        }
        let begin = std::time::Instant::now();
        // The record of a sandbox's end may use the reserve of a full disk.
        let ends = event.action == SANDBOX_KILL.name;
        let retry = ends.then(|| record.clone());
        let mut appended = self.inner.audit.append(record).instrument(step!("audit.append")).await;
        if let (Err(error), Some(record)) = (&appended, retry)
            && error.is_full()
        {
            // The reserve may already have been released for the sandbox's own record.
            self.inner.store.release_reserve().await;
            appended = self.inner.audit.append(record).await;
        }
        self.inner.metrics.record_audit_append(begin.elapsed());
        match appended {
            // The log is shutting down: no further action is carried out.
            Err(AuditError::Closed) => Err(KeeperError::ShuttingDown),
            appended => {
                appended?;
                bus_event.into_iter().for_each(|event| self.inner.events.publish(event));
                Ok(())
            }
        }
    }

    /// Converts an event to one for the event bus, if nothing else publishes it.
    fn to_bus_event(&self, caller: &Caller, event: &AuditEvent<'_>) -> Option<Event> {
        if event.outcome != "ok" || !is_published(event.action) {
            return None;
        }
        let subject = ["template", "key", "port", "name"].iter().find_map(|name| {
            event.details.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        });
        let entry = event.sandbox.and_then(|id| self.entry(id));
        Some(Event {
            sandbox: event.sandbox.cloned(),
            labels: entry.as_ref().map(|entry| entry.live().row.labels.clone()).unwrap_or_default(),
            detail: subject.unwrap_or_default(),
            ..Event::new(event.action, entry.as_ref().map_or(&caller.tenant, |entry| &entry.tenant))
        })
    }

    /// Returns records of the audit log: the first ones after `after`, or the last ones. Archived ones are not among them.
    ///
    /// # Errors
    /// Needs the role admin.
    pub async fn audit_records(
        &self,
        caller: &Caller,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRecord>> {
        self.require(caller, AUDIT_READ)?;
        Ok(self.inner.audit.tail(filter, after, limit.clamp(1, MAX_RECORDS)).await?)
    }

    /// Returns the last record's number and digest.
    ///
    /// # Errors
    /// Needs the role admin.
    pub async fn audit_head(&self, caller: &Caller) -> Result<Head> {
        self.require(caller, AUDIT_READ)?;
        Ok(self.inner.audit.head().await?)
    }

    /// Returns the last archived record's number and digest.
    ///
    /// # Errors
    /// Needs the role admin.
    pub async fn audit_base(&self, caller: &Caller) -> Result<Head> {
        self.require(caller, AUDIT_READ)?;
        Ok(self.inner.audit.base().await?)
    }

    /// Verifies the audit log from record `from` on, or from the first one that is not archived. A `known` earlier head must be
    /// part of it.
    ///
    /// # Errors
    /// Needs the role admin. Returns [`KeeperError::Field`] if `known` is archived. A broken log is not an error but a result.
    pub async fn audit_verify(
        &self,
        caller: &Caller,
        from: i64,
        known: Option<Head>,
    ) -> Result<Verification> {
        self.require(caller, AUDIT_VERIFY)?;
        self.inner.audit.verify(from, known).await.map_err(|error| match error {
            StoreError::Archived { .. } => KeeperError::Field { field: "head", reason: error.to_string() },
            error => error.into(),
        })
    }
}

/// Reports whether the audit log publishes an action as an event.
fn is_published(action: &str) -> bool {
    match action {
        "port.publish" | "port.unpublish" | "sandbox.snapshot" | "sandbox.update" | "sandbox.timeout" => true,
        action => action.starts_with("template.") || action.starts_with("key."),
    }
}

#[cfg(test)]
mod tests {
    use belljar_model::EVENT_KINDS;

    use super::*;
    use crate::action;

    #[test]
    fn published_actions_are_kinds_of_events() {
        for action in action::all().filter(|action| action.audited && is_published(action.name)) {
            assert!(EVENT_KINDS.contains(&action.name), "{}", action.name);
        }
    }
}
