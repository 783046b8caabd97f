//! Approvals of calls: those that wait for a person's decision, those that were decided, and budgets.
//!
//! Each change of a state is one conditional statement, so that of several at the same time exactly one wins.

use belljar_model::{ApprovalState, BudgetScope};
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_optional_time, stored_time};
use crate::seal::{Place, Sealer};
use crate::service_wall::ServiceWall;

/// Approval of one call. Times are stored in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRow {
    /// Id.
    pub id: String,
    /// Owning tenant.
    pub tenant: String,
    /// Keeper on which the call waits or runs.
    pub keeper: String,
    /// State.
    pub state: ApprovalState,
    /// The call, as JSON: what the person who decides sees.
    pub request: String,
    /// SHA-256 of `request`, in hexadecimal.
    pub digest: String,
    /// The tool, as `NAME@VERSION`.
    pub tool: Option<String>,
    /// Digest of the tool's version and of the policy, in hexadecimal, for budgets of [`BudgetScope::Tool`].
    pub tool_digest: Option<String>,
    /// Id of the key that made the call.
    pub key_id: String,
    /// The key's owner, or its id without one.
    pub requester: String,
    /// The sandbox that is frozen while the call waits.
    pub sandbox: Option<String>,
    /// Time of the call.
    pub created_at: Timestamp,
    /// Deadline of the decision.
    pub expires_at: Timestamp,
    /// The decision, if a person has made one.
    pub decision: Option<DecisionRow>,
    /// The approval whose budget allowed the call, if it did not wait.
    pub grant_id: Option<String>,
    /// Time at which the call began to run.
    pub started_at: Option<Timestamp>,
    /// Time at which all was over: the call had ended, or could not begin.
    pub ended_at: Option<Timestamp>,
    /// How it ended: outcome of the call, or the reason why it did not run.
    pub outcome: Option<String>,
}

/// A person's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRow {
    /// Time of the decision.
    pub at: Timestamp,
    /// Id of the key that decided.
    pub key_id: String,
    /// The key's owner, or its id without one.
    pub person: String,
    /// Note of the person.
    pub note: String,
    /// Calls that it covers.
    pub scope: BudgetScope,
    /// Number of calls that it allows, with the one that waited; 0 for a refusal.
    pub max_uses: i64,
    /// Number of these that were used.
    pub uses: i64,
    /// Time until which further calls are covered.
    pub usable_until: Timestamp,
}

/// A call that may be covered by a budget.
#[derive(Debug, Clone, Copy)]
pub struct Covered<'a> {
    /// Tenant.
    pub tenant: &'a str,
    /// The person who calls.
    pub requester: &'a str,
    /// Digest of the call.
    pub digest: &'a str,
    /// Digest of the tool's version and of the policy.
    pub tool_digest: Option<&'a str>,
    /// Current time.
    pub now: Timestamp,
}

/// Filter and position of a list of approvals. An empty field restricts nothing.
#[derive(Debug, Clone, Default)]
pub struct ApprovalQuery {
    /// Approvals of this tenant.
    pub tenant: Option<String>,
    /// Approvals of calls of this person.
    pub requester: Option<String>,
    /// Approvals in this state.
    pub state: Option<ApprovalState>,
    /// Approvals older than this creation time and id.
    pub before: Option<(Timestamp, String)>,
    /// Maximum number of results.
    pub limit: u32,
}

/// Table of approvals.
#[derive(Debug, Clone, Copy)]
pub struct Approvals<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

const REQUEST: &str = "approvals.request";

const SELECT: &str = "SELECT id, tenant, keeper, state, request, digest, tool, tool_digest, key_id, requester, sandbox, \
     created_at, expires_at, decided_at, decided_by, decider, note, scope, max_uses, uses, usable_until, grant_id, \
     started_at, ended_at, outcome FROM approvals";

/// Maximum number of budgets of a person that are tried for one call.
const MAX_BUDGETS: i64 = 64;

/// Returns how many of the `max_pending` waiting calls of a tenant may be one person's, so that others can wait too.
#[must_use]
pub fn max_pending_of_one(max_pending: u32) -> u32 {
    max_pending.div_ceil(2)
}

/// Approvals about which somebody decided; those of calls of a person that a budget allowed; and others of a person.
const DECIDED: &str = "decider IS NOT NULL";
const GRANTED_TO_ONE: &str = "decider IS NULL AND grant_id IS NOT NULL AND requester = $4";
const UNDECIDED_OF_ONE: &str = "decider IS NULL AND grant_id IS NULL AND requester = $4";

