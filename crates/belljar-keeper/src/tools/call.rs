//! A call, from its arguments to its result.

use belljar_engine::{CodeEvent, v1};
use belljar_model::{CodeExecution, HintReader};
use futures::{StreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::check::{CheckedCall, ToolCall, approval_rule, attempt, check_call, of_call};
use super::files::WrittenFile;
use super::stored::{ToolInfo, tool_details};
use crate::action::{SANDBOX_USE, TOOL_CALL};
use crate::approval::{ApprovalRequest, ApprovalScreening, CallingCode};
use crate::approvals::{AsShown, Permit, in_sandbox, waits};
use crate::audit::CODE_DIGEST;
use crate::caller::Caller;
use crate::code_request::{CodeRequest, OnDisconnect};
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::operation::Write;
use crate::run::{Reporter, Run, Waiting};

/// Result of a call.
#[derive(Debug, Clone)]
pub struct ToolResult {
    /// The tool's name.
    pub tool: String,
    /// Its version.
    pub version: i64,
    /// Digest of its definition.
    pub digest: String,
    /// The sandbox.
    pub sandbox: String,
    /// Whether the sandbox is kept for further calls.
    pub session: bool,
    /// The code's result.
    pub execution: CodeExecution,
    /// Files that it has written, by path.
    pub files: Vec<WrittenFile>,
    /// Whether it has written more files than are listed.
    pub more_files: bool,
}

impl Keeper {
    /// Calls a tool and waits for its end. When the future is dropped, its code is killed, and its sandbox ended unless it is that of
    /// a session.
    ///
    /// # Errors
    /// Needs the role user; arguments that are not within the tool. The code's own failure is in the result.
    pub async fn call_tool(&self, caller: &Caller, named: &str, call: ToolCall) -> Result<ToolResult> {
        self.call_tool_to(caller, named, (call, None), Reporter::none()).await
    }

    /// Calls a tool, as [`Self::call_tool`] does, and reports the events of its code.
    pub fn stream_tool(&self, caller: &Caller, named: &str, call: ToolCall) -> Run<CodeEvent, ToolResult> {
        self.stream_call(caller, named, (call, None))
    }

    /// Calls a tool, for running code if it is given.
    pub(super) fn stream_call(
        &self,
        caller: &Caller,
        named: &str,
        call: (ToolCall, Option<CallingCode>),
    ) -> Run<CodeEvent, ToolResult> {
        let (keeper, caller, named) = self.clone_for_task(caller, named);
        Run::new(|report| async move { keeper.call_tool_to(&caller, &named, call, report).await })
    }

    async fn call_tool_to(
        &self,
        caller: &Caller,
        named: &str,
        call: (ToolCall, Option<CallingCode>),
        report: Reporter<CodeEvent>,
    ) -> Result<ToolResult> {
        self.run_call(caller, named, move |keeper, caller, named, gone| async move {
            if let Err(refused) = keeper.require(&caller, TOOL_CALL) {
                let (refused, details) = (Err(refused), tool_details(&named, None));
                keeper.audit(&caller, TOOL_CALL, None, &refused, details).await?;
                return refused;
            }
            let info = keeper.find_tool(&caller, &named).await?;
            let mut details = tool_details(&info.tool.name, Some(&info));
            details.push((CODE_DIGEST, hex::encode(Sha256::digest(&call.0.code))));
            details.extend(call.1.iter().flat_map(CallingCode::details));
            let is_by_name = !named.contains('@');
            let called = keeper.run_tool(&caller, (info, is_by_name), call, report, gone, &mut details).await;
            if let Ok(result) = &called {
                details.push(("outcome", result.execution.status.as_str().to_owned()));
            }
            let sandbox = called.as_ref().ok().and_then(|result| result.sandbox.parse().ok());
            keeper.audit(&caller, TOOL_CALL, sandbox.as_ref(), &called, details).await?;
            called
        })
        .await
    }

    async fn run_tool(
        &self,
        caller: &Caller,
        (info, is_by_name): (ToolInfo, bool),
        (call, calling_code): (ToolCall, Option<CallingCode>),
        report: Reporter<CodeEvent>,
        mut gone: oneshot::Receiver<()>,
        details: &mut Vec<(&'static str, String)>,
    ) -> Result<ToolResult> {
        let checked = CheckedCall { is_by_name, ..check_call(&info.tool, &call)? };
        let request = self.tool_sandbox(caller, &info.tool, info.version)?;
        let (rule, _) = approval_rule(caller, &info.tool);
        let screening = match attempt(caller, rule, &info, &call, &checked) {
            Some(attempt) => self.examine(&attempt, &mut gone).await?,
            None => None,
        };
        details.extend(screening.iter().flat_map(ApprovalScreening::details));
        let waits = waits(rule, screening.as_ref());
        // A sandbox of its own is created afterwards, as it was approved.
        let mut request = request;
        let approved = if waits && !info.tool.session {
            let plan = self.plan_launch(caller, request.clone()).await?;
            let shown = ApprovalRequest::new(TOOL_CALL.name, &plan.origin.name, &plan.spec, None);
            let shown = ApprovalRequest {
                screening: screening.clone(),
                template_id: Some(plan.origin.id.clone()),
                calling_code: calling_code.clone(),
                ..of_call(shown, &info, &call, &checked)
            };
            // Its name may stand for another one by then.
            request.template = Some(plan.origin.id);
            let policy = shown.policy_sha256.clone();
            let waiting = |waiting| report.waiting(waiting);
            Some((self.await_approval(caller, shown, None, waiting, &mut gone).await?, policy))
        } else {
            None
        };
        let (mut permit, policy) = approved.unzip();
        let called = async {
            let created = self.create(caller, request).await?;
            if created.existing {
                self.check_session(caller, &info.tool, info.version, &created.info).await?;
            }
            let sandbox = created.info.id.to_string();
            let ran = async {
                if let (Some(permit), Some(policy)) = (&mut permit, policy) {
                    let gone = || KeeperError::NotFound { what: "sandbox", id: sandbox.clone() };
                    let entry = self.entry(&created.info.id).ok_or_else(gone)?;
                    permit.keep(AsShown::keep(&entry, &policy).await?);
                }
                if waits && info.tool.session {
                    let waiting = |waiting| report.waiting(waiting);
                    permit = Some(
                        self.approve_in_session(
                            caller,
                            &sandbox,
                            (&info, &call, &checked),
                            (screening, calling_code),
                            waiting,
                            &mut gone,
                        )
                        .await?,
                    );
                }
                let tool = &info.tool;
                let reader = HintReader::Tool { name: tool.name.clone(), timeout: tool.timeout };
                self.run_in(&caller.approved(), &sandbox, call, (checked, reader), report, gone).await
            };
            let ran = ran.await;
            if !info.tool.session {
                // It may have ended by itself.
                match self.kill(caller, &sandbox).await {
                    Ok(()) | Err(KeeperError::Gone { .. } | KeeperError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok((sandbox, ran?))
        };
        let called = called.await;
        if let Some(permit) = permit {
            details.extend(permit.details());
            permit.finish(&called, |(_, (execution, ..))| execution.status.as_str().to_owned()).await?;
        }
        let (sandbox, (execution, files, more_files)) = called?;
        let ToolInfo { tool, version, digest, .. } = info;
        let session = tool.session;
        Ok(ToolResult { tool: tool.name, version, digest, sandbox, session, execution, files, more_files })
    }

    /// Waits for the approval of a call in the sandbox of a session, which is frozen meanwhile.
    async fn approve_in_session(
        &self,
        caller: &Caller,
        sandbox: &str,
        (info, call, checked): (&ToolInfo, &ToolCall, &CheckedCall),
        (screening, calling_code): (Option<ApprovalScreening>, Option<CallingCode>),
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Permit> {
        let entered = self.find_for(caller, sandbox, SANDBOX_USE).await?;
        let shown = of_call(in_sandbox(TOOL_CALL, &entered), info, call, checked);
        let shown = ApprovalRequest { screening, calling_code, ..shown };
        self.await_approval(caller, shown, Some(&entered), waiting, gone).await
    }

    async fn run_in(
        &self,
        caller: &Caller,
        sandbox: &str,
        call: ToolCall,
        (CheckedCall { language, timeout, .. }, hint_reader): (CheckedCall, HintReader),
        report: Reporter<CodeEvent>,
        gone: oneshot::Receiver<()>,
    ) -> Result<(CodeExecution, Vec<WrittenFile>, bool)> {
        for (path, content) in call.files {
            let open = v1::WriteOpen { path: path.into(), make_parents: true, ..Default::default() };
            self.perform(caller, sandbox, Write::new(open, stream::iter([Ok(content)]).boxed())).await?;
        }
        let before = self.regular_files(caller, sandbox).await?;
        let request = CodeRequest {
            code: call.code,
            language: Some(language),
            timeout: Some(timeout),
            on_disconnect: OnDisconnect::Kill,
            hint_reader,
            ..CodeRequest::default()
        };
        let execution = self.run_code_until_gone(caller, sandbox, request, report, gone).await?;
        let (files, more_files) = self.written_files(caller, sandbox, &before).await;
        Ok((execution, files, more_files))
    }
}
