//! State of step-by-step builds of templates, while they run and for some time after their end.
//!
//! ```text
//!   request_build ─► waiting ── start_build ─► building ─┬─► ready     the template is stored under all its tags
//!                       │                                └─► failed    what the tags named before stays
//!                       └── an hour without a start ─► forgotten
//! ```
//!
//! A build ends with its server. The state of builds is in memory only; finished templates are in the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_model::LimitsFile;
use belljar_store::ServiceWall;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::action::{TEMPLATE_BUILD, TEMPLATE_GET};
use crate::caller::Caller;
use crate::create::fill_random;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::plan::{BuildPlan, NewBuild, TaggedName, check_tag};

/// Maximum number of builds of one tenant. The oldest that has ended is evicted.
const MAX_BUILDS: usize = 32;

/// Time for which a build may wait for its start.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Maximum size of a build's log, in bytes.
const MAX_LOG_BYTES: usize = 256 << 10;

/// Maximum number of entries of a build's log.
const MAX_LOG_ENTRIES: usize = 10_000;

/// Maximum number of tags of one build.
const MAX_TAGS: usize = 16;

/// Status of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildStatus {
    /// It waits for its files and its start.
    Waiting,
    /// Its steps are running.
    Building,
    /// The template can be used.
    Ready,
    /// It has failed.
    Failed,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Details for debugging.
    Debug,
    /// Progress.
    Info,
    /// Standard error of a step.
    Warning,
    /// The reason of the build's failure.
    Error,
}

/// A line of a build's log.
#[derive(Debug, Clone)]
pub struct BuildLine {
    /// Time.
    pub at: Timestamp,
    /// Severity.
    pub level: LogLevel,
    /// The step that wrote it.
    pub step: Option<String>,
    /// Text without control characters.
    pub text: String,
}

/// Failure of a build, with its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFailure {
    /// [`BASE_STEP`], the step's number from 1, or [`FINAL_STEP`].
    pub step: String,
    /// Reason and remedy.
    pub message: String,
}

/// Name of the step that creates the sandbox from the base template.
pub const BASE_STEP: &str = "base";

/// Name of the step after the last one: storing the files, `start` and `ready`.
pub const FINAL_STEP: &str = "finalize";

/// A requested build.
#[derive(Debug, Clone)]
pub struct RequestedBuild {
    /// Its id, a UUID.
    pub id: String,
    /// The template's name, without tags.
    pub name: String,
    /// All its tags.
    pub tags: Vec<String>,
}

/// Status of a build, and a part of its log.
#[derive(Debug, Clone)]
pub struct BuildReport {
    /// Status.
    pub status: BuildStatus,
    /// The failure, if it failed.
    pub failure: Option<StepFailure>,
    /// The requested part of its log.
    pub lines: Vec<BuildLine>,
}

/// A build.
pub(crate) struct Build {
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
    pub(crate) limits: LimitsFile,
    since: Instant,
    state: Mutex<State>,
}

struct State {
    status: BuildStatus,
    failure: Option<StepFailure>,
    log: Vec<BuildLine>,
    log_bytes: usize,
}

/// All builds in memory.
#[derive(Default)]
pub(crate) struct Builds(Mutex<Vec<Arc<Build>>>);

impl Build {
    /// Adds a line to the log. When the log is full, a note replaces the rest.
    pub(crate) fn log(&self, level: LogLevel, step: Option<&str>, text: &str) {
        let mut state = self.state.lock();
        let is_full = |state: &State| state.log_bytes > MAX_LOG_BYTES || state.log.len() >= MAX_LOG_ENTRIES;
        // The reason of a failure is always added.
        if is_full(&state) && level < LogLevel::Error {
            return;
        }
        state.log_bytes += text.len();
        let text = if is_full(&state) && level < LogLevel::Error {
            state.log_bytes = MAX_LOG_BYTES + 1;
            "(the rest of the log is left out)".to_owned()
        } else {
            text.to_owned()
        };
        state.log.push(BuildLine { at: Timestamp::now(), level, step: step.map(str::to_owned), text });
    }

