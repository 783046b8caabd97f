//! Errors of the keeper.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use belljar_engine::{EngineError, GuestError, THIS_COMMAND};
use belljar_image::BuildError;
use belljar_model::{ApprovalState, ImageReference, ModelError, Role, SandboxId, SandboxState};
use belljar_store::{AuditError, Broken, StoreError};

use crate::caller::Caller;

/// Errors of the keeper. Each has a stable code, [`KeeperError::code`], on which programs may rely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// A value is invalid. The message names the field.
    #[error(transparent)]
    Invalid(#[from] ModelError),
    /// A value of a field outside the model is invalid.
    #[error("{field}: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// Reason, and allowed values.
        reason: String,
    },
    /// The resource does not exist or belongs to another tenant; the two cannot be told apart.
    #[error("{what} {id:?} not found{}", advise_image(.what, .id))]
    NotFound {
        /// `sandbox`, `template`, `volume`, `key`, `process`.
        what: &'static str,
        /// Id as requested.
        id: String,
    },
    /// The tool has no such version.
    #[error("tool {name}: version {version} not found; give {}", format_versions(.name, .there))]
    ToolVersion {
        /// Its name.
        name: String,
        /// The version as requested.
        version: String,
        /// Its versions, the newest first.
        there: Vec<i64>,
    },
    /// The sandbox is the caller's, on another server that shares the store.
    #[error(
        "sandbox {id:?} is not found here: it is one of the server {keeper:?}, which shares the store; send requests for it there"
    )]
    Elsewhere {
        /// The sandbox.
        id: SandboxId,
        /// Name of its server (`store.keeper`).
        keeper: String,
    },
    /// The sandbox was the caller's and has ended.
    #[error("sandbox {id} is gone: {reason}")]
    Gone {
        /// The sandbox.
        id: SandboxId,
        /// Why it ended.
        reason: String,
    },
    /// Another keeper that shares the store has taken the sandbox over.
    #[error("sandbox {id} was taken over by another server")]
    TakenOver {
        /// The sandbox.
        id: SandboxId,
    },
    /// The name is in use.
    #[error("name: {name:?} already exists ({owner}); use that one or give another name")]
    NameTaken {
        /// The name.
        name: String,
        /// `sandbox ID`, `a secret` or `a volume`.
        owner: String,
    },
    /// A volume is in use.
    #[error("volume {name} is in use by {}; end what uses it first", format_ids(.sandboxes))]
    VolumeInUse {
        /// Its name.
        name: String,
        /// Sandboxes that mount it; empty if one is being created.
        sandboxes: Vec<SandboxId>,
    },
    /// The sandbox is in another state than needed.
    #[error("sandbox {id} is {state}, and {action} needs it to be {needed}")]
    WrongState {
        /// The sandbox.
        id: SandboxId,
        /// Its state.
        state: SandboxState,
        /// The attempted action.
        action: &'static str,
        /// The required state.
        needed: Cow<'static, str>,
    },
    /// Illegal state transition, a bug of the server. Nothing was changed.
    #[error("sandbox {id} is {from} and cannot become {to}")]
    Transition {
        /// The sandbox.
        id: SandboxId,
        /// Its state.
        from: SandboxState,
        /// The attempted state.
        to: SandboxState,
    },
    /// The caller's role is not sufficient.
    #[error("{action} needs a key with the role {needed}")]
    Forbidden {
        /// The attempted action.
        action: &'static str,
        /// The required role.
        needed: Role,
    },
    /// The operator's policy forbids the request for keys like the caller's.
    #[error("{field}: {reason}")]
    Policy {
        /// The refused field.
        field: &'static str,
        /// Reason.
        reason: String,
    },
    /// A quota is exceeded.
    #[error("{quota}: {used} of {limit} {}{}", usage(.quota), hint(.quota, .retry_after))]
    Quota {
        /// The quota.
        quota: &'static str,
        /// Amount in use.
        used: u64,
        /// The limit.
        limit: u64,
        /// Delay after which a retry may succeed, if waiting helps.
        retry_after: Option<Duration>,
    },
    /// Too many requests of this kind are waiting.
    #[error("{what}: {waiting} are waiting already; try again in {} s", retry_after.as_secs().max(1))]
    RateLimited {
        /// What is requested.
        what: &'static str,
        /// Number of waiting requests.
        waiting: usize,
        /// Suggested delay before a retry.
        retry_after: Duration,
    },
    /// The machine has no resources left but its headroom.
    #[error("the server's machine is full: {what}")]
    Full {
        /// The exhausted resource.
        what: String,
        /// Suggested delay before a retry.
        retry_after: Duration,
    },
    /// The call was not approved.
    #[error("approval {id} is {}", reason_text(*state, reason))]
    NotApproved {
        /// The approval.
        id: String,
        /// Its state.
        state: ApprovalState,
        /// Reason; if a person has denied it, `by` whom.
        reason: String,
    },
    /// The caller has disconnected before the call was allowed to run. Nobody is told.
    #[error("its caller disconnected")]
    CallerGone,
    /// The call needs approval, and there is nobody who could give it.
    #[error(
        "the call needs approval, and nobody but its caller could give it; create a key with the role approver for another person: belljar key create --name NAME --role approver"
    )]
    NoApprover,
    /// The approval is to be given by the person who made the call.
    #[error("approval {id} is for a call of your own; another person has to decide")]
    OwnApproval {
        /// The approval.
        id: String,
    },
    /// There is nothing left to decide.
    #[error("approval {id} is {state} already")]
    ApprovalDecided {
        /// The approval.
        id: String,
        /// Its state.
        state: ApprovalState,
    },
    /// The call of code does not wait for an answer any more.
    #[error("call {id} does not wait for an answer: {reason}")]
    CallClosed {
        /// The call.
        id: String,
        /// Why.
        reason: &'static str,
    },
    /// The build was cancelled, or its server is shutting down.
    #[error("the build was cancelled; steps that had ended stay cached")]
    Cancelled,
    /// Another template is being built, which takes minutes: a retry after a set time would not help.
    #[error(
        "another template is being built, and this server builds or imports one at a time; import again when that has ended"
    )]
    Building,
    /// The same idempotency key came with another request.
    #[error("Idempotency-Key: {key:?} was used for another request; use a key for one request only")]
    IdempotencyMismatch {
        /// The key.
        key: String,
    },
    /// The request with this idempotency key is still in flight.
    #[error("Idempotency-Key: the request with {key:?} is still in flight; retry later")]
    IdempotencyRunning {
        /// The key.
        key: String,
    },
    /// The execution with this idempotency key was interrupted by a restart of the server, or by the loss of its connection to
    /// the sandbox. Repeating it may not be safe.
    #[error(
        "Idempotency-Key: the execution with {key:?} was interrupted by a restart of the server or a lost connection; check its effects before you repeat it"
    )]
    Interrupted {
        /// The key.
        key: String,
    },
    /// A context's interpreter cannot start, or cannot be used.
    #[error("{reason}")]
    Kernel {
        /// Reason and remedy.
        reason: String,
    },
    /// Too many contexts, or too many executions waiting for one.
    #[error("{reason}")]
    Contexts {
        /// Reason.
        reason: String,
    },
    /// A template could not be built, exported or imported.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The services of a template did not become ready.
    #[error(
        "template {template}: its command `ready` did not succeed within {seconds} s; look at `start` and `ready`"
    )]
    NotReady {
        /// The template.
        template: String,
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The guest refused or failed.
    #[error("{source}")]
    Guest {
        /// The resource concerned, which determines the meaning of a refusal.
        resource: GuestResource,
        /// The guest's error.
        source: GuestError,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// This machine cannot enforce what a sandbox needs. Only administrators are told how it is set up.
    #[error("{0}")]
    Machine(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An audit record could not be written, so the action is not reported as done.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The audit log was tampered with.
    #[error("the audit log is broken at {0}; nothing is archived")]
    AuditBroken(Broken),
    /// A record in the store cannot be parsed.
    #[error("the stored {what} cannot be read; restore a backup, or remove what it belongs to")]
    Record {
        /// The record, such as `spec of sandbox …`.
        what: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// A file of the server cannot be read or written.
    #[error("cannot {action} {path}")]
    File {
        /// `read`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
}

/// Kind of resource of a guest call. A guest's error code maps to a different stable code for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestResource {
    /// The sandbox as a whole.
    Sandbox,
    /// The content of a file; other than regular files have a code of their own.
    Content,
    /// Any other operation on files.
    File,
    /// The start of a program.
    Program,
    /// A process.
    Process,
    /// A session.
    Session,
    /// A port.
    Port,
}

impl From<GuestError> for KeeperError {
    fn from(source: GuestError) -> Self {
        Self::Guest { resource: GuestResource::Sandbox, source }
    }
}

/// Formats an error with all its causes as one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Formats the newest versions of a tool, as calls name them.
/// Returns a state with the reason for it. A refusal by a person begins with who it was.
fn reason_text(state: ApprovalState, reason: &str) -> String {
    let separator = if state == ApprovalState::Denied { "" } else { ":" };
    format!("{state}{separator} {reason}")
}

fn format_versions(name: &str, there: &[i64]) -> String {
    const MAX_LISTED: usize = 8;
    let versions: Vec<_> = there.iter().take(MAX_LISTED).map(|version| format!("{name}@{version}")).collect();
    versions.join(" or ")
}

/// Formats the ids of sandboxes, at most the first few.
fn format_ids(sandboxes: &[SandboxId]) -> String {
    const MAX_LISTED: usize = 8;
    let ids: Vec<&str> = sandboxes.iter().take(MAX_LISTED).map(SandboxId::as_str).collect();
    match (ids.is_empty(), sandboxes.len().saturating_sub(MAX_LISTED)) {
        (true, _) => "a sandbox that is being created".to_owned(),
        (false, 0) => format!("sandbox {}", ids.join(", ")),
        (false, more) => format!("sandbox {} and {more} more", ids.join(", ")),
    }
}

/// Returns the words for the use of a quota: of a rate, or of what can be given back.
fn usage(quota: &str) -> &'static str {
    match quota {
        "executions_per_minute" => "executions were started in the last minute",
        "cpu_seconds_per_hour" => "processor seconds were used in the last hour",
        _ => "are in use",
    }
}

fn hint(quota: &str, retry_after: &Option<Duration>) -> String {
    match retry_after {
        Some(_) if quota == "approvals" => {
            "; wait until some of the tenant's waiting calls are decided".to_owned()
        }
        Some(after) => format!("; try again in {} s", after.as_secs().max(1)),
        None if quota.starts_with("volume") => "; remove a volume, or ask for a larger quota".to_owned(),
        None if matches!(quota, "tools" | "versions of a tool") => "; remove one".to_owned(),
        None if quota == "secrets" => "; remove one, or ask for a larger sandboxes.max_secrets".to_owned(),
        None => "; end a sandbox, or ask for a larger quota".to_owned(),
    }
}

impl KeeperError {
    /// Creates an error for a call that was not approved.
    pub(crate) fn not_approved(id: &str, state: ApprovalState, reason: impl Into<String>) -> Self {
        Self::NotApproved { id: id.to_owned(), state, reason: reason.into() }
    }

    /// Creates an error for an invalid value of `field`.
    pub fn field(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Field { field, reason: reason.into() }
    }

    /// Reveals what is missing on this machine, and how to fix it, to an administrator.
    pub(crate) fn for_caller(self, caller: &Caller) -> Self {
        match self {
            other if caller.role != Role::Admin => other,
            Self::Engine(error @ EngineError::Layer { .. }) => Self::Machine(error.to_string()),
            // A build names no grade: it is the server's.
            Self::Build(BuildError::Engine(error @ EngineError::Layer { .. })) => {
                Self::Machine(error.to_string().replace(THIS_COMMAND, "belljar serve"))
            }
            other => other,
        }
    }

    /// Returns the stable code of the error, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        use guest_codes::code_of;
        match self {
            Self::Invalid(_) | Self::Field { .. } => "invalid_field",
            Self::NotFound { what: "sandbox", .. } | Self::Elsewhere { .. } => "sandbox_not_found",
            Self::NotFound { what: "template", .. } => "template_not_found",
            Self::NotFound { what: "volume", .. } => "volume_not_found",
            Self::NotFound { what: "key", .. } => "key_not_found",
            Self::NotFound { what: "process", .. } => "process_not_found",
            Self::NotFound { what: "context", .. } => "context_not_found",
            Self::NotFound { what: "secret", .. } => "secret_not_found",
            Self::NotFound { what: "tool", .. } | Self::ToolVersion { .. } => "tool_not_found",
            Self::NotFound { what: "approval", .. } => "approval_not_found",
            Self::NotFound { what: "call", .. } => "call_not_found",
            Self::NotFound { .. } => "not_found",
            Self::Gone { .. } => "sandbox_gone",
            Self::TakenOver { .. } => "sandbox_moved",
            Self::NameTaken { .. } => "name_taken",
            Self::VolumeInUse { .. } => "volume_in_use",
            Self::WrongState { .. } => "wrong_state",
            Self::Transition { .. } => "internal",
            Self::Forbidden { .. } => "forbidden",
            Self::Policy { .. } => "policy_refused",
            Self::Quota { .. } => "quota_exceeded",
            Self::RateLimited { .. } => "rate_limited",
            Self::NotApproved { .. } | Self::CallerGone | Self::NoApprover => "not_approved",
            Self::OwnApproval { .. } => "own_approval",
            Self::ApprovalDecided { .. } => "approval_decided",
            Self::CallClosed { .. } => "call_closed",
            Self::Full { .. } | Self::Building | Self::Build(BuildError::Full { .. }) => "machine_full",
            Self::IdempotencyMismatch { .. } => "idempotency_mismatch",
            Self::IdempotencyRunning { .. } => "idempotency_running",
            Self::Interrupted { .. } => "execution_interrupted",
            Self::Kernel { .. } => "kernel_unavailable",
            Self::Contexts { .. } => "contexts_exhausted",
            Self::Build(BuildError::Definition(_) | BuildError::Input { .. } | BuildError::Bundle { .. }) => {
                "invalid_field"
            }
            Self::Build(BuildError::Step { .. }) | Self::NotReady { .. } | Self::Cancelled => "build_failed",
            Self::Build(BuildError::Engine(_) | BuildError::Guest { .. }) => "engine_failed",
            Self::Build(BuildError::File { .. }) => "server_file_failed",
            Self::ShuttingDown => "shutting_down",
            Self::Guest { resource: GuestResource::Content, source: GuestError::NotRegular { .. } } => {
                "not_regular"
            }
            Self::Guest { source: GuestError::NotRegular { .. }, .. } => "failed_precondition",
            Self::Guest { resource, source: GuestError::Refused { code, .. } } => code_of(*resource, *code),
            Self::Guest { source: GuestError::Source(_), .. } => "upload_failed",
            Self::Guest { source: GuestError::Gone(_), .. } => "connection_lost",
            Self::Guest { .. } => "sandbox_unreachable",
            Self::Engine(EngineError::Mount(_) | EngineError::MountSource { .. }) => "policy_refused",
            Self::Engine(EngineError::WrongEngine { .. }) => "invalid_field",
            Self::Engine(EngineError::Unsupported { .. }) => "not_offered",
            Self::Engine(EngineError::NoNetwork | EngineError::LimitInUse { .. }) => "failed_precondition",
            Self::Engine(_) | Self::Machine(_) => "engine_failed",
            Self::AuditBroken(_) => "failed_precondition",
            Self::Store(_) | Self::Audit(_) | Self::Record { .. } => "store_failed",
            Self::File { .. } => "server_file_failed",
        }
    }
}

/// Returns how an image is named, if that is what was looked for as a template.
fn advise_image(what: &str, id: &str) -> String {
    let is_image = what == "template" && id.contains([':', '/']) && id.parse::<ImageReference>().is_ok();
    if is_image { format!("; an image is named as image:{id}") } else { String::new() }
}

/// Stable codes of the guest's errors.
mod guest_codes {
    use belljar_engine::ErrorCode;

    use super::GuestResource;

    pub(super) fn code_of(resource: GuestResource, code: ErrorCode) -> &'static str {
        match (resource, code) {
            (GuestResource::Program, ErrorCode::NotFound) => return "program_not_found",
            (GuestResource::Process, ErrorCode::NotFound) => return "process_not_found",
            (GuestResource::Session, ErrorCode::NotFound) => return "session_not_found",
            (GuestResource::Port, ErrorCode::Unavailable) => return "port_not_open",
            _ => {}
        }
        match code {
            ErrorCode::NotFound => "path_not_found",
            ErrorCode::AlreadyExists => "path_exists",
            ErrorCode::PermissionDenied => "permission_denied",
            ErrorCode::InvalidArgument => "invalid_argument",
            ErrorCode::FailedPrecondition => "failed_precondition",
            ErrorCode::ResourceExhausted => "resource_exhausted",
            ErrorCode::OutOfRange => "out_of_range",
            ErrorCode::DeadlineExceeded => "sandbox_unresponsive",
            ErrorCode::Unimplemented => "not_offered",
            _ => "sandbox_failed",
        }
    }
}
