//! What runs a sandbox: its container.

use std::io;
use std::time::Duration;

use belljar_engine::backend::{Backend, NetworkControl};
use belljar_engine::{EngineError, ErrorCode, GuestError, Usage};
use belljar_linux::{CgroupUsage, ContainerGroups};
use belljar_local::{Network, NetworkFacts, UNACCEPTED};
use belljar_model::{ByteSize, LimitsChange, SandboxId};
use bollard::errors::Error;
use bollard::models::{ContainerState, ContainerUpdateBody};
use bollard::query_parameters::{
    KillContainerOptionsBuilder, RemoveContainerOptionsBuilder, StatsOptionsBuilder,
    WaitContainerOptionsBuilder,
};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::container::{self, own_pids_now};
use crate::daemon::{Daemon, failed, status};
use crate::reach::Reach;

/// Maximum time for the daemon to remove a container.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval at which the daemon is asked again while it removes a container.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which a daemon that cannot be reached is asked again.
const DAEMON_INTERVAL: Duration = Duration::from_millis(500);

/// Statuses of the daemon's answers.
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// Default and minimum of a container's share of the processors.
const CPU_SHARES: (u16, u16) = (1024, 2);

/// What is recorded of a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ContainerFacts {
    /// Its user inside.
    pub(crate) user: u32,
    /// Those of its network, if it has one, and its limit of memory when it was created, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<(NetworkFacts, u64)>,
}

/// A container that has been started.
#[derive(Debug)]
pub(crate) struct DockerBackend {
    /// Id of the sandbox.
    pub(crate) id: SandboxId,
    pub(crate) daemon: Daemon,
    /// Id of the container.
    pub(crate) container: String,
    pub(crate) reach: Reach,
    /// Its control groups, if it is on this machine.
    pub(crate) groups: Option<ContainerGroups>,
    pub(crate) own_pids: u32,
    pub(crate) network: Option<Network>,
}

impl DockerBackend {
    /// Returns the state of the container, if there is one and the daemon says so.
    async fn state(&self) -> Option<ContainerState> {
        self.daemon.client.inspect_container(&self.container, None).await.ok()?.state
    }

    fn usage_of(&self, now: &CgroupUsage) -> Usage {
        Usage {
            memory_bytes: now.memory,
            gateway_memory_bytes: None,
            peak_memory_bytes: now.peak_memory,
            pids: now.pids.map(|pids| self.pids_of_code(pids)),
            cpu: now.cpu_us.map(Duration::from_micros),
            oom_kills: now.oom_kills.unwrap_or(0),
            pids_denied: now.pids_denied.unwrap_or(0),
        }
    }

    /// Returns the number of processes and threads without those of the engine.
    fn pids_of_code(&self, pids: u64) -> u32 {
        let own = own_pids_now(self.reach.open_bridges());
        u32::try_from(pids).unwrap_or(u32::MAX).saturating_sub(own)
    }

    /// Asks the daemon for the usage.
    async fn ask_usage(&self, last: Usage) -> Option<Usage> {
        let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
        let stats = self.daemon.client.stats(&self.container, Some(options)).next().await?.ok()?;
        let memory = stats.memory_stats.unwrap_or_default();
        let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage);
        let was_killed = self.state().await?.oom_killed == Some(true);
        Some(Usage {
            memory_bytes: Some(memory.usage?),
            gateway_memory_bytes: None,
            peak_memory_bytes: memory.max_usage.or(last.peak_memory_bytes.max(memory.usage)),
            pids: stats.pids_stats.and_then(|pids| pids.current).map(|pids| self.pids_of_code(pids)),
            cpu: cpu.map(Duration::from_nanos),
            oom_kills: last.oom_kills.max(was_killed.into()),
            pids_denied: 0,
        })
    }
}

impl Backend for DockerBackend {
    type Reach = Reach;
    type Facts = ContainerFacts;

    fn reach(&self) -> &Reach {
        &self.reach
    }

    fn network(&self) -> Option<&dyn NetworkControl> {
        Some(self.network.as_ref()?)
    }

    async fn failed_start(&self) -> Option<(String, Option<io::Error>)> {
        let state = self.state().await;
        if state.as_ref().is_some_and(|state| state.running == Some(true)) {
            return None;
        }
        let code = state.and_then(|state| state.exit_code);
        let code =
            code.map(|code| format!("; its container ended with the status {code}")).unwrap_or_default();
        Some((format!("configure the guest{code}"), None))
    }

    async fn wait(&self) -> Option<i64> {
        loop {
            let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
            let waited = self.daemon.client.wait_container(&self.container, Some(options)).next().await;
            match waited {
                Some(Ok(ended)) => return Some(ended.status_code),
                Some(Err(Error::DockerContainerWaitError { code, .. })) => return Some(code),
                Some(Err(error)) if status(&error) == Some(NOT_FOUND) => return None,
                // The daemon is being restarted, and the container may go on.
                Some(Err(_)) | None => tokio::time::sleep(DAEMON_INTERVAL).await,
            }
        }
    }

