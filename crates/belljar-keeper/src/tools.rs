//! Stored tools: code that a model may run by the name of a tool, in sandboxes as the operator has defined them.
//!
//! ```text
//!  call ─► tool, version ─► arguments within the tool ─► sandbox ─► files in ─► code ─► files out ─► end, unless it is a session
//! ```
//!
//! A call can only narrow what the tool allows. The sandbox is the caller's: its role, quotas and ceilings apply as to any other.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_engine::{CodeEvent, v1};
use belljar_model::{
    Approval, CodeExecution, Languages, NetworkFile, NetworkMode, SandboxSpec, SpecFile, ToolFile,
};
use belljar_store::ToolRow;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use crate::action::{
    SANDBOX_USE, TOOL_CALL, TOOL_CREATE, TOOL_GET, TOOL_LIST, TOOL_REMOVE, TOOL_TEST, TOOL_UPDATE,
};
use crate::approval::{ApprovalContent, ApprovalRequest, ApprovalScreening};
use crate::approvals::{AsShown, Attempt, Permit, in_sandbox, is_by_risk, waits};
use crate::audit::CODE_DIGEST;
use crate::caller::Caller;
use crate::code::{CodeRequest, OnDisconnect, check_code};
use crate::error::KeeperError;
use crate::info::SandboxInfo;
use crate::json;
use crate::keeper::{Keeper, Result};
use crate::operation::Write;
use crate::request::{CreateSandbox, Labels, Lifetime, PortSettings};
use crate::run::{Reporter, Run, Waiting};
use crate::steps::run_detached;

/// Maximum number of a tenant's tools. Source: docs/spec.md; held by `tools::tools_are_bounded` of the API's tests.
pub const MAX_TOOLS: usize = 256;

/// Maximum number of versions of a tool. Source: docs/spec.md; held by `tools::tools_are_bounded` of the API's tests.
pub const MAX_TOOL_VERSIONS: usize = 256;

/// Maximum number of files in the arguments of a call, and maximum bytes of all.
/// Source: docs/spec.md; held by `tests::arguments_are_within_the_tool`.
pub const MAX_TOOL_FILES: (usize, usize) = (64, 1 << 20);

/// Maximum number of files in the result of a call, and maximum bytes of all their contents.
/// Source: docs/spec.md; held by `tools::written_files_are_returned` of the API's tests (that they are bounded).
const MAX_RESULT_FILES: (usize, u64) = (16, 1 << 20);

/// Time without use after which the sandbox of a session ends, and a default sandbox of MCP.
/// Source: docs/spec.md; held by `tools::sessions_are_kept` and `mcp::default_sandboxes_have_an_idle_timeout` of the API's tests.
pub const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Time that a sandbox of one call may take besides the code itself.
const CALL_SLACK: Duration = Duration::from_secs(120);

/// Depth and number of entries to which a home is searched for written files.
const SEARCHED: (u32, u32) = (8, 10_000);

/// Label of a tool's sandboxes, with its name and version.
const LABEL: &str = "tool";

/// Names of built-in tools, which stored ones cannot have: they are offered side by side.
pub const BUILT_IN_TOOLS: [&str; 19] = [
    "apply_patch",
    "bash",
    "create_sandbox",
    "edit",
    "exec_command",
    "glob",
    "grep",
    "kill_sandbox",
    "list_directory",
    "list_sandboxes",
    "publish_port",
    "read",
    "read_file",
    "run_code",
    "run_command",
    "view_image",
    "write",
    "write_file",
    "write_stdin",
];

/// One version of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolInfo {
    /// Its definition.
    pub tool: ToolFile,
    /// Its version, 1 for the first.
    pub version: i64,
    /// Whether it is the current version, which calls without one get.
    pub current: bool,
    /// SHA-256 of the definition, in hexadecimal.
    pub digest: String,
    /// Id of the key that stored it.
    pub key: String,
    /// Time of creation.
    #[serde(with = "json::time")]
    pub created_at: Timestamp,
}

impl ToolInfo {
    /// Reports whether its sandboxes may have a network.
    #[must_use]
    pub fn reaches_network(&self) -> bool {
        let policy = self.tool.network.clone().map(NetworkFile::resolve);
        !matches!(policy, Some(Ok(policy)) if policy.mode() == NetworkMode::Disabled)
    }
}

