//! A server of its own for each case.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_api::{Api, ApiConfig, Listener};
use belljar_client::{Client, ClientError, Credential, Target, v1};
use belljar_engine::Engines;
use belljar_keeper::{Caller, Keeper, KeeperConfig, Leave, NewKey, Quotas};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::Role;
use belljar_store::{AuditLog, AuditOptions, Durability, Store};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

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

/// The origin that pages may come from.
pub(crate) const ORIGIN: &str = "https://console.example.com";

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
        let world = World::new().await;
        let keeper = world.keeper.clone();
        case(world).await;
        keeper.close(Leave::Nothing).await.unwrap();
    });
}

impl World {
    pub(crate) async fn new() -> Self {
        let config = ApiConfig {
            domain: Some(DOMAIN.to_owned()),
            origins: vec![ORIGIN.to_owned()],
            max_failed_attempts: 1_000_000,
            drain: Duration::from_secs(3),
            ..ApiConfig::default()
        };
        Self::with(config, engine()).await
    }

    pub(crate) async fn with(config: ApiConfig, engine: Arc<LocalEngine>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut keeping = KeeperConfig::new(dir.path().to_owned());
        keeping.pool = 0;
        keeping.share_host_tree = true;
        let store = Store::in_memory().await.unwrap();
        let options = AuditOptions { durability: Durability::Process, ..AuditOptions::default() };
        let audit = AuditLog::open(&store, options).await.unwrap();
        let keeper = Keeper::open(keeping, store, audit, Engines::new(engine)).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let api = Api::new(config, keeper.clone());
        let serving = tokio::spawn(async move {
            api.serve(Listener::Tcp(listener, None), async {
                let _ = stopped.await;
            })
            .await
            .unwrap();
        });
        Self { keeper, address, dir, stop: Some(stop), serving }
    }

    /// Tells the server to stop, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
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

    /// A client with this credential.
    pub(crate) fn with_key(&self, credential: Credential) -> Client {
        Client::connect(Target::http(&self.address.to_string()).unwrap(), credential).unwrap()
    }

    /// A client with a key of this tenant and role.
    pub(crate) async fn client(&self, tenant: &str, role: Role) -> Client {
        self.with_key(Credential::key(self.key(tenant, role).await))
    }

    /// A client with a key for sandboxes.
    pub(crate) async fn user(&self) -> Client {
        self.client("default", Role::User).await
    }

    /// A client with an administrator's key.
    pub(crate) async fn admin(&self) -> Client {
        self.client("default", Role::Admin).await
    }
}

/// The local engine with all its walls.
pub(crate) fn engine() -> Arc<LocalEngine> {
    Arc::new(LocalEngine::new(LocalConfig::new(LocalKind::Local)))
}

/// Makes a sandbox, and hands back its id.
pub(crate) async fn sandbox(client: &Client) -> String {
    client.create(v1::CreateSandboxRequest::default(), None).await.unwrap().sandbox.id.clone()
}

/// A request to run a line.
pub(crate) fn line(sandbox: &str, line: &str) -> v1::ExecRequest {
    v1::ExecRequest { sandbox: sandbox.to_owned(), command: line.to_owned().into(), ..Default::default() }
}

/// Runs a line in a sandbox to its end.
pub(crate) async fn sh(client: &Client, sandbox: &str, text: &str) -> v1::ExecResult {
    let mut events = client.exec(line(sandbox, text), None).await.unwrap();
    while let Some(event) = events.next().await.unwrap() {
        if let Some(v1::__buffa::oneof::exec_event::Event::Result(result)) = event.event {
            return *result;
        }
    }
    panic!("a command ended without a result");
}

/// The stable name of the kind of error.
pub(crate) fn code<T>(result: Result<T, ClientError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code().map_or_else(|| format!("{error:?}"), str::to_owned),
    }
}

/// Waits until `done` says so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut done: impl FnMut() -> F) {
    let begin = Instant::now();
    while !done().await {
        assert!(begin.elapsed() < PATIENCE, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// All of an answer.
pub(crate) async fn text(mut answer: belljar_client::RestAnswer) -> String {
    let mut text = Vec::new();
    while let Some(piece) = answer.next().await.unwrap() {
        text.extend_from_slice(&piece);
    }
    String::from_utf8(text).unwrap()
}

/// The records of the audit about a sandbox, one line each.
pub(crate) async fn trail(admin: &Client, sandbox: &str) -> Vec<String> {
    let path = format!("/v1/audit/export?sandbox={sandbox}");
    let body = belljar_client::RestBody::Empty;
    let answer = admin.rest(belljar_client::Method::GET, &path, "application/x-ndjson", body).await.unwrap();
    text(answer).await.lines().map(str::to_owned).collect()
}
