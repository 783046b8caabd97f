//! Approvals: calls that wait until another person decides about them.
//!
//! ```text
//!  call ─► within a budget? ─────────────────────────────────────────────► runs, once
//!    └─► recorded, sandbox frozen ─► waits ─► approved ─► still the same? ─┘
//!                                      └─► denied, expired, cancelled ─► refused
//! ```
//!
//! The record has the call as the person sees it, and its digest is that of the record: nothing else is run. The waiting call itself is
//! what an approval allows to run, so it cannot be used again; a budget allows a number of further calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_engine::GuestError;
use belljar_model::{Approval, ApprovalState, BudgetScope, Role, SandboxState};
use belljar_store::{ApprovalQuery, ApprovalRow, Covered, DecisionRow, Store};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use crate::action::{
    APPROVAL_APPROVE, APPROVAL_CANCEL, APPROVAL_DENY, APPROVAL_EXPIRE, APPROVAL_GET, APPROVAL_LIST,
    APPROVAL_REQUEST, Action, CODE,
};
use crate::approval::{
    ApprovalBudget, ApprovalContent, ApprovalDecision, ApprovalInfo, ApprovalRequest, Approve,
    MAX_APPROVAL_BYTES, MAX_BUDGET_TIME, MAX_BUDGET_USES, MAX_NOTE_BYTES, NewBudget, policy_digest,
};
use crate::audit::{AuditEvent, CODE_DIGEST, POLICY_DIGEST};
use crate::caller::Caller;
use crate::code::CodeRequest;
use crate::create::fill_random;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::events::Event;
use crate::keeper::{Entered, Keeper, Result};
use crate::query::{Page, Part};
use crate::request::{Command, ExecRequest};
use crate::run::Waiting;
use crate::steps::run_detached;

/// Maximum number of approvals of a tenant that are kept after their end.
/// Source: docs/spec.md; held by `approvals::old_ones_are_removed` of the store's tests.
const MAX_KEPT: u32 = 200;

/// Interval at which a waiting call looks for a decision that another server has recorded.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Actions that a key whose calls wait for approval may do, besides those of the role read: they run nothing, and put nothing into a
/// sandbox that a call could use.
const WITHOUT_RUNNING: &[&str] = &[
    "sandbox.create",
    "sandbox.update",
    "sandbox.timeout",
    "sandbox.pause",
    "sandbox.resume",
    "sandbox.snapshot",
    "sandbox.fork",
    "sandbox.kill",
    "sandbox.use",
    "exec",
    "code",
    "context.list",
    "context.restart",
    "context.interrupt",
    "context.remove",
    "port.publish",
    "port.unpublish",
    "port.look",
    "port.connect",
    "port.list",
    "token.issue",
    "token.read",
    "template.export",
    "tool.test",
    "tool.call",
    "file.stat",
    "file.list",
    "file.search",
    "file.watch",
    "file.read",
    "file.pack",
    "process.attach",
    "process.list",
    "process.signal",
    "process.resize",
    "guest.check",
    "guest.metrics",
    "session.list",
    "session.close",
];

/// Returns a request to run code in a sandbox.
fn of_code(entered: &Entered, request: &CodeRequest) -> ApprovalRequest {
    let mut own = in_sandbox(CODE, entered);
    own.env.extend(request.env.clone());
    ApprovalRequest {
        language: request.language.clone(),
        context: request.context.clone(),
        code: Some(ApprovalContent::new(&request.code)),
        cwd: request.cwd.as_deref().map(ApprovalContent::new),
        timeout_ms: request.timeout.map(milliseconds),
        ..own
    }
}

/// Returns a request to run a command in a sandbox.
fn of_command(entered: &Entered, action: Action, request: &ExecRequest) -> ApprovalRequest {
    let mut own = in_sandbox(action, entered);
    own.env.extend(request.env.clone());
    let (command, argv) = match &request.command {
        Command::Shell(line) => (Some(ApprovalContent::new(line)), None),
        Command::Argv(argv) => {
            (None, Some(argv.iter().map(|argument| ApprovalContent::new(argument)).collect()))
        }
    };
    ApprovalRequest {
        command,
        argv,
        session: request.session,
        cwd: request.cwd.as_deref().map(ApprovalContent::new),
        user: request.user.clone(),
        stdin: Some(&request.stdin)
            .filter(|input| !input.is_empty())
            .map(|input| ApprovalContent::new(input)),
        timeout_ms: request.timeout.map(milliseconds),
        ..own
    }
}

