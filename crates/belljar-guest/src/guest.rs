//! Lifecycle of the guest: builds the last walls, serves the host, reaps children, enforces the deadline and the limits
//! that no cgroup enforces, and exits when the host closes its socket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_guest_config::{Domain, GuestConfig, OnHostLoss, WatchedLimits, Welcome};
use belljar_linux::{LandlockError, LandlockRules, OomMark, seccomp};
use belljar_proto::v1;
use rustix::fs::{Mode, OFlags};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::bootstrap::Listening;
use crate::connections::{self, Arrivals, Connections, Services};
use crate::process::Table;
use crate::spawner::{ProcessDefaults, Spawner};
use crate::tree::{Proc, SIGKILL, SIGTERM};

/// Interval at which watched limits are checked.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// CAP_KILL (capabilities(7)), as a bit.
const CAP_KILL: u64 = 1 << 5;

/// Time for the last events to reach the host after the deadline.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// State shared by the services.
pub(crate) struct Guest {
    pub(crate) config: GuestConfig,
    pub(crate) table: Table,
    pub(crate) proc: Proc,
    pub(crate) spawner: Spawner,
    /// Restrictions for a process that enters the sandbox from outside.
    pub(crate) restrictions: Restrictions,
    /// Connections and pre-warmed interpreters from the host.
    pub(crate) arrivals: Arrivals,
    /// True if user code is in a Landlock domain.
    has_landlock: bool,
    pub(crate) started: Instant,
    deadline: watch::Sender<Option<Instant>>,
}

/// Restrictions that the spawner applies to its children, for processes that it has not started.
pub(crate) struct Restrictions {
    /// The ruleset of user code's Landlock domain.
    pub(crate) landlock: Option<OwnedFd>,
    pub(crate) rlimits: Vec<(u32, u64)>,
    pub(crate) umask: u32,
}

