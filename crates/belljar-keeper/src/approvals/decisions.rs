//! Lists of approvals, and decisions about them.

use std::time::Duration;

use belljar_model::{ApprovalState, BudgetScope, Role, format_span};
use belljar_store::{ApprovalQuery, ApprovalRow, DecisionRow};
use jiff::Timestamp;

use super::row_details;
use crate::action::{APPROVAL_APPROVE, APPROVAL_DENY, APPROVAL_GET, APPROVAL_LIST, Action};
use crate::approval::{
    ApprovalBudget, ApprovalDecision, ApprovalInfo, Approve, MAX_BUDGET_TIME, MAX_BUDGET_USES,
    MAX_NOTE_BYTES, NewBudget,
};
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::query::{Page, Part};
use crate::steps::run_detached;

/// Selection of approvals.
#[derive(Debug, Clone, Default)]
pub struct ListApprovals {
    /// Those in this state; all if absent.
    pub state: Option<ApprovalState>,
    /// The part of the list.
    pub part: Part,
}

impl Keeper {
    /// Finds an approval that the caller may see: all of the tenant for those who decide, else those of the caller's own calls.
    async fn find_approval(&self, caller: &Caller, id: &str) -> Result<ApprovalRow> {
        let row = self.approval_row(caller.approvals_of().0.as_deref(), id).await?;
        match caller.approvals_of().1.is_none_or(|person| person == row.requester) {
            true => Ok(row),
            false => Err(KeeperError::NotFound { what: "approval", id: id.chars().take(64).collect() }),
        }
    }

    /// Lists approvals, newest first: all of the tenant for those who decide, else those of the caller's own calls.
    ///
    /// # Errors
    /// Needs the role read; returns [`KeeperError::Field`] for an invalid cursor.
    pub async fn approvals(&self, caller: &Caller, query: &ListApprovals) -> Result<Page<ApprovalInfo>> {
        self.require(caller, APPROVAL_LIST)?;
        let (tenant, requester) = caller.approvals_of();
        let before = query.part.after()?.map(|(at, id)| (at, id.to_owned()));
        let filter =
            ApprovalQuery { tenant, requester, state: query.state, before, limit: query.part.rows() };
        let rows = self.inner.store.approvals().list(&filter).await?;
        let (rows, next_cursor) = query.part.cut(rows, |row| (row.created_at, &row.id));
        Ok(Page { items: rows.into_iter().map(to_info).collect::<Result<_>>()?, next_cursor })
    }

    /// Returns an approval.
    ///
    /// # Errors
    /// Needs the role read; [`KeeperError::NotFound`], also for calls of others if the caller does not decide.
    pub async fn approval(&self, caller: &Caller, id: &str) -> Result<ApprovalInfo> {
        self.require(caller, APPROVAL_GET)?;
        to_info(self.find_approval(caller, id).await?)
    }

    /// Approves a call that waits. It runs once.
    ///
    /// # Errors
    /// Needs the role approver; [`KeeperError::OwnApproval`] for the person who made the call, [`KeeperError::ApprovalDecided`],
    /// [`KeeperError::NotFound`], and [`KeeperError::Field`].
    pub async fn approve(&self, caller: &Caller, id: &str, approve: Approve) -> Result<ApprovalInfo> {
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        run_detached(&self.inner.tasks, async move {
            keeper.decide(&caller, &id, APPROVAL_APPROVE, Some(approve.budget), approve.note).await
        })
        .await
    }

    /// Denies a call that waits, or ends the budget of an approval.
    ///
    /// # Errors
    /// As [`Keeper::approve`].
    pub async fn deny(&self, caller: &Caller, id: &str, note: String) -> Result<ApprovalInfo> {
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        run_detached(&self.inner.tasks, async move {
            keeper.decide(&caller, &id, APPROVAL_DENY, None, note).await
        })
        .await
    }

    /// Decides about a call, and records that. `approve` has the budget of an approval, and is absent for a refusal.
    async fn decide(
        &self,
        caller: &Caller,
        id: &str,
        action: Action,
        approve: Option<Option<NewBudget>>,
        note: String,
    ) -> Result<ApprovalInfo> {
        let mut details = vec![("approval", id.chars().take(64).collect())];
        let decided = self.decide_about(caller, id, action, approve, &note, &mut details).await;
        details.extend([("person", caller.person().to_owned()), ("note", note)]);
        if let Some(Some(NewBudget { scope, uses, within })) = approve {
            let within = within.as_secs_f64().to_string();
            details.extend([("scope", scope.to_string()), ("uses", uses.to_string()), ("within_s", within)]);
        }
        let sandbox = decided.as_ref().ok().and_then(|info| info.request.frozen()?.parse().ok());
        self.audit(caller, action, sandbox.as_ref(), &decided, details).await?;
        decided
    }

