//! A server on loopback with the local engine. Its state is in a directory that is removed at exit. Prints its address
//! and a key: `cargo run -p belljar-api --example serve`.

use std::io::Write as _;
use std::sync::Arc;

use belljar_api::{Api, ApiConfig, Listener};
use belljar_engine::Engines;
use belljar_keeper::{Caller, Keeper, KeeperConfig, NewKey, OnShutdown, Quotas};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{Approval, Role};
use belljar_store::{AuditLog, AuditOptions, Store};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    // This program also serves as the sandboxes' guest.
    belljar_guest::enter();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve())
}

async fn serve() -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let store = Store::in_memory().await?;
    let audit = AuditLog::open(&store, AuditOptions::default()).await?;
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    let config = KeeperConfig::new(dir.path().to_owned());
    let keeper = Keeper::open(config, store, audit, Engines::new(Arc::new(engine))).await?;
    let key = NewKey {
        name: "first".to_owned(),
        role: Role::Admin,
        tenant: String::new(),
        expires: None,
        quotas: Quotas::default(),
        owner: None,
        approval: Approval::Never,
    };
    let key = keeper.create_key(&Caller::operator("example", "first"), key).await?.key;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    writeln!(
        std::io::stdout(),
        "export BELLJAR_URL=http://{} BELLJAR_API_KEY={key}",
        listener.local_addr()?
    )?;
    let api =
        Api::new(ApiConfig { domain: Some("localhost".to_owned()), ..ApiConfig::default() }, keeper.clone());
    api.serve(Listener::Tcp(listener, None), async {
        let _ = tokio::signal::ctrl_c().await;
    })
    .await?;
    keeper.close(OnShutdown::Kill).await?;
    Ok(())
}
