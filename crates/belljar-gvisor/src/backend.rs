//! What runs a sandbox: the process `runsc run`, with which the sentry and the gofer end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use belljar_engine::backend::{Backend, NetworkControl};
use belljar_engine::{EngineError, Usage};
use belljar_linux::CgroupLayout;
use belljar_local::{Network, NetworkFacts, UNACCEPTED, set_frozen};
use belljar_model::{LimitsChange, SandboxId};
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

use crate::bundle::LOG;
use crate::engine::{Reach, remove};
use crate::runsc::GVISOR;

/// What is recorded of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunFacts {
    /// The process that runs it; none until it was started.
    pub(crate) pid: Option<i32>,
    /// Those of its network, if it has one, and its limit of memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<(NetworkFacts, u64)>,
}

/// A process that was started.
#[derive(Debug)]
pub(crate) struct Runner {
    pidfd: OwnedFd,
    /// A descriptor of the same, which becomes readable at its end.
    watched: AsyncFd<OwnedFd>,
    /// If this process has started it.
    child: Mutex<Option<Child>>,
}

impl Runner {
    /// Watches a process that this one has started.
    pub(crate) fn child(child: Child) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok(Self { child: Mutex::new(Some(child)), ..Self::other(pid)? })
    }

    /// Watches a process that another one has started.
    pub(crate) fn other(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let watched = async_fd(pidfd.try_clone()?)?;
        Ok(Self { pidfd, watched, child: Mutex::new(None) })
    }
}

#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}

/// A sandbox that has been started.
#[derive(Debug)]
pub(crate) struct GvisorBackend {
    pub(crate) id: SandboxId,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// The lock on it, by which other programs see that it is in use.
    pub(crate) _lock: Option<OwnedFd>,
    pub(crate) layout: CgroupLayout,
    pub(crate) reach: Reach,
    pub(crate) runner: Runner,
    pub(crate) network: Option<Network>,
}

impl Backend for GvisorBackend {
    type Reach = Reach;
    type Facts = RunFacts;

    fn reach(&self) -> &Reach {
        &self.reach
    }

    fn network(&self) -> Option<&dyn NetworkControl> {
        Some(self.network.as_ref()?)
    }

    async fn failed_start(&self) -> Option<(String, Option<io::Error>)> {
        let status = self.runner.child.lock().as_mut()?.try_wait().ok()??;
        let log = std::fs::read_to_string(self.dir.join(LOG)).unwrap_or_default();
        let said = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let source = io::Error::other(format!("it ended with {status} and said: {said}"));
        Some(("run the guest under runsc".to_owned(), Some(source)))
    }

    async fn wait(&self) -> Option<i64> {
        let _ = self.runner.watched.readable().await;
        let status = self.runner.child.lock().as_mut()?.wait().ok()?;
        status.code().map(i64::from)
    }

    fn describe_end(&self, status: Option<i64>, usage: &Usage) -> String {
        match status {
            _ if self.network.as_ref().is_some_and(Network::has_exceeded) => UNACCEPTED.to_owned(),
            _ if usage.oom_kills > 0 => "it used more memory than its control group allows".to_owned(),
            Some(0) => "its guest has ended".to_owned(),
            Some(code) => format!("runsc ended with the status {code}"),
            None => "runsc was killed, or ended while no server was running".to_owned(),
        }
    }

    async fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.runner.pidfd, Signal::KILL);
        if let Some(freezer) = self.layout.freezer_of(self.id.as_str()) {
            // On v1, frozen processes do not die.
            let _ = freezer.set(false);
        }
    }

    async fn remove(&self) -> Result<(), EngineError> {
        if let Some(network) = &self.network {
            network.end().await;
        }
        remove(&self.layout, &self.id, &self.dir).await
    }

    fn measure(&self) -> Option<Usage> {
        let now = self.layout.usage(self.id.as_str());
        Some(Usage {
            memory_bytes: Some(now.memory?),
            gateway_memory_bytes: now.gateway_memory,
            peak_memory_bytes: now.peak_memory,
            // Those of the sentry are not those inside.
            pids: None,
            cpu: now.cpu_us.map(Duration::from_micros),
            oom_kills: now.oom_kills.unwrap_or(0),
            pids_denied: 0,
        })
    }

    async fn set_limits(&self, _: &LimitsChange, _: Usage) -> Result<(), EngineError> {
        Err(EngineError::Unsupported {
            what: "limits".into(),
            engine: GVISOR,
            reason: "those of a running sandbox do not change".into(),
        })
    }

    async fn set_frozen(&self, frozen: bool) -> Result<bool, EngineError> {
        set_frozen(&self.layout, &self.id, GVISOR, frozen).await
    }
}