/// Returns how many approvals of a person that ended without a decision are kept, if `keep` are with one.
fn keep_of_one(keep: u32) -> u32 {
    keep.div_ceil(4)
}

impl Approvals<'_> {
    /// Inserts an approval, unless it is pending and its tenant has `max_pending` of these, or its person their part. Returns whether it was inserted. Of those
    /// that are over and give no budget, the newest `keep` of the tenant stay about which somebody decided, and of the others a part of it for
    /// each person: whoever asks cannot push out what others decided. The change survives a power failure.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn insert(&self, row: &ApprovalRow, max_pending: u32, keep: u32) -> Result<bool, StoreError> {
        refuse_nul([("the tenant", row.tenant.as_str()), ("the owner", &row.requester)])?;
        let request = self.sealer.seal(place(&[&row.tenant, &row.id]), row.request.as_bytes())?;
        let text = "INSERT INTO approvals (id, tenant, keeper, state, request, digest, tool, tool_digest, key_id, requester, \
             sandbox, created_at, expires_at, note, scope, max_uses, uses, usable_until, grant_id, started_at) \
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, '', 'call', 0, 0, 0, $14, $15 \
             WHERE $4 <> 'pending' OR ((SELECT count(*) FROM approvals WHERE tenant = $2 AND state = 'pending') < $16 \
             AND (SELECT count(*) FROM approvals WHERE tenant = $2 AND state = 'pending' AND requester = $10) < $17)";
        let statement = sqlx::query(text)
            .bind(&row.id)
            .bind(&row.tenant)
            .bind(&row.keeper)
            .bind(row.state.as_str())
            .bind(request)
            .bind(&row.digest)
            .bind(row.tool.clone())
            .bind(row.tool_digest.clone())
            .bind(&row.key_id)
            .bind(&row.requester)
            .bind(row.sandbox.clone())
            .bind(stored_time(row.created_at))
            .bind(stored_time(row.expires_at))
            .bind(row.grant_id.clone())
            .bind(stored_optional_time(row.started_at))
            .bind(i64::from(max_pending))
            .bind(i64::from(max_pending_of_one(max_pending)));
        let inserted = self.database.write(statement).await.map_err(failed("write an approval"))?;
        let kinds = [(DECIDED, keep), (GRANTED_TO_ONE, keep), (UNDECIDED_OF_ONE, keep_of_one(keep))];
        for (kind, keep) in kinds {
            let over = format!("tenant = $1 AND ended_at IS NOT NULL AND usable_until < $2 AND {kind}");
            let text = format!(
                "DELETE FROM approvals WHERE {over} AND created_at < \
                 (SELECT created_at FROM approvals WHERE {over} ORDER BY created_at DESC LIMIT 1 OFFSET $3)"
            );
            let last = i64::from(keep.saturating_sub(1));
            let statement = sqlx::query(sqlx::AssertSqlSafe(text))
                .bind(&row.tenant)
                .bind(stored_time(row.created_at))
                .bind(last);
            let statement = if kind.contains("$4") { statement.bind(&row.requester) } else { statement };
            self.database.write(statement).await.map_err(failed("remove old approvals"))?;
        }
        self.database.sync().await?;
        Ok(inserted > 0)
    }

    /// Returns the approval with this id, of this tenant if one is given.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, tenant: Option<&str>, id: &str) -> Result<Option<ApprovalRow>, StoreError> {
        let mut query = of_tenant(SELECT, tenant)?;
        query.and("id = ?", &[id.to_owned()])?;
        let row = self.database.read_one("read an approval", query.finish()).await?;
        row.as_ref().map(|row| self.approval(row)).transpose()
    }

    /// Lists approvals, newest first.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(&self, filter: &ApprovalQuery) -> Result<Vec<ApprovalRow>, StoreError> {
        let mut query = of_tenant(SELECT, filter.tenant.as_deref())?;
        if let Some(requester) = &filter.requester {
            query.and("requester = ?", std::slice::from_ref(requester))?;
        }
        if let Some(state) = filter.state {
            query.and("state = ?", &[state.as_str().to_owned()])?;
        }
        if let Some((created_at, id)) = &filter.before {
            query.and("(created_at, id) < (?", &[stored_time(*created_at)])?;
            query.push(", ?)", std::slice::from_ref(id))?;
        }
        query.push(" ORDER BY created_at DESC, id DESC LIMIT ?", &[i64::from(filter.limit)])?;
        let rows = self.database.read("list approvals", query.finish()).await?;
        rows.iter().map(|row| self.approval(row)).collect()
    }

    /// Decides about a pending approval whose deadline has not passed. Returns whether it was still to be decided. A decision for
    /// zero uses is a refusal. The change survives a power failure.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn decide(&self, id: &str, decision: &DecisionRow) -> Result<bool, StoreError> {
        refuse_nul([("the note", decision.note.as_str()), ("the owner", &decision.person)])?;
        let (state, ended_at) = match decision.max_uses {
            0 => (ApprovalState::Denied, Some(decision.at)),
            _ => (ApprovalState::Approved, None),
        };
        let text = "UPDATE approvals SET state = $2, decided_at = $3, decided_by = $4, decider = $5, note = $6, scope = $7, \
             max_uses = $8, uses = $9, usable_until = $10, ended_at = $11 \
             WHERE id = $1 AND state = 'pending' AND expires_at > $3";
        let statement = sqlx::query(text)
            .bind(id)
            .bind(state.as_str())
            .bind(stored_time(decision.at))
            .bind(&decision.key_id)
            .bind(&decision.person)
            .bind(&decision.note)
            .bind(decision.scope.as_str())
            .bind(decision.max_uses)
            .bind(decision.uses)
            .bind(stored_time(decision.usable_until))
            .bind(stored_optional_time(ended_at));
        self.change("decide about an approval", statement).await
    }

    /// Gives a use of a budget back whose call did not run.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn return_use(&self, id: &str) -> Result<(), StoreError> {
        let text = "UPDATE approvals SET uses = uses - 1 WHERE id = $1 AND uses > 1";
        self.change("return a use of a budget", sqlx::query(text).bind(id)).await.map(drop)
    }

    /// Ends the budget of an approval. Returns whether it had one.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn end_budget(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let text = "UPDATE approvals SET usable_until = $2 \
             WHERE id = $1 AND state = 'approved' AND uses < max_uses AND usable_until > $2";
        self.change("end a budget", sqlx::query(text).bind(id).bind(stored_time(now))).await
    }

    /// Uses one call of a budget that covers a call. Returns the approval that gave it.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read or written.
    pub async fn use_budget(&self, call: Covered<'_>) -> Result<Option<ApprovalRow>, StoreError> {
        let mut query = of_tenant(SELECT, Some(call.tenant))?;
        query.and("max_uses > 1 AND state = 'approved' AND uses < max_uses", &[] as &[String])?;
        query.and("requester = ?", &[call.requester.to_owned()])?;
        query.and("usable_until > ?", &[stored_time(call.now)])?;
        query.and("((scope = 'call' AND digest = ?)", &[call.digest.to_owned()])?;
        // Without a tool there is no such digest, and an empty one is none.
        let tool = call.tool_digest.unwrap_or_default().to_owned();
        query.push(" OR (scope = 'tool' AND tool_digest = ?))", &[tool])?;
        query.push(" ORDER BY usable_until LIMIT ?", &[MAX_BUDGETS])?;
        let rows = self.database.read("read budgets", query.finish()).await?;
        for row in &rows {
            let grant = self.approval(row)?;
            let text = "UPDATE approvals SET uses = uses + 1 \
                 WHERE id = $1 AND state = 'approved' AND uses < max_uses AND usable_until > $2";
            let statement = sqlx::query(text).bind(&grant.id).bind(stored_time(call.now));
            if self.change("use a budget", statement).await? {
                return Ok(Some(grant));
            }
        }
        Ok(None)
    }

    /// Begins an approved call. Returns whether it may run: once.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn start(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let text = "UPDATE approvals SET started_at = $2 \
             WHERE id = $1 AND state = 'approved' AND started_at IS NULL AND ended_at IS NULL";
        self.change("begin an approved call", sqlx::query(text).bind(id).bind(stored_time(now))).await
    }

    /// Records the end of a call that ran; in the state [`ApprovalState::OutcomeUnknown`] if how it ended is not known.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn end(
        &self,
        id: &str,
        state: ApprovalState,
        outcome: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let text = "UPDATE approvals SET state = $2, outcome = $3, ended_at = $4 \
             WHERE id = $1 AND state = 'approved' AND started_at IS NOT NULL AND ended_at IS NULL";
        let statement = sqlx::query(text).bind(id).bind(state.as_str()).bind(outcome).bind(stored_time(now));
        self.change("record the end of a call", statement).await
    }

    /// Closes an approval whose call has not begun: it has expired, or is cancelled. One that was approved is only cancelled. Returns
    /// whether it was closed.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn close(
        &self,
        id: &str,
        state: ApprovalState,
        reason: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let text = "UPDATE approvals SET state = $2, outcome = $3, ended_at = $4 WHERE id = $1 AND ended_at IS NULL AND \
             (state = 'pending' OR (state = 'approved' AND $2 = 'cancelled')) AND started_at IS NULL";
        let statement = sqlx::query(text).bind(id).bind(state.as_str()).bind(reason).bind(stored_time(now));
        self.change("close an approval", statement).await
    }

    /// Returns the approvals of a keeper whose calls wait or run.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list_open(&self, keeper: &str) -> Result<Vec<ApprovalRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("ended_at IS NULL AND keeper = ?", &[keeper.to_owned()])?;
        let rows = self.database.read("list open approvals", query.finish()).await?;
        rows.iter().map(|row| self.approval(row)).collect()
    }

    /// Returns the approvals of a keeper whose calls should have stopped waiting before this time.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list_overdue(
        &self,
        keeper: &str,
        before: Timestamp,
    ) -> Result<Vec<ApprovalRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("ended_at IS NULL AND started_at IS NULL AND keeper = ?", &[keeper.to_owned()])?;
        query.and("expires_at < ?", &[stored_time(before)])?;
        let rows = self.database.read("list overdue approvals", query.finish()).await?;
        rows.iter().map(|row| self.approval(row)).collect()
    }

    /// Removes approvals that were over before this time and give no budget.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn forget_before(&self, time: Timestamp) -> Result<u64, StoreError> {
        let text = "DELETE FROM approvals WHERE ended_at < $1 AND usable_until < $1";
        let statement = sqlx::query(text).bind(stored_time(time));
        self.database.write(statement).await.map_err(failed("remove old approvals"))
    }

    async fn change(
        &self,
        action: &'static str,
        statement: crate::database::Statement<'_>,
    ) -> Result<bool, StoreError> {
        let changed = self.database.write(statement).await.map_err(failed(action))?;
        self.database.sync().await?;
        Ok(changed > 0)
    }

    fn approval(&self, row: &AnyRow) -> Result<ApprovalRow, StoreError> {
        let row = Reader { table: "approvals", row };
        let (tenant, id) = (row.text("tenant")?, row.text("id")?);
        let request = self.sealer.open_text(place(&[&tenant, &id]), &row.text("request")?)?;
        let decision = match (row.optional_time("decided_at")?, row.optional_text("decided_by")?) {
            (Some(at), Some(key_id)) => Some(DecisionRow {
                at,
                key_id,
                person: row.optional_text("decider")?.unwrap_or_default(),
                note: row.text("note")?,
                scope: row.parsed("scope")?,
                max_uses: row.number("max_uses")?,
                uses: row.number("uses")?,
                usable_until: row.time("usable_until")?,
            }),
            _ => None,
        };
        Ok(ApprovalRow {
            keeper: row.text("keeper")?,
            state: row.parsed("state")?,
            request,
            digest: row.text("digest")?,
            tool: row.optional_text("tool")?,
            tool_digest: row.optional_text("tool_digest")?,
            key_id: row.text("key_id")?,
            requester: row.text("requester")?,
            sandbox: row.optional_text("sandbox")?,
            created_at: row.time("created_at")?,
            expires_at: row.time("expires_at")?,
            decision,
            grant_id: row.optional_text("grant_id")?,
            started_at: row.optional_time("started_at")?,
            ended_at: row.optional_time("ended_at")?,
            outcome: row.optional_text("outcome")?,
            tenant,
            id,
        })
    }
}

fn place<'a>(key: &'a [&'a str]) -> Place<'a> {
    Place::new(REQUEST, key)
}

/// Begins a query for rows of one tenant, or of all. Tests can disable that protection.
fn of_tenant(select: &'static str, tenant: Option<&str>) -> Result<Filter, StoreError> {
    let mut query = Filter::new(select);
    if let Some(tenant) = tenant.filter(|_| !ServiceWall::Tenants.is_down()) {
        query.and("tenant = ?", &[tenant.to_owned()])?;
    }
    Ok(query)
}
