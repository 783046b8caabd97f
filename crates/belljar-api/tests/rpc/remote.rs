//! Engine whose sandboxes are created by a server over the network. Their guests are reached through the same server.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_client::{Client, ClientError, GuestClient, v1, well_known};
use belljar_engine::{
    Capabilities, CreateRequest, Engine, EngineError, GuestError, Life, NetworkLog, Sandbox, Usage, Walls,
};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{EngineName, Isolation, Layer, LayerState, LimitsChange, NetworkPolicy, SandboxSpec};
use futures::FutureExt as _;
use futures::future::BoxFuture;

/// Timeout for the reason of an end.
const DEADLINE: Duration = Duration::from_secs(2);

/// The engine.
pub(crate) struct RemoteEngine {
    pub(crate) client: Client,
    pub(crate) kind: EngineName,
}

impl Engine for RemoteEngine {
    fn name(&self) -> EngineName {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        LocalEngine::new(LocalConfig::new(LocalKind::Local)).capabilities()
    }

    fn create<'a>(&'a self, request_of: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        let spec = request_of.spec;
        async move {
            if matches!(request_of.life, Life::Long { .. }) {
                return Err(unsupported(self.kind, "choosing an id"));
            }
            let began = Instant::now();
            let created = self.client.create(request(spec), None).await.map_err(refused)?;
            let info = created.sandbox.into_option().unwrap_or_default();
            let guest = self.client.guest(&info.id).map_err(refused)?;
            let walls = RemoteWalls {
                client: self.client.clone(),
                id: info.id.clone(),
                took: began.elapsed(),
                is_ended: Arc::default(),
            };
            let isolation = isolation(self.kind, spec, &info);
            let id = info.id.parse().map_err(|_| lost("the server made up an id"))?;
            Ok(Sandbox::new(id, isolation, PathBuf::from(info.home), guest, Box::new(walls)))
        }
        .boxed()
    }
}

/// A sandbox on a server.
struct RemoteWalls {
    client: Client,
    id: String,
    took: Duration,
    is_ended: Arc<AtomicBool>,
}

impl RemoteWalls {
    async fn end(&self) -> Result<(), EngineError> {
        self.is_ended.store(true, Ordering::Relaxed);
        let request = v1::KillSandboxRequest { sandbox: self.id.clone(), ..Default::default() };
        match self.client.kill(request).await {
            Ok(_) => Ok(()),
            // It has already ended.
            Err(error) if error.is("sandbox_gone") => Ok(()),
            Err(error) => Err(refused(error)),
        }
    }

    async fn info(&self) -> Option<v1::SandboxInfo> {
        let request = v1::GetSandboxRequest { sandbox: self.id.clone(), ..Default::default() };
        self.client.get(request).await.ok()
    }
}

impl Drop for RemoteWalls {
    fn drop(&mut self) {
        if self.is_ended.load(Ordering::Relaxed) {
            return;
        }
        let (client, id) = (self.client.clone(), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = client.kill(v1::KillSandboxRequest { sandbox: id, ..Default::default() }).await;
            });
        }
    }
}