/// Arguments of a call.
#[derive(Debug, Clone, Default)]
pub struct ToolCall {
    /// The code.
    pub code: Bytes,
    /// One of the tool's languages; the first if absent.
    pub language: Option<String>,
    /// At most the tool's, which it is if absent.
    pub timeout: Option<Duration>,
    /// Files to write before, by their paths below the home directory.
    pub files: BTreeMap<String, Bytes>,
}

/// A file that a call has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Path below the home directory.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its content, if all fit into the result.
    pub content: Option<Bytes>,
}

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

/// What would be decided about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolVerdict {
    /// Whether it would run.
    pub allowed: bool,
    /// The rule that decides: the refused argument, `policy`, `role`, `approval` if it would wait, or `tool` if all are satisfied.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// The tool's name.
    pub tool: String,
    /// Its version.
    pub version: i64,
    /// Digest of its definition.
    pub digest: String,
    /// SHA-256 of the code, in hexadecimal.
    pub code_sha256: String,
    /// What screening has found, if the rule for approvals asks for it.
    #[serde(default)]
    pub screening: Option<ApprovalScreening>,
}

/// A call within its tool.
#[derive(Debug, PartialEq, Eq)]
struct CheckedCall {
    language: String,
    timeout: Duration,
}

impl Keeper {
    /// Stores a tool of the caller's tenant.
    ///
    /// # Errors
    /// Needs the role admin; a definition that is not allowed, [`KeeperError::NameTaken`], and [`KeeperError::Quota`] at the tenant's limit.
    pub async fn create_tool(&self, caller: &Caller, tool: ToolFile) -> Result<ToolInfo> {
        self.store_tool(caller, tool, None).await
    }

    /// Stores a new version of the tool `name`, which becomes the current one.
    ///
    /// # Errors
    /// Needs the role admin; [`KeeperError::NotFound`], and a definition that is not allowed or has another name.
    pub async fn update_tool(&self, caller: &Caller, name: &str, tool: ToolFile) -> Result<ToolInfo> {
        self.store_tool(caller, tool, Some(name.to_owned())).await
    }

    async fn store_tool(&self, caller: &Caller, tool: ToolFile, known: Option<String>) -> Result<ToolInfo> {
        let (keeper, caller) = (self.clone(), caller.clone());
        run_detached(&self.inner.tasks, async move {
            let action = if known.is_some() { TOOL_UPDATE } else { TOOL_CREATE };
            let name = tool.name.clone();
            let stored = keeper.insert_tool(&caller, tool, known.as_deref()).await;
            let details = tool_details(&name, stored.as_ref().ok());
            keeper.audit(&caller, action, None, &stored, details).await?;
            stored
        })
        .await
    }

