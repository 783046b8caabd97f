//! Engine of a server: its sandboxes are held by the launcher, and outlive the server.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use belljar_engine::{
    Capabilities, CreateRequest, DEADLINE_SLACK, Engine, EngineError, GuestClient, Life, Sandbox, Survivor,
};
use belljar_model::{EngineName, SandboxId, SandboxSpec};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::launcher::link::{EndSink, Link, LinkError};
use crate::launcher::messages::{Answer, Request, millis};
use crate::launcher::run_dir::RunDir;
use crate::launcher::start::Start;
use crate::launcher::walls::{Held, LauncherWalls};
use crate::sockets::stream;
use crate::{LocalConfig, LocalKind};

/// Maximum time to connect to a launcher: one that is about to exit may be in the way.
const REACH_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval between attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum time for ending all sandboxes.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of ends kept until they are queried.
const MAX_ENDS: usize = 4096;

/// Settings of a [`LauncherEngine`]: given by the operator, never by what runs inside.
#[derive(Debug, Clone)]
pub struct LauncherConfig {
    /// Directory of the launcher's socket. It belongs to this user alone (mode 0700), and is created if missing. One launcher
    /// serves all engines that name it.
    pub run_dir: PathBuf,
    /// Log file of the launcher.
    pub log: PathBuf,
    /// Program that becomes the launcher when given the argument `launcher`: this program by default.
    pub program: Option<PathBuf>,
    /// Time after which the launcher exits if it holds no sandbox and has no client.
    pub linger: Duration,
    /// Settings of its sandboxes.
    pub local: LocalConfig,
}

impl LauncherConfig {
    /// Returns the default settings: the log in the run directory, and ten seconds of linger.
    #[must_use]
    pub fn new(run_dir: PathBuf, local: LocalConfig) -> Self {
        let log = run_dir.join("launcher.log");
        Self { run_dir, log, program: None, linger: Duration::from_secs(10), local }
    }
}

/// Engine whose sandboxes outlive this process: a launcher holds them. It is started when first needed, and again when it is
/// gone. Needs a tokio runtime.
pub struct LauncherEngine {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for LauncherEngine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LauncherEngine").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl LauncherEngine {
    /// Creates an engine with these settings. Nothing is started yet.
    #[must_use]
    pub fn new(config: LauncherConfig) -> Self {
        Self {
            shared: Arc::new(Shared {
                config,
                link: tokio::sync::Mutex::default(),
                notices: Mutex::default(),
            }),
        }
    }

    async fn launch(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
        deadline: Option<Duration>,
        tied: bool,
    ) -> Result<Sandbox, EngineError> {
        if spec.engine != self.name() {
            return Err(EngineError::WrongEngine { asked: spec.engine, this: self.name() });
        }
        let link = self.shared.require_link(Connect::OrSpawn).await?;
        let notice = self.shared.exit_notice(id, &link.instance);
        let (id, spec) = (id.clone(), Box::new(spec.clone()));
        let request = Request::Launch { id: id.clone(), spec, deadline_ms: deadline.map(millis), tied };
        let answer = link.request(request).await;
        self.sandbox(id, notice, answer, tied)
    }

    fn sandbox(
        &self,
        id: SandboxId,
        notice: Arc<ExitNotice>,
        answer: Result<(Answer, Option<std::os::fd::OwnedFd>), LinkError>,
        tied: bool,
    ) -> Result<Sandbox, EngineError> {
        let (facts, socket) = match answer {
            Ok((Answer::Sandbox(facts), Some(socket))) => (facts, socket),
            Ok(_) => return Err(self.shared.request_error(LinkError::Protocol)),
            Err(error) => return Err(self.shared.request_error(error)),
        };
        let stream = stream(socket).map_err(EngineError::launch("open the guest's connection"))?;
        let (home, isolation) = (facts.home.to_path_buf(), facts.isolation.clone());
        let held = Arc::new(Held { shared: Arc::clone(&self.shared), id: id.clone(), notice });
        let walls = LauncherWalls::new(Arc::clone(&held), *facts, tied);
        let guest = GuestClient::with_dialer(stream, move || {
            let held = Arc::clone(&held);
            async move { held.connection().await.map_err(std::io::Error::other) }
        });
        Ok(Sandbox::new(id, isolation, home, guest, Box::new(walls)))
    }

