//! The engine of a server: its sandboxes are held by the launcher, and outlive it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use belljar_engine::{
    Capabilities, CreateRequest, Engine, EngineError, GuestClient, Life, Sandbox, Survivor,
};
use belljar_model::{EngineName, SandboxId, SandboxSpec};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::launcher::link::{EndSink, Link, LinkError};
use crate::launcher::messages::{Answer, Request, millis};
use crate::launcher::place::Place;
use crate::launcher::start::Start;
use crate::launcher::walls::LauncherWalls;
use crate::sockets::stream;
use crate::{LocalConfig, LocalKind};

/// How long it is tried to reach a launcher: one that is about to exit may be in the way.
const REACH_TIMEOUT: Duration = Duration::from_secs(15);

/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// How long the end of all sandboxes may take.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most ends that are kept for somebody who asks.
const MOST_ENDS: usize = 4096;

/// How a [`LauncherEngine`] is set up: by the operator, never by what runs inside.
#[derive(Debug, Clone)]
pub struct LauncherConfig {
    /// Where the launcher listens. The directory belongs to this user alone (mode 0700), and is made if it is missing. One
    /// launcher serves all who name it.
    pub run_dir: PathBuf,
    /// Where the launcher logs.
    pub log: PathBuf,
    /// The program that is the launcher when it is given the argument `launcher`: this very program by default.
    pub program: Option<PathBuf>,
    /// How long the launcher stays when it holds nothing and nobody is connected.
    pub linger: Duration,
    /// How sandboxes are made.
    pub local: LocalConfig,
}

impl LauncherConfig {
    /// The default set-up: the log in the run directory, ten seconds of patience.
    #[must_use]
    pub fn new(run_dir: PathBuf, local: LocalConfig) -> Self {
        let log = run_dir.join("launcher.log");
        Self { run_dir, log, program: None, linger: Duration::from_secs(10), local }
    }
}

/// Runs sandboxes that outlive this process: a launcher holds them. It is started when it is first needed, and again
/// when it is gone. Needs a tokio runtime.
pub struct LauncherEngine {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for LauncherEngine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LauncherEngine").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl LauncherEngine {
    /// An engine with this set-up. Nothing is started yet.
    #[must_use]
    pub fn new(config: LauncherConfig) -> Self {
        Self {
            shared: Arc::new(Shared { config, link: tokio::sync::Mutex::default(), fates: Mutex::default() }),
        }
    }

    /// Ends all sandboxes of the launcher, those of other servers too, and the launcher. Without a launcher there is nothing
    /// to end.
    ///
    /// # Errors
    /// It cannot be reached, or does not end.
    pub async fn shut_down(&self) -> Result<(), EngineError> {
        let link = match self.shared.link(If::There).await {
            Ok(Some(link)) => link,
            Ok(None) => return Ok(()),
            Err(error) => return Err(error),
        };
        link.order(Request::ShutDown);
        let closed = tokio::time::timeout(SHUT_DOWN_TIMEOUT, link.closed()).await;
        closed.map_err(|_| self.shared.failed("end the launcher", std::io::ErrorKind::TimedOut.into()))
    }