    /// Stores a version: the first of a new tool, or the next of a `known` one.
    async fn insert_tool(&self, caller: &Caller, tool: ToolFile, known: Option<&str>) -> Result<ToolInfo> {
        self.require(caller, if known.is_some() { TOOL_UPDATE } else { TOOL_CREATE })?;
        if let Some(known) = known.filter(|known| *known != tool.name) {
            let reason = format!("{:?} is not the tool's; it keeps its name {known:?}", tool.name);
            return Err(KeeperError::field("name", reason));
        }
        let mut tool = tool.check()?;
        if BUILT_IN_TOOLS.contains(&tool.name.as_str()) {
            let reason = format!("{:?} is a built-in tool; give another name", tool.name);
            return Err(KeeperError::field("name", reason));
        }
        let has_secrets = |network: &NetworkFile| network.secrets.is_some() || network.headers.is_some();
        if tool.network.as_ref().is_some_and(has_secrets) {
            let reason = "secrets and headers are not for tools; give mode, presets, allow and deny";
            return Err(KeeperError::field("network", reason));
        }
        // All that a call would be refused for whatever its arguments are is refused now.
        let plan = self.plan_launch(caller, self.tool_sandbox(caller, &tool, 0)?).await?;
        let policy = NetworkFile::from(&plan.spec.network);
        if !has_secrets(&policy) {
            tool.network = Some(policy);
        }
        let tools = self.inner.store.tools();
        // One after the other, so that numbers and versions are counted right.
        let _storing = self.inner.storing_tool.lock().await;
        let all = tools.list(&caller.tenant).await?;
        match (all.iter().any(|row| row.name == tool.name), known.is_some()) {
            (true, false) => {
                return Err(KeeperError::NameTaken { name: tool.name, owner: "a tool".to_owned() });
            }
            (false, true) => return Err(not_found(&tool.name)),
            (false, false) if all.len() >= MAX_TOOLS => {
                let (used, limit) = (all.len() as u64, MAX_TOOLS as u64);
                return Err(KeeperError::Quota { quota: "tools", used, limit, retry_after: None });
            }
            _ => {}
        }
        let definition = serde_json::to_string(&tool)
            .map_err(|source| KeeperError::Record { what: format!("tool {}", tool.name), source })?;
        let versions = tools.versions(&caller.tenant, &tool.name).await?;
        if versions.len() >= MAX_TOOL_VERSIONS {
            let (used, limit) = (versions.len() as u64, MAX_TOOL_VERSIONS as u64);
            return Err(KeeperError::Quota { quota: "versions of a tool", used, limit, retry_after: None });
        }
        let row = ToolRow {
            version: tools.next_version(&caller.tenant, &tool.name).await?,
            tenant: caller.tenant.clone(),
            name: tool.name.clone(),
            digest: hex::encode(Sha256::digest(definition.as_bytes())),
            definition,
            key_id: caller.key.clone(),
            created_at: Timestamp::now(),
        };
        tools.insert(&row).await?;
        to_info(row, true)
    }

    /// Returns a tool of the caller's tenant by its name, or one version by `NAME@VERSION`.
    ///
    /// # Errors
    /// Needs the role read; [`KeeperError::NotFound`], and [`KeeperError::ToolVersion`].
    pub async fn tool(&self, caller: &Caller, named: &str) -> Result<ToolInfo> {
        self.require(caller, TOOL_GET)?;
        self.find_tool(caller, named).await
    }

    /// Returns the current versions of the caller's tenant's tools, sorted by name.
    ///
    /// # Errors
    /// Needs the role read.
    pub async fn tools(&self, caller: &Caller) -> Result<Vec<ToolInfo>> {
        self.require(caller, TOOL_LIST)?;
        let rows = self.inner.store.tools().list(&caller.tenant).await?;
        rows.into_iter().map(|row| to_info(row, true)).collect()
    }

    /// Removes a tool, or one version of it by `NAME@VERSION`.
    ///
    /// # Errors
    /// Needs the role admin; [`KeeperError::NotFound`], and [`KeeperError::ToolVersion`].
    pub async fn remove_tool(&self, caller: &Caller, named: &str) -> Result<()> {
        let (keeper, caller, named) = self.clone_for_task(caller, named);
        run_detached(&self.inner.tasks, async move {
            let removed = keeper.delete_tool(&caller, &named).await;
            let details = vec![("tool", named)];
            keeper.audit(&caller, TOOL_REMOVE, None, &removed, details).await?;
            removed
        })
        .await
    }

    async fn delete_tool(&self, caller: &Caller, named: &str) -> Result<()> {
        self.require(caller, TOOL_REMOVE)?;
        let found = self.find_tool(caller, named).await?;
        let version = named.contains('@').then_some(found.version);
        let tools = self.inner.store.tools();
        match tools.remove(&caller.tenant, &found.tool.name, version, Timestamp::now()).await? {
            0 => Err(not_found(named)),
            _ => Ok(()),
        }
    }

    async fn find_tool(&self, caller: &Caller, named: &str) -> Result<ToolInfo> {
        let (name, version) = named.split_once('@').map_or((named, None), |(name, rest)| (name, Some(rest)));
        if !ToolFile::is_name(name) {
            return Err(not_found(named));
        }
        let rows = self.inner.store.tools().versions(&caller.tenant, name).await?;
        let newest = rows.first().map(|row| row.version).ok_or_else(|| not_found(named))?;
        let wanted = match version {
            None => Some(newest),
            Some(text) => text.parse().ok(),
        };
        let there: Vec<i64> = rows.iter().map(|row| row.version).collect();
        let row = rows.into_iter().find(|row| Some(row.version) == wanted);
        match row {
            Some(row) => to_info(row, wanted == Some(newest)),
            None => {
                let version = version.unwrap_or_default().to_owned();
                Err(KeeperError::ToolVersion { name: name.to_owned(), version, there })
            }
        }
    }