/// Returns a request for something in a sandbox that is there already.
pub(crate) fn in_sandbox(action: Action, entered: &Entered) -> ApprovalRequest {
    let template = entered.entry.live().row.template.clone();
    ApprovalRequest::new(action.name, &template, entered.spec(), Some(entered.id().to_string()))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Selection of approvals.
#[derive(Debug, Clone, Default)]
pub struct ListApprovals {
    /// Those in this state; all if absent.
    pub state: Option<ApprovalState>,
    /// The part of the list.
    pub part: Part,
}

/// The right of one call to run. How it ended is to be recorded; without that its outcome is unknown.
pub(crate) struct Permit {
    store: Store,
    /// Id of the approval.
    id: String,
    /// Id of the approval whose budget it has used.
    grant: Option<String>,
    is_over: bool,
}

impl Permit {
    /// Returns the details for the audit record of the call.
    pub(crate) fn details(&self) -> Vec<(&'static str, String)> {
        let grant = self.grant.clone().map(|grant| ("granted_by", grant));
        std::iter::once(("approval", self.id.clone())).chain(grant).collect()
    }

    /// Records how the call ended.
    pub(crate) async fn finish<T>(
        mut self,
        done: &Result<T>,
        outcome: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        self.is_over = true;
        let (state, outcome) = match done {
            Ok(done) => (ApprovalState::Approved, outcome(done)),
            Err(error @ KeeperError::Guest { source: GuestError::Gone(_), .. }) => {
                (ApprovalState::OutcomeUnknown, error.code().to_owned())
            }
            Err(error) => (ApprovalState::Approved, error.code().to_owned()),
        };
        self.store.approvals().end(&self.id, state, &outcome, Timestamp::now()).await?;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (store, id) = (self.store.clone(), std::mem::take(&mut self.id));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let (state, outcome) = (ApprovalState::OutcomeUnknown, "its end was not recorded");
            if let Err(error) = store.approvals().end(&id, state, outcome, Timestamp::now()).await {
                tracing::warn!(error = %crate::error::chain(&error), "cannot record the end of an approved call");
            }
        });
    }
}

/// How the wait for a decision ended.
enum Verdict {
    Approved,
    /// Not approved; with the error for the caller if it is not only that.
    Refused(Option<KeeperError>),
}

impl Caller {
    /// Returns the person to whom the caller's key belongs: its owner, or the key itself without one.
    #[must_use]
    pub fn person(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.key)
    }

    /// Returns the caller of what an approved call consists of, which does not wait again.
    pub(crate) fn approved(&self) -> Self {
        Self { approval: Approval::Never, ..self.clone() }
    }

    /// Checks that the caller's key may do an action without approval, or that the action waits for it itself.
    pub(crate) fn check_unapproved(&self, action: Action) -> Result<()> {
        if self.approval == Approval::Never
            || matches!(action.role, Role::Read | Role::Approver)
            || WITHOUT_RUNNING.contains(&action.name)
        {
            return Ok(());
        }
        let reason = format!(
            "calls with this key wait for approval, and {} cannot wait; run a command, code or a tool, which can",
            action.name
        );
        Err(KeeperError::Policy { field: "approval", reason })
    }

    /// Checks that a call of this key has nothing that is sent to it later, which nobody could have approved.
    fn check_complete(&self, field: &'static str, is_open: bool) -> Result<()> {
        if !is_open {
            return Ok(());
        }
        let reason =
            "calls with this key wait for approval, which covers no later input; send all with the call";
        Err(KeeperError::Policy { field, reason: reason.to_owned() })
    }
}

