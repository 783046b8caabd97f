//! The launch of such a sandbox: its id, its record, and the configuration of its guest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use belljar_guest_config::{GuestConfig, OnHostLoss};
use belljar_model::{Isolation, SandboxId, SandboxSpec};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::walls::{Backend, BackendWalls, guest_deadline};
use crate::bootstrap::{Dial as _, configure, connect_later};
use crate::client::GuestClient;
use crate::engine::{Life, Sandbox};
use crate::engine_error::EngineError;
use crate::environment::Environment;
use crate::records::Records;
use crate::run::{DEADLINE_SLACK, STOP_GRACE};

/// Time for the guest to listen, after it was started.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Delay before the guest's socket is tried again.
const DIAL_INTERVAL: Duration = Duration::from_millis(2);

/// What a server records of a sandbox, to take it over after a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record<F> {
    /// The secret of its guest.
    pub secret: String,
    /// The isolation in force.
    pub isolation: Isolation,
    /// When it ends.
    pub deadline: Option<SystemTime>,
    /// What its engine needs.
    #[serde(flatten)]
    pub facts: F,
}

impl<F> Record<F> {
    /// Creates the record of a new sandbox, with a secret for its guest.
    ///
    /// # Errors
    /// Fails if the kernel has no random bytes.
    pub fn new(isolation: Isolation, deadline: Option<Duration>, facts: F) -> Result<Self, EngineError> {
        let digits = random::<32>()?.map(|byte| format!("{byte:02x}"));
        let deadline = deadline.and_then(|after| SystemTime::now().checked_add(after));
        Ok(Self { secret: digits.concat(), isolation, deadline, facts })
    }

    /// Returns the time until the deadline.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        Some(self.deadline?.duration_since(SystemTime::now()).unwrap_or_default())
    }
}

/// Returns random bytes, at most 256.
///
/// # Errors
/// The kernel's reason.
pub fn random<const COUNT: usize>() -> Result<[u8; COUNT], EngineError> {
    let mut bytes = [0u8; COUNT];
    // Up to 256 bytes are returned completely (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| EngineError::launch("get random bytes")(errno.into()))?;
    Ok(bytes)
}

/// Sandboxes that are being launched, which are no survivors yet.
#[derive(Debug, Default)]
pub struct Launches(Mutex<BTreeSet<SandboxId>>);

/// A launch in progress: when it is dropped, the sandbox may be found as a survivor.
#[derive(Debug)]
pub struct Launching<'a> {
    all: &'a Launches,
    /// The sandbox's id.
    pub id: SandboxId,
    /// Time after which it ends; `None` is never.
    pub deadline: Option<Duration>,
    /// Whether it outlives its first connection.
    pub is_long: bool,
}

impl Launches {
    /// Begins a launch.
    ///
    /// # Errors
    /// [`EngineError::IdInUse`] while another sandbox with the same id is being launched.
    pub fn begin(&self, life: Life<'_>) -> Result<Launching<'_>, EngineError> {
        let (id, deadline) = match life {
            Life::Run { .. } => (SandboxId::from_entropy(random()?), None),
            Life::Long { id, deadline } => (id.clone(), deadline),
        };
        match self.0.lock().insert(id.clone()) {
            true => Ok(Launching { all: self, id, deadline, is_long: matches!(life, Life::Long { .. }) }),
            false => Err(EngineError::IdInUse { id }),
        }
    }

    /// Reports whether a sandbox is being launched.
    #[must_use]
    pub fn contains(&self, id: &SandboxId) -> bool {
        self.0.lock().contains(id)
    }
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}

/// A sandbox that has been started, or is taken over.
#[derive(Debug)]
pub struct New<B: Backend> {
    /// Its id.
    pub id: SandboxId,
    /// The home directory inside.
    pub home: PathBuf,
    /// Its record.
    pub record: Record<B::Facts>,
    /// Where a server has recorded it. Without it the sandbox ends with its handle.
    pub records: Option<Records<Record<B::Facts>>>,
    /// Duration of each phase of the launch so far.
    pub phases: Vec<(&'static str, Duration)>,
    /// What runs it.
    pub backend: B,
}

impl<B: Backend> New<B> {
    fn hold(self, guest: GuestClient, deadline: Option<Duration>) -> Sandbox {
        let (id, isolation, home) = (self.id.clone(), self.record.isolation.clone(), self.home.clone());
        let walls = BackendWalls::new(self, guest.clone(), deadline);
        Sandbox::new(id, isolation, home, guest, Box::new(walls))
    }
}

/// Waits until the guest listens, configures it, and ends the sandbox after this time; `None` is never. `begin` is when the launch began.
///
/// # Errors
/// Fails if the guest ends or does not listen in time, or refuses. The sandbox is still there then.
pub async fn start<B: Backend>(
    mut new: New<B>,
    config: GuestConfig,
    deadline: Option<Duration>,
    begin: Instant,
) -> Result<Sandbox, EngineError> {
    let (reach, since) = (new.backend.reach().clone(), Instant::now());
    let guest = loop {
        let error = match configure(reach.clone(), new.record.secret.clone(), config.clone()).await {
            Ok(guest) => break guest,
            Err(error) => error,
        };
        let failed = new.backend.failed_start().await;
        if failed.is_some() || !reach.is_early(&error) || since.elapsed() > START_TIMEOUT {
            let (step, source) = failed.unwrap_or_else(|| ("configure the guest".to_owned(), None));
            return Err(EngineError::Launch { step, source: source.unwrap_or(error) });
        }
        tokio::time::sleep(DIAL_INTERVAL).await;
    };
    let before = new.phases.iter().map(|(_, time)| *time).sum::<Duration>();
    new.phases.push(("guest", begin.elapsed().saturating_sub(before)));
    Ok(new.hold(guest, deadline))
}

/// Takes over a sandbox, whose guest is connected to for the first call.
#[must_use]
pub fn adopt<B: Backend>(new: New<B>) -> Sandbox {
    let guest = connect_later(new.backend.reach().clone(), new.record.secret.clone());
    let deadline = new.record.time_left();
    new.hold(guest, deadline)
}

/// Returns the configuration of a guest that is the first process of its sandbox, without the walls that an engine adds.
#[must_use]
pub fn guest_config(
    spec: &SandboxSpec,
    home: &Path,
    mut env: Environment,
    is_long: bool,
    deadline: Option<Duration>,
) -> GuestConfig {
    let limits = &spec.limits;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    env.add_installers(Some(home));
    env.add_limits(limits);
    env.add_placeholders(spec);
    env.add_requested(spec);
    GuestConfig {
        home: home.into(),
        env: env.into_variables(),
        landlock: None,
        umask: 0o022,
        confine_guest: false,
        // 0 is none.
        deadline_ms: match is_long {
            true => guest_deadline(deadline).map_or(0, millis),
            false => millis(limits.timeout.duration() + DEADLINE_SLACK),
        },
        grace_ms: millis(STOP_GRACE),
        when_alone: if is_long { OnHostLoss::Stay } else { OnHostLoss::End },
        many_connections: is_long,
        direct: false,
        first_process: true,
        own_proc: false,
        own_filter: true,
        machine: None,
        user: None,
        // Same as `{heap}` of a language: node cannot see the limit.
        heap_mib: limits.memory.bytes() / 4 * 3 / (1 << 20),
        open_files: Some(limits.open_files.get()),
        user_processes: None,
        watched: None,
        #[cfg(feature = "mutation")]
        without: Vec::new(),
    }
}
