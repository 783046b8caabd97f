//! Table of all actions of callers: their names, roles, audit and quotas. Common checks are in one place.
//!
//! ```text
//!  caller ─► role ─► sandbox, resumed and in use ─► CHECKS ─► run, to its end ─► audit ─► answer
//! ```

use std::sync::Arc;

use belljar_model::Role;
use belljar_store::ServiceWall;
use tracing::Instrument as _;

use crate::caller::Caller;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::keeper::{Entered, Keeper, Result};
use crate::operation;
use crate::steps::step;

/// Properties of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// Name in the audit log, in traces and in refusals.
    pub name: &'static str,
    /// Required role.
    pub role: Role,
    /// Whether the token of the sandbox or volume is sufficient.
    pub token: bool,
    /// Whether it is recorded in the audit log.
    pub audited: bool,
    /// Whether it counts against its key's quota of executions.
    pub executes: bool,
    /// Whether successful ones of a key are recorded one by one only up to a number per minute, and counted beyond that.
    pub counted: bool,
}

impl Action {
    const fn new(name: &'static str, role: Role) -> Self {
        Self { name, role, token: false, audited: false, executes: false, counted: false }
    }

    /// Returns an action in a sandbox, for which the sandbox's token is sufficient.
    pub(crate) const fn in_sandbox(name: &'static str) -> Self {
        Self { token: true, ..Self::new(name, Role::User) }
    }

    /// Returns an action that only looks at a sandbox, for which the role read and the sandbox's token are sufficient.
    const fn look(name: &'static str) -> Self {
        Self { token: true, ..Self::new(name, Role::Read) }
    }

    pub(crate) const fn audited(self) -> Self {
        Self { audited: true, ..self }
    }

    /// Every execution has its own record: it has the digest of the code.
    pub(crate) const fn executes(self) -> Self {
        Self { executes: true, counted: false, ..self }
    }

    pub(crate) const fn counted(self) -> Self {
        Self { counted: true, ..self }
    }
}

/// Declares actions, and lists them.
macro_rules! actions {
    ($($name:ident = $action:expr;)*) => {
        $(#[allow(missing_docs, reason = "the name says it")]
        pub const $name: Action = $action;)*

        /// Actions of the keeper itself.
        const OWN: &[Action] = &[$($name),*];
    };
}

const fn read(name: &'static str) -> Action {
    Action::new(name, Role::Read)
}

const fn approver(name: &'static str) -> Action {
    Action::new(name, Role::Approver)
}

const fn user(name: &'static str) -> Action {
    Action::new(name, Role::User)
}

const fn admin(name: &'static str) -> Action {
    Action::new(name, Role::Admin)
}

