//! Who did what, and what came of it.

use belljar_model::SandboxId;
use belljar_store::{AuditError, AuditFilter, AuditRecord, Head, NewRecord, Verification};
use jiff::Timestamp;
use tracing::Instrument as _;

use crate::action::{AUDIT_READ, AUDIT_VERIFY, Action, SANDBOX_KILL};
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::events::Event;
use crate::keeper::{Keeper, Result};
use crate::steps::step;

/// The most records of one page.
const MAX_RECORDS: u32 = 10_000;

/// The name of a detail that has a field of its own in a record: the SHA-256 of what was to be run.
pub(crate) const CODE_DIGEST: &str = "code_sha256";
/// More of them: what it wrote, the policy that was in force, and the engine that built the walls.
pub(crate) const OUTPUT_DIGEST: &str = "output_sha256";
pub(crate) const POLICY_DIGEST: &str = "policy_sha256";
pub(crate) const ISOLATION: &str = "isolation";

/// Something for the trail.
#[derive(Debug, Clone)]
pub(crate) struct Deed<'a> {
    /// What, such as `file.write`.
    pub action: &'static str,
    /// Which sandbox it is about.
    pub sandbox: Option<&'a SandboxId>,
    /// `ok`, or the stable code of the error.
    pub outcome: &'a str,
    /// Names and values; a value that is too long is cut, and says so.
    pub details: Vec<(&'static str, String)>,
}

impl Keeper {
    /// Writes into the trail. Returns when it is written.
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
        self.record(caller, Deed { action: action.name, sandbox, outcome, details })
    }

    /// Writes a deed into the trail. Returns when it is written.
    ///
    /// # Errors
    /// The store failed. What was done without a record must not be told as done.
    pub(crate) async fn record(&self, caller: &Caller, deed: Deed<'_>) -> Result<()> {
        if deed.outcome != "ok" && self.note_refused(caller, deed.action, deed.outcome) {
            return Ok(());
        }
        let event = self.event_of(caller, &deed);
        let mut record = NewRecord::new(Timestamp::now(), &caller.tenant, deed.action, deed.outcome);
        record.key_id = Some(caller.key.clone());
        record.actor = caller.client.clone();
        record.request_id = caller.request_id.clone();
        record.sandbox = deed.sandbox.cloned();
        for (name, value) in deed.details {
            match name {
                CODE_DIGEST => record.code_digest = Some(value),
                OUTPUT_DIGEST => record.output_digest = Some(value),
                POLICY_DIGEST => record.policy_digest = Some(value),
                ISOLATION => record.isolation = Some(value),
                name => record.details = record.details.with(name, value),
            }
        }
        let begin = std::time::Instant::now();
        // The record of a sandbox's end finds room on a full disk, too.
        let ends = deed.action == SANDBOX_KILL.name;
        let again = ends.then(|| record.clone());
        let mut appended = self.inner.audit.append(record).instrument(step!("audit.append")).await;
        if let (Err(error), Some(record)) = (&appended, again)
            && error.is_full()
        {
            // The room may have been given away already, for the sandbox's own record.
            self.inner.store.release_reserve().await;
            appended = self.inner.audit.append(record).await;
        }
        self.inner.metrics.audited(begin.elapsed());
        match appended {
            // The last records are being written; nothing is done any more that would need one.
            Err(AuditError::Closed) => Err(KeeperError::ShuttingDown),
            appended => {
                appended?;
                event.into_iter().for_each(|event| self.inner.events.publish(event));
                Ok(())
            }
        }
    }

    /// What those who follow events are told of a deed, where nothing else tells them.
    fn event_of(&self, caller: &Caller, deed: &Deed<'_>) -> Option<Event> {
        let is_told = match deed.action {
            "port.publish" | "port.unpublish" | "sandbox.snapshot" | "sandbox.update" | "sandbox.timeout" => {
                true
            }
            action => action.starts_with("template.") || action.starts_with("key."),
        };
        if deed.outcome != "ok" || !is_told {
            return None;
        }
        let subject = ["template", "key", "port", "name"]
            .iter()
            .find_map(|name| deed.details.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone()));
        let entry = deed.sandbox.and_then(|id| self.entry(id));
        Some(Event {
            sandbox: deed.sandbox.cloned(),
            labels: entry.as_ref().map(|entry| entry.live().row.labels.clone()).unwrap_or_default(),
            detail: subject.unwrap_or_default(),
            ..Event::new(deed.action, entry.as_ref().map_or(&caller.tenant, |entry| &entry.tenant))
        })
    }

    /// Records of the trail: the first ones after `after`, or else the last ones of all.
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

    /// The last record's number and digest.
    ///
    /// # Errors
    /// Needs the role admin.
    pub async fn audit_head(&self, caller: &Caller) -> Result<Head> {
        self.require(caller, AUDIT_READ)?;
        Ok(self.inner.audit.head().await?)
    }

    /// Checks the trail from record `from` on. A head that was noted earlier must be on it.
    ///
    /// # Errors
    /// Needs the role admin. A trail that is broken is no error: the answer says so.
    pub async fn audit_verify(
        &self,
        caller: &Caller,
        from: i64,
        known: Option<Head>,
    ) -> Result<Verification> {
        self.require(caller, AUDIT_VERIFY)?;
        Ok(self.inner.audit.verify(from, known).await?)
    }
}
