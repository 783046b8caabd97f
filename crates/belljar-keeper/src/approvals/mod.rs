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

mod calls;
mod decisions;
pub(crate) mod ends;
mod risk;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_engine::{GuestError, Sandbox, Usage, judge};
use belljar_model::{ApprovalState, Role, SandboxState};
use belljar_store::{ApprovalRow, Covered, ServiceWall, Store, max_pending_of_one};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use crate::action::{APPROVAL_CANCEL, APPROVAL_EXPIRE, APPROVAL_REQUEST, EXEC_START};
use crate::approval::{ApprovalRequest, ApprovalScreening, CallingCode, MAX_APPROVAL_BYTES, policy_digest};
use crate::audit::{AuditEvent, CODE_DIGEST, POLICY_DIGEST};
use crate::caller::Caller;
use crate::create::fill_random;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::events::Event;
use crate::exits::wait_for_exit;
use crate::keeper::{Entered, Keeper, Result};
use crate::keys::rights;
use crate::run::Waiting;

pub(crate) use calls::{Attempt, in_sandbox};
pub use decisions::ListApprovals;
use ends::{End, UnrecordedEnds};
pub(crate) use risk::{is_by_risk, waits};

/// Maximum number of approvals of a tenant that are kept after their end.
/// Source: docs/spec.md; held by `approvals::old_ones_are_removed` of the store's tests.
const MAX_KEPT: u32 = 200;

/// Interval at which a waiting call looks for a decision that another server has recorded.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// With what the ids of approvals begin.
const ID_PREFIX: &str = "apr_";

/// Time after which a call that should have stopped waiting counts as one of which nobody knows any more.
const OVERDUE: Duration = Duration::from_secs(60);

/// The right of one call to run. How it ended is to be recorded; without that its outcome is unknown.
pub(crate) struct Permit {
    store: Store,
    unrecorded: UnrecordedEnds,
    /// Id of the approval.
    id: String,
    /// Id of the approval whose budget it has used.
    grant: Option<String>,
    is_over: bool,
    /// Keeps the sandbox as it was shown.
    as_shown: Option<AsShown>,
}

/// While there is one, network and limits of a sandbox cannot be changed.
pub(crate) struct AsShown(Arc<Entry>);

impl AsShown {
    /// Keeps a sandbox as it is, if it is as it was shown.
    ///
    /// # Errors
    /// [`KeeperError::Policy`] if it was changed since then.
    pub(crate) async fn keep(entry: &Arc<Entry>, policy: &str) -> Result<Self> {
        // A change that has begun is over then.
        let _step = entry.step.lock().await;
        let mut live = entry.live();
        if policy_digest(&live.spec) != policy {
            let reason = "the sandbox's policy was changed meanwhile; call again".to_owned();
            return Err(KeeperError::Policy { field: "sandbox", reason });
        }
        live.approved_calls += 1;
        drop(live);
        Ok(Self(Arc::clone(entry)))
    }
}

impl Drop for AsShown {
    fn drop(&mut self) {
        self.0.live().approved_calls -= 1;
    }
}

impl Permit {
    /// Keeps the sandbox as it was shown until the call is over.
    pub(crate) fn keep(&mut self, as_shown: AsShown) {
        self.as_shown = Some(as_shown);
    }