    pub(crate) fn end(&self, failure: Option<StepFailure>) {
        if let Some(failure) = &failure {
            self.log(LogLevel::Error, Some(&failure.step), &failure.message);
        }
        let mut state = self.state.lock();
        state.status = if failure.is_none() { BuildStatus::Ready } else { BuildStatus::Failed };
        state.failure = failure;
    }

    fn begin(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.status != BuildStatus::Waiting {
            return Err(KeeperError::field("buildID", "this build was started before; ask for a new one"));
        }
        state.status = BuildStatus::Building;
        Ok(())
    }

    fn status(&self) -> BuildStatus {
        self.state.lock().status
    }

    fn has_expired(&self) -> bool {
        self.status() == BuildStatus::Waiting && self.since.elapsed() > MAX_WAIT
    }
}

impl Builds {
    fn add(&self, build: Build) -> Result<()> {
        let mut all = self.0.lock();
        all.retain(|build| !build.has_expired());
        if all.iter().filter(|known| known.tenant == build.tenant).count() >= MAX_BUILDS {
            let has_ended = |known: &Arc<Build>| {
                known.tenant == build.tenant
                    && matches!(known.status(), BuildStatus::Ready | BuildStatus::Failed)
            };
            let place = all.iter().position(has_ended).ok_or_else(|| KeeperError::Full {
                what: format!("{MAX_BUILDS} builds of this tenant are already waiting or running"),
                retry_after: Duration::from_secs(10),
            })?;
            all.remove(place);
        }
        all.push(Arc::new(build));
        Ok(())
    }

    fn find(&self, caller: &Caller, name: &str, id: &str) -> Result<Arc<Build>> {
        let all = self.0.lock();
        let is_own = |build: &Build| ServiceWall::Tenants.allows(build.tenant == caller.tenant);
        let found = all.iter().find(|build| build.id == id && build.name == name && is_own(build));
        found.cloned().ok_or_else(|| missing(id))
    }

    /// Reports whether a build of this template waits.
    pub(crate) fn waits(&self, tenant: &str, name: &str) -> bool {
        let all = self.0.lock();
        let waits = |build: &Arc<Build>| {
            ServiceWall::Tenants.allows(build.tenant == tenant)
                && build.name == name
                && build.status() == BuildStatus::Waiting
        };
        all.iter().any(waits)
    }
}

fn missing(id: &str) -> KeeperError {
    KeeperError::NotFound { what: "build", id: id.chars().take(64).collect() }
}

impl Keeper {
    /// Requests a build, which then waits for its files and its start.
    ///
    /// # Errors
    /// Fails if the request is invalid, the name is taken by something else or by another person's template, or too many builds wait or run.
    pub async fn request_build(&self, caller: &Caller, request: NewBuild) -> Result<RequestedBuild> {
        self.require(caller, TEMPLATE_BUILD)?;
        let NewBuild { name, tags, limits } = request;
        let mut all: Vec<String> = name.given_tag().map(str::to_owned).into_iter().collect();
        for tag in tags {
            check_tag(&tag)?;
            if !all.contains(&tag) {
                all.push(tag);
            }
        }
        if all.len() > MAX_TAGS {
            let reason = format!("{} are too many; at most {MAX_TAGS} are allowed", all.len());
            return Err(KeeperError::field("tags", reason));
        }
        if all.is_empty() {
            all.push(name.tag().to_owned());
        }
        for tag in &all {
            self.replaced(caller, name.name(), tag).await?;
        }
        let mut random = [0u8; 16];
        fill_random(&mut random)?;
        let requested = RequestedBuild { id: uuid(random), name: name.name().to_owned(), tags: all };
        self.inner.builds.add(Build {
            id: requested.id.clone(),
            tenant: caller.tenant.clone(),
            name: requested.name.clone(),
            tags: requested.tags.clone(),
            limits,
            since: Instant::now(),
            state: Mutex::new(State {
                status: BuildStatus::Waiting,
                failure: None,
                log: Vec::new(),
                log_bytes: 0,
            }),
        })?;
        Ok(requested)
    }