impl Keeper {
    /// Waits for the approval of code, if it needs one.
    pub(crate) async fn approve_code(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: &CodeRequest,
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Option<Permit>> {
        if caller.approval == Approval::Never {
            return Ok(None);
        }
        caller.check_complete("allow_input", request.allow_input)?;
        let shown = of_code(entered, request);
        self.await_approval(caller, shown, Some(entered), waiting, gone).await.map(Some)
    }

    /// Waits for the approval of a command, if it needs one.
    pub(crate) async fn approve_command(
        &self,
        caller: &Caller,
        entered: &Entered,
        action: Action,
        request: &ExecRequest,
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Option<Permit>> {
        if caller.approval == Approval::Never {
            return Ok(None);
        }
        caller.check_complete("stdin_open", request.stdin_open)?;
        let shown = of_command(entered, action, request);
        self.await_approval(caller, shown, Some(entered), waiting, gone).await.map(Some)
    }

    /// Waits until a call is approved. Returns its right to run.
    ///
    /// # Errors
    /// [`KeeperError::NotApproved`], [`KeeperError::NoApprover`], [`KeeperError::Quota`] if too many calls wait,
    /// [`KeeperError::Gone`] if the sandbox ends meanwhile, and if the engine cannot freeze it.
    pub(crate) async fn await_approval(
        &self,
        caller: &Caller,
        request: ApprovalRequest,
        entered: Option<&Entered>,
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Permit> {
        let row = self.new_row(caller, &request)?;
        if let Some(permit) = self.within_budget(&row).await? {
            return Ok(permit);
        }
        let requested = self.request_approval(caller, &row, entered).await;
        let mut details = row_details(&row);
        details.extend(row.tool.clone().map(|tool| ("tool", tool)));
        details.push((POLICY_DIGEST, request.policy_sha256.clone()));
        let sandbox = entered.map(Entered::id);
        let recorded = self.audit(caller, APPROVAL_REQUEST, sandbox, &requested, details).await;
        requested?;
        self.publish_approval("approval.requested", &row);
        let verdict = match (recorded, entered) {
            (Err(error), _) => Err(error),
            (Ok(()), None) => {
                waiting(Waiting { approval: row.id.clone(), expires_at: row.expires_at });
                self.decided(caller, &row, None, gone).await
            }
            (Ok(()), Some(entered)) => match self.hold(&entered.entry, &row.id).await {
                Ok(()) => {
                    waiting(Waiting { approval: row.id.clone(), expires_at: row.expires_at });
                    self.decided(caller, &row, Some(entered), gone).await
                }
                Err(error) => Err(error),
            },
        };
        self.inner.waiters.remove(&row.id);
        let released = match entered {
            Some(entered) => self.release_hold(&entered.entry, &row.id).await,
            None => Ok(()),
        };
        let begun = match (verdict, released) {
            (Ok(Verdict::Approved), Ok(())) => self.begin_approved(caller, &row, entered).await,
            (Ok(Verdict::Refused(error)), _) => match error {
                Some(error) => Err(error),
                None => Err(self.refusal(&row).await?),
            },
            (Err(error), _) | (Ok(Verdict::Approved), Err(error)) => Err(error),
        };
        match begun {
            Ok(()) => Ok(Permit { store: self.inner.store.clone(), id: row.id, grant: None, is_over: false }),
            Err(error) => {
                // Whatever the reason, it does not run any more.
                self.close_approval(caller, &row, ApprovalState::Cancelled, &error.to_string()).await?;
                Err(error)
            }
        }
    }

    /// Returns the record of a call that is going to wait.
    fn new_row(&self, caller: &Caller, request: &ApprovalRequest) -> Result<ApprovalRow> {
        let config = self.inner.config.now();
        // Cannot fail: texts and numbers only.
        let text = serde_json::to_string(request).unwrap_or_default();
        if text.len() > MAX_APPROVAL_BYTES {
            let reason = format!(
                "the call has {} bytes with all that comes with it; one that waits for approval may have at most {MAX_APPROVAL_BYTES}",
                text.len()
            );
            let field = if request.code.is_some() { "code" } else { "command" };
            return Err(KeeperError::field(field, reason));
        }
        let mut id = [0; 8];
        fill_random(&mut id)?;
        let now = Timestamp::now();
        Ok(ApprovalRow {
            id: format!("apr_{}", hex::encode(id)),
            tenant: caller.tenant.clone(),
            keeper: config.name.clone(),
            state: ApprovalState::Pending,
            digest: hex::encode(Sha256::digest(&text)),
            request: text,
            tool: request.tool.clone(),
            tool_digest: request.tool_digest(),
            key_id: caller.key.clone(),
            requester: caller.person().to_owned(),
            sandbox: request.sandbox.clone(),
            created_at: now,
            expires_at: now.checked_add(config.approvals.timeout).unwrap_or(Timestamp::MAX),
            decision: None,
            grant_id: None,
            started_at: None,
            ended_at: None,
            outcome: None,
        })
    }

    /// Returns the right to run of a call that a budget covers.
    async fn within_budget(&self, row: &ApprovalRow) -> Result<Option<Permit>> {
        let approvals = self.inner.store.approvals();
        let covered = Covered {
            tenant: &row.tenant,
            requester: &row.requester,
            digest: &row.digest,
            tool_digest: row.tool_digest.as_deref(),
            now: Timestamp::now(),
        };
        let Some(grant) = approvals.use_budget(covered).await? else { return Ok(None) };
        let row = ApprovalRow {
            state: ApprovalState::Approved,
            grant_id: Some(grant.id.clone()),
            started_at: Some(row.created_at),
            ..row.clone()
        };
        approvals.insert(&row, 0, MAX_KEPT).await?;
        let store = self.inner.store.clone();
        Ok(Some(Permit { store, id: row.id, grant: Some(grant.id), is_over: false }))
    }

    /// Checks that there is somebody who could approve a call of the caller.
    pub(crate) async fn check_approver(&self, caller: &Caller) -> Result<()> {
        let keys = self.inner.store.keys();
        match keys.has_approver(&caller.tenant, caller.person(), Timestamp::now()).await? {
            true => Ok(()),
            false => Err(KeeperError::NoApprover),
        }
    }

    /// Records a call that is going to wait, if somebody could approve it.
    async fn request_approval(
        &self,
        caller: &Caller,
        row: &ApprovalRow,
        entered: Option<&Entered>,
    ) -> Result<()> {
        let config = self.inner.config.now().approvals;
        self.check_approver(caller).await?;
        if let Some(entered) = entered {
            self.check_can(entered.spec(), "freezing it while a call waits for approval", |can| can.pause)?;
        }
        if self.inner.store.approvals().insert(row, config.max_pending, MAX_KEPT).await? {
            return Ok(());
        }
        let limit = u64::from(config.max_pending);
        Err(KeeperError::Quota { quota: "approvals", used: limit, limit, retry_after: Some(POLL_INTERVAL) })
    }

    /// Waits for the decision about a recorded call, or for what makes it pointless.
    async fn decided(
        &self,
        caller: &Caller,
        row: &ApprovalRow,
        entered: Option<&Entered>,
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Verdict> {
        let woken = self.inner.waiters.register(&row.id);
        let deadline = Instant::now() + crate::entry::until(row.expires_at);
        loop {
            let state = self.approval_row(None, &row.id).await?.state;
            match state {
                ApprovalState::Pending => {}
                ApprovalState::Approved => return Ok(Verdict::Approved),
                _ => return Ok(Verdict::Refused(None)),
            }
            if self.inner.closing.load(Ordering::Relaxed) {
                return Ok(Verdict::Refused(Some(KeeperError::ShuttingDown)));
            }
            if Instant::now() >= deadline {
                // If somebody decides in the same instant, one of the two is recorded, and that holds.
                let reason = "nobody decided in time";
                self.close_approval(caller, row, ApprovalState::Expired, reason).await?;
                continue;
            }
            let ended = async {
                match entered {
                    Some(entered) => entered.sandbox().wait_ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = woken.notified() => {}
                () = tokio::time::sleep_until(deadline.min(Instant::now() + POLL_INTERVAL).into()) => {}
                _ = &mut *gone => {
                    let error = KeeperError::not_approved(&row.id, ApprovalState::Cancelled, "its caller disconnected");
                    return Ok(Verdict::Refused(Some(error)));
                }
                how = ended => {
                    let error = entered.map(|entered| {
                        let reason = entered.entry.live().row.reason.clone().unwrap_or(how);
                        KeeperError::Gone { id: entered.id().clone(), reason }
                    });
                    return Ok(Verdict::Refused(error));
                }
            }
        }
    }

    /// Begins an approved call, if it is still the one that was approved, and its key may still make it.
    async fn begin_approved(
        &self,
        caller: &Caller,
        row: &ApprovalRow,
        entered: Option<&Entered>,
    ) -> Result<()> {
        let refuse = |reason: &str| Err(KeeperError::not_approved(&row.id, ApprovalState::Cancelled, reason));
        let is_same = match self.key_row(&caller.key).await {
            Ok(key) => {
                let is_valid = crate::keys::check_row(&key).is_ok();
                is_valid && key.role == caller.role && key.tenant == caller.tenant
            }
            Err(_) => false,
        };
        if !is_same && !caller.is_operator() {
            return refuse("its key was revoked, has expired or was changed while it waited");
        }
        if let Some(entered) = entered {
            let (spec, state) = {
                let live = entered.entry.live();
                (Arc::clone(&live.spec), live.row.state)
            };
            if state != SandboxState::Running {
                return Err(entered.entry.wrong_state(state, "running the approved call", "running"));
            }
            if policy_digest(&spec) != policy_digest(entered.spec()) {
                return refuse("the sandbox's policy was changed while it waited; call again");
            }
        }
        if self.inner.store.approvals().start(&row.id, Timestamp::now()).await? {
            return Ok(());
        }
        refuse("it has begun already, or was cancelled")
    }

    /// Returns the error for a call that was not approved.
    async fn refusal(&self, row: &ApprovalRow) -> Result<KeeperError> {
        let now = self.approval_row(None, &row.id).await?;
        let reason = match &now.decision {
            Some(decision) if !decision.note.is_empty() => format!("denied: {}", decision.note),
            Some(_) => "denied".to_owned(),
            None => now.outcome.unwrap_or_else(|| now.state.to_string()),
        };
        Ok(KeeperError::not_approved(&row.id, now.state, reason))
    }

    /// Closes an approval whose call does not run, unless it is closed already, and records that.
    async fn close_approval(
        &self,
        caller: &Caller,
        row: &ApprovalRow,
        state: ApprovalState,
        reason: &str,
    ) -> Result<()> {
        if !self.inner.store.approvals().close(&row.id, state, reason, Timestamp::now()).await? {
            return Ok(());
        }
        let (action, kind) = match state {
            ApprovalState::Expired => (APPROVAL_EXPIRE, "approval.expired"),
            _ => (APPROVAL_CANCEL, "approval.cancelled"),
        };
        self.publish_approval(kind, row);
        let mut details = row_details(row);
        details.push(("reason", reason.to_owned()));
        let sandbox = row.sandbox.as_ref().and_then(|id| id.parse().ok());
        let event = AuditEvent { action: action.name, sandbox: sandbox.as_ref(), outcome: "ok", details };
        self.record(caller, event).await
    }

    /// Freezes a sandbox for a call that waits in it. Nothing but [`Self::release_hold`] resumes it.
    async fn hold(&self, entry: &Arc<Entry>, approval: &str) -> Result<()> {
        let step = entry.step.lock().await;
        self.freeze_in(entry, &step).await?;
        entry.live().held_by = Some(approval.to_owned());
        Ok(())
    }

    /// Resumes a sandbox that was frozen for a call.
    async fn release_hold(&self, entry: &Arc<Entry>, approval: &str) -> Result<()> {
        let step = entry.step.lock().await;
        if entry.live().held_by.take_if(|by| by == approval).is_none() {
            return Ok(());
        }
        self.thaw_in(entry, None, &step).await
    }

    fn publish_approval(&self, kind: &'static str, row: &ApprovalRow) {
        let sandbox = row.sandbox.as_ref().and_then(|id| id.parse().ok());
        let event = Event { sandbox, detail: row.id.clone(), ..Event::new(kind, &row.tenant) };
        self.inner.events.publish(event);
    }

    async fn approval_row(&self, tenant: Option<&str>, id: &str) -> Result<ApprovalRow> {
        let found = self.inner.store.approvals().get(tenant, id).await?;
        found.ok_or_else(|| KeeperError::NotFound { what: "approval", id: id.chars().take(64).collect() })
    }

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
        let sandbox = decided.as_ref().ok().and_then(|info| info.request.sandbox.as_ref()?.parse().ok());
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
        let owner = self.key_row(&row.key_id).await.ok().and_then(|key| key.owner);
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
        let kind = if approve.is_some() { "approval.approved" } else { "approval.denied" };
        self.publish_approval(kind, &row);
        to_info(row)
    }

    /// Closes the approvals that were open when this server ended: a call that waited is cancelled, and how one that ran has ended is
    /// not known. Resumes the sandboxes that were frozen for them. Call it after sandboxes have been adopted.
    pub(crate) async fn recover_approvals(&self) -> Result<()> {
        let approvals = self.inner.store.approvals();
        for row in approvals.list_open(&self.inner.config.now().name).await? {
            let server = Caller {
                key: row.key_id.clone(),
                tenant: row.tenant.clone(),
                ..Caller::operator("server", "restart")
            };
            if row.started_at.is_some() {
                let reason = "the server ended while it ran";
                approvals.end(&row.id, ApprovalState::OutcomeUnknown, reason, Timestamp::now()).await?;
                continue;
            }
            let entry = row.sandbox.as_ref().and_then(|id| self.entry(&id.parse().ok()?));
            if let Some(entry) = entry.filter(|entry| entry.state() == SandboxState::Paused)
                && let Err(error) = self.thaw(&entry, None).await
            {
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot resume a sandbox that was frozen for a call");
            }
            let reason = "the server ended while it waited";
            self.close_approval(&server, &row, ApprovalState::Cancelled, reason).await?;
        }
        Ok(())
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

/// Returns the details that identify a call in audit records.
fn row_details(row: &ApprovalRow) -> Vec<(&'static str, String)> {
    vec![("approval", row.id.clone()), (CODE_DIGEST, row.digest.clone())]
}

fn check_budget(budget: &NewBudget) -> Result<()> {
    if !(2..=MAX_BUDGET_USES).contains(&budget.uses) {
        let reason = format!("{} is not allowed; give 2 to {MAX_BUDGET_USES} calls", budget.uses);
        return Err(KeeperError::field("uses", reason));
    }
    if budget.within < Duration::from_secs(1) || budget.within > MAX_BUDGET_TIME {
        let reason =
            format!("{:?} is not allowed; give a time from 1 s to {MAX_BUDGET_TIME:?}", budget.within);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An action that runs something must be named here, or wait for approval.
    #[test]
    fn actions_without_approval_run_nothing() {
        let caller = Caller { role: Role::User, approval: Approval::Always, ..Caller::operator("test", "r") };
        let waits = ["exec", "code", "tool.call"];
        for action in crate::action::all() {
            let allowed = caller.check_unapproved(action).is_ok();
            assert!(!allowed || !action.executes || waits.contains(&action.name), "{}", action.name);
        }
        let names: Vec<_> = crate::action::all().map(|action| action.name).collect();
        for name in WITHOUT_RUNNING {
            assert!(names.contains(name), "{name} is no action");
        }
        for name in
            ["file.write", "process.input", "session.open", "template.build", "context.create", "volume.use"]
        {
            let action = crate::action::all().find(|action| action.name == name).expect(name);
            assert!(caller.check_unapproved(action).is_err(), "{name}");
            assert!(caller.approved().check_unapproved(action).is_ok(), "{name}");
        }
    }
}
