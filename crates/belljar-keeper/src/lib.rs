//! The service without a wire: what a sandbox may do and for how long.
#![expect(missing_docs, clippy::unused_async, unused_variables, reason = "the shape of what is to come")]

mod caller;
mod error;
mod info;
mod request;

use std::sync::Arc;
use std::time::Duration;

pub use belljar_engine::{ErrorCode, v1};
use belljar_engine::{GuestClient, Sandbox};
use belljar_model::{Role, SandboxId, SandboxSpec};
use bytes::Bytes;
pub use caller::{CPU_WINDOW, Caller, DEFAULT_TENANT, Quotas};
pub use error::KeeperError;
pub use info::*;
use jiff::Timestamp;
pub use request::*;

type Result<T> = std::result::Result<T, KeeperError>;

/// The service without a wire. Clones share it.
#[derive(Clone)]
pub struct Keeper {}

pub struct Created {
    pub info: SandboxInfo,
    /// It was there before (by name, or by idempotency key).
    pub existing: bool,
}
pub struct Page<T> {
    pub items: Vec<T>,
    pub next_cursor: Option<String>,
}
pub struct IssuedToken {
    pub token: String,
    pub expires_at: Timestamp,
}
/// A sandbox in use: it is running, and counts as active, for as long as this is held.
#[derive(Clone)]
pub struct Entered {
    sandbox: Arc<Sandbox>,
    spec: Arc<SandboxSpec>,
}
impl Entered {
    pub fn id(&self) -> &SandboxId {
        &self.sandbox.id
    }
    pub fn guest(&self) -> &GuestClient {
        self.sandbox.guest()
    }
    pub fn sandbox(&self) -> &Arc<Sandbox> {
        &self.sandbox
    }
    pub fn spec(&self) -> &SandboxSpec {
        &self.spec
    }
    /// Why a call to the guest failed: a guest that is gone becomes the reason for which the sandbox ended.
    pub async fn explain(&self, error: belljar_engine::GuestError) -> KeeperError {
        error.into()
    }
}
/// What happens while a command runs.
pub enum ExecEvent {
    Started { process: u64, pid: u32 },
    Output { stream: v1::Stream, offset: u64, data: Bytes },
}
pub struct Started {
    pub process: u64,
    pub pid: u32,
}
pub struct NewKey {
    pub name: String,
    pub role: Role,
    pub tenant: String,
    pub expires: Option<Duration>,
    pub quotas: Quotas,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    Read,
    Write,
}
pub struct SignedFile {
    pub entered: Entered,
    pub path: Bytes,
    pub operation: FileOperation,
    pub caller: Caller,
}
/// What the sandboxes of a key use now.
#[derive(Debug, Clone, Default)]
pub struct KeyUsage {
    pub sandboxes: u32,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub cpu_seconds: u64,
}
/// Something for the audit trail that happens in a facade, such as a file that is written.
pub struct Deed<'a> {
    /// `file.read`, `file.write`, `file.remove`, `auth.denied`, …
    pub action: &'static str,
    pub sandbox: Option<&'a SandboxId>,
    /// `ok`, or the error's code.
    pub outcome: &'a str,
    /// Names and values; a value that is too long is cut.
    pub details: Vec<(&'static str, String)>,
}
/// Why nobody is let in. All reasons look alike outside.
#[derive(Debug)]
pub enum Denied {
    Unknown,
    Expired,
    Revoked,
    /// The store does not answer.
    Unavailable,
}