actions! {
    SANDBOX_CREATE = user("sandbox.create").audited();
    SANDBOX_LIST = read("sandbox.list");
    SANDBOX_GET = Action::look("sandbox.get");
    SANDBOX_PORTS = Action::look("sandbox.ports");
    SANDBOX_METRICS = Action::look("sandbox.metrics");
    SANDBOX_LOGS = Action::look("sandbox.logs");
    SANDBOX_NETWORK_LOG = Action::look("sandbox.network_log");
    SANDBOX_UPDATE = user("sandbox.update").audited();
    SANDBOX_TIMEOUT = user("sandbox.timeout").audited();
    SANDBOX_PAUSE = user("sandbox.pause").audited();
    SANDBOX_RESUME = user("sandbox.resume").audited();
    SANDBOX_SNAPSHOT = user("sandbox.snapshot").audited();
    SANDBOX_FORK = user("sandbox.fork").audited();
    SANDBOX_KILL = user("sandbox.kill").audited();
    SANDBOX_USE = Action::in_sandbox("sandbox.use");
    EXEC = Action::in_sandbox("exec").audited().executes();
    EXEC_START = Action::in_sandbox("exec.start").audited().executes();
    CODE = Action::in_sandbox("code").audited().executes();
    CODE_ANSWER = Action::in_sandbox("code.answer");
    CONTEXT_CREATE = Action::in_sandbox("context.create").audited();
    CONTEXT_LIST = Action::in_sandbox("context.list");
    CONTEXT_RESTART = Action::in_sandbox("context.restart").audited();
    CONTEXT_INTERRUPT = Action::in_sandbox("context.interrupt").audited();
    CONTEXT_REMOVE = Action::in_sandbox("context.remove").audited();
    PORT_PUBLISH = user("port.publish").audited();
    PORT_UNPUBLISH = user("port.unpublish").audited();
    PORT_LOOK = Action::in_sandbox("port.look");
    TOKEN_ISSUE = user("token.issue").audited().counted();
    TOKEN_READ = Action::in_sandbox("token.read");
    TEMPLATE_LIST = read("template.list");
    TEMPLATE_GET = read("template.get");
    TEMPLATE_BUILD = user("template.build").audited();
    TEMPLATE_BUILD_FILE = admin("template.build").audited();
    TEMPLATE_BUILD_LIST = admin("template.builds");
    TEMPLATE_BUILD_CANCEL = admin("template.cancel");
    TEMPLATE_UPLOAD = user("template.upload").audited();
    TEMPLATE_TAG = user("template.tag").audited();
    TEMPLATE_UNTAG = user("template.untag").audited();
    TEMPLATE_EXPORT = user("template.export").audited();
    TEMPLATE_IMPORT = admin("template.import").audited();
    TEMPLATE_REMOVE = user("template.remove").audited();
    TEMPLATE_REMOVE_BUILT = admin("template.remove").audited();
    IMAGE_IMPORT = admin("image.import").audited();
    IMAGE_EXPORT = user("image.export").audited();
    IMAGE_COLLECT = admin("image.gc").audited();
    IMAGE_LOGIN = admin("image.login").audited();
    IMAGE_LOGOUT = admin("image.logout").audited();
    IMAGE_LOGINS = admin("image.logins");
    VOLUME_CREATE = user("volume.create").audited();
    VOLUME_LIST = read("volume.list");
    VOLUME_GET = read("volume.get");
    VOLUME_REMOVE = user("volume.remove").audited();
    VOLUME_TOKEN = user("volume.token");
    VOLUME_USE = Action::in_sandbox("volume.use");
    KEY_CREATE = admin("key.create").audited();
    KEY_LIST = admin("key.list");
    KEY_UPDATE = admin("key.update").audited();
    KEY_REVOKE = admin("key.revoke").audited();
    KEY_GET = read("key.get");
    SESSION_CREATE = read("session.create").audited();
    SESSION_LINK = read("session.link").audited();
    SESSION_END = read("session.end").audited();
    TOOL_CREATE = admin("tool.create").audited();
    TOOL_UPDATE = admin("tool.update").audited();
    TOOL_REMOVE = admin("tool.remove").audited();
    TOOL_LIST = read("tool.list");
    TOOL_GET = read("tool.get");
    TOOL_TEST = user("tool.test");
    TOOL_CALL = user("tool.call").audited();
    TOOL_FIXTURES = admin("tool.fixtures");
    SCREEN = user("screen");
    APPROVAL_LIST = read("approval.list");
    APPROVAL_GET = read("approval.get");
    APPROVAL_REQUEST = user("approval.request").audited();
    APPROVAL_APPROVE = approver("approval.approve").audited();
    APPROVAL_DENY = approver("approval.deny").audited();
    APPROVAL_EXPIRE = user("approval.expire").audited();
    APPROVAL_CANCEL = user("approval.cancel").audited();
    SECRET_CREATE = user("secret.create").audited();
    SECRET_LIST = read("secret.list");
    SECRET_GET = read("secret.get");
    SECRET_UPDATE = user("secret.update").audited();
    SECRET_REMOVE = user("secret.remove").audited();
    NETWORK_GET = read("network.get");
    NETWORK_CHECK = read("network.check");
    EVENTS_FOLLOW = read("events.follow");
    ENGINE_LIST = read("engine.list");
    AUDIT_READ = admin("audit.read");
    AUDIT_VERIFY = admin("audit.verify");
    AUDIT_ARCHIVE = admin("audit.archive").audited();
    SERVER_METRICS = admin("server.metrics");
    SERVER_COLLECT = admin("server.collect").audited();
}

/// Action of the record of a sandbox that the operator's policy refused.
pub(crate) const POLICY_REFUSED: Action = user("policy.refused").audited();

/// Returns all actions: the keeper's own, and operations on guests.
pub fn all() -> impl Iterator<Item = Action> {
    let of_guests = operation::KINDS.iter().copied().flatten().map(|kind| kind.action);
    OWN.iter().copied().chain(of_guests)
}

/// Checks something before an action begins.
type Check = fn(&Keeper, &Caller, Action) -> Result<()>;

/// Checks before each action in a sandbox, in this order. A further check is an entry here. Calls that wait for approval do so
/// afterwards ([`Keeper::await_approval`]).
const CHECKS: &[Check] = &[Keeper::require, Keeper::count_execution];