    fn describe_end(&self, status: Option<i64>, _: &Usage) -> String {
        match status {
            _ if self.network.as_ref().is_some_and(Network::has_exceeded) => UNACCEPTED.to_owned(),
            Some(0) => "its guest has ended".to_owned(),
            Some(137) => "its first process was killed".to_owned(),
            Some(code) => format!("its guest ended with the status {code}"),
            None => "its container is gone".to_owned(),
        }
    }

    async fn kill(&self) {
        let options = KillContainerOptionsBuilder::new().signal("KILL").build();
        while let Err(error) = self.daemon.client.kill_container(&self.container, Some(options.clone())).await
            && !matches!(status(&error), Some(NOT_FOUND | CONFLICT))
        {
            tokio::time::sleep(DAEMON_INTERVAL).await;
        }
    }

    async fn remove(&self) -> Result<(), EngineError> {
        if let Some(network) = &self.network {
            network.end().await;
        }
        remove_container(&self.daemon, &self.container).await
    }

    /// Reads the control groups, if they are on this machine.
    fn measure(&self) -> Option<Usage> {
        let now = self.groups.as_ref()?.usage();
        // Afterwards there are no groups any more.
        now.memory?;
        Some(self.usage_of(&now))
    }

    async fn usage(&self, last: Usage) -> Option<Usage> {
        match &self.groups {
            Some(_) => self.measure(),
            None => self.ask_usage(last).await,
        }
    }

    async fn set_limits(&self, change: &LimitsChange, now: Usage) -> Result<(), EngineError> {
        let in_use = |field: &'static str, value: String, in_use: String| EngineError::LimitInUse {
            field: field.into(),
            value,
            in_use,
        };
        if let (Some(limit), Some(pids)) = (change.pids, now.pids)
            && pids > limit.get()
        {
            return Err(in_use("pids", limit.to_string(), pids.to_string()));
        }
        // With v2 the kernel accepts any limit, and kills processes until their memory is below it.
        let held = self.groups.as_ref().and_then(ContainerGroups::held_memory).or(now.memory_bytes);
        if let (Some(limit), Some(bytes)) = (change.memory, held)
            && bytes > limit.bytes()
        {
            return Err(in_use("memory", limit.to_string(), ByteSize::new(bytes).to_string()));
        }
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let memory = change.memory.map(|memory| number(memory.bytes()));
        let (whole, min) = CPU_SHARES;
        let body = ContainerUpdateBody {
            memory,
            memory_swap: memory,
            nano_cpus: change.cpus.map(|cpus| number(u64::from(cpus.millis()) * 1_000_000)),
            pids_limit: change.pids.map(|pids| i64::from(pids.get().saturating_add(self.own_pids))),
            cpu_shares: change.shared_by.map(|sharers| (whole / sharers.get()).max(min).into()),
            ..ContainerUpdateBody::default()
        };
        let updated = self.daemon.client.update_container(&self.container, body).await;
        updated.map_err(|error| EngineError::SetLimit {
            field: "limits".into(),
            value: "those requested".to_owned(),
            source: io::Error::other(error),
        })?;
        if let (Some(network), Some(memory)) = (&self.network, change.memory) {
            network.set_memory(memory.bytes());
        }
        Ok(())
    }

    async fn set_frozen(&self, frozen: bool) -> Result<bool, EngineError> {
        let (client, container) = (&self.daemon.client, &self.container);
        let (step, done) = match frozen {
            true => ("freeze", client.pause_container(container).await),
            false => ("thaw", client.unpause_container(container).await),
        };
        let Err(error) = done else { return Ok(true) };
        // Both are errors for the daemon if it is done already.
        match self.state().await.filter(|state| state.running == Some(true)) {
            Some(state) if state.paused == Some(frozen) => Ok(true),
            Some(_) => Err(failed(format!("{step} the sandbox {}", self.id))(error)),
            None => Ok(false),
        }
    }

    /// Somebody else may have paused the container.
    async fn explain_silence(&self, frozen: bool) -> Option<EngineError> {
        let is_paused = self.state().await?.paused == Some(true) && !frozen;
        let name = container::name(&self.id);
        is_paused.then(|| {
            EngineError::Guest(GuestError::Refused {
                code: ErrorCode::DeadlineExceeded,
                message: format!(
                    "the sandbox does not answer: its container was paused outside of Belljar; resume it with docker unpause {name}"
                ),
                problem: None,
            })
        })
    }
}

/// Removes a container with its volumes, and returns when it is gone.
pub(crate) async fn remove_container(daemon: &Daemon, container: &str) -> Result<(), EngineError> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    loop {
        match daemon.client.remove_container(container, Some(options.clone())).await {
            Ok(()) => return Ok(()),
            Err(error) => match status(&error) {
                Some(NOT_FOUND) => return Ok(()),
                // The daemon is removing it already.
                Some(CONFLICT) if Instant::now() < deadline => tokio::time::sleep(RETRY_INTERVAL).await,
                _ => return Err(failed(format!("remove the container {container}"))(error)),
            },
        }
    }
}