/// Reason why the guest could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    /// The configuration is not in the format of this version of the guest.
    #[error("the guest's configuration cannot be read")]
    Config(#[source] serde_json::Error),
    /// The guest was not started by an engine.
    #[error("the guest's connection is missing; the guest is started by an engine, not by hand")]
    Connection(#[source] io::Error),
    /// The guest's own socket could not be made.
    #[error("cannot listen at {}", path.display())]
    Listen {
        /// Where it was to be.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// User code could put another socket in the place of the guest's own.
    #[error("user code could write in {}, which has the guest's socket {}", tree.display(), socket.display())]
    SocketInReach {
        /// The tree.
        tree: PathBuf,
        /// The socket.
        socket: PathBuf,
    },
    /// A program's standard streams could not be connected to a guest.
    #[error("cannot connect to the guest")]
    Bridge(#[source] io::Error),
    /// A kernel feature failed.
    #[error("cannot {what}")]
    Setup {
        /// The operation.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The Landlock domain of user code could not be created.
    #[error(transparent)]
    Landlock(#[from] belljar_linux::LandlockError),
}

impl GuestError {
    /// Returns the error with its causes.
    pub(crate) fn chain(&self) -> String {
        use std::error::Error as _;
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        text
    }
}

pub(crate) fn setup<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> GuestError {
    move |source| GuestError::Setup { what, source: source.into() }
}

/// Connections of the host.
pub(crate) enum Host {
    /// The inherited socket: the connection itself, or what delivers connections.
    Inherited(OwnedFd),
    /// Those to the guest's own socket.
    Listening(Listening),
}

/// Runs a guest that inherits nothing, and listens at `path`.
///
/// # Errors
/// See [`GuestError`].
pub(crate) fn run_listening(path: &Path) -> Result<(), GuestError> {
    let runtime = runtime()?;
    let opened = runtime.block_on(Listening::open(path));
    let (mut listening, config) =
        opened.map_err(|source| GuestError::Listen { path: path.to_owned(), source })?;
    match check_socket(path, &config).and_then(|()| Guest::start(config)) {
        Ok(guest) => runtime.block_on(async {
            listening.answer(&Welcome::accept()).await;
            Arc::new(guest).serve(Host::Listening(listening)).await
        }),
        Err(error) => {
            runtime.block_on(async {
                listening.answer(&Welcome::refuse(error.chain())).await;
                listening.close().await;
            });
            Err(error)
        }
    }
}

/// Checks that the socket is in no tree in which user code may write: in a container, an image's links decide where those trees are.
fn check_socket(socket: &Path, config: &GuestConfig) -> Result<(), GuestError> {
    let Some(domain) = &config.landlock else { return Ok(()) };
    let place = socket.canonicalize().map_err(setup("find the guest's socket"))?;
    // Trees that are missing get no rule.
    let mut trees = domain.write.iter();
    match trees.find(|tree| tree.canonicalize().is_ok_and(|tree| place.starts_with(tree))) {
        Some(tree) => Err(GuestError::SocketInReach { tree: tree.clone(), socket: socket.to_owned() }),
        None => Ok(()),
    }
}

/// Makes the guest's runtime.
///
/// # Errors
/// Fails if the kernel refuses what it needs.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, GuestError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(setup("start the guest's runtime"))
}

impl Guest {
    fn proc_dir(config: &GuestConfig) -> Result<OwnedFd, GuestError> {
        if config.own_proc {
            return belljar_linux::inherited_fd(belljar_linux::GUEST_PROC_FD)
                .map_err(setup("open the guest's /proc"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc", flags, Mode::empty()).map_err(setup("open /proc"))
    }

    /// Builds the walls.
    ///
    /// # Errors
    /// See [`GuestError`]: a guest that cannot build its walls does not serve.
    pub(crate) fn start(config: GuestConfig) -> Result<Self, GuestError> {
        // Before the guest becomes undumpable, which makes its OOM score inaccessible too.
        let proc_dir = Self::proc_dir(&config)?;
        let oom_mark = config.first_process.then(|| OomMark::open(proc_dir.as_fd()).ok()).flatten();
        if !config.is_without("dumpable") {
            belljar_linux::set_dumpable(false).map_err(setup("make the guest undumpable"))?;
        }
        if config.own_filter && !config.is_without("seccomp") {
            // This thread is still the only one, so that all later ones inherit the filter.
            rustix::thread::set_no_new_privs(true).map_err(setup("give up new privileges"))?;
            let profile = match config.watched {
                // The watcher would not see memory that is not resident.
                Some(WatchedLimits { own_kernel: false, .. }) => seccomp::Profile::Watched,
                _ => seccomp::Profile::Default,
            };
            belljar_linux::install_seccomp(seccomp::program(profile))
                .map_err(setup("install the filter of system calls"))?;
        }
        Self::new(config, proc_dir, oom_mark)
    }

    fn new(config: GuestConfig, proc_dir: OwnedFd, oom_mark: Option<OomMark>) -> Result<Self, GuestError> {
        if !config.first_process {
            belljar_linux::become_subreaper().map_err(setup("become the subreaper"))?;
        }
        let domain = config.landlock.as_ref().filter(|_| !config.is_without("landlock"));
        let ruleset = domain.map(|domain| landlock_rules(domain).build()).transpose()?;
        if let (Some(domain), true) = (domain, config.confine_guest) {
            // The guest opens terminals for user code, which gets their descriptors and must not open any itself.
            let mut own = landlock_rules(domain);
            own.write.extend(["/dev/ptmx", "/dev/pts"].map(Into::into));
            belljar_linux::restrict_landlock(own.build()?.as_fd())
                .map_err(|errno| LandlockError::Enter(errno.into()))?;
        }
        let deadline = (config.deadline_ms > 0 && !config.is_without("deadline"))
            .then(|| Instant::now() + Duration::from_millis(config.deadline_ms));
        let proc = Proc::new(proc_dir, config.first_process, config.own_filter);
        let mut rlimits: Vec<(u32, u64)> = Vec::new();
        rlimits.extend(config.open_files.map(|limit| (belljar_linux::rlimit::RLIMIT_NOFILE, limit)));
        rlimits
            .extend(config.user_processes.map(|limit| (belljar_linux::rlimit::RLIMIT_NPROC, limit.into())));
        if let (Some(limits), false) = (config.watched, config.first_process) {
            // Without a namespace the kernel counts all of the user's processes, so the limit is added to the current
            // count. The watcher alone is too slow for a fork bomb.
            let limit = proc.threads_of_user() + u64::from(limits.pids);
            rlimits.push((belljar_linux::rlimit::RLIMIT_NPROC, limit));
        }
        let has_landlock = ruleset.is_some();
        let restrictions = Restrictions {
            landlock: ruleset
                .as_ref()
                .map(OwnedFd::try_clone)
                .transpose()
                .map_err(setup("duplicate the ruleset of user code"))?,
            rlimits: rlimits.clone(),
            umask: config.umask,
        };
        let defaults = ProcessDefaults {
            landlock: ruleset,
            oom_mark,
            rlimits,
            umask: config.umask,
            die_with_guest: !config.first_process,
            close_descriptors: !config.is_without("descriptors"),
            allocates: config.is_without("fork-safe-spawn"),
        };
        let spawner = match config.first_process && !config.direct {
            true => Spawner::thread(defaults)?,
            false => Spawner::Caller(defaults),
        };
        if let Some(user) = config.machine {
            // The thread of the spawner stays root. What the host asks for is done as the user, but all processes can be ended.
            belljar_linux::serve_as(user.uid, user.gid, user.capabilities, CAP_KILL)
                .map_err(setup("serve as the sandbox's user"))?;
        }
        Ok(Self {
            proc,
            spawner,
            restrictions,
            arrivals: Arrivals::default(),
            has_landlock,
            table: Table::default(),
            started: Instant::now(),
            deadline: watch::Sender::new(deadline),
            config,
        })
    }

    /// Serves the host until its connection closes, or the deadline passes.
    ///
    /// # Errors
    /// Fails if the kernel refuses what serving takes.
    pub(crate) async fn serve(self: Arc<Self>, host: Host) -> Result<(), GuestError> {
        let mut children = signal(SignalKind::child()).map_err(setup("listen for SIGCHLD"))?;
        let reaper = Arc::clone(&self);
        tokio::spawn(async move {
            loop {
                while let Some(reaped) = belljar_linux::reap_one() {
                    reaper.table.record_reaped(&reaped);
                }
                if children.recv().await.is_none() {
                    return;
                }
            }
        });
        if let Some(limits) = self.config.watched {
            tokio::spawn(Arc::clone(&self).watch_limits(limits));
        }
        let services = Services::new(&self);
        let many = self.config.many_connections;
        match host {
            Host::Listening(listening) => self.serve_until_end(listening.serve(services, many)).await,
            Host::Inherited(socket) if many => {
                let connections =
                    Connections::new(socket, services, Arc::clone(&self)).map_err(GuestError::Connection)?;
                self.serve_until_end(connections.serve()).await;
            }
            Host::Inherited(socket) => {
                let socket = connections::into_stream(socket).map_err(GuestError::Connection)?;
                self.serve_until_end(belljar_proto::serve(socket, services.router())).await;
            }
        }
        Ok(())
    }

    /// Serves until the host disconnects or the deadline passes, then kills everything.
    async fn serve_until_end<T>(self: &Arc<Self>, serving: impl Future<Output = T>) {
        let deadline = Arc::clone(self).enforce_deadline();
        tokio::pin!(serving, deadline);
        tokio::select! {
            // A failed connection and a closed one mean the same: the host is gone.
            _ = &mut serving => if self.config.when_alone == OnHostLoss::Stay {
                deadline.await;
            },
            () = &mut deadline => {
                let _ = tokio::time::timeout(FLUSH_TIMEOUT, serving).await;
            }
        }
        self.proc.signal_all(SIGKILL);
    }

    /// Returns the deadline, if there is one.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        *self.deadline.borrow()
    }

    /// Sets the deadline; `None` removes it.
    pub(crate) fn set_deadline(&self, after: Option<Duration>) {
        self.deadline.send_replace(after.map(|after| Instant::now() + after));
    }

    /// Returns when the deadline has passed and all processes were terminated.
    async fn enforce_deadline(self: Arc<Self>) {
        let mut deadline = self.deadline.subscribe();
        loop {
            let until = *deadline.borrow_and_update();
            let passed = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => break,
                moved = deadline.changed() => if moved.is_err() { return },
            }
        }
        for process in self.table.running() {
            process.set_cause(v1::Cause::CAUSE_STOPPED);
        }
        self.proc.signal_all(SIGTERM);
        let all_ended = async {
            for process in self.table.running() {
                let mut changed = process.watch();
                while process.is_running() && changed.changed().await.is_ok() {}
            }
        };
        let _ = tokio::time::timeout(self.config.grace(), all_ended).await;
        self.proc.signal_all(SIGKILL);
    }

    /// Enforces limits without cgroups, by polling: kills everything when usage exceeds a limit.
    async fn watch_limits(self: Arc<Self>, limits: WatchedLimits) {
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let running = self.table.running();
            if running.is_empty() {
                continue;
            }
            let cause = match self.proc.sandbox_processes() {
                Ok(members) => {
                    let threads: u32 = members.iter().map(|stat| stat.threads).sum();
                    if self.used_memory(limits, &members) > limits.memory_bytes {
                        v1::Cause::CAUSE_MEMORY
                    } else if threads > limits.pids {
                        v1::Cause::CAUSE_PIDS
                    } else {
                        continue;
                    }
                }
                // Processes that cannot be watched must not continue.
                Err(_) => v1::Cause::CAUSE_STOPPED,
            };
            for process in running {
                process.set_cause(cause);
            }
            self.proc.signal_all(SIGKILL);
        }
    }

    /// Returns the memory that counts against a watched limit: resident pages, and files in memory. Where it cannot be told, all.
    fn used_memory(&self, limits: WatchedLimits, members: &[crate::tree::Stat]) -> u64 {
        if limits.own_kernel {
            return self.proc.anonymous_bytes().unwrap_or(u64::MAX);
        }
        let in_memory: u64 = self.memory_disks().map(|disk| disk.bytes_used).sum();
        members.iter().map(|stat| stat.resident_pages * page_bytes()).sum::<u64>() + in_memory
    }

    fn memory_disks(&self) -> impl Iterator<Item = v1::DiskUse> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        [self.config.home.as_path(), "/tmp".as_ref(), "/dev/shm".as_ref()]
            .into_iter()
            .filter(|_| self.config.first_process)
            .filter_map(|path| {
                let stat = rustix::fs::statfs(path).ok()?;
                (u64::try_from(stat.f_type).ok()? == TMPFS_MAGIC).then(|| disk_use(path))?
            })
    }

    /// Returns the walls that the guest itself built.
    pub(crate) fn layers(&self) -> Vec<v1::Layer> {
        let mut layers = Vec::new();
        if self.has_landlock {
            let detail = format!("ABI {}", belljar_linux::landlock_abi());
            layers.push(v1::Layer { name: "landlock".to_owned(), detail, ..Default::default() });
        }
        layers
    }

    pub(crate) fn metrics(&self) -> v1::MetricsResponse {
        let members = self.proc.sandbox_processes().unwrap_or_default();
        let (reaped_user, reaped_system) = belljar_linux::children_cpu_us();
        let ticks = |ticks: u64| ticks * TICK_US;
        v1::MetricsResponse {
            processes: u32::try_from(members.len()).unwrap_or(u32::MAX),
            threads: members.iter().map(|stat| stat.threads).sum(),
            resident_bytes: members.iter().map(|stat| stat.resident_pages * page_bytes()).sum(),
            user_us: reaped_user + ticks(members.iter().map(|stat| stat.user_ticks).sum()),
            system_us: reaped_system + ticks(members.iter().map(|stat| stat.system_ticks).sum()),
            cpus: cpus(),
            active: u32::try_from(members.iter().filter(|stat| stat.active).count()).unwrap_or(u32::MAX),
            memory_limit_bytes: self.config.watched.map_or(0, |limits| limits.memory_bytes),
            memory_used_bytes: self.config.watched.map_or(0, |limits| self.used_memory(limits, &members)),
            disks: [self.config.home.as_path(), "/tmp".as_ref()].into_iter().filter_map(disk_use).collect(),
            ..Default::default()
        }
    }
}

/// Converts the configuration of a domain to its rules.
fn landlock_rules(domain: &Domain) -> LandlockRules {
    let Domain { read, write, tcp, least_abi } = domain.clone();
    LandlockRules { read, write, tcp, least_abi }
}

/// Length of a clock tick in `/proc/PID/stat`: the kernel shows user space 100 a second (time(7)).
const TICK_US: u64 = 10_000;

fn cpus() -> u32 {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or(0, |set| set.count())
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

fn disk_use(path: &std::path::Path) -> Option<v1::DiskUse> {
    use std::os::unix::ffi::OsStrExt;
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(v1::DiskUse {
        path: bytes::Bytes::copy_from_slice(path.as_os_str().as_bytes()),
        bytes_used: (stat.f_blocks.saturating_sub(stat.f_bfree)).saturating_mul(stat.f_frsize),
        bytes_total: stat.f_blocks.saturating_mul(stat.f_frsize),
        inodes_used: stat.f_files.saturating_sub(stat.f_ffree),
        inodes_total: stat.f_files,
        ..Default::default()
    })
}