    /// Decides about a call without running anything.
    ///
    /// # Errors
    /// Needs the role user; fails if there is no such tool.
    pub async fn test_tool(&self, caller: &Caller, named: &str, call: &ToolCall) -> Result<ToolVerdict> {
        self.require(caller, TOOL_TEST)?;
        let info = self.find_tool(caller, named).await?;
        let (rule, whose) = approval_rule(caller, &info.tool);
        let mut screening = None;
        let decided = async {
            let checked = check_call(&info.tool, call)?;
            let request = self.tool_sandbox(caller, &info.tool, info.version)?;
            self.plan_launch(caller, request).await?;
            if let Some(attempt) = attempt(caller, rule, &info, call, &checked) {
                screening = self.screen_call(&attempt).await;
            }
            let waits = waits(rule, screening.as_ref());
            if waits {
                self.check_approver(caller).await?;
            }
            Ok(waits)
        };
        let decided: Result<bool> = decided.await;
        let found = screening.as_ref().map(|found| format!("; {}", found.summary())).unwrap_or_default();
        let (allowed, rule, reason) = match &decided {
            Ok(true) => {
                let reason =
                    format!("it waits until another person approves it, by {whose} rule {rule}{found}");
                (true, "approval".to_owned(), reason)
            }
            Err(KeeperError::NoApprover) => (false, "approval".to_owned(), decided_reason(&decided)),
            Ok(false) => (true, "tool".to_owned(), format!("the arguments are within the tool{found}")),
            Err(KeeperError::Field { field, .. }) => (false, (*field).to_owned(), decided_reason(&decided)),
            Err(KeeperError::Forbidden { .. }) => (false, "role".to_owned(), decided_reason(&decided)),
            Err(KeeperError::Policy { .. }) => (false, "policy".to_owned(), decided_reason(&decided)),
            Err(error) => (false, error.code().to_owned(), decided_reason(&decided)),
        };
        let code_sha256 = hex::encode(Sha256::digest(&call.code));
        let ToolInfo { tool, version, digest, .. } = info;
        Ok(ToolVerdict { allowed, rule, reason, tool: tool.name, version, digest, code_sha256, screening })
    }

    /// Calls a tool and waits for its end. When the future is dropped, its code is killed, and its sandbox ended unless it is that of
    /// a session.
    ///
    /// # Errors
    /// Needs the role user; arguments that are not within the tool. The code's own failure is in the result.
    pub async fn call_tool(&self, caller: &Caller, named: &str, call: ToolCall) -> Result<ToolResult> {
        self.call_tool_to(caller, named, call, Reporter::none()).await
    }

    /// Calls a tool, as [`Self::call_tool`] does, and reports the events of its code.
    pub fn stream_tool(&self, caller: &Caller, named: &str, call: ToolCall) -> Run<CodeEvent, ToolResult> {
        let (keeper, caller, named) = self.clone_for_task(caller, named);
        Run::new(|report| async move { keeper.call_tool_to(&caller, &named, call, report).await })
    }