    async fn list(&self) -> Result<Vec<Survivor>, EngineError> {
        let mut found: BTreeMap<SandboxId, Survivor> = BTreeMap::new();
        if let Some(link) = self.shared.link(Connect::Existing).await? {
            let answer =
                link.request(Request::List).await.map_err(|error| self.shared.request_error(error))?;
            let (Answer::List { sandboxes }, None) = answer else {
                return Err(self.shared.request_error(LinkError::Protocol));
            };
            found.extend(sandboxes.into_iter().map(|listed| {
                let deadline = listed.deadline_ms.map(Duration::from_millis);
                let survivor =
                    Survivor { id: listed.id.clone(), is_frozen: listed.is_frozen, deadline, ended: None };
                (listed.id, survivor)
            }));
        }
        for (id, how) in self.shared.take_missed() {
            let ended = Survivor { id: id.clone(), is_frozen: false, deadline: None, ended: Some(how) };
            found.entry(id).or_insert(ended);
        }
        Ok(found.into_values().collect())
    }

    async fn reconnect(&self, id: &SandboxId) -> Result<Option<Sandbox>, EngineError> {
        let Some(link) = self.shared.link(Connect::Existing).await? else { return Ok(None) };
        let notice = self.shared.exit_notice(id, &link.instance);
        let answer = link.request(Request::Connect { id: id.clone() }).await;
        match answer {
            Err(LinkError::Refused(EngineError::NoSandbox { .. } | EngineError::Ended { .. })) => Ok(None),
            answer => self.sandbox(id.clone(), notice, answer, false).map(Some),
        }
    }
}

impl Engine for LauncherEngine {
    fn open_disk(&self, disk: &Path) -> Result<File, EngineError> {
        crate::volumes::open_disk(disk)
    }

    /// Ends all sandboxes of the launcher, including those of other servers, and the launcher. Does nothing without a launcher.
    fn shut_down(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async {
            let link = match self.shared.link(Connect::Existing).await {
                Ok(Some(link)) => link,
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            };
            link.send(Request::ShutDown);
            let closed = tokio::time::timeout(SHUT_DOWN_TIMEOUT, link.closed()).await;
            closed
                .map_err(|_| self.shared.unreachable("end the launcher", std::io::ErrorKind::TimedOut.into()))
        })
    }

    fn name(&self) -> EngineName {
        self.shared.config.local.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        // Control groups belong to the launcher. Until it runs, and for an older one that does not report them, they are
        // assumed to be available: otherwise a sandbox fails with an error that says so.
        let has_groups = self.shared.current_link().and_then(|link| link.has_groups).unwrap_or(true);
        self.shared.config.local.kind.capabilities(has_groups, Some("launcher"))
    }

    /// Creates a sandbox. One for a single run still ends with this process, or when it is dropped. Waits for its guest in any
    /// case.
    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        let spec = request.spec;
        Box::pin(async move {
            match request.life {
                Life::Run { .. } => {
                    let id = SandboxId::from_entropy(crate::engine::entropy()?.0);
                    let deadline = spec.limits.timeout.duration() + DEADLINE_SLACK;
                    self.launch(&id, spec, Some(deadline), true).await
                }
                Life::Long { id, deadline } => self.launch(id, spec, deadline, false).await,
            }
        })
    }

    fn survivors(&self) -> BoxFuture<'_, Result<Vec<Survivor>, EngineError>> {
        Box::pin(self.list())
    }

    fn adopt<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Sandbox>, EngineError>> {
        Box::pin(self.reconnect(id))
    }
}