impl Keeper {
    pub async fn create(&self, caller: &Caller, request: CreateSandbox) -> Result<Created> { Err(KeeperError::ShuttingDown) }
    pub async fn get(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> { Err(KeeperError::ShuttingDown) }
    pub async fn list(&self, caller: &Caller, query: ListSandboxes) -> Result<Page<SandboxInfo>> { Err(KeeperError::ShuttingDown) }
    pub async fn update(&self, caller: &Caller, id: &str, update: SandboxUpdate) -> Result<SandboxInfo> { Err(KeeperError::ShuttingDown) }
    pub async fn kill(&self, caller: &Caller, id: &str) -> Result<()> { Err(KeeperError::ShuttingDown) }
    pub async fn set_timeout(&self, caller: &Caller, id: &str, timeout: Duration) -> Result<SandboxInfo> { Err(KeeperError::ShuttingDown) }
    pub async fn pause(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> { Err(KeeperError::ShuttingDown) }
    pub async fn resume(&self, caller: &Caller, id: &str, timeout: Option<Duration>) -> Result<SandboxInfo> { Err(KeeperError::ShuttingDown) }
    pub async fn snapshot(&self, caller: &Caller, id: &str, request: SnapshotRequest) -> Result<TemplateInfo> { Err(KeeperError::ShuttingDown) }
    pub async fn fork(&self, caller: &Caller, id: &str, request: ForkRequest) -> Result<Vec<Result<SandboxInfo>>> { Err(KeeperError::ShuttingDown) }
    pub async fn metrics(&self, caller: &Caller, id: &str) -> Result<SandboxMetrics> { Err(KeeperError::ShuttingDown) }
    pub async fn logs(&self, caller: &Caller, id: &str, after: u64, limit: u32) -> Result<Vec<LogEntry>> { Err(KeeperError::ShuttingDown) }
    pub async fn sandbox_token(&self, caller: &Caller, id: &str, expires: Duration) -> Result<IssuedToken> { Err(KeeperError::ShuttingDown) }

    /// The sandbox, to be used: it is resumed if it is paused and may be. Needs the role user, or read where `read_only`.
    pub async fn enter(&self, caller: &Caller, id: &str) -> Result<Entered> { Err(KeeperError::ShuttingDown) }
    /// Runs a command and waits for it. Events go to `events` while it runs. Dropping the future ends the command.
    pub async fn exec(&self, caller: &Caller, id: &str, request: ExecRequest, events: Option<tokio::sync::mpsc::Sender<ExecEvent>>) -> Result<ExecResult> { Err(KeeperError::ShuttingDown) }
    /// Starts a command in the background.
    pub async fn start(&self, caller: &Caller, id: &str, request: ExecRequest) -> Result<Started> { Err(KeeperError::ShuttingDown) }
    /// How a process that has ended is judged, from what the guest says.
    pub fn judge(&self, exited: &v1::Exited) -> belljar_engine::Judgement { let none = belljar_engine::Usage::default(); belljar_engine::judge(exited, &none, &none) }

    pub async fn publish_port(&self, caller: &Caller, id: &str, port: u16, public: bool) -> Result<PublishedPort> { Err(KeeperError::ShuttingDown) }
    pub async fn unpublish_port(&self, caller: &Caller, id: &str, port: u16) -> Result<()> { Err(KeeperError::ShuttingDown) }
    pub async fn ports(&self, caller: &Caller, id: &str) -> Result<Vec<PublishedPort>> { Err(KeeperError::ShuttingDown) }
    pub async fn port_token(&self, caller: &Caller, id: &str, port: u16, expires: Duration) -> Result<IssuedToken> { Err(KeeperError::ShuttingDown) }
    /// A published port, for the proxy. `credential`: an API key, a sandbox token, a port token, or nothing. Missing sandbox, foreign sandbox, port not
    /// published and wrong credential are all the same `NotFound`, but for a valid key's own sandbox.
    pub async fn open_port(&self, credential: Option<&str>, client: &str, request_id: &str, id: &str, port: u16) -> Result<Entered> { Err(KeeperError::ShuttingDown) }
    pub async fn sign_file(&self, caller: &Caller, id: &str, path: Bytes, operation: FileOperation, expires: Duration) -> Result<IssuedToken> { Err(KeeperError::ShuttingDown) }
    pub async fn open_signed(&self, token: &str, client: &str, request_id: &str) -> Result<SignedFile> { Err(KeeperError::ShuttingDown) }

    pub async fn templates(&self, caller: &Caller) -> Result<Vec<TemplateInfo>> { Err(KeeperError::ShuttingDown) }
    pub async fn template(&self, caller: &Caller, id: &str) -> Result<TemplateInfo> { Err(KeeperError::ShuttingDown) }
    pub async fn remove_template(&self, caller: &Caller, id: &str) -> Result<()> { Err(KeeperError::ShuttingDown) }

    pub async fn create_key(&self, caller: &Caller, key: NewKey) -> Result<(KeyInfo, String)> { Err(KeeperError::ShuttingDown) }
    pub async fn keys(&self, caller: &Caller) -> Result<Vec<KeyInfo>> { Err(KeeperError::ShuttingDown) }
    pub async fn revoke_key(&self, caller: &Caller, id: &str) -> Result<()> { Err(KeeperError::ShuttingDown) }
    /// Who holds this credential (API key `bj_…` or sandbox token `bjs_…`).
    pub async fn authenticate(&self, credential: &str, client: &str, request_id: &str) -> std::result::Result<Caller, Denied> { Err(Denied::Unknown) }
    pub async fn usage(&self, caller: &Caller) -> Result<KeyUsage> { Err(KeeperError::ShuttingDown) }
    pub async fn record(&self, caller: &Caller, deed: Deed<'_>) -> Result<()> { Err(KeeperError::ShuttingDown) }
    /// Audit: records as JSON objects (the store's form), and the chain's check.
    pub async fn audit_records(&self, caller: &Caller, filter: AuditFilter, after: u64, limit: u32) -> Result<AuditPage> { Err(KeeperError::ShuttingDown) }
    pub async fn audit_verify(&self, caller: &Caller) -> Result<AuditVerdict> { Err(KeeperError::ShuttingDown) }
    /// Prometheus text.
    pub fn prometheus(&self) -> String { String::new() }
    /// Whether sandboxes can be made now.
    pub async fn ready(&self) -> Result<()> { Err(KeeperError::ShuttingDown) }
}
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    pub sandbox: Option<String>,
    pub action: Option<String>,
    pub tenant: Option<String>,
}
pub struct AuditPage {
    pub records: Vec<serde_json::Value>,
    pub next: u64,
    pub head_seq: u64,
    pub head_hash: String,
}
pub enum AuditVerdict {
    Whole { records: u64, head: String },
    Broken { seq: u64, why: String },
}
