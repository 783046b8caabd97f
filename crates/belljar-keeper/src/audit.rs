//! Who did what, and what came of it.

use belljar_model::{Role, SandboxId};
use belljar_store::{AuditFilter, NewRecord};

use crate::caller::Caller;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};

/// The most records of one page.
const MAX_RECORDS: u32 = 1000;

/// Something for the trail that happens in a facade, such as a file that is written.
#[derive(Debug, Clone)]
pub struct Deed<'a> {
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
    pub(crate) async fn audit<T>(
        &self,
        caller: &Caller,
        action: &'static str,
        sandbox: Option<&SandboxId>,
        outcome: &Result<T>,
        details: Vec<(&'static str, String)>,
    ) -> Result<()> {
        let outcome = outcome.as_ref().err().map_or("ok", KeeperError::code);
        self.record(caller, Deed { action, sandbox, outcome, details }).await
    }

    /// Writes a deed of a facade into the trail. Returns when it is written.
    ///
    /// # Errors
    /// The store failed. What was done without a record must not be told as done.
    pub async fn record(&self, caller: &Caller, deed: Deed<'_>) -> Result<()> {
        let mut record = NewRecord::new(deed.action, deed.outcome);
        record.tenant = caller.tenant.clone();
        record.key_id = caller.key.clone();
        record.actor = caller.client.clone();
        record.request_id = caller.request_id.clone();
        record.sandbox = deed.sandbox.cloned();
        for (name, value) in deed.details {
            record.details.insert(name, value);
        }
        self.inner.audit.append(record).await?;
        Ok(())
    }

    /// Records of the trail after `after`, the oldest first.
    ///
    /// # Errors
    /// Needs the role admin.
    pub async fn audit_records(
        &self,
        caller: &Caller,
        filter: &AuditFilter,
        after: u64,
        limit: u32,
    ) -> Result<Vec<belljar_store::AuditRecord>> {
        caller.require(Role::Admin, "reading the audit trail")?;
        Ok(self.inner.audit.tail(filter, after, limit.clamp(1, MAX_RECORDS)).await?)
    }

    /// The last record's number and digest.
    ///
    /// # Errors
    /// Needs the role admin.
    pub async fn audit_head(&self, caller: &Caller) -> Result<belljar_store::AuditHead> {
        caller.require(Role::Admin, "reading the audit trail")?;
        Ok(self.inner.audit.head().await?)
    }

    /// Checks the whole trail.
    ///
    /// # Errors
    /// Needs the role admin. A trail that is broken is no error: the verdict says so.
    pub async fn audit_verify(&self, caller: &Caller) -> Result<belljar_store::AuditVerdict> {
        caller.require(Role::Admin, "checking the audit trail")?;
        Ok(self.inner.audit.verify().await?)
    }
}
