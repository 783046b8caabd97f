//! A server of its own for each case.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_api::{Api, ApiConfig, Listener};
use belljar_engine::Engines;
use belljar_keeper::{Caller, Keeper, KeeperConfig, Leave, NewKey, Quotas};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::Role;
use belljar_store::{AuditLog, AuditOptions, Durability, Store};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::Client;

/// A case: what it is called, and what it does.
pub(crate) type Named = (&'static str, Case);
pub(crate) type Case = fn(World) -> Pin<Box<dyn Future<Output = ()>>>;

/// Makes a list of cases of functions that take a world.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn all() -> Vec<crate::world::Named> {
            let group = module_path!().rsplit("::").next().unwrap();
            vec![$({
                let name: &'static str = Box::leak(format!("{group}::{}", stringify!($name)).into_boxed_str());
                (name, (|world| Box::pin($name(world))) as crate::world::Case)
            }),*]
        }
    };
}
pub(crate) use cases;

/// How long anything that is waited for may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The domain of ports' host names.
pub(crate) const DOMAIN: &str = "box.test";

/// A server.
pub(crate) struct World {
    pub(crate) keeper: Keeper,
    pub(crate) address: SocketAddr,
    pub(crate) dir: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

pub(crate) fn run(case: Case) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::new(config()).await;
        let keeper = world.keeper.clone();
        case(world).await;
        keeper.close(Leave::Nothing).await.unwrap();
    });
}

/// The set-up of a server for tests.
pub(crate) fn config() -> ApiConfig {
    ApiConfig {
        domain: Some(DOMAIN.to_owned()),
        origins: vec!["https://console.example.com".to_owned()],
        max_failed_attempts: 1_000_000,
        drain: Duration::from_secs(3),
        ..ApiConfig::default()
    }
}

impl World {
    pub(crate) async fn new(config: ApiConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut keeping = KeeperConfig::new(dir.path().to_owned());
        keeping.pool = 0;
        keeping.share_host_tree = true;
        let store = Store::in_memory().await.unwrap();
        let options = AuditOptions { durability: Durability::Process, ..AuditOptions::default() };
        let audit = AuditLog::open(&store, options).await.unwrap();
        let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
        let keeper = Keeper::open(keeping, store, audit, Engines::new(Arc::new(engine))).await.unwrap();
        Self::serve(config, keeper, dir).await
    }

    /// Another server for the same keeper.
    pub(crate) async fn beside(&self, config: ApiConfig) -> Self {
        Self::serve(config, self.keeper.clone(), tempfile::tempdir().unwrap()).await
    }

    async fn serve(config: ApiConfig, keeper: Keeper, dir: tempfile::TempDir) -> Self {
        Self::serve_api(Arc::new(Api::new(config, keeper.clone())), keeper, dir).await
    }

    /// The same API on another listener.
    pub(crate) async fn listen_beside(&self, api: &Arc<Api>) -> Self {
        Self::serve_api(Arc::clone(api), self.keeper.clone(), tempfile::tempdir().unwrap()).await
    }

    async fn serve_api(api: Arc<Api>, keeper: Keeper, dir: tempfile::TempDir) -> Self {
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

    /// Tells the server to stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until the server has stopped.
    pub(crate) async fn stopped(&mut self) {
        tokio::time::timeout(PATIENCE, &mut self.serving).await.unwrap().unwrap();
    }

    /// A key of this tenant and role.
    pub(crate) async fn key(&self, tenant: &str, role: Role) -> String {
        let key = NewKey {
            name: "test".to_owned(),
            role,
            tenant: tenant.to_owned(),
            expires: None,
            quotas: Quotas::default(),
        };
        self.keeper.create_key(&Caller::operator("test", "request"), key).await.unwrap().key
    }

    /// A client with a key of this tenant and role.
    pub(crate) async fn client(&self, tenant: &str, role: Role) -> Client {
        Client::new(self.address, Some(self.key(tenant, role).await))
    }

    /// A client with a key for sandboxes.
    pub(crate) async fn user(&self) -> Client {
        self.client("default", Role::User).await
    }

    /// A client without a key.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(self.address, None)
    }
}

/// Makes a sandbox, and hands back its id.
pub(crate) async fn sandbox(client: &Client) -> String {
    let made = client.post("/v1/sandboxes", &json!({})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["id"].as_str().unwrap().to_owned()
}

/// Runs a line in a sandbox, and hands back the result.
pub(crate) async fn sh(client: &Client, id: &str, line: &str) -> Value {
    let done = client.post(&format!("/v1/sandboxes/{id}/exec"), &json!({ "command": line })).await;
    assert_eq!(done.status, 200, "{done:?}");
    done.json()
}

/// Waits until `done` says so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut done: impl FnMut() -> F) {
    let begin = Instant::now();
    while !done().await {
        assert!(begin.elapsed() < PATIENCE, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