    async fn decide_about(
        &self,
        caller: &Caller,
        id: &str,
        action: Action,
        approve: Option<Option<NewBudget>>,
        note: &str,
        details: &mut Vec<(&'static str, String)>,
    ) -> Result<ApprovalInfo> {
        self.require(caller, action)?;
        if note.len() > MAX_NOTE_BYTES || note.chars().any(|one| one.is_control() && one != '\n') {
            let reason = format!("give at most {MAX_NOTE_BYTES} bytes without control characters");
            return Err(KeeperError::field("note", reason));
        }
        let budget = approve.flatten();
        budget.as_ref().map_or(Ok(()), check_budget)?;
        let row = self.find_approval(caller, id).await?;
        details.extend(row_details(&row).into_iter().skip(1));
        details.push(("requester", row.requester.clone()));
        details.extend(row.tool.clone().map(|tool| ("tool", tool)));
        // The owner of the key that called may have been changed since.
        let owner = self.find_key(&row.key_id).await?.and_then(|key| key.owner);
        let is_own = [Some(row.requester.as_str()), Some(row.key_id.as_str()), owner.as_deref()];
        if is_own.into_iter().flatten().any(|one| one == caller.person() || one == caller.key) {
            return Err(KeeperError::OwnApproval { id: row.id });
        }
        let now = Timestamp::now();
        let decision = DecisionRow {
            at: now,
            key_id: caller.key.clone(),
            person: caller.person().to_owned(),
            note: note.to_owned(),
            scope: BudgetScope::Call,
            max_uses: i64::from(approve.is_some()),
            uses: i64::from(approve.is_some()),
            usable_until: Timestamp::UNIX_EPOCH,
        };
        let decision = match budget {
            None => decision,
            Some(NewBudget { scope: BudgetScope::Tool, .. }) if row.tool.is_none() => {
                return Err(KeeperError::field("scope", "the call is not one of a tool; give call"));
            }
            Some(NewBudget { scope, uses, within }) => {
                let usable_until = now.checked_add(within).unwrap_or(Timestamp::MAX);
                DecisionRow { scope, max_uses: uses.into(), usable_until, ..decision }
            }
        };
        let approvals = self.inner.store.approvals();
        let mut is_decided = approvals.decide(&row.id, &decision).await?;
        if !is_decided && approve.is_none() {
            is_decided = approvals.end_budget(&row.id, now).await?;
        }
        self.inner.waiters.wake(&row.id);
        let row = self.approval_row(None, &row.id).await?;
        if !is_decided {
            // Its deadline may have passed without the waiting call having noticed yet.
            let is_late = row.state == ApprovalState::Pending;
            let state = if is_late { ApprovalState::Expired } else { row.state };
            return Err(KeeperError::ApprovalDecided { id: row.id, state });
        }
        let kind = match (approve.is_some(), row.state) {
            (true, _) => "approval.approved",
            (false, ApprovalState::Denied) => "approval.denied",
            // The call itself has begun: only its budget is over.
            (false, _) => "approval.budget_ended",
        };
        self.publish_approval(kind, &row);
        to_info(row)
    }
}

impl Caller {
    /// Returns the tenant and the person whose approvals the caller may see; none for all.
    fn approvals_of(&self) -> (Option<String>, Option<String>) {
        let decides = self.role.includes(Role::Approver);
        let tenant = (self.role != Role::Admin).then(|| self.tenant.clone());
        (tenant, (!decides).then(|| self.person().to_owned()))
    }
}

fn check_budget(budget: &NewBudget) -> Result<()> {
    if !(2..=MAX_BUDGET_USES).contains(&budget.uses) {
        let reason = format!("{} is not allowed; give 2 to {MAX_BUDGET_USES} calls", budget.uses);
        return Err(KeeperError::field("uses", reason));
    }
    if budget.within < Duration::from_secs(1) || budget.within > MAX_BUDGET_TIME {
        let max = format_span(MAX_BUDGET_TIME);
        let reason = format!("{:?} is not allowed; give a time from 1 s to {max}", budget.within);
        return Err(KeeperError::field("within", reason));
    }
    Ok(())
}

fn to_info(row: ApprovalRow) -> Result<ApprovalInfo> {
    let request = serde_json::from_str(&row.request)
        .map_err(|source| KeeperError::Record { what: format!("approval {}", row.id), source })?;
    let decision = row.decision.map(|decision| {
        let DecisionRow { at, key_id: key, person, note, scope, max_uses, uses, usable_until } = decision;
        let budget = ApprovalBudget { scope, uses: max_uses, used: uses, until: usable_until };
        ApprovalDecision { at, key, person, note, budget: Some(budget).filter(|_| max_uses > 1) }
    });
    Ok(ApprovalInfo {
        id: row.id,
        state: row.state,
        tenant: row.tenant,
        key: row.key_id,
        requester: row.requester,
        digest: row.digest,
        request,
        created_at: row.created_at,
        expires_at: row.expires_at,
        decision,
        granted_by: row.grant_id,
        started_at: row.started_at,
        ended_at: row.ended_at,
        outcome: row.outcome,
    })
}