    /// Starts a build, which continues without its caller. An invalid plan is reported as the build's failure.
    ///
    /// # Errors
    /// Fails if the caller has no such build, or it was started before.
    pub fn start_build(
        &self,
        caller: &Caller,
        name: &TaggedName,
        id: &str,
        plan: std::result::Result<BuildPlan, StepFailure>,
    ) -> Result<()> {
        self.require(caller, TEMPLATE_BUILD)?;
        let build = self.inner.builds.find(caller, name.name(), id)?;
        build.begin()?;
        let (keeper, caller) = (self.clone(), caller.clone());
        self.inner.tasks.spawn(async move { keeper.run_build(&caller, &build, plan).await });
        Ok(())
    }

    /// Returns a build's status, and at most `limit` log entries of at least `level` from entry `offset` on.
    ///
    /// # Errors
    /// Fails if the caller has no such build.
    pub async fn build_report(
        &self,
        caller: &Caller,
        name: &TaggedName,
        id: &str,
        (offset, limit, level): (usize, usize, LogLevel),
    ) -> Result<BuildReport> {
        self.require(caller, TEMPLATE_GET)?;
        let build = match self.inner.builds.find(caller, name.name(), id) {
            Ok(build) => build,
            // The template outlives the build's state.
            Err(missing) => {
                let tags = self.template_tags(caller, name.name()).await.unwrap_or_default();
                let made = tags.iter().any(|tag| tag.build == id);
                let report = BuildReport { status: BuildStatus::Ready, failure: None, lines: Vec::new() };
                return if made { Ok(report) } else { Err(missing) };
            }
        };
        let state = build.state.lock();
        let lines = state.log.iter().filter(|line| line.level >= level).skip(offset).take(limit);
        Ok(BuildReport {
            status: state.status,
            failure: state.failure.clone(),
            lines: lines.cloned().collect(),
        })
    }
}

/// Formats random bits as a UUID (RFC 9562, version 4).
fn uuid(mut random: [u8; 16]) -> String {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let text = hex::encode(random);
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(id: &str) -> Build {
        Build {
            id: id.to_owned(),
            tenant: "t".to_owned(),
            name: "n".to_owned(),
            tags: Vec::new(),
            limits: LimitsFile::default(),
            since: Instant::now(),
            state: Mutex::new(State {
                status: BuildStatus::Waiting,
                failure: None,
                log: Vec::new(),
                log_bytes: 0,
            }),
        }
    }

    #[test]
    fn build_ids_are_uuids() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn full_log_ends_with_a_note() {
        let build = build("b");
        for _ in 0..3000 {
            build.log(LogLevel::Info, Some("1"), &"x".repeat(200));
        }
        build.end(Some(StepFailure { step: "1".to_owned(), message: "why".to_owned() }));
        let state = build.state.lock();
        assert!(state.log_bytes < MAX_LOG_BYTES + 500, "{}", state.log_bytes);
        let [.., rest, reason] = state.log.as_slice() else { panic!() };
        assert_eq!(rest.text, "(the rest of the log is left out)");
        assert_eq!((reason.text.as_str(), reason.level), ("why", LogLevel::Error));
    }

    #[test]
    fn ended_builds_are_evicted() {
        let builds = Builds::default();
        for number in 0..MAX_BUILDS {
            builds.add(build(&number.to_string())).unwrap();
        }
        assert!(matches!(builds.add(build("more")), Err(KeeperError::Full { .. })));
        builds.0.lock()[7].end(None);
        builds.add(build("more")).unwrap();
        let caller = Caller { tenant: "t".to_owned(), ..Caller::operator("test", "r") };
        assert!(builds.find(&caller, "n", "7").is_err());
        assert!(builds.find(&caller, "n", "8").is_ok());
        assert!(builds.find(&caller, "other", "8").is_err());
        let other = Caller { tenant: "u".to_owned(), ..caller };
        assert!(builds.find(&other, "n", "8").is_err() && !builds.waits("u", "n") && builds.waits("t", "n"));
    }
}