    async fn call_tool_to(
        &self,
        caller: &Caller,
        named: &str,
        call: ToolCall,
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
            details.push((CODE_DIGEST, hex::encode(Sha256::digest(&call.code))));
            let called = keeper.run_tool(&caller, info, call, report, gone, &mut details).await;
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
        info: ToolInfo,
        call: ToolCall,
        report: Reporter<CodeEvent>,
        mut gone: oneshot::Receiver<()>,
        details: &mut Vec<(&'static str, String)>,
    ) -> Result<ToolResult> {
        let checked = check_call(&info.tool, &call)?;
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
                            (&info, &call, &checked, screening),
                            waiting,
                            &mut gone,
                        )
                        .await?,
                    );
                }
                self.run_in(&caller.approved(), &sandbox, call, checked, report, gone).await
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
        (info, call, checked, screening): (&ToolInfo, &ToolCall, &CheckedCall, Option<ApprovalScreening>),
        waiting: impl FnOnce(Waiting),
        gone: &mut oneshot::Receiver<()>,
    ) -> Result<Permit> {
        let entered = self.find_for(caller, sandbox, SANDBOX_USE).await?;
        let shown = of_call(in_sandbox(TOOL_CALL, &entered), info, call, checked);
        let shown = ApprovalRequest { screening, ..shown };
        self.await_approval(caller, shown, Some(&entered), waiting, gone).await
    }

    async fn run_in(
        &self,
        caller: &Caller,
        sandbox: &str,
        call: ToolCall,
        CheckedCall { language, timeout }: CheckedCall,
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
            ..CodeRequest::default()
        };
        let execution = self.run_code_until_gone(caller, sandbox, request, report, gone).await?;
        // Code may have ended the sandbox; then nothing is left of its files.
        let after = self.regular_files(caller, sandbox).await.unwrap_or_default();
        let written = after.into_iter().filter(|(path, found)| before.get(path) != Some(found));
        let mut written: Vec<_> = written.map(|(path, (size, _))| (path, size)).collect();
        let more_files = written.len() > MAX_RESULT_FILES.0;
        written.truncate(MAX_RESULT_FILES.0);
        let mut files = Vec::new();
        let mut left = MAX_RESULT_FILES.1;
        for (path, size) in written {
            let content = if size <= left { self.content(caller, sandbox, &path, size).await } else { None };
            left -= content.as_ref().map_or(0, |content| content.len() as u64).min(left);
            files.push(WrittenFile { path, size, content });
        }
        Ok((execution, files, more_files))
    }

    /// Returns the regular files below the home directory that are not hidden, with their lengths and times of change.
    async fn regular_files(&self, caller: &Caller, sandbox: &str) -> Result<BTreeMap<String, (u64, i64)>> {
        let (depth, limit) = SEARCHED;
        let request = v1::ListRequest { path: Bytes::from_static(b"."), depth, limit, ..Default::default() };
        let entries = self.perform(caller, sandbox, request).await?.entries.into_iter();
        let file = |entry: v1::Entry| {
            let is_file = entry.kind.as_known() == Some(v1::FileKind::FILE_KIND_FILE);
            let path = String::from_utf8(entry.path.to_vec()).ok()?;
            let is_shown = is_file && !path.split('/').any(|part| part.starts_with('.'));
            is_shown.then_some((path, (entry.size, entry.modified_ns)))
        };
        Ok(entries.filter_map(file).collect())
    }

    /// Returns the content of a file, if it can be read and has not grown.
    async fn content(&self, caller: &Caller, sandbox: &str, path: &str, size: u64) -> Option<Bytes> {
        let path = Bytes::copy_from_slice(path.as_bytes());
        let request = v1::ReadRequest { path, length: size, ..Default::default() };
        let mut download = self.begin(caller, sandbox, request).await.ok()?;
        let mut content = Vec::new();
        while let Some(piece) = download.next().await.ok()? {
            content.extend_from_slice(&piece);
            if content.len() as u64 > size {
                return None;
            }
        }
        Some(content.into())
    }

    /// Returns the request for the sandbox of a tool. That of a session has a name, so that there is one for each key and version.
    fn tool_sandbox(&self, caller: &Caller, tool: &ToolFile, version: i64) -> Result<CreateSandbox> {
        const NAME_DIGITS: usize = 20;
        let max = self.max_lifetime();
        let name = tool.session.then(|| {
            let mut digest = Sha256::new();
            for part in [caller.key.as_str(), tool.name.as_str(), &version.to_string()] {
                digest.update((part.len() as u64).to_be_bytes());
                digest.update(part);
            }
            let digest = hex::encode(digest.finalize());
            format!("tool-{}", digest.get(..NAME_DIGITS).unwrap_or_default()).parse()
        });
        let timeout = if tool.session { max } else { (tool.timeout.duration() + CALL_SLACK).min(max) };
        let labels = BTreeMap::from([(LABEL.to_owned(), format!("{}@{version}", tool.name))]);
        Ok(CreateSandbox {
            template: tool.template.clone(),
            name: name.transpose()?,
            return_existing: tool.session,
            spec: SpecFile {
                limits: tool.limits.clone(),
                network: tool.network.clone(),
                ..SpecFile::default()
            },
            lifetime: Lifetime {
                timeout,
                idle_timeout: tool.session.then_some(SESSION_IDLE_TIMEOUT.min(max)),
                ..Lifetime::default()
            },
            labels: Labels::new(labels)?,
            files: Vec::new(),
            idempotency: None,
            ports: PortSettings::default(),
        })
    }

    /// Checks that the sandbox of a session is as the tool makes it: its caller could have made one of that name before, or changed it.
    async fn check_session(
        &self,
        caller: &Caller,
        tool: &ToolFile,
        version: i64,
        info: &SandboxInfo,
    ) -> Result<()> {
        let plan = self.plan_launch(caller, self.tool_sandbox(caller, tool, version)?).await?;
        // A template that was built anew is in the next session.
        let planned = SandboxSpec { tree: info.spec.tree.clone(), ..plan.spec };
        if info.key == caller.key && info.template == plan.origin.name && info.spec == planned {
            return Ok(());
        }
        let reason =
            format!("{} of this session was changed or is another's; end it, and call again", info.id);
        Err(KeeperError::Policy { field: "sandbox", reason })
    }
}

