//! A separate keeper for each case, with helpers.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use belljar_engine::{Engines, Offer};
use belljar_engine::{StoredOutput, v1};
use belljar_keeper::{
    Caller, Command, CreateSandbox, ExecRequest, ExecResult, Keeper, KeeperConfig, Labels, Lifetime,
    OnShutdown, PortSettings, Quotas, SandboxInfo, Validity,
};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{Approval, Role, SpecFile, StreamOutput};
use belljar_store::{AuditLog, AuditOptions, Durability, KeyFile, Store, StoreUrl};
pub(crate) use belljar_testing::wait::until;

use crate::faults::Faults;

pub(crate) type Case = fn(Fixture) -> Pin<Box<dyn Future<Output = ()>>>;

/// A keeper, and the directory of its files.
pub(crate) struct Fixture {
    pub(crate) keeper: Keeper,
    pub(crate) store: Store,
    pub(crate) config: KeeperConfig,
    dir: tempfile::TempDir,
}

pub(crate) fn run(case: Case) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fixture = Fixture::new(|_| {}).await;
        let keeper = fixture.keeper.clone();
        case(fixture).await;
        keeper.close(OnShutdown::Kill).await.unwrap();
    });
}

impl Fixture {
    pub(crate) async fn new(change: impl FnOnce(&mut KeeperConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = KeeperConfig::new(dir.path().to_owned());
        config.pool = 0;
        change(&mut config);
        let store = Store::in_memory().await.unwrap();
        let keeper = open(&config, &store).await;
        Self { keeper, store, config, dir }
    }

    /// Returns a fixture whose store is a file, and the file.
    pub(crate) async fn in_file() -> (Self, PathBuf) {
        Self::in_file_with(engines()).await
    }

    /// As [`Self::in_file`], with other engines.
    pub(crate) async fn in_file_with(engines: Engines) -> (Self, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.db");
        let url = StoreUrl::sqlite(&file).unwrap();
        let store = Store::open(&url, &KeyFile::at(dir.path().join("store.key"))).await.unwrap();
        let config = KeeperConfig { pool: 0, ..KeeperConfig::new(dir.path().to_owned()) };
        let keeper = open_with(&config, &store, engines).await;
        (Self { keeper, store, config, dir }, file)
    }

    /// Returns a fixture whose engine fails where `faults` say so.
    pub(crate) async fn failing(faults: &Arc<Faults>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = KeeperConfig { pool: 0, ..KeeperConfig::new(dir.path().to_owned()) };
        let store = Store::in_memory().await.unwrap();
        let keeper = open_with(&config, &store, faults.engines()).await;
        Self { keeper, store, config, dir }
    }

    /// Opens another keeper with another configuration in the same directory.
    pub(crate) async fn reopen(&self, change: impl FnOnce(&mut KeeperConfig)) -> Keeper {
        let mut config = self.config.clone();
        change(&mut config);
        assert!(self.dir.path().exists());
        open(&config, &self.store).await
    }

    /// Opens another keeper with other engines in the same directory.
    pub(crate) async fn with_engines(&self, engines: Engines) -> Keeper {
        open_with(&self.config, &self.store, engines).await
    }

    pub(crate) async fn create(&self, caller: &Caller) -> SandboxInfo {
        self.keeper.create(caller, plain()).await.unwrap().info
    }

    pub(crate) async fn sh(&self, caller: &Caller, id: &str, line: &str) -> ExecResult {
        self.keeper.exec(caller, id, shell(line)).await.unwrap()
    }

    /// Returns the number of running processes that the guest reports.
    pub(crate) async fn running(&self, caller: &Caller, id: &str) -> usize {
        let processes = self.keeper.perform(caller, id, v1::ListProcessesRequest::default()).await.unwrap();
        processes.iter().filter(|process| process.running).count()
    }
}

async fn open(config: &KeeperConfig, store: &Store) -> Keeper {
    open_with(config, store, engines()).await
}

async fn open_with(config: &KeeperConfig, store: &Store, engines: Engines) -> Keeper {
    let options = AuditOptions { durability: Durability::Process, ..AuditOptions::default() };
    let audit = AuditLog::open(store, options).await.unwrap();
    Keeper::open(config.clone(), store.clone(), audit, engines).await.unwrap()
}

/// Renames a table of a store in a file: what uses it fails until it has its name again.
pub(crate) async fn rename(file: &Path, from: &str, to: &str) {
    let text = format!(
        "import sqlite3; sqlite3.connect({file:?}, timeout=60, isolation_level=None).execute('alter table {from} rename to {to}')"
    );
    // Not on this thread: a write of the keeper that has begun could not end, and would lock the database.
    let run = move || std::process::Command::new("python3").args(["-c", &text]).status();
    assert!(tokio::task::spawn_blocking(run).await.unwrap().unwrap().success());
}

/// Returns the default engine, and another one that is not offered.
pub(crate) fn engines() -> Engines {
    let engine = |kind| Arc::new(LocalEngine::new(LocalConfig::new(kind)));
    Engines::new(engine(LocalKind::Local)).with(engine(LocalKind::Process), Offer::Retired)
}

/// Returns a caller with a tenant of the same name.
pub(crate) fn user(name: &str) -> Caller {
    Caller {
        key: format!("key_{name}"),
        tenant: name.to_owned(),
        role: Role::User,
        quotas: Quotas::default(),
        owner: None,
        approval: Approval::Never,
        only: None,
        session: None,
        validity: Validity::default(),
        client: "test".to_owned(),
        request_id: "request".to_owned(),
    }
}

/// Returns a request for a default sandbox.
pub(crate) fn plain() -> CreateSandbox {
    CreateSandbox {
        template: None,
        name: None,
        return_existing: false,
        spec: SpecFile::default(),
        lifetime: Lifetime::default(),
        labels: Labels::default(),
        files: Vec::new(),
        idempotency: None,
        ports: PortSettings::default(),
    }
}

pub(crate) fn shell(line: &str) -> ExecRequest {
    ExecRequest { command: Command::Shell(line.to_owned().into()), ..ExecRequest::default() }
}

pub(crate) fn text(result: &ExecResult) -> &str {
    output_of(&result.stdout).text.as_deref().unwrap_or_default()
}

/// Returns the stored output of a stream, which is small in these tests.
pub(crate) fn output_of(stream: &StoredOutput) -> &StreamOutput {
    match stream {
        StoredOutput::InMemory(output) => output,
        StoredOutput::InFile(file) => panic!("{file:?} is not in memory"),
    }
}
