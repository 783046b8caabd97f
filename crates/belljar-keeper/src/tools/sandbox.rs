//! Sandboxes of tools.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_model::{SandboxSpec, SpecFile, ToolFile};
use sha2::{Digest as _, Sha256};

use crate::caller::Caller;
use crate::error::KeeperError;
use crate::info::SandboxInfo;
use crate::keeper::{Keeper, Result};
use crate::request::{CreateSandbox, Labels, Lifetime, PortSettings};

/// Time without use after which the sandbox of a session ends, and a default sandbox of MCP.
/// Source: docs/spec.md; held by `tools::sessions_are_kept` and `mcp::default_sandboxes_have_an_idle_timeout` of the API's tests.
pub const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Time that a sandbox of one call may take besides the code itself.
const CALL_SLACK: Duration = Duration::from_secs(120);

/// Label of a tool's sandboxes, with its name and version.
const LABEL: &str = "tool";

impl Keeper {
    /// Returns the request for the sandbox of a tool. That of a session has a name, so that there is one for each key and version.
    pub(super) fn tool_sandbox(
        &self,
        caller: &Caller,
        tool: &ToolFile,
        version: i64,
    ) -> Result<CreateSandbox> {
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
    pub(super) async fn check_session(
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
