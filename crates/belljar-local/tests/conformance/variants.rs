//! Set-ups of this crate's engines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::conformance::{
    Capability, Case, Conforming, Context, HostDirs, LOCAL, NONE, Outcome, PROCESS, cases,
};
use belljar_engine::{Capabilities, CreateRequest, Engine, EngineError, First, Life, Sandbox};
use belljar_local::{LauncherConfig, LauncherEngine, LocalConfig, LocalEngine, LocalKind};
use belljar_model::{EngineName, LimitsGrade, SandboxSpec};
use futures::future::BoxFuture;
use libtest_mimic::Failed;

use crate::{account, leftovers};

/// One engine in one set-up.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) kind: LocalKind,
    pub(crate) is_root: bool,
    pub(crate) grade: LimitsGrade,
    /// Whether the launcher holds the sandboxes.
    pub(crate) is_launched: bool,
    /// Whether each sandbox has warm interpreters; only cases about contexts are included then.
    pub(crate) is_warm: bool,
    /// Whether the guest starts the only program by itself; only cases that run one are included then.
    pub(crate) is_direct: bool,
    pub(crate) engine: &'static Conforming,
    /// What the set-up lacks of the engine's capabilities.
    pub(crate) lacks: &'static [Capability],
}

/// What an ordinary user's sandboxes lack, whose limits the guest watches.
const WATCHED: &[Capability] =
    &[Capability::EnforcedMemory, Capability::EnforcedPids, Capability::EnforcedCpu];

/// What warm interpreters lack: each has its own Landlock domain, so other processes neither see nor signal it.
const WARM: &[Capability] = &[Capability::Siblings, Capability::VisibleContexts];

pub(crate) const VARIANTS: &[Variant] = &[
    Variant {
        name: "local_root",
        kind: LocalKind::Local,
        is_root: true,
        grade: LimitsGrade::Cgroup,
        is_launched: false,
        is_warm: false,
        is_direct: false,
        engine: &LOCAL,
        lacks: &[],
    },
    Variant {
        name: "local_user",
        kind: LocalKind::Local,
        is_root: false,
        grade: LimitsGrade::Watched,
        is_launched: false,
        is_warm: false,
        is_direct: false,
        engine: &LOCAL,
        lacks: WATCHED,
    },
    Variant {
        name: "process_root",
        kind: LocalKind::Process,
        is_root: true,
        grade: LimitsGrade::Cgroup,
        is_launched: false,
        is_warm: false,
        is_direct: false,
        engine: &PROCESS,
        lacks: &[],
    },
    Variant {
        name: "process_user",
        kind: LocalKind::Process,
        is_root: false,
        grade: LimitsGrade::Watched,
        is_launched: false,
        is_warm: false,
        is_direct: false,
        engine: &PROCESS,
        lacks: WATCHED,
    },
    Variant {
        name: "none_user",
        kind: LocalKind::None,
        is_root: false,
        grade: LimitsGrade::Watched,
        is_launched: false,
        is_warm: false,
        is_direct: false,
        engine: &NONE,
        lacks: &[],
    },
    Variant {
        name: "launcher_root",
        kind: LocalKind::Local,
        is_root: true,
        grade: LimitsGrade::Cgroup,
        is_launched: true,
        is_warm: false,
        is_direct: false,
        engine: &LOCAL,
        lacks: &[],
    },
    Variant {
        name: "launcher_user",
        kind: LocalKind::Local,
        is_root: false,
        grade: LimitsGrade::Watched,
        is_launched: true,
        is_warm: false,
        is_direct: false,
        engine: &LOCAL,
        lacks: WATCHED,
    },
    Variant {
        name: "launcher_warm",
        kind: LocalKind::Local,
        is_root: true,
        grade: LimitsGrade::Cgroup,
        is_launched: true,
        is_warm: true,
        is_direct: false,
        engine: &LOCAL,
        lacks: WARM,
    },
    Variant {
        name: "local_direct",
        kind: LocalKind::Local,
        is_root: true,
        grade: LimitsGrade::Cgroup,
        is_launched: false,
        is_warm: false,
        is_direct: true,
        engine: &LOCAL,
        lacks: &[],
    },
];

/// Begins of the names of cases that run one program in each sandbox.
const ONE_PROGRAM: &[&str] = &[
    "run_",
    "language_",
    "code_",
    "fork_bomb_",
    "pids_limit_",
    "threads_count_",
    "memory_hog_is_",
    "killed_child_",
    "refused_processes_",
    "memory_within_",
    "cpu_limit_",
    "limits_are_",
    "open_files_",
    "full_disk_is_",
    "full_tmp_",
    "full_inodes_",
    "exit_codes_",
    "signals_are_",
    "timeout_kills_",
    "timeout_lets_",
    "timeout_ends_",
    "leftovers_are_",
    "daemons_",
    "orphans_",
    "programs_get_",
    "programs_start_",
    "program_that_closes_",
    "guest_survives_",
    "guest_cannot_",
    "unusual_output_",
    "stop_",
    "drop_",
    "ended_",
    "fifty_",
    "stdout_and_stderr_",
    "order_within_",
    "flood_is_",
];

/// Set-ups in which the gate runs all cases; together they cover each kind of user, limits and holder.
const FULL: &[&str] = &["launcher_root", "local_user", "local_direct"];

