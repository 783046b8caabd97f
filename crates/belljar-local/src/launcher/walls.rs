//! Server-side handle of a sandbox that the launcher holds.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belljar_engine::{EngineError, GuestClient, NetworkLog, Usage, Walls};
use belljar_guest_config::guest_threads;
use belljar_linux::{CgroupLayout, CgroupUsage, CounterFiles, LaunchPhase};
use belljar_model::{LimitsChange, NetworkPolicy, SandboxId};
use futures::future::BoxFuture;
use tokio::net::UnixStream;

use crate::LocalKind;
use crate::launcher::engine::{Connect, ExitNotice, Shared};
use crate::launcher::link::{Link, LinkError};
use crate::launcher::messages::{Answer, Request, SandboxFacts, millis};
use crate::sockets::stream;
use crate::walls::group_usage;

/// Maximum time to wait for the notice of the end after the guest's connection broke.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Sandbox as seen by the server.
pub(crate) struct LauncherWalls {
    held: Arc<Held>,
    phases: Vec<(&'static str, Duration)>,
    /// Control groups, which this process can read itself; none with an older launcher.
    groups: Option<CgroupLayout>,
    /// Files of these groups that every execution reads twice, opened by the first one.
    counter_files: OnceLock<CounterFiles>,
    /// Whether it ends when this value is dropped.
    tied: bool,
    runtime: tokio::runtime::Handle,
}

/// A sandbox that the launcher holds, and the way to it.
pub(crate) struct Held {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: SandboxId,
    pub(crate) notice: Arc<ExitNotice>,
}

impl Held {
    /// Opens another connection to the guest.
    pub(crate) async fn connection(&self) -> Result<UnixStream, EngineError> {
        match self.request(Request::Connect { id: self.id.clone() }).await? {
            (Answer::Sandbox(_), Some(socket)) => {
                stream(socket).map_err(EngineError::launch("open the guest's connection"))
            }
            _ => Err(self.shared.request_error(LinkError::Protocol)),
        }
    }

    fn end_error(&self) -> Option<EngineError> {
        self.notice.ended.borrow().clone().map(|how| EngineError::Ended { how })
    }

    async fn link(&self) -> Result<Arc<Link>, EngineError> {
        let link = self.shared.link(Connect::Existing).await?;
        // The sandboxes of a launcher that is gone have ended, which connecting has recorded.
        match link.filter(|link| link.instance == self.notice.instance) {
            Some(link) => Ok(link),
            None => Err(self
                .explain_end()
                .await
                .unwrap_or_else(|| self.shared.request_error(LinkError::Disconnected))),
        }
    }

    async fn request(&self, request: Request) -> Result<(Answer, Option<std::os::fd::OwnedFd>), EngineError> {
        match self.link().await?.request(request).await {
            Ok(answer) => Ok(answer),
            Err(LinkError::Refused(EngineError::NoSandbox { id })) => {
                Err(self.explain_end().await.unwrap_or(EngineError::NoSandbox { id }))
            }
            Err(LinkError::Disconnected) => Err(self
                .explain_end()
                .await
                .unwrap_or_else(|| self.shared.request_error(LinkError::Disconnected))),
            Err(error) => Err(self.shared.request_error(error)),
        }
    }

    /// Returns why the sandbox has ended, if it has. Waits a moment for the reason.
    async fn explain_end(&self) -> Option<EngineError> {
        let _ = tokio::time::timeout(END_TIMEOUT, self.wait_ended()).await;
        self.end_error()
    }

    async fn wait_ended(&self) -> String {
        let mut ended = self.notice.ended.subscribe();
        // The sender is owned by `self` and still exists.
        let how = ended.wait_for(Option::is_some).await.map(|how| how.clone());
        how.ok().flatten().unwrap_or_default()
    }
}

impl LauncherWalls {
    pub(crate) fn new(held: Arc<Held>, facts: SandboxFacts, tied: bool) -> Self {
        let runtime = tokio::runtime::Handle::current();
        let phases = known_phases(&facts.phases);
        let groups = facts.groups.map(CgroupLayout::from);
        Self { held, phases, groups, counter_files: OnceLock::new(), tied, runtime }
    }

    async fn request(&self, request: Request) -> Result<(Answer, Option<std::os::fd::OwnedFd>), EngineError> {
        self.held.request(request).await
    }

    fn id(&self) -> SandboxId {
        self.held.id.clone()
    }

    async fn gateway(&self) -> Result<std::os::fd::OwnedFd, EngineError> {
        match self.request(Request::ConnectGateway { id: self.id() }).await? {
            (Answer::Gateway, Some(connection)) => Ok(connection),
            _ => Err(self.held.shared.request_error(LinkError::Protocol)),
        }
    }

    async fn command(&self, request: Request) -> Result<(), EngineError> {
        match self.request(request).await? {
            (Answer::Done, None) => Ok(()),
            _ => Err(self.held.shared.request_error(LinkError::Protocol)),
        }
    }