/// Checks that the arguments of a call are within its tool.
fn check_call(tool: &ToolFile, call: &ToolCall) -> Result<CheckedCall> {
    check_code(&CodeRequest { code: call.code.clone(), ..CodeRequest::default() })?;
    let first = tool.languages.first().map(String::as_str).unwrap_or_default();
    let given = call.language.as_deref().unwrap_or(first);
    let name = Languages::builtin().by_name(given).map_or(given, |language| language.name.as_str());
    if !tool.languages.iter().any(|allowed| allowed == name) {
        let reason = format!("{given:?} is not one of the tool's; give {}", tool.languages.join(" or "));
        return Err(KeeperError::field("language", reason));
    }
    let max = tool.timeout.duration();
    let timeout = call.timeout.unwrap_or(max);
    if timeout.is_zero() || timeout > max {
        let reason = format!("{timeout:?} is not allowed; the tool allows at most {max:?}");
        return Err(KeeperError::field("timeout", reason));
    }
    let (max_files, max_bytes) = MAX_TOOL_FILES;
    let bytes: usize = call.files.iter().map(|(path, content)| path.len() + content.len()).sum();
    if call.files.len() > max_files || bytes > max_bytes {
        let reason = format!(
            "{} files of {bytes} bytes; at most {max_files} of {max_bytes} are allowed",
            call.files.len()
        );
        return Err(KeeperError::field("files", reason));
    }
    let is_below = |path: &str| {
        !path.contains('\0') && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
    };
    if let Some(path) = call.files.keys().find(|path| !is_below(path)) {
        let reason =
            format!("{path:?} is not allowed; give a path below the home directory, such as data/in.csv");
        return Err(KeeperError::field("files", reason));
    }
    Ok(CheckedCall { language: name.to_owned(), timeout })
}

/// Returns the rule for approvals of a call, the stricter one of the tool and the caller's key, and whose it is.
fn approval_rule(caller: &Caller, tool: &ToolFile) -> (Approval, &'static str) {
    if caller.approval > tool.approval {
        (caller.approval, "the key's")
    } else {
        (tool.approval, "the tool's")
    }
}

/// Returns a call of a tool as checks see it, if its rule asks for any.
fn attempt<'a>(
    caller: &'a Caller,
    rule: Approval,
    info: &ToolInfo,
    call: &ToolCall,
    checked: &'a CheckedCall,
) -> Option<Attempt<'a>> {
    is_by_risk(rule).then(|| {
        let shown = of_call(ApprovalRequest::default(), info, call, checked);
        Attempt { caller, rule, shown, language: &checked.language, has_env: false }
    })
}

