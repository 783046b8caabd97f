//! A sandbox of a server for one run: `belljar run --template`.

use std::sync::Arc;
use std::time::Duration;

use belljar_client::Client;
use belljar_client::v1::{self, CreateSandboxRequest, KillSandboxRequest, UpdateSandboxRequest};
use belljar_engine::{EngineError, GuestClient, NetworkLog, Sandbox, Usage, Walls};
use belljar_model::{
    EngineName, Isolation, Language, Layer, LayerState, LimitsChange, LimitsFile, Memory, NetworkPolicy,
};
use futures::future::BoxFuture;

use crate::message::Quit;
use crate::net::policy_message;
use crate::progress::Progress;
use crate::service::link::{Link, is_missing};

/// Interval between two looks at a sandbox whose end is awaited.
const END_INTERVAL: Duration = Duration::from_millis(100);

/// A request for a sandbox of a server.
pub(crate) struct RemoteRequest {
    pub(crate) request: CreateSandboxRequest,
    /// Limits that the user has given.
    pub(crate) given: LimitsFile,
    pub(crate) language: &'static Language,
}

/// What the progress of a run shows while it waits for approval.
const WAITING: &str = "waiting for approval";

/// A sandbox that was created for a run.
pub(crate) struct Created {
    pub(crate) sandbox: Sandbox,
    /// Its memory limit, if that is a server's.
    pub(crate) memory: Option<Memory>,
    /// Whether the run may have to wait for approval, which covers no later input.
    pub(crate) may_wait: bool,
}

impl RemoteRequest {
    /// Creates the sandbox. Limits that are not given are raised to the minimum of the language.
    pub(crate) async fn create(self, link: Link, progress: Arc<Progress>) -> Result<Created, Quit> {
        let may_wait = link.may_wait().await?;
        let made = link.create(self.request).await?;
        let info = made.sandbox.into_option().unwrap_or_default();
        let guest = link.guest_preparing(&info.id, move || {
            progress.hide();
            progress.message(WAITING);
        })?;
        let limits = info.limits.into_option().unwrap_or_default();
        let needs = &self.language.limits;
        let change = LimitsChange {
            memory: needs.memory.filter(|floor| {
                self.given.memory.is_none() && limits.memory_bytes.is_some_and(|has| has < floor.bytes())
            }),
            pids: needs.pids.filter(|floor| {
                self.given.pids.is_none() && limits.pids.is_some_and(|has| has < floor.get())
            }),
            ..LimitsChange::default()
        };
        let memory = match change.memory {
            Some(raised) => Some(raised),
            None => limits.memory_bytes.and_then(|bytes| bytes.to_string().parse().ok()),
        };
        let isolation = isolation(info.isolation.into_option().unwrap_or_default())?;
        let engine = isolation.engine;
        let walls = RemoteWalls { id: info.id.clone(), engine, link };
        let sandbox = Sandbox::new(info.id.parse()?, isolation, info.home.into(), guest, Box::new(walls));
        if !change.is_empty()
            && let Err(error) = sandbox.set_limits(&change).await
        {
            sandbox.stop().await?;
            return Err(error.into());
        }
        Ok(Created { sandbox, memory, may_wait })
    }
}

/// Converts the report of a sandbox's walls.
fn isolation(message: v1::SandboxIsolation) -> Result<Isolation, Quit> {
    let layer = |layer: v1::IsolationLayer| Layer {
        name: layer.name,
        state: match layer.state.as_str() {
            "in_force" => LayerState::InForce,
            "weaker" => LayerState::Weaker,
            _ => LayerState::Absent,
        },
        detail: layer.detail,
    };
    Ok(Isolation {
        engine: message.engine.parse()?,
        grade: message.grade.parse()?,
        tree: message.tree,
        layers: message.layers.into_iter().map(layer).collect(),
    })
}

/// The server's side of a sandbox.
struct RemoteWalls {
    id: String,
    engine: EngineName,
    /// Also keeps a server in the background from ending.
    link: Link,
}

impl RemoteWalls {
    fn client(&self) -> &Client {
        &self.link.client
    }

    async fn end_reason(&self) -> Option<String> {
        let request = v1::GetSandboxRequest { sandbox: self.id.clone(), ended: true, ..Default::default() };
        let info = match self.client().get(request).await {
            Ok(info) => info,
            Err(error) if is_missing(&error) => return Some("it is gone".to_owned()),
            Err(error) => return Some(error.to_string()),
        };
        (info.state.as_known() == Some(v1::SandboxState::SANDBOX_STATE_GONE)).then_some(info.reason)
    }

    async fn update(&self, what: &'static str, request: UpdateSandboxRequest) -> Result<(), EngineError> {
        let updated = self.client().update(request).await;
        updated.map(drop).map_err(|error| EngineError::Unsupported {
            what: what.into(),
            engine: self.engine,
            reason: error.to_string().into(),
        })
    }

    fn unsupported<T: Send + 'static>(
        &self,
        what: &'static str,
    ) -> BoxFuture<'static, Result<T, EngineError>> {
        let reason = "the sandbox is held by a server".into();
        let error = EngineError::Unsupported { what: what.into(), engine: self.engine, reason };
        Box::pin(std::future::ready(Err(error)))
    }
}

impl Walls for RemoteWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(async {
            let request = v1::SandboxMetricsRequest { sandbox: self.id.clone(), ..Default::default() };
            let Ok(metrics) = self.client().metrics(request).await else { return Usage::default() };
            Usage {
                memory_bytes: metrics.memory_bytes,
                peak_memory_bytes: metrics.memory_peak_bytes,
                gateway_memory_bytes: None,
                pids: metrics.pids.and_then(|pids| u32::try_from(pids).ok()),
                cpu: metrics.cpu_time.into_option().and_then(|time| time.try_into().ok()),
                oom_kills: metrics.oom_kills,
                pids_denied: 0,
            }
        })
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async {
            let limits = LimitsFile {
                memory: change.memory,
                cpus: change.cpus,
                pids: change.pids,
                ..LimitsFile::default()
            };
            let request = UpdateSandboxRequest {
                sandbox: self.id.clone(),
                limits: belljar_api::limits_message(&limits),
                ..Default::default()
            };
            self.update("limits", request).await
        })
    }

    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async {
            let request = UpdateSandboxRequest {
                sandbox: self.id.clone(),
                network_policy: policy_message(policy.into()).into(),
                ..Default::default()
            };
            self.update("network", request).await
        })
    }

    fn network_log(&self, _: u64, _: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        self.unsupported("network")
    }

    fn set_deadline(&self, _: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        self.unsupported("deadline")
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        self.unsupported("pause")
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        self.unsupported("pause")
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        self.unsupported("connection")
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        Box::pin(async { self.end_reason().await.map(|how| EngineError::Ended { how }) })
    }

    /// Does nothing: the usage is needed until [`Walls::stop`].
    fn kill(&self) {}

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async {
            let request = KillSandboxRequest { sandbox: self.id.clone(), ..Default::default() };
            match self.client().kill(request).await {
                Err(error) if !is_missing(&error) => Err(EngineError::Unsupported {
                    what: "the end of the sandbox".into(),
                    engine: self.engine,
                    reason: error.to_string().into(),
                }),
                _ => Ok(()),
            }
        })
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            loop {
                match self.end_reason().await {
                    Some(reason) => return reason,
                    None => tokio::time::sleep(END_INTERVAL).await,
                }
            }
        })
    }
}
