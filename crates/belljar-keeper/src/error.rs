//! Why the keeper did not do what it was asked.

use std::path::PathBuf;
use std::time::Duration;

use belljar_engine::{EngineError, GuestError};
use belljar_image::BuildError;
use belljar_model::{ModelError, Role, SandboxId, SandboxState};
use belljar_store::{AuditError, StoreError};

/// Why the keeper did not do what it was asked. Each has a stable code, [`KeeperError::code`], which programs may rely on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// A value is not allowed. The message names the field.
    #[error(transparent)]
    Invalid(#[from] ModelError),
    /// A value is not allowed, of a field that the model does not know.
    #[error("{field}: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// Why, and what is allowed.
        reason: String,
    },
    /// There is none, or it is not the caller's: both are answered alike.
    #[error("there is no {what} {id:?}")]
    NotFound {
        /// `sandbox`, `template`, `volume`, `key`, `process`.
        what: &'static str,
        /// As asked for.
        id: String,
    },
    /// The sandbox was the caller's and has ended.
    #[error("sandbox {id} is gone: {reason}")]
    Gone {
        /// Which.
        id: SandboxId,
        /// Why it ended.
        reason: String,
    },
    /// Another keeper that shares the store has taken the sandbox over.
    #[error("sandbox {id} is another server's now")]
    TakenOver {
        /// Which.
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
        /// Which.
        id: SandboxId,
        /// Its state.
        state: SandboxState,
        /// What was to be done.
        action: &'static str,
        /// The state that would do.
        needed: &'static str,
    },
    /// A state was to follow another that it cannot follow: a fault of the server. Nothing was changed.
    #[error("sandbox {id} is {from} and cannot become {to}")]
    Transition {
        /// Which.
        id: SandboxId,
        /// Its state.
        from: SandboxState,
        /// The state that was to follow.
        to: SandboxState,
    },
    /// The caller's role is not enough.
    #[error("{action} needs a key with the role {needed}")]
    Forbidden {
        /// What was to be done.
        action: &'static str,
        /// The role that may.
        needed: Role,
    },
    /// The operator's policy does not allow it, whoever asks with such a key.
    #[error("{field}: {reason}")]
    Policy {
        /// The field that asks for too much.
        field: &'static str,
        /// What the policy says.
        reason: String,
    },
    /// The key has used up what it may use.
    #[error("{quota}: {used} of {limit} are in use{}", hint(.quota, .retry_after))]
    Quota {
        /// Which quota.
        quota: &'static str,
        /// What is in use.
        used: u64,
        /// What is allowed.
        limit: u64,
        /// When it is worth to try again, if time alone helps.
        retry_after: Option<Duration>,
    },
    /// The machine is full. What is left is its own head-room.
    #[error("the machine is full: {what}")]
    Full {
        /// What there is too little of.
        what: String,
        /// When it is worth to try again.
        retry_after: Duration,
    },
    /// The same idempotency key came with another request.
    #[error("Idempotency-Key: {key:?} was used for another request; use a key for one request only")]
    IdempotencyMismatch {
        /// The key.
        key: String,
    },
    /// The request with this idempotency key is still under way.
    #[error("Idempotency-Key: the request with {key:?} is still under way; ask again later")]
    IdempotencyRunning {
        /// The key.
        key: String,
    },
    /// The request with this idempotency key was cut off by the end of the server, and must not be repeated blindly.
    #[error(
        "Idempotency-Key: the execution with {key:?} was cut off by a restart of the server; look at what it did before it is run again"
    )]
    Interrupted {
        /// The key.
        key: String,
    },
    /// A context's interpreter cannot start, or cannot be used.
    #[error("{reason}")]
    Kernel {
        /// Why, and what to do.
        reason: String,
    },
    /// There are as many contexts as there can be, or as many executions wait for one.
    #[error("{reason}")]
    Contexts {
        /// Which of the two.
        reason: String,
    },
    /// A template could not be built, exported or imported.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// What a template starts in each sandbox did not become ready.
    #[error(
        "template {template}: its command `ready` did not succeed within {seconds} s; look at `start` and `ready`"
    )]
    NotReady {
        /// The template.
        template: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The guest refused or failed.
    #[error("{source}")]
    Guest {
        /// What it was asked about, which is what a refusal means.
        about: About,
        /// Why.
        source: GuestError,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audit trail did not take a record: what was done without one is not told as done.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// A record in the store cannot be understood.
    #[error("the {what} in the record of sandbox {id} cannot be read; restore a backup, or end the sandbox")]
    Record {
        /// Which part of it.
        what: &'static str,
        /// Which sandbox.
        id: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A file of the server's own cannot be read or written.
    #[error("cannot {action} {path}")]
    File {
        /// `read`, `write`.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// What is asked of a guest: its refusals mean something else in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The sandbox as a whole, or what has no more to say.
    Sandbox,
    /// The content of a file: what is no regular file has a code of its own.
    Content,
    /// Any other deed with files.
    File,
    /// A process.
    Process,
    /// A session.
    Session,
    /// A port.
    Port,
}

impl From<GuestError> for KeeperError {
    fn from(source: GuestError) -> Self {
        Self::Guest { about: About::Sandbox, source }
    }
}

/// An error with all its causes, as one line.
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

fn hint(quota: &str, retry_after: &Option<Duration>) -> String {
    match retry_after {
        Some(after) => format!("; try again in {} s", after.as_secs().max(1)),
        None if quota.starts_with("volume") => "; remove a volume, or ask for a larger quota".to_owned(),
        None if quota == "secrets" => "; remove one, or ask for a larger sandboxes.max_secrets".to_owned(),
        None => "; end a sandbox, or ask for a larger quota".to_owned(),
    }
}

impl KeeperError {
    /// A value of `field` that is refused, and why.
    pub fn field(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Field { field, reason: reason.into() }
    }

    /// A stable name of the kind of error, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        use guest_codes::code_of;
        match self {
            Self::Invalid(_) | Self::Field { .. } => "invalid_field",
            Self::NotFound { what: "sandbox", .. } => "sandbox_not_found",
            Self::NotFound { what: "template", .. } => "template_not_found",
            Self::NotFound { what: "volume", .. } => "volume_not_found",
            Self::NotFound { what: "key", .. } => "key_not_found",
            Self::NotFound { what: "process", .. } => "process_not_found",
            Self::NotFound { what: "context", .. } => "context_not_found",
            Self::NotFound { what: "secret", .. } => "secret_not_found",
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
            Self::Full { .. } => "machine_full",
            Self::IdempotencyMismatch { .. } => "idempotency_mismatch",
            Self::IdempotencyRunning { .. } => "idempotency_running",
            Self::Interrupted { .. } => "execution_interrupted",
            Self::Kernel { .. } => "kernel_unavailable",
            Self::Contexts { .. } => "contexts_exhausted",
            Self::Build(BuildError::Definition(_) | BuildError::Input { .. } | BuildError::Bundle { .. }) => {
                "invalid_field"
            }
            Self::Build(BuildError::Step { .. }) | Self::NotReady { .. } => "build_failed",
            Self::Build(BuildError::Engine(_) | BuildError::Guest { .. }) => "engine_failed",
            Self::Build(BuildError::File { .. }) => "server_file_failed",
            Self::ShuttingDown => "shutting_down",
            Self::Guest { about: About::Content, source: GuestError::NotRegular { .. } } => "not_regular",
            Self::Guest { source: GuestError::NotRegular { .. }, .. } => "failed_precondition",
            Self::Guest { about, source: GuestError::Refused { code, .. } } => code_of(*about, *code),
            Self::Guest { source: GuestError::Source(_), .. } => "upload_failed",
            Self::Guest { .. } => "sandbox_unreachable",
            Self::Engine(EngineError::Mount(_) | EngineError::MountSource { .. }) => "policy_refused",
            Self::Engine(EngineError::WrongEngine { .. }) => "invalid_field",
            Self::Engine(EngineError::Unsupported { .. }) => "not_offered",
            Self::Engine(EngineError::NoNetwork | EngineError::LimitInUse { .. }) => "failed_precondition",
            Self::Engine(_) => "engine_failed",
            Self::Store(_) | Self::Audit(_) | Self::Record { .. } => "store_failed",
            Self::File { .. } => "server_file_failed",
        }
    }
}

/// The names of the guest's refusals.
mod guest_codes {
    use belljar_engine::ErrorCode;

    use super::About;

    pub(super) fn code_of(about: About, code: ErrorCode) -> &'static str {
        match (about, code) {
            (About::Process, ErrorCode::NotFound) => return "process_not_found",
            (About::Session, ErrorCode::NotFound) => return "session_not_found",
            (About::Port, ErrorCode::Unavailable) => return "port_not_open",
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