    /// Ends the launcher of these engines, each of another kind, at once if it holds no sandbox. One that is left to itself does
    /// so after [`LauncherConfig::linger`]. For the only user of a launcher, as a server is of that of its home: a sandbox that
    /// another one starts between the look and the end would go with it.
    ///
    /// # Errors
    /// It cannot be reached, or does not end.
    pub async fn shut_down_if_idle(engines: &[Arc<Self>]) -> Result<(), EngineError> {
        for engine in engines {
            if engine.survivors().await?.iter().any(|survivor| survivor.ended.is_none()) {
                return Ok(());
            }
        }
        match engines {
            [engine, ..] => engine.shut_down().await,
            [] => Ok(()),
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
        let link = self.shared.must_link(If::Missing).await?;
        let fate = self.shared.fate(id, &link.instance);
        let (id, spec) = (id.clone(), Box::new(spec.clone()));
        let request = Request::Launch { id: id.clone(), spec, deadline_ms: deadline.map(millis), tied };
        let answered = link.ask(request).await;
        self.sandbox(id, fate, answered, tied)
    }

    fn sandbox(
        &self,
        id: SandboxId,
        fate: Arc<Fate>,
        answered: Result<(Answer, Option<std::os::fd::OwnedFd>), LinkError>,
        tied: bool,
    ) -> Result<Sandbox, EngineError> {
        let (facts, socket) = match answered {
            Ok((Answer::Sandbox(facts), Some(socket))) => (facts, socket),
            Ok(_) => return Err(self.shared.lost(LinkError::Protocol)),
            Err(error) => return Err(self.shared.lost(error)),
        };
        let stream = stream(socket).map_err(crate::engine::launch("open the guest's connection"))?;
        let (home, isolation) = (facts.home.to_path_buf(), facts.isolation.clone());
        let walls = LauncherWalls::new(Arc::clone(&self.shared), id.clone(), fate, *facts, tied);
        Ok(Sandbox::new(id, isolation, home, GuestClient::new(stream), Box::new(walls)))
    }

    async fn list(&self) -> Result<Vec<Survivor>, EngineError> {
        let mut found: BTreeMap<SandboxId, Survivor> = BTreeMap::new();
        if let Some(link) = self.shared.link(If::There).await? {
            let answer = link.ask(Request::List).await.map_err(|error| self.shared.lost(error))?;
            let (Answer::List { sandboxes }, None) = answer else {
                return Err(self.shared.lost(LinkError::Protocol));
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

    async fn take_over(&self, id: &SandboxId) -> Result<Option<Sandbox>, EngineError> {
        let Some(link) = self.shared.link(If::There).await? else { return Ok(None) };
        let fate = self.shared.fate(id, &link.instance);
        let answered = link.ask(Request::Connect { id: id.clone() }).await;
        match answered {
            Err(LinkError::Refused(EngineError::NoSandbox { .. } | EngineError::Ended { .. })) => Ok(None),
            answered => self.sandbox(id.clone(), fate, answered, false).map(Some),
        }
    }
}

impl Engine for LauncherEngine {
    fn name(&self) -> EngineName {
        self.shared.config.local.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        // Control groups are the launcher's. Until it runs, and of one from before it told, they are taken to be there: then a
        // sandbox that lacks them says so itself.
        let has_groups = self.shared.link_now().and_then(|link| link.has_groups).unwrap_or(true);
        self.shared.config.local.kind.capabilities(has_groups, Some("launcher"))
    }

    /// A sandbox for one run ends with this process all the same, or when it is dropped. Its guest is always waited for.
    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        let spec = request.spec;
        Box::pin(async move {
            match request.life {
                Life::Run { .. } => {
                    let id = SandboxId::from_entropy(crate::engine::entropy()?.0);
                    let deadline = spec.limits.timeout.duration() + crate::planner::DEADLINE_SLACK;
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
        Box::pin(self.take_over(id))
    }
}

/// When a launcher is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum If {
    /// Only if it runs.
    There,
    /// It is started if it is missing.
    Missing,
}

/// What becomes of one sandbox.
pub(crate) struct Fate {
    /// The launcher that holds it.
    pub(crate) instance: String,
    /// How it has ended.
    pub(crate) ended: watch::Sender<Option<String>>,
}

/// What the engine and its sandboxes share.
pub(crate) struct Shared {
    config: LauncherConfig,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    fates: Mutex<Fates>,
}

#[derive(Default)]
struct Fates {
    known: HashMap<SandboxId, Weak<Fate>>,
    /// Ends of sandboxes that nobody here has.
    missed: HashMap<SandboxId, String>,
}

impl Shared {
    pub(crate) fn kind(&self) -> LocalKind {
        self.config.local.kind
    }

    fn fates(&self) -> parking_lot::MutexGuard<'_, Fates> {
        self.fates.lock()
    }

    /// Where the end of a sandbox will be told. It is there before the sandbox is, so that no end is missed.
    fn fate(&self, id: &SandboxId, instance: &str) -> Arc<Fate> {
        let mut fates = self.fates();
        fates.missed.remove(id);
        // One that has ended was another sandbox of that id.
        let lives = |fate: &Arc<Fate>| fate.instance == instance && fate.ended.borrow().is_none();
        fates.known.get(id).and_then(Weak::upgrade).filter(lives).unwrap_or_else(|| {
            fates.known.retain(|_, fate| fate.strong_count() > 0);
            let ended = watch::Sender::new(None);
            let fate = Arc::new(Fate { instance: instance.to_owned(), ended });
            fates.known.insert(id.clone(), Arc::downgrade(&fate));
            fate
        })
    }

    pub(crate) fn note_end(&self, id: &SandboxId, how: String) {
        let mut fates = self.fates();
        match fates.known.get(id).and_then(Weak::upgrade) {
            Some(fate) => {
                fate.ended.send_if_modified(|ended| {
                    let is_first = ended.is_none();
                    ended.get_or_insert(how);
                    is_first
                });
            }
            None if fates.missed.len() < MOST_ENDS => {
                fates.missed.insert(id.clone(), how);
            }
            None => {}
        }
    }

    fn take_missed(&self) -> HashMap<SandboxId, String> {
        std::mem::take(&mut self.fates().missed)
    }

    /// All sandboxes of launchers other than `instance` are gone.
    fn end_others(&self, instance: Option<&str>) {
        let fates: Vec<Arc<Fate>> = self.fates().known.values().filter_map(Weak::upgrade).collect();
        for fate in fates.iter().filter(|fate| Some(fate.instance.as_str()) != instance) {
            fate.ended.send_if_modified(|ended| {
                let is_first = ended.is_none();
                ended.get_or_insert_with(|| "the launcher that held it is gone".to_owned());
                is_first
            });
        }
    }

    /// The connection to the launcher; `None` if there is none and none was to be started.
    pub(crate) async fn link(self: &Arc<Self>, when: If) -> Result<Option<Arc<Link>>, EngineError> {
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

    /// The connection that is there now, without waiting or looking for one.
    pub(crate) fn link_now(&self) -> Option<Arc<Link>> {
        let slot = self.link.try_lock().ok()?;
        slot.as_ref().filter(|link| !link.is_closed()).map(Arc::clone)
    }

    pub(crate) async fn must_link(self: &Arc<Self>, when: If) -> Result<Arc<Link>, EngineError> {
        let missing = || self.failed("reach the launcher", std::io::ErrorKind::NotConnected.into());
        self.link(when).await?.ok_or_else(missing)
    }

    /// When the connection breaks, the launcher is looked for at once: if it is gone, so are its sandboxes, and whoever
    /// waits for their end must hear of that. If it is there, it tells of the ends that were missed.
    fn watch(self: &Arc<Self>, link: &Link) {
        let (shared, closed) = (Arc::downgrade(self), link.closed());
        tokio::spawn(async move {
            closed.await;
            let Some(shared) = shared.upgrade() else { return };
            if let Ok(Some(link)) = shared.link(If::There).await
                && let Ok((Answer::List { sandboxes }, None)) = link.ask(Request::List).await
            {
                shared.end_missing(&link.instance, &sandboxes.into_iter().map(|listed| listed.id).collect());
            }
        });
    }

    /// What the launcher does not list any more has ended while nobody listened.
    fn end_missing(&self, instance: &str, there: &std::collections::BTreeSet<SandboxId>) {
        let missing: Vec<SandboxId> = {
            let fates = self.fates();
            let of_instance = fates.known.iter().filter(|(id, fate)| {
                !there.contains(id) && fate.upgrade().is_some_and(|fate| fate.instance == instance)
            });
            of_instance.map(|(id, _)| id.clone()).collect()
        };
        for id in missing {
            self.note_end(&id, "it ended while the launcher could not be heard".to_owned());
        }
    }

    async fn reach(self: &Arc<Self>, when: If) -> Result<Option<Link>, EngineError> {
        let step = "reach the launcher";
        let until = tokio::time::Instant::now() + REACH_TIMEOUT;
        loop {
            let place = match (Place::open(&self.config.run_dir), when) {
                (Ok(place), _) => place,
                (Err(error), _) => return Err(self.failed("use the launcher's run directory", error)),
            };
            let error = match place.connect().await {
                Ok(stream) => match Link::open(stream, &self.config.local, self.end_sink()).await {
                    Ok(link) => return Ok(Some(link)),
                    // One that was about to exit.
                    Err(error) => std::io::Error::other(error),
                },
                Err(error) if is_absent(&error) && when == If::There => return Ok(None),
                Err(error) if is_absent(&error) => match self.start().start().await {
                    Ok(()) => error,
                    Err(error) => return Err(self.failed("start the launcher", error)),
                },
                Err(error) => return Err(self.failed(step, error)),
            };
            if tokio::time::Instant::now() > until {
                return Err(self.failed(step, error));
            }
            tokio::time::sleep(TRY_AGAIN).await;
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

    fn failed(&self, step: &str, source: std::io::Error) -> EngineError {
        EngineError::Unreachable { step: step.to_owned(), log: self.config.log.clone(), source }
    }

    /// The error of a request.
    pub(crate) fn lost(&self, error: LinkError) -> EngineError {
        match error {
            LinkError::Refused(error) => error,
            error => self.failed("get an answer from the launcher", std::io::Error::other(error)),
        }
    }
}

/// Whether nobody listens there.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}