/// Part of the names of cases that the gate leaves to `make conformance` (.config/nextest.toml).
const REST: &str = "rest::";

impl Variant {
    pub(crate) fn capabilities(&self) -> Vec<Capability> {
        self.engine.without(self.lacks)
    }

    /// Returns the name of a case's test, such as `local_user::run_times_out`.
    pub(crate) fn test_name(&self, case: &Case) -> String {
        let rest = if FULL.contains(&self.name) || case.is_smoke() { "" } else { REST };
        format!("{}::{rest}{}", self.name, case.name)
    }

    /// Returns the set-up and the case of such a name.
    pub(crate) fn parse(name: &str) -> Option<(&'static Self, Case)> {
        let (variant, case) = name.split_once("::")?;
        let case = case.strip_prefix(REST).unwrap_or(case);
        let variant = VARIANTS.iter().find(|known| known.name == variant)?;
        Some((variant, cases().into_iter().find(|known| known.name == case)?))
    }

    /// Reports whether the set-up includes a case.
    pub(crate) fn includes(&self, case: &Case) -> bool {
        let is_one_program = || ONE_PROGRAM.iter().any(|begin| case.name.starts_with(begin));
        (!self.is_warm || case.name.starts_with("context")) && (!self.is_direct || is_one_program())
    }

    /// Returns why this user cannot run the set-up here, if so.
    pub(crate) fn skip_reason(&self) -> Option<String> {
        let is_root = rustix::process::geteuid().is_root();
        match (self.is_root, is_root) {
            (true, false) => Some("it needs root".to_owned()),
            (false, true) if account::find_account().is_none() => {
                Some(format!("there is no account {} (make test creates it)", account::ACCOUNT))
            }
            _ => None,
        }
    }
}

/// Maximum time for the last supervisors of a case to exit.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a case in this process.
pub(crate) fn run(variant: &Variant, case: &Case) -> Result<Outcome, Failed> {
    let dir = tempfile::tempdir()?;
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    run_in(variant, case, dir.path(), programs)
}

/// Runs a case with its files below `dir`.
pub(crate) fn run_in(
    variant: &Variant,
    case: &Case,
    dir: &Path,
    programs: PathBuf,
) -> Result<Outcome, Failed> {
    let make = |name: &str| -> std::io::Result<PathBuf> {
        let path = dir.canonicalize()?.join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    };
    let dirs = HostDirs { readable: make("readable")?, writable: make("writable")?, closed: make("closed")? };
    let mut config = LocalConfig::new(variant.kind);
    config.guest = Some(account::guest_program()?);
    config.mount_policy.allow_read(dirs.readable.clone())?;
    config.mount_policy.allow_write(dirs.writable.clone())?;
    let spec = SandboxSpec { engine: variant.kind.name(), grade: variant.grade, ..SandboxSpec::default() };
    let launcher = variant.is_launched.then(|| {
        let run_dir = dir.join("launcher");
        Arc::new(LauncherEngine::new(LauncherConfig::new(run_dir, config.clone())))
    });
    let engine: Arc<dyn Engine> = match &launcher {
        Some(launcher) if variant.is_warm => Arc::new(Warm(Arc::clone(launcher))),
        Some(launcher) => Arc::clone(launcher) as Arc<dyn Engine>,
        None if variant.is_direct => Arc::new(Direct(LocalEngine::new(config))),
        None => Arc::new(LocalEngine::new(config)),
    };
    let context = Context::new(engine, spec, &variant.capabilities(), make("scratch")?, programs)
        .with_host_dirs(dirs)
        .with_leftovers(leftovers::of);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let outcome = case.run(&context).await;
        match &launcher {
            Some(launcher) => launcher.shut_down().await.map(|()| outcome),
            None => Ok(outcome),
        }
    })?;
    drop(runtime);
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while outcome == Outcome::Passed && leftovers::running_children() > 0 {
        if Instant::now() > deadline {
            return Ok(Outcome::Failed(
                "a supervisor is still there after all sandboxes have ended".to_owned(),
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(outcome)
}

/// Launcher whose sandboxes have two warm interpreters from the beginning.
#[derive(Debug)]
struct Warm(Arc<LauncherEngine>);

impl Warm {
    async fn warm_up(sandbox: Sandbox) -> Result<Sandbox, EngineError> {
        let begin = Instant::now();
        let mut sent = 0;
        while sent < 2 {
            match sandbox.offer_interpreter("tenant", &[]).await {
                Ok(()) => sent += 1,
                Err(why) if why.contains("is being started") && begin.elapsed() < WARM_TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(why) => {
                    return Err(EngineError::Ended { how: format!("there is no warm interpreter: {why}") });
                }
            }
        }
        Ok(sandbox)
    }
}

/// Engine whose sandboxes for one run are created as `belljar run` does.
#[derive(Debug)]
struct Direct(LocalEngine);

impl Engine for Direct {
    fn name(&self) -> EngineName {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        let life = match request.life {
            Life::Run { .. } => Life::Run { first: First::Start },
            long @ Life::Long { .. } => long,
        };
        self.0.create(CreateRequest { life, ..request })
    }
}

/// Maximum time for starting the parent of warm interpreters, on a busy machine.
const WARM_TIMEOUT: Duration = Duration::from_secs(60);

impl Engine for Warm {
    fn name(&self) -> EngineName {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        Box::pin(async move { Self::warm_up(self.0.create(request).await?).await })
    }
}