    /// Keeps the right to run, and the sandbox as it was shown, until a process has ended that goes on by itself, or all that run now if none
    /// is given. Then records how.
    fn keep_until_exit(self, sandbox: Arc<Sandbox>, process: Option<u64>) {
        tokio::spawn(async move {
            let exited = async {
                let processes = match process {
                    Some(process) => vec![process],
                    None => running(&sandbox).await,
                };
                let mut outcome = EXITED.to_owned();
                for process in processes {
                    outcome = exit(&sandbox, process).await;
                }
                outcome
            };
            let outcome = tokio::select! {
                outcome = exited => outcome,
                how = sandbox.wait_ended() => how,
            };
            if let Err(error) = self.finish(&Ok(()), |_| outcome).await {
                tracing::warn!(error = %crate::error::chain(&error), "cannot record the end of an approved command");
            }
        });
    }

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
        let (state, outcome) = match done {
            Ok(done) => (ApprovalState::Approved, outcome(done)),
            Err(error @ KeeperError::Guest { source: GuestError::Gone(_), .. }) => {
                (ApprovalState::OutcomeUnknown, error.code().to_owned())
            }
            Err(error) => (ApprovalState::Approved, error.code().to_owned()),
        };
        let end = End { approval: self.id.clone(), state, outcome, at: Timestamp::now() };
        let recorded = self.unrecorded.record(&self.store, end).await;
        self.is_over = true;
        Ok(recorded?)
    }
}

/// Outcome of a process of which nobody knows more than that it has ended.
const EXITED: &str = "exited";