/// Adds what is particular to a call of a tool to what the person who decides sees.
fn of_call(
    shown: ApprovalRequest,
    info: &ToolInfo,
    call: &ToolCall,
    checked: &CheckedCall,
) -> ApprovalRequest {
    let files = call.files.iter().map(|(path, content)| (path.clone(), ApprovalContent::new(content)));
    ApprovalRequest {
        tool: Some(format!("{}@{}", info.tool.name, info.version)),
        tool_sha256: Some(info.digest.clone()),
        language: Some(checked.language.clone()),
        code: Some(ApprovalContent::new(&call.code)),
        timeout_ms: Some(u64::try_from(checked.timeout.as_millis()).unwrap_or(u64::MAX)),
        files: files.collect(),
        ..shown
    }
}

fn decided_reason<T>(decided: &Result<T>) -> String {
    decided.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

fn not_found(named: &str) -> KeeperError {
    KeeperError::NotFound { what: "tool", id: named.chars().take(128).collect() }
}

fn tool_details(name: &str, info: Option<&ToolInfo>) -> Vec<(&'static str, String)> {
    let mut details = vec![("tool", name.to_owned())];
    if let Some(info) = info {
        details.extend([("version", info.version.to_string()), ("tool_sha256", info.digest.clone())]);
    }
    details
}

fn to_info(row: ToolRow, current: bool) -> Result<ToolInfo> {
    let ToolRow { name, version, definition, digest, key_id, created_at, .. } = row;
    let tool = serde_json::from_str(&definition)
        .map_err(|source| KeeperError::Record { what: format!("tool {name}@{version}"), source })?;
    Ok(ToolInfo { tool, version, current, digest, key: key_id, created_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> ToolFile {
        let text = "[[tool]]\nname = 't'\ndescription = 'd'\nlanguages = ['python', 'r']\ntimeout = '30s'\n";
        ToolFile::list_from_toml(text).unwrap().remove(0)
    }

    #[test]
    fn arguments_are_within_the_tool() {
        let check = |call: ToolCall| match check_call(&tool(), &call) {
            Ok(checked) => format!("{} {:?}", checked.language, checked.timeout),
            Err(error) => error.to_string(),
        };
        let call = ToolCall::default;
        let file =
            |path: &str, bytes: usize| BTreeMap::from([(path.to_owned(), Bytes::from(vec![b'a'; bytes]))]);
        let language = |name: &str| ToolCall { language: Some(name.to_owned()), ..call() };
        let timeout = |ms: u64| ToolCall { timeout: Some(Duration::from_millis(ms)), ..call() };
        let files = |files| ToolCall { files, ..call() };
        let many = (0..=MAX_TOOL_FILES.0).map(|index| (index.to_string(), Bytes::new())).collect();
        for (call, expected) in [
            (call(), "python 30s"),
            (language("py"), "python 30s"),
            (language("r"), "r 30s"),
            (timeout(1500), "python 1.5s"),
            (timeout(30_000), "python 30s"),
            (files(file("a/b.txt", 10)), "python 30s"),
            (files(file("a", MAX_TOOL_FILES.1 - 1)), "python 30s"),
            (language("ruby"), "language: \"ruby\" is not one of the tool's; give python or r"),
            (language("cobol"), "language: \"cobol\" is not one of the tool's; give python or r"),
            (timeout(30_001), "timeout: 30.001s is not allowed; the tool allows at most 30s"),
            (timeout(0), "timeout: 0ns is not allowed; the tool allows at most 30s"),
            (
                files(file("a", MAX_TOOL_FILES.1)),
                "files: 1 files of 1048577 bytes; at most 64 of 1048576 are allowed",
            ),
            (files(many), "files: 65 files of 120 bytes; at most 64 of 1048576 are allowed"),
            (files(file("/etc/passwd", 1)), "files: \"/etc/passwd\" is not allowed; give a path below"),
            (files(file("a/../../b", 1)), "files: \"a/../../b\" is not allowed"),
            (files(file("", 1)), "files: \"\" is not allowed"),
            (ToolCall { code: "a\0".into(), ..call() }, "code: "),
        ] {
            let found = check(call);
            assert!(found.starts_with(expected), "{found} is not {expected}");
        }
    }
}