/// Whether to start a launcher when connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connect {
    /// Connects only if it is running.
    Existing,
    /// Starts it if it is not running.
    OrSpawn,
}

/// Notice of the end of one sandbox.
pub(crate) struct ExitNotice {
    /// Launcher that holds the sandbox.
    pub(crate) instance: String,
    /// Reason of the end, once it has ended.
    pub(crate) ended: watch::Sender<Option<String>>,
}

/// State shared by the engine and its sandboxes.
pub(crate) struct Shared {
    config: LauncherConfig,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    notices: Mutex<ExitNotices>,
}

#[derive(Default)]
struct ExitNotices {
    known: HashMap<SandboxId, Weak<ExitNotice>>,
    /// Number of known ones at which those without a handle are removed.
    sweep_at: usize,
    /// Ends of sandboxes without a handle here.
    missed: HashMap<SandboxId, String>,
}

impl Shared {
    pub(crate) fn kind(&self) -> LocalKind {
        self.config.local.kind
    }

    fn lock_notices(&self) -> parking_lot::MutexGuard<'_, ExitNotices> {
        self.notices.lock()
    }

    /// Returns the notice of a sandbox's end. It exists before the sandbox does, so that no end is missed.
    fn exit_notice(&self, id: &SandboxId, instance: &str) -> Arc<ExitNotice> {
        let mut notices = self.lock_notices();
        notices.missed.remove(id);
        // One that has ended belongs to an earlier sandbox with that id.
        let lives = |notice: &Arc<ExitNotice>| notice.instance == instance && notice.ended.borrow().is_none();
        notices.known.get(id).and_then(Weak::upgrade).filter(lives).unwrap_or_else(|| {
            if notices.known.len() >= notices.sweep_at {
                notices.known.retain(|_, notice| notice.strong_count() > 0);
                notices.sweep_at = 2 * notices.known.len() + 64;
            }
            let ended = watch::Sender::new(None);
            let notice = Arc::new(ExitNotice { instance: instance.to_owned(), ended });
            notices.known.insert(id.clone(), Arc::downgrade(&notice));
            notice
        })
    }

    pub(crate) fn note_end(&self, id: &SandboxId, how: String) {
        let mut notices = self.lock_notices();
        match notices.known.get(id).and_then(Weak::upgrade) {
            Some(notice) => {
                notice.ended.send_if_modified(|ended| {
                    let is_first = ended.is_none();
                    ended.get_or_insert(how);
                    is_first
                });
            }
            None if notices.missed.len() < MAX_ENDS => {
                notices.missed.insert(id.clone(), how);
            }
            None => {}
        }
    }

    fn take_missed(&self) -> HashMap<SandboxId, String> {
        std::mem::take(&mut self.lock_notices().missed)
    }

    /// Records the end of all sandboxes of launchers other than `instance`.
    fn end_others(&self, instance: Option<&str>) {
        let notices: Vec<Arc<ExitNotice>> =
            self.lock_notices().known.values().filter_map(Weak::upgrade).collect();
        for notice in notices.iter().filter(|notice| Some(notice.instance.as_str()) != instance) {
            notice.ended.send_if_modified(|ended| {
                let is_first = ended.is_none();
                ended.get_or_insert_with(|| "the launcher that held it is gone".to_owned());
                is_first
            });
        }
    }

    /// Returns the connection to the launcher; `None` if there is none and none was to be started.
    pub(crate) async fn link(self: &Arc<Self>, when: Connect) -> Result<Option<Arc<Link>>, EngineError> {
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.is_closed()) {
            return Ok(Some(Arc::clone(link)));
        }
        let link = self.reach(when).await?.map(Arc::new);
        self.end_others(link.as_ref().map(|link| link.instance.as_str()));
        slot.clone_from(&link);
        if let Some(link) = &link {
            self.watch(link);
        }
        Ok(link)
    }

    /// Returns the current connection, without waiting or connecting.
    pub(crate) fn current_link(&self) -> Option<Arc<Link>> {
        let slot = self.link.try_lock().ok()?;
        slot.as_ref().filter(|link| !link.is_closed()).map(Arc::clone)
    }

    pub(crate) async fn require_link(self: &Arc<Self>, when: Connect) -> Result<Arc<Link>, EngineError> {
        let missing = || self.unreachable("reach the launcher", std::io::ErrorKind::NotConnected.into());
        self.link(when).await?.ok_or_else(missing)
    }

    /// Reconnects as soon as the connection breaks: if the launcher is gone, so are its sandboxes, and tasks waiting for their
    /// end must be notified. If it is still there, ends that were missed are recorded.
    fn watch(self: &Arc<Self>, link: &Link) {
        let (shared, closed) = (Arc::downgrade(self), link.closed());
        tokio::spawn(async move {
            closed.await;
            let Some(shared) = shared.upgrade() else { return };
            if let Ok(Some(link)) = shared.link(Connect::Existing).await
                && let Ok((Answer::List { sandboxes }, None)) = link.request(Request::List).await
            {
                shared.end_missing(&link.instance, &sandboxes.into_iter().map(|listed| listed.id).collect());
            }
        });
    }

    /// Records the end of sandboxes that the launcher no longer lists.
    fn end_missing(&self, instance: &str, there: &std::collections::BTreeSet<SandboxId>) {
        let missing: Vec<SandboxId> = {
            let notices = self.lock_notices();
            let of_instance = notices.known.iter().filter(|(id, notice)| {
                !there.contains(id) && notice.upgrade().is_some_and(|notice| notice.instance == instance)
            });
            of_instance.map(|(id, _)| id.clone()).collect()
        };
        for id in missing {
            self.note_end(&id, "it ended while the connection to the launcher was lost".to_owned());
        }
    }

    async fn reach(self: &Arc<Self>, when: Connect) -> Result<Option<Link>, EngineError> {
        let step = "reach the launcher";
        let deadline = tokio::time::Instant::now() + REACH_TIMEOUT;
        loop {
            let run_dir = match (RunDir::open(&self.config.run_dir), when) {
                (Ok(run_dir), _) => run_dir,
                (Err(error), _) => return Err(self.unreachable("use the launcher's run directory", error)),
            };
            let error = match run_dir.connect().await {
                Ok(stream) => match Link::open(stream, &self.config.local, self.end_sink()).await {
                    Ok(link) => return Ok(Some(link)),
                    // A launcher that was about to exit.
                    Err(error) => std::io::Error::other(error),
                },
                Err(error) if is_not_listening(&error) && when == Connect::Existing => return Ok(None),
                Err(error) if is_not_listening(&error) => match self.start().start().await {
                    Ok(()) => error,
                    Err(error) => return Err(self.unreachable("start the launcher", error)),
                },
                Err(error) => return Err(self.unreachable(step, error)),
            };
            if tokio::time::Instant::now() > deadline {
                return Err(self.unreachable(step, error));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    fn end_sink(self: &Arc<Self>) -> EndSink {
        let shared = Arc::downgrade(self);
        Arc::new(move |id, how| {
            if let Some(shared) = shared.upgrade() {
                shared.note_end(id, how);
            }
        })
    }

    fn start(&self) -> Start {
        Start {
            program: self.config.program.clone(),
            run_dir: self.config.run_dir.clone(),
            log: self.config.log.clone(),
            linger: self.config.linger,
        }
    }

    fn unreachable(&self, step: &str, source: std::io::Error) -> EngineError {
        EngineError::Unreachable { step: step.to_owned(), log: self.config.log.clone(), source }
    }

    /// Converts the error of a request.
    pub(crate) fn request_error(&self, error: LinkError) -> EngineError {
        match error {
            LinkError::Refused(error) => error,
            error => self.unreachable("get an answer from the launcher", std::io::Error::other(error)),
        }
    }
}

/// Reports whether the error means that no launcher is listening.
fn is_not_listening(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}