/// Returns the processes that the guest has started and that run, once it says so.
async fn running(sandbox: &Sandbox) -> Vec<u64> {
    loop {
        match sandbox.guest().list_processes().await {
            Ok(all) => return all.into_iter().filter(|one| one.running).map(|one| one.id).collect(),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Waits until a process has exited, and returns how.
async fn exit(sandbox: &Sandbox, process: u64) -> String {
    let nothing = Usage::default();
    let exited = wait_for_exit(sandbox, process).await;
    exited.map_or(EXITED, |exited| judge(&exited, &nothing, &nothing).outcome.as_str()).to_owned()
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (store, unrecorded) = (self.store.clone(), self.unrecorded.clone());
        let end = End {
            approval: std::mem::take(&mut self.id),
            state: ApprovalState::OutcomeUnknown,
            outcome: "its end was not recorded".to_owned(),
            at: Timestamp::now(),
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = unrecorded.record(&store, end).await {
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

impl Keeper {
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
        let as_shown = match entered {
            Some(entered) => Some(AsShown::keep(&entered.entry, &request.policy_sha256).await?),
            None => None,
        };
        // It may have waited for its screening, and for a change of its sandbox.
        self.check_key_still(caller).await?;
        if let Some(mut permit) = self.within_budget(&row).await? {
            permit.as_shown = as_shown;
            return Ok(permit);
        }
        let requested = self.request_approval(caller, &row, entered).await;
        let mut details = row_details(&row);
        details.extend(row.tool.clone().map(|tool| ("tool", tool)));
        details.push((POLICY_DIGEST, request.policy_sha256.clone()));
        details.extend(request.calling_code.iter().flat_map(CallingCode::details));
        details.extend(request.screening.iter().flat_map(ApprovalScreening::details));
        let sandbox = row.sandbox.as_ref().and_then(|id| id.parse().ok());
        let recorded = self.audit(caller, APPROVAL_REQUEST, sandbox.as_ref(), &requested, details).await;
        requested?;
        self.publish_approval("approval.requested", &row);
        let verdict = match (recorded, entered) {
            (Err(error), _) => Err(error),
            (Ok(()), None) => {
                waiting(Waiting { approval: row.id.clone(), expires_at: row.expires_at });
                self.decided(caller, (&row, &request), None, gone).await
            }
            (Ok(()), Some(entered)) => match self.hold(&entered.entry, &row.id).await {
                Ok(()) => {
                    waiting(Waiting { approval: row.id.clone(), expires_at: row.expires_at });
                    self.decided(caller, (&row, &request), Some(entered), gone).await
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
            (Ok(Verdict::Approved), Ok(())) => {
                self.begin_approved(caller, &row, request.is_by_name, entered).await
            }
            (Ok(Verdict::Refused(error)), _) => match error {
                Some(error) => Err(error),
                None => Err(self.refusal(&row).await?),
            },
            (Err(error), _) | (Ok(Verdict::Approved), Err(error)) => Err(error),
        };
        match begun {
            Ok(()) => Ok(self.permit(row.id, None, as_shown)),
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
        let to_text = |request: &ApprovalRequest| serde_json::to_string(request).unwrap_or_default();
        // Whoever makes the call, and advice about it, are no part of it: the same call has the same digest.
        let text = to_text(&ApprovalRequest { calling_code: None, screening: None, ..request.clone() });
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
            id: format!("{ID_PREFIX}{}", hex::encode(id)),
            tenant: caller.tenant.clone(),
            keeper: config.name.clone(),
            state: ApprovalState::Pending,
            digest: hex::encode(Sha256::digest(&text)),
            request: to_text(request),
            tool: request.tool.clone(),
            tool_digest: request.tool_digest(),
            key_id: caller.key.clone(),
            requester: caller.person().to_owned(),
            sandbox: request.frozen().map(str::to_owned),
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
        let begun: Result<bool> = async {
            if !self.may_still_decide(&grant).await? {
                approvals.end_budget(&grant.id, Timestamp::now()).await?;
                return Ok(false);
            }
            Ok(approvals.insert(&row, 0, MAX_KEPT).await?)
        }
        .await;
        match begun {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                // The call does not run. If the store fails here, too, one use is lost.
                if let Err(lost) = approvals.return_use(&grant.id).await {
                    tracing::warn!(error = %crate::error::chain(&lost), "cannot return a use of a budget");
                }
                return Err(error);
            }
        }
        Ok(Some(self.permit(row.id, Some(grant.id), None)))
    }

    /// Returns the right of a call to run that has begun in the store.
    fn permit(&self, id: String, grant: Option<String>, as_shown: Option<AsShown>) -> Permit {
        let (store, unrecorded) = (self.inner.store.clone(), self.inner.unrecorded_ends.clone());
        Permit { store, unrecorded, id, grant, is_over: false, as_shown }
    }

    /// Reports whether the person who has given a budget could give it now. While the store cannot say, the call fails, and the budget stays.
    async fn may_still_decide(&self, grant: &ApprovalRow) -> Result<bool> {
        let Some(decision) = &grant.decision else { return Ok(false) };
        let Some(key) = self.find_key(&decision.key_id).await? else { return Ok(false) };
        let may = key.role == Role::Admin || (key.role == Role::Approver && key.tenant == grant.tenant);
        Ok(may && crate::keys::check_row(&key).is_ok())
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
        let limit = u64::from(max_pending_of_one(config.max_pending));
        Err(KeeperError::Quota { quota: "approvals", used: limit, limit, retry_after: Some(POLL_INTERVAL) })
    }

    /// Waits for the decision about a recorded call, or for what makes it pointless.
    async fn decided(
        &self,
        caller: &Caller,
        (row, request): (&ApprovalRow, &ApprovalRequest),
        entered: Option<&Entered>,
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Verdict> {
        let cancelled = |reason: &str| {
            let error = KeeperError::not_approved(&row.id, ApprovalState::Cancelled, reason);
            Ok(Verdict::Refused(Some(error)))
        };
        let woken = self.inner.waiters.register(&row.id, &caller.key);
        let deadline = Instant::now() + crate::entry::until(row.expires_at);
        loop {
            let state = match self.approval_row(None, &row.id).await {
                Ok(row) => row.state,
                // It may be there again before the time is over.
                Err(KeeperError::Store(_)) if Instant::now() < deadline => ApprovalState::Pending,
                Err(error) => return Err(error),
            };
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
            // While the store cannot say, nothing runs either.
            if let Ok(Some(reason)) = self.lost_right(caller).await {
                return cancelled(reason);
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
                    // Its connection may have ended with its key.
                    let of_key = self.lost_right(caller).await.ok().flatten();
                    let of_code = request.calling_code.as_ref().and_then(|code| code.end.get().copied());
                    return cancelled(of_key.or(of_code).unwrap_or("its caller disconnected"));
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

    /// Returns why the key of a call that waits cannot make it any more; none if it can.
    async fn lost_right(&self, caller: &Caller) -> Result<Option<&'static str>> {
        if caller.is_operator() || ServiceWall::RevokedCalls.is_down() {
            return Ok(None);
        }
        if caller.session.as_ref().is_some_and(|session| session.has_ended()) {
            return Ok(Some("its session has ended"));
        }
        let is_same = self.find_key(&caller.key).await?.is_some_and(|key| {
            let is_valid = crate::keys::check_row(&key).is_ok();
            // As what it begins would be refused if it may do less since, nobody is asked in vain.
            let is_less = caller.validity.rights().is_some_and(|asked| asked.exceed(rights(&key)));
            is_valid && !is_less && key.role == caller.role && key.tenant == caller.tenant
        });
        Ok((!is_same).then_some("its key was revoked, has expired or was changed while it waited"))
    }

    /// Begins an approved call, if it is still the one that was approved, and its key may still make it.
    async fn begin_approved(
        &self,
        caller: &Caller,
        row: &ApprovalRow,
        is_by_name: bool,
        entered: Option<&Entered>,
    ) -> Result<()> {
        let refuse = |reason: &str| Err(KeeperError::not_approved(&row.id, ApprovalState::Cancelled, reason));
        if let Some(reason) = self.lost_right(caller).await? {
            return refuse(reason);
        }
        if let Some(tool) = &row.tool {
            match self.find_tool(caller, tool).await {
                Err(KeeperError::NotFound { .. } | KeeperError::ToolVersion { .. }) => {
                    return refuse("its tool was removed while it waited");
                }
                // Whoever has named a version gets that one.
                Ok(found) if is_by_name && !found.current => {
                    return refuse("its tool was changed while it waited; call again");
                }
                _ => {}
            }
        }
        if let Some(entered) = entered {
            let state = entered.entry.state();
            if state != SandboxState::Running {
                return Err(entered.entry.wrong_state(state, "running the approved call", "running"));
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
            Some(decision) if !decision.note.is_empty() => {
                format!("by {}: {}", decision.person, decision.note)
            }
            Some(decision) => format!("by {}", decision.person),
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

    /// Closes approvals whose calls do not wait any more, as the store failed when their time was over.
    pub(crate) async fn close_overdue_approvals(&self) -> Result<()> {
        let before = Timestamp::now().checked_sub(OVERDUE).unwrap_or(Timestamp::MIN);
        let approvals = self.inner.store.approvals();
        for row in approvals.list_overdue(&self.inner.config.now().name, before).await? {
            let server = server_for(&row, "sweep");
            let (state, reason) = match row.state {
                ApprovalState::Approved => (ApprovalState::Cancelled, "its call did not wait any more"),
                _ => (ApprovalState::Expired, "nobody decided in time"),
            };
            self.close_approval(&server, &row, state, reason).await?;
        }
        Ok(())
    }

    /// Resumes sandboxes that are frozen for calls which do not wait any more, as that failed when their wait ended.
    pub(crate) async fn release_ended_holds(&self) -> Result<()> {
        for entry in self.entries() {
            let held_by = entry.live().settings.held_by.clone();
            let Some(call) = held_by.filter(|call| call.starts_with(ID_PREFIX)) else { continue };
            let row = self.inner.store.approvals().get(None, &call).await?;
            if row.is_none_or(|row| row.ended_at.is_some() || row.started_at.is_some()) {
                self.release_hold(&entry, &call).await?;
            }
        }
        Ok(())
    }

    /// Freezes a sandbox for a call that waits in it, for an approval or an answer. Nothing but [`Self::release_hold`] resumes it.
    pub(crate) async fn hold(&self, entry: &Arc<Entry>, call: &str) -> Result<()> {
        let step = entry.step.lock().await;
        self.freeze_in(entry, Some(call), &step).await
    }

    /// Resumes a sandbox that was frozen for a call.
    pub(crate) async fn release_hold(&self, entry: &Arc<Entry>, call: &str) -> Result<()> {
        let step = entry.step.lock().await;
        let Some(held_by) = entry.live().settings.held_by.take_if(|by| by == call) else { return Ok(()) };
        let thawed = self.thaw_in(entry, None, &step).await;
        if thawed.is_err() && entry.state() == SandboxState::Paused {
            // The next sweep resumes it.
            entry.live().settings.held_by = Some(held_by);
        }
        thawed
    }

    /// Resumes the sandboxes that an earlier server has frozen for calls, of which nobody knows any more. Call it after sandboxes have
    /// been adopted.
    pub(crate) async fn release_holds(&self) {
        for entry in self.entries() {
            let held_by = entry.live().settings.held_by.clone();
            if let Some(call) = held_by
                && let Err(error) = self.release_hold(&entry, &call).await
            {
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot resume a sandbox that was frozen for a call");
            }
        }
    }

    fn publish_approval(&self, kind: &'static str, row: &ApprovalRow) {
        debug_assert!(belljar_model::EVENT_KINDS.contains(&kind), "{kind}");
        let sandbox = row.sandbox.as_ref().and_then(|id| id.parse().ok());
        let event = Event { sandbox, detail: row.id.clone(), ..Event::new(kind, &row.tenant) };
        self.inner.events.publish(event);
    }

    async fn approval_row(&self, tenant: Option<&str>, id: &str) -> Result<ApprovalRow> {
        let found = self.inner.store.approvals().get(tenant, id).await?;
        found.ok_or_else(|| KeeperError::NotFound { what: "approval", id: id.chars().take(64).collect() })
    }

    /// Keeps the sandbox of an approved command in the background as it was shown, if the command may still run after a restart: until all
    /// processes have ended that run now. Reports whether it does.
    async fn resume_permit(&self, row: &ApprovalRow, entry: Option<&Arc<Entry>>) -> bool {
        let Ok(request) = serde_json::from_str::<ApprovalRequest>(&row.request) else { return false };
        let Some(entry) = entry.filter(|_| request.action == EXEC_START.name) else { return false };
        let Some(sandbox) = entry.live().sandbox.clone() else { return false };
        let Ok(as_shown) = AsShown::keep(entry, &request.policy_sha256).await else { return false };
        let permit = self.permit(row.id.clone(), row.grant_id.clone(), Some(as_shown));
        permit.keep_until_exit(sandbox, None);
        true
    }

    /// Closes the approvals that were open when this server ended: a call that waited is cancelled, and how one that ran has ended is
    /// not known. Call it after sandboxes have been adopted.
    pub(crate) async fn recover_approvals(&self) -> Result<()> {
        let approvals = self.inner.store.approvals();
        for row in approvals.list_open(&self.inner.config.now().name).await? {
            let server = server_for(&row, "restart");
            let entry = row.sandbox.as_ref().and_then(|id| self.entry(&id.parse().ok()?));
            if row.started_at.is_some() && self.resume_permit(&row, entry.as_ref()).await {
                continue;
            }
            if row.started_at.is_some() {
                let reason = "the server ended while it ran";
                approvals.end(&row.id, ApprovalState::OutcomeUnknown, reason, Timestamp::now()).await?;
                continue;
            }
            let reason = "the server ended while it waited";
            self.close_approval(&server, &row, ApprovalState::Cancelled, reason).await?;
        }
        Ok(())
    }
}

/// Returns the server as the caller in whose name an approval is closed.
fn server_for(row: &ApprovalRow, request: &str) -> Caller {
    Caller { key: row.key_id.clone(), tenant: row.tenant.clone(), ..Caller::operator("server", request) }
}

/// Returns the details that identify a call in audit records.
fn row_details(row: &ApprovalRow) -> Vec<(&'static str, String)> {
    vec![("approval", row.id.clone()), (CODE_DIGEST, row.digest.clone())]
}