impl Keeper {
    /// Checks that the caller may do an action: by its role, and by the token of a sandbox only where that is enough. Counts a
    /// refusal.
    ///
    /// # Errors
    /// Returns [`KeeperError::Forbidden`] otherwise, and [`KeeperError::Policy`] if calls of the caller wait for approval, and the action
    /// cannot.
    pub fn require(&self, caller: &Caller, action: Action) -> Result<()> {
        if caller.may(action) {
            return caller.check_unapproved(action);
        }
        self.note_forbidden(caller, action.name);
        Err(KeeperError::Forbidden { action: action.name, needed: action.role })
    }

    /// Finds the sandbox for an action in it, resumes it if needed, marks it as in use, and runs all checks.
    ///
    /// # Errors
    /// As [`Keeper::find_for`]; returns the error of the first check that fails.
    pub(crate) async fn enter_for(&self, caller: &Caller, id: &str, action: Action) -> Result<Entered> {
        let entered = self.find_for(caller, id, action).await?;
        self.check(caller, action)?;
        Ok(entered)
    }

    /// Finds the sandbox as [`Keeper::enter_for`] does, but leaves [`Keeper::check`] to the caller: a repeated request that gets a
    /// stored answer is not counted again. The role is checked before the sandbox is resumed.
    ///
    /// # Errors
    /// As [`Keeper::get`]; returns [`KeeperError::WrongState`] if it is paused and may not be resumed,
    /// [`KeeperError::Forbidden`], and [`KeeperError::Policy`] if its network reaches more than the key may, or the key has ended.
    pub(crate) async fn find_for(&self, caller: &Caller, id: &str, action: Action) -> Result<Entered> {
        self.require(caller, action)?;
        let entry = self.find(caller, id).await?;
        check_ceiling(caller, &entry)?;
        let entering = step!("keeper.enter", sandbox = %entry.id);
        let entered = self.enter_entry(entry).instrument(entering).await?;
        // It may have waited for the sandbox to be created or resumed.
        self.check_key_still(caller).await?;
        Ok(entered.opened_by(Some(caller.clone())))
    }

    /// Finds a sandbox to look at it, after all checks. It is not resumed, and not marked as in use.
    ///
    /// # Errors
    /// As [`Keeper::get`]; returns the error of the first check that fails.
    pub(crate) async fn find_to_look(&self, caller: &Caller, id: &str, action: Action) -> Result<Arc<Entry>> {
        self.check(caller, action)?;
        self.find(caller, id).await
    }

    /// Runs all checks for an action.
    ///
    /// # Errors
    /// Returns the error of the first one that fails.
    pub(crate) fn check(&self, caller: &Caller, action: Action) -> Result<()> {
        CHECKS.iter().try_for_each(|check| check(self, caller, action))
    }

    fn count_execution(&self, caller: &Caller, action: Action) -> Result<()> {
        if action.executes { self.inner.ledger.count_execution(caller) } else { Ok(()) }
    }
}

/// Checks that a key that may reach only a part of the network uses no sandbox that reaches more, such as one that another key of the
/// tenant has created.
fn check_ceiling(caller: &Caller, entry: &Entry) -> Result<()> {
    let max = caller.quotas.network.as_ref().filter(|_| !ServiceWall::Policy.is_down());
    let Some(max) = max else { return Ok(()) };
    let spec = Arc::clone(&entry.live().spec);
    max.check(&spec.network).map_err(|beyond| KeeperError::Policy {
        field: "network",
        reason: format!("the sandbox reaches more than this key may: {beyond}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_for_each_role() {
        let mut seen: Vec<_> = all().map(|action| (action.name, action.role.as_str())).collect();
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        // The keeper's own action and the operation on the guest share a name.
        let shared_names = ["exec.start"];
        assert_eq!(seen.len() + shared_names.len(), count);
    }

    #[test]
    fn audit_page_lists_every_action() {
        let yes = |is: bool| if is { "yes" } else { "" };
        let row = |action: Action| {
            let Action { name, role, token, audited, executes, counted } = action;
            let recorded = if counted { "counted" } else { yes(audited) };
            format!("| `{name}` | {role} | {} | {recorded} | {} |\n", yes(token), yes(executes))
        };
        let mut rows: Vec<String> = all().map(row).collect();
        let mut seen = std::collections::HashSet::new();
        rows.retain(|row| seen.insert(row.clone()));
        let table = rows.concat();
        let page = include_str!("../../../docs/audit.md");
        assert!(page.contains(&table), "docs/audit.md is to hold these rows:\n{table}");
    }
}