impl Walls for RemoteWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        async {
            let request = v1::SandboxMetricsRequest { sandbox: self.id.clone(), ..Default::default() };
            let Ok(metrics) = self.client.metrics(request).await else { return Usage::default() };
            Usage {
                memory_bytes: metrics.memory_bytes,
                peak_memory_bytes: metrics.memory_peak_bytes,
                gateway_memory_bytes: None,
                pids: metrics.pids.and_then(|pids| u32::try_from(pids).ok()),
                cpu: metrics.cpu_time.into_option().and_then(|time| time.try_into().ok()),
                oom_kills: metrics.oom_kills,
                pids_denied: 0,
            }
        }
        .boxed()
    }

    fn set_limits<'a>(&'a self, _: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        async { Err(unsupported(EngineName::LOCAL, "changing limits")) }.boxed()
    }

    fn set_network<'a>(&'a self, _: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        async { Err(unsupported(EngineName::LOCAL, "changing the network")) }.boxed()
    }

    fn network_log(&self, _: u64, _: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        async { Err(unsupported(EngineName::LOCAL, "the network's log")) }.boxed()
    }

    fn set_deadline(&self, _: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        async { Err(unsupported(EngineName::LOCAL, "moving the deadline")) }.boxed()
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        async {
            let request = v1::PauseSandboxRequest { sandbox: self.id.clone(), ..Default::default() };
            self.client.pause(request).await.map(drop).map_err(refused)
        }
        .boxed()
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        async {
            let request = v1::ResumeSandboxRequest { sandbox: self.id.clone(), ..Default::default() };
            self.client.resume(request).await.map(drop).map_err(refused)
        }
        .boxed()
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        async { self.client.guest(&self.id).map_err(refused) }.boxed()
    }

    fn phases(&self) -> Vec<(&'static str, Duration)> {
        vec![("create", self.took)]
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        async {
            let ended = tokio::time::timeout(DEADLINE, self.wait_ended()).await;
            ended.ok().map(|how| EngineError::Ended { how })
        }
        .boxed()
    }

    fn kill(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        let (client, id) = (self.client.clone(), self.id.clone());
        tokio::spawn(async move {
            client.kill(v1::KillSandboxRequest { sandbox: id, ..Default::default() }).await
        });
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        self.end().boxed()
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        async {
            loop {
                match self.info().await {
                    Some(info) if info.ended_at.is_set() => return info.reason,
                    Some(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    None => return "the server does not know it".to_owned(),
                }
            }
        }
        .boxed()
    }
}

/// Returns the request for a sandbox of this specification.
fn request(spec: &SandboxSpec) -> v1::CreateSandboxRequest {
    let limits = &spec.limits;
    v1::CreateSandboxRequest {
        timeout: well_known::Duration::from(Duration::from_secs(600)).into(),
        env: spec
            .env
            .iter()
            .map(|variable| (variable.name().to_owned(), variable.value().to_owned()))
            .collect(),
        limits: v1::SandboxLimits {
            memory_bytes: Some(limits.memory.bytes()),
            cpus: Some(f64::from(limits.cpus.millis()) / 1000.0),
            timeout: well_known::Duration::from(limits.timeout.duration()).into(),
            pids: Some(limits.pids.get()),
            tmp_bytes: Some(limits.tmp.bytes()),
            disk_bytes: Some(limits.disk.bytes()),
            inodes: Some(limits.inodes.get()),
            output_bytes: Some(limits.output.bytes()),
            open_files: Some(limits.open_files.get()),
            ..Default::default()
        }
        .into(),
        network: spec.network.as_str().to_owned(),
        engine: spec.engine.as_str().to_owned(),
        grade: spec.grade.as_str().to_owned(),
        hostname: spec.hostname.as_str().to_owned(),
        mounts: spec.mounts.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

/// Returns the isolation that the server reports.
fn isolation(kind: EngineName, spec: &SandboxSpec, info: &v1::SandboxInfo) -> Isolation {
    let layers = info.isolation.layers.iter().map(|layer| Layer {
        name: layer.name.clone(),
        state: match layer.state.as_str() {
            "in_force" => LayerState::InForce,
            "weaker" => LayerState::Weaker,
            _ => LayerState::Absent,
        },
        detail: layer.detail.clone(),
    });
    Isolation { engine: kind, grade: spec.grade, tree: info.isolation.tree.clone(), layers: layers.collect() }
}

fn refused(error: ClientError) -> EngineError {
    let code = match &error {
        ClientError::Refused { rpc, .. } => *rpc,
        _ => belljar_client::ErrorCode::Unavailable,
    };
    EngineError::Guest(GuestError::Refused { code, message: error.to_string(), problem: None })
}

fn lost(what: &'static str) -> EngineError {
    EngineError::Guest(GuestError::Protocol { what })
}

fn unsupported(engine: EngineName, what: &'static str) -> EngineError {
    EngineError::Unsupported { engine, what: what.into(), reason: "over the network".into() }
}
