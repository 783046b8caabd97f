//! Calls that wait: which do, and what the person who decides sees of them.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::v1;
use belljar_model::{Approval, Role};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Permit, waits};
use crate::action::{Action, CODE, EXEC_START};
use crate::approval::{ApprovalContent, ApprovalRequest, ApprovalScreening};
use crate::caller::Caller;
use crate::code_request::CodeRequest;
use crate::error::KeeperError;
use crate::keeper::{Entered, Keeper, Result};
use crate::program::SHELL;
use crate::request::{Command, ExecRequest};
use crate::run::Waiting;
use crate::tools::OfferedTools;

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
    "screen",
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
fn of_code(entered: &Entered, request: &CodeRequest, offered: &OfferedTools) -> ApprovalRequest {
    let mut own = in_sandbox(CODE, entered);
    own.env.extend(request.env.clone());
    ApprovalRequest {
        language: request.language.clone(),
        context: request.context.clone(),
        code: Some(ApprovalContent::new(&request.code)),
        tools: offered.versions(),
        max_tool_calls: request.tools.max_calls,
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

/// Permission bits of files that are written with the start of a process: nobody is shown others.
const SHOWN_MODES: [u32; 2] = [0, 0o644];

/// Returns a request to start a process in a sandbox.
fn of_start(entered: &Entered, request: &v1::StartRequest) -> Result<ApprovalRequest> {
    let mut own = in_sandbox(EXEC_START, entered);
    let text = |field, bytes: &Bytes| match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => {
            Err(KeeperError::field(field, "it is not UTF-8; nobody could read it before approving the call"))
        }
    };
    for variable in &request.env {
        own.env.insert(text("env", &variable.name)?, text("env", &variable.value)?);
    }
    for file in &request.files {
        if !SHOWN_MODES.contains(&file.mode) {
            let reason =
                format!("the mode {:o} is not for calls that wait for approval; give 644", file.mode);
            return Err(KeeperError::field("files", reason));
        }
        own.files.insert(text("files", &file.path)?, ApprovalContent::new(&file.data));
    }
    let content =
        |bytes: &Bytes| Some(bytes).filter(|bytes| !bytes.is_empty()).map(|one| ApprovalContent::new(one));
    let argv = request.argv.iter().map(|argument| ApprovalContent::new(argument));
    Ok(ApprovalRequest {
        command: content(&request.shell),
        argv: Some(argv.collect()).filter(|argv: &Vec<_>| !argv.is_empty()),
        cwd: content(&request.cwd),
        user: Some(request.user.clone()).filter(|user| !user.is_empty()),
        stdin: content(&request.stdin),
        timeout_ms: Some(request.timeout_ms),
        ..own
    })
}

/// Returns a request for something in a sandbox that is there already.
pub(crate) fn in_sandbox(action: Action, entered: &Entered) -> ApprovalRequest {
    let template = entered.entry.live().row.template.clone();
    ApprovalRequest::new(action.name, &template, entered.spec(), Some(entered.id().to_string()))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
            "calls with this key wait for approval, and {} cannot wait; commands, code and calls of tools can, with all of their input",
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

/// An attempt to run something: all that a check of it may need to know.
pub(crate) struct Attempt<'a> {
    pub(crate) caller: &'a Caller,
    /// The rule for approvals that holds for it.
    pub(crate) rule: Approval,
    /// The call as the person who decides sees it: sandbox, code or command, files, tool with its version, policy, and their digests.
    pub(crate) shown: ApprovalRequest,
    /// Language of its code; empty if that is not known.
    pub(crate) language: &'a str,
    /// Whether it brings along an environment, which cannot be read.
    pub(crate) has_env: bool,
}

/// The right of a call to run: what screening has found in it and its approval, where a rule asks for them.
#[derive(Default)]
pub(crate) struct Clearance {
    screening: Option<ApprovalScreening>,
    permit: Option<Permit>,
}

impl Clearance {
    /// Returns the details for the audit record of the call.
    pub(crate) fn details(&self) -> Vec<(&'static str, String)> {
        let screened = self.screening.iter().flat_map(ApprovalScreening::details);
        screened.chain(self.permit.iter().flat_map(Permit::details)).collect()
    }

    /// Keeps the right to run until a process ends that goes on by itself.
    pub(crate) fn keep_until_exit(self, entered: &Entered, process: u64) {
        if let Some(permit) = self.permit {
            permit.keep_until_exit(Arc::clone(entered.sandbox()), Some(process));
        }
    }

    /// Records how the call ended.
    pub(crate) async fn finish<T>(self, done: &Result<T>, outcome: impl FnOnce(&T) -> String) -> Result<()> {
        match self.permit {
            Some(permit) => permit.finish(done, outcome).await,
            None => Ok(()),
        }
    }
}

impl Keeper {
    /// Examines what is to run, if its rule asks for that: the one place for checks that read it.
    ///
    /// # Errors
    /// [`KeeperError::CallerGone`] if the caller disconnects meanwhile. Then nothing of the call has been recorded or started.
    pub(crate) async fn examine(
        &self,
        attempt: &Attempt<'_>,
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Option<ApprovalScreening>> {
        tokio::select! {
            biased;
            screening = self.screen_call(attempt) => Ok(screening),
            _ = gone => Err(KeeperError::CallerGone),
        }
    }

    /// Waits for the approval of code, if it needs one.
    pub(crate) async fn approve_code(
        &self,
        caller: &Caller,
        entered: &Entered,
        (request, offered): (&CodeRequest, &OfferedTools),
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Clearance> {
        if caller.approval == Approval::Never {
            return Ok(Clearance::default());
        }
        caller.check_complete("allow_input", request.allow_input)?;
        caller.check_complete("functions", !request.tools.functions.is_empty())?;
        let shown = of_code(entered, request, offered);
        let language = match (&request.language, &request.context) {
            (Some(language), _) => language.clone(),
            (None, None) => "python".to_owned(),
            (None, Some(context)) => context_language(entered, context).await.unwrap_or_default(),
        };
        let (rule, has_env) = (caller.approval, !request.env.is_empty());
        self.clear(Attempt { caller, rule, shown, language: &language, has_env }, entered, waiting, gone)
            .await
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
    ) -> Result<Clearance> {
        if caller.approval == Approval::Never {
            return Ok(Clearance::default());
        }
        caller.check_complete("stdin_open", request.stdin_open)?;
        let shown = of_command(entered, action, request);
        let (rule, has_env) = (caller.approval, !request.env.is_empty());
        self.clear(Attempt { caller, rule, shown, language: SHELL, has_env }, entered, waiting, gone).await
    }

    /// Waits for the approval of the start of a process, if it needs one.
    pub(crate) async fn approve_start(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: &v1::StartRequest,
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Clearance> {
        if caller.approval == Approval::Never {
            return Ok(Clearance::default());
        }
        caller.check_complete("stdin_open", request.stdin_open)?;
        let shown = of_start(entered, request)?;
        let (rule, has_env) = (caller.approval, !request.env.is_empty());
        self.clear(Attempt { caller, rule, shown, language: SHELL, has_env }, entered, waiting, gone).await
    }

    /// Examines an attempt, and waits for its approval if it needs one.
    async fn clear(
        &self,
        attempt: Attempt<'_>,
        entered: &Entered,
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Clearance> {
        let screening = self.examine(&attempt, gone).await?;
        let Attempt { caller, rule, shown, .. } = attempt;
        if !waits(rule, screening.as_ref()) {
            // Screening may have waited for its turn.
            self.check_key_still(caller).await?;
            return Ok(Clearance { screening, permit: None });
        }
        let shown = ApprovalRequest { screening: screening.clone(), ..shown };
        let permit = self.await_approval(caller, shown, Some(entered), waiting, gone).await?;
        Ok(Clearance { screening, permit: Some(permit) })
    }
}

/// Returns the language of a context, as the sandbox reports it.
async fn context_language(entered: &Entered, context: &str) -> Option<String> {
    let contexts = entered.guest().list_contexts().await.ok()?;
    contexts.into_iter().find(|one| one.id == context).map(|one| one.language)
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