    /// Reads the counters of the control groups, whose files stay open once they are there.
    fn read_counters(&self, layout: &CgroupLayout) -> CgroupUsage {
        if let Some(files) = self.counter_files.get() {
            return files.read();
        }
        let files = layout.counter_files(self.held.id.as_str());
        let usage = files.read();
        if usage.oom_kills.is_some() && are_plenty_left(files.highest_descriptor()) {
            let _ = self.counter_files.set(files);
        }
        usage
    }

    /// Converts what the control groups show; asks the launcher if they cannot be read from here.
    async fn to_usage(&self, group: Option<CgroupUsage>) -> Usage {
        let threads = guest_threads(self.held.shared.kind() == LocalKind::Local, false);
        if let Some(Ok(usage)) = group.map(|group| group_usage(&group, threads)) {
            return usage;
        }
        match self.request(Request::Usage { id: self.id() }).await {
            Ok((Answer::Usage(usage), None)) => usage.into(),
            _ => Usage::default(),
        }
    }
}

/// Reports whether less than a quarter of the process's descriptors are in use. The others are for connections and for what each
/// sandbox needs.
fn are_plenty_left(highest: i32) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    u64::try_from(highest).is_ok_and(|highest| limit.is_none_or(|limit| highest < limit / 4))
}

/// Returns the phases that this version knows by name.
fn known_phases(phases: &[(String, u64)]) -> Vec<(&'static str, Duration)> {
    let names = || ["plan", "guest"].into_iter().chain(LaunchPhase::ALL.iter().map(|(_, name)| *name));
    let known = phases.iter().filter_map(|(name, nanoseconds)| {
        let name = names().find(|known| known == name)?;
        Some((name, Duration::from_nanos(*nanoseconds)))
    });
    known.collect()
}

impl Walls for LauncherWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        let read = |layout: &CgroupLayout| layout.usage(self.held.id.as_str());
        Box::pin(async move { self.to_usage(self.groups.as_ref().map(read)).await })
    }

    fn counters(&self) -> BoxFuture<'_, Usage> {
        let read = |layout: &CgroupLayout| self.read_counters(layout);
        Box::pin(async move { self.to_usage(self.groups.as_ref().map(read)).await })
    }

    fn offer_interpreter<'a>(
        &'a self,
        owner: &'a str,
        imports: &'a [String],
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let (owner, imports) = (owner.to_owned(), imports.to_vec());
            match self.request(Request::Interpreter { id: self.id(), owner, imports }).await {
                Ok((Answer::Interpreter { why_not: None }, None)) => Ok(()),
                Ok((Answer::Interpreter { why_not: Some(why) }, None)) => Err(why),
                Ok(_) => Err(self.held.shared.request_error(LinkError::Protocol).to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(self.command(Request::SetLimits { id: self.id(), change: *change }))
    }

    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async {
            let request = Request::SetNetwork { id: self.id(), policy: Box::new(policy.clone()) };
            match self.command(request).await {
                // A launcher of an earlier version never starts another gateway.
                Err(EngineError::Unsupported { .. }) => {
                    crate::gateway::set_policy(self.gateway().await?, policy).await
                }
                done => done,
            }
        })
    }

    fn network_log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        Box::pin(async move { crate::gateway::log(self.gateway().await?, after, follow).await })
    }

    fn set_deadline(&self, after: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.command(Request::SetDeadline { id: self.id(), after_ms: after.map(millis) }))
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.command(Request::Freeze { id: self.id() }))
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.command(Request::Thaw { id: self.id() }))
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        Box::pin(async { Ok(GuestClient::new(self.held.connection().await?)) })
    }

    fn phases(&self) -> Vec<(&'static str, Duration)> {
        self.phases.clone()
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        Box::pin(self.held.explain_end())
    }

    fn kill(&self) {
        self.send(Request::Kill { id: self.id() });
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async {
            let stopped = self.command(Request::Stop { id: self.id() }).await;
            match stopped {
                // The sandbox has ended, and the launcher or its supervisor has removed its resources.
                Err(EngineError::Ended { .. } | EngineError::NoSandbox { .. }) => Ok(()),
                Ok(()) | Err(EngineError::Leftovers { .. }) => {
                    self.held.shared.note_end(&self.held.id, "it was stopped".to_owned());
                    stopped
                }
                Err(error) => Err(error),
            }
        })
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        Box::pin(self.held.wait_ended())
    }
}

impl LauncherWalls {
    /// Sends a request without waiting for the answer.
    fn send(&self, request: Request) {
        if let Some(link) = self.held.shared.current_link() {
            if link.instance == self.held.notice.instance {
                link.send(request);
            }
            return;
        }
        let (shared, instance) = (Arc::clone(&self.held.shared), self.held.notice.instance.clone());
        self.runtime.spawn(async move {
            if let Ok(Some(link)) = shared.link(Connect::Existing).await
                && link.instance == instance
            {
                link.send(request);
            }
        });
    }
}

impl Drop for LauncherWalls {
    fn drop(&mut self) {
        if self.tied && self.held.notice.ended.borrow().is_none() {
            self.send(Request::Stop { id: self.id() });
        }
    }
}
