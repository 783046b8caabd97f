//! Tools in the store, by name and version.

use belljar_model::{NetworkFile, NetworkMode, ToolFile};
use belljar_store::ToolRow;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::action::{TOOL_CREATE, TOOL_GET, TOOL_LIST, TOOL_REMOVE, TOOL_UPDATE};
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::json;
use crate::keeper::{Keeper, Result};
use crate::steps::run_detached;

/// Maximum number of a tenant's tools. Source: docs/spec.md; held by `tools::tools_are_bounded` of the API's tests.
pub const MAX_TOOLS: usize = 256;

/// Maximum number of versions of a tool. Source: docs/spec.md; held by `tools::tools_are_bounded` of the API's tests.
pub const MAX_TOOL_VERSIONS: usize = 256;

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

impl Keeper {
    /// Stores a tool of the caller's tenant.
    ///
    /// # Errors
    /// Needs the role admin; a definition that is not allowed, [`KeeperError::NameTaken`], and [`KeeperError::Quota`] at the tenant's limit.
    pub async fn create_tool(&self, caller: &Caller, tool: ToolFile) -> Result<ToolInfo> {
        self.store_tool(caller, tool, None).await
    }

    /// Stores a new version of the tool `name`, which becomes the current one. One that is as the current one is, is not stored: the result
    /// is the current one.
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
        // A version that changes nothing would end budgets for nothing.
        if let Some(newest) = versions.first().filter(|newest| newest.definition == definition) {
            return to_info(newest.clone(), true);
        }
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

    /// Checks a definition as far as it can be without what it names, and returns it in canonical form. Nothing is stored.
    ///
    /// # Errors
    /// Needs the role read; a definition that is not allowed.
    pub fn check_tool(&self, caller: &Caller, tool: ToolFile) -> Result<ToolFile> {
        self.require(caller, TOOL_GET)?;
        Ok(tool.check()?)
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

    /// Returns all versions of a tenant's tools.
    pub(crate) async fn all_tools(&self, tenant: &str) -> Result<Vec<ToolInfo>> {
        let rows = self.inner.store.tools().list_versions(tenant).await?;
        rows.into_iter().map(|row| to_info(row, false)).collect()
    }

    pub(crate) async fn find_tool(&self, caller: &Caller, named: &str) -> Result<ToolInfo> {
        let (name, version) = named.split_once('@').map_or((named, None), |(name, rest)| (name, Some(rest)));
        if !ToolFile::is_name(name) {
            return Err(not_found(named));
        }
        let rows = self.inner.store.tools().versions(&caller.tenant, name).await?;
        let newest = rows.first().map(|row| row.version).ok_or_else(|| not_found(named))?;
        let wanted = match version {
            None => Some(newest),
            // In one spelling: not +1 or 01.
            Some(text) => text.parse().ok().filter(|number: &i64| number.to_string() == text),
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
}

fn not_found(named: &str) -> KeeperError {
    KeeperError::NotFound { what: "tool", id: named.chars().take(128).collect() }
}

pub(super) fn tool_details(name: &str, info: Option<&ToolInfo>) -> Vec<(&'static str, String)> {
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
