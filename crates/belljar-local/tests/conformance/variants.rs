//! The ways in which this crate's engines are set up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::conformance::{Capability, Case, Context, HostDirs, Outcome};
use belljar_local::{LocalConfig, LocalEngine};
use belljar_model::{EngineKind, LimitsGrade, SandboxSpec};
use libtest_mimic::Failed;

use crate::{as_user, leftovers};

/// One engine in one set-up.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) kind: EngineKind,
    pub(crate) is_root: bool,
    pub(crate) grade: LimitsGrade,
    pub(crate) capabilities: &'static [Capability],
}

use Capability::{
    Confined, DiskQuota, EnforcedCpu, EnforcedMemory, EnforcedPids, HiddenHost, Loopback, MemoryLimit,
    Mounts, OpenFilesLimit, OwnNetwork, OwnPids, OwnTree, PidsLimit, ProtectedGuest, Siblings,
};

pub(crate) const VARIANTS: &[Variant] = &[
    Variant {
        name: "local_root",
        kind: EngineKind::Local,
        is_root: true,
        grade: LimitsGrade::Cgroup,
        capabilities: &[
            OwnTree,
            OwnPids,
            OwnNetwork,
            Loopback,
            HiddenHost,
            ProtectedGuest,
            Confined,
            MemoryLimit,
            EnforcedMemory,
            PidsLimit,
            EnforcedPids,
            EnforcedCpu,
            OpenFilesLimit,
            DiskQuota,
            Mounts,
        ],
    },
    Variant {
        name: "local_user",
        kind: EngineKind::Local,
        is_root: false,
        grade: LimitsGrade::Watched,
        capabilities: &[
            OwnTree,
            OwnPids,
            OwnNetwork,
            Loopback,
            HiddenHost,
            ProtectedGuest,
            Confined,
            MemoryLimit,
            PidsLimit,
            OpenFilesLimit,
            DiskQuota,
            Mounts,
        ],
    },
    Variant {
        name: "process_root",
        kind: EngineKind::Process,
        is_root: true,
        grade: LimitsGrade::Cgroup,
        capabilities: &[
            HiddenHost,
            ProtectedGuest,
            Confined,
            MemoryLimit,
            EnforcedMemory,
            PidsLimit,
            EnforcedPids,
            EnforcedCpu,
            OpenFilesLimit,
        ],
    },
    Variant {
        name: "process_user",
        kind: EngineKind::Process,
        is_root: false,
        grade: LimitsGrade::Watched,
        capabilities: &[HiddenHost, ProtectedGuest, Confined, MemoryLimit, PidsLimit, OpenFilesLimit],
    },
    Variant {
        name: "none_user",
        kind: EngineKind::None,
        is_root: false,
        grade: LimitsGrade::Watched,
        capabilities: &[Loopback, Siblings],
    },
];

impl Variant {
    /// Why it cannot be tried here by this user.
    pub(crate) fn unusable(&self) -> Option<String> {
        let is_root = rustix::process::geteuid().is_root();
        match (self.is_root, is_root) {
            (true, false) => Some("it needs root".to_owned()),
            (false, true) if as_user::account().is_none() => {
                Some(format!("there is no account {} (make test creates it)", as_user::ACCOUNT))
            }
            _ => None,
        }
    }
}

/// How long the last supervisors of a case may take to go.
pub(crate) const GONE_LIMIT: Duration = Duration::from_secs(10);

/// Runs a case in this process.
pub(crate) fn run(variant: &Variant, case: &Case) -> Result<Outcome, Failed> {
    let dir = tempfile::tempdir()?;
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    run_in(variant, case, dir.path(), programs)
}

/// Runs a case with files of its own below `dir`.
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
    config.mount_policy.allow_read(dirs.readable.clone())?;
    config.mount_policy.allow_write(dirs.writable.clone())?;
    let spec = SandboxSpec { engine: variant.kind, grade: variant.grade, ..SandboxSpec::default() };
    let engine = Arc::new(LocalEngine::new(config));
    let context = Context::new(engine, spec, variant.capabilities, make("scratch")?, programs)
        .with_host_dirs(dirs)
        .with_leftovers(leftovers::of);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(case.run(&context));
    drop(runtime);
    let deadline = Instant::now() + GONE_LIMIT;
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
