//! A server of its own for each case: a keeper on the engine `local`, and the API over it on loopback.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use belljar_api::{Api, ApiConfig, Listener};
use belljar_engine::Engines;
use belljar_keeper::{Caller, Keeper, KeeperConfig, NewKey, OnShutdown, Quotas};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{Approval, Role};
use belljar_store::{AuditLog, AuditOptions, Durability, Store};
use belljar_testing::wait::DEADLINE;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A case: its name and its test function.
pub(crate) type Named = (&'static str, Case);
pub(crate) type Case = fn(Fixture) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists functions that take a fixture as cases.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn all() -> Vec<crate::fixture::Named> {
            let group = module_path!().rsplit("::").next().unwrap();
            vec![$({
                let name: &'static str = Box::leak(format!("{group}::{}", stringify!($name)).into_boxed_str());
                (name, (|fixture| Box::pin($name(fixture))) as crate::fixture::Case)
            }),*]
        }
    };
}
pub(crate) use cases;

/// Domain of the host names of ports.
pub(crate) const DOMAIN: &str = "box.test";

/// Allowed origin of web pages.
pub(crate) const ORIGIN: &str = "https://console.example.com";

/// A server.
pub(crate) struct Fixture {
    pub(crate) keeper: Keeper,
    pub(crate) address: SocketAddr,
    pub(crate) dir: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

pub(crate) fn run(case: Case) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let fixture = Fixture::new(config(), engine()).await;
        let keeper = fixture.keeper.clone();
        case(fixture).await;
        keeper.close(OnShutdown::Kill).await.unwrap();
    });
}

/// Returns the configuration of a server for tests.
pub(crate) fn config() -> ApiConfig {
    ApiConfig {
        domain: Some(DOMAIN.to_owned()),
        origins: vec![ORIGIN.to_owned()],
        max_failed_attempts: 1_000_000,
        drain: Duration::from_secs(3),
        ..ApiConfig::default()
    }
}

/// Creates the local engine with all walls.
pub(crate) fn engine() -> Arc<LocalEngine> {
    Arc::new(LocalEngine::new(LocalConfig::new(LocalKind::Local)))
}

impl Fixture {
    pub(crate) async fn new(config: ApiConfig, engine: Arc<LocalEngine>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut keeping = KeeperConfig::new(dir.path().to_owned());
        keeping.pool = 0;
        keeping.share_host_tree = true;
        let store = Store::in_memory().await.unwrap();
        let options = AuditOptions { durability: Durability::Process, ..AuditOptions::default() };
        let audit = AuditLog::open(&store, options).await.unwrap();
        let keeper = Keeper::open(keeping, store, audit, Engines::new(engine)).await.unwrap();
        Self::serve(Arc::new(Api::new(config, keeper.clone())), keeper, dir).await
    }

    /// Starts to serve on a new listener.
    pub(crate) async fn serve(api: Arc<Api>, keeper: Keeper, dir: tempfile::TempDir) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            api.serve(Listener::Tcp(listener, None), async {
                let _ = stopped.await;
            })
            .await
            .unwrap();
        });
        Self { keeper, address, dir, stop: Some(stop), serving }
    }

    /// Stops the server, without waiting for its end.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until the server has stopped.
    pub(crate) async fn stopped(&mut self) {
        tokio::time::timeout(DEADLINE, &mut self.serving).await.unwrap().unwrap();
    }

    /// Creates a key of this tenant and role.
    pub(crate) async fn key(&self, tenant: &str, role: Role) -> String {
        let key = NewKey {
            name: "test".to_owned(),
            role,
            tenant: tenant.to_owned(),
            expires: None,
            quotas: Quotas::default(),
            owner: None,
            approval: Approval::Never,
        };
        self.keeper.create_key(&Caller::operator("test", "request"), key).await.unwrap().key
    }
}
