//! Builds of template files: one runs at a time, the others wait in a queue. What each has reported is kept for those who follow it, and
//! for some time after its end.
//!
//! ```text
//!   build_template ─► queued ── the builds before it have ended ─► running ─┬─► done        the template is stored
//!                       │                                            │      └─► failed
//!                       └───────────── cancel_build ─────────────────┴─► cancelled           cached steps stay
//! ```
//!
//! All of it is in memory: a build ends with its server.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belljar_image::BuildEvent;
use belljar_store::ServiceWall;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::action::{TEMPLATE_BUILD_CANCEL, TEMPLATE_BUILD_LIST};
use crate::caller::Caller;
use crate::create::fill_random;
use crate::error::{KeeperError, chain};
use crate::info::TemplateInfo;
use crate::json;
use crate::keeper::{Keeper, Result};

/// Maximum number of builds of one tenant that wait or run.
const MAX_QUEUED: usize = 8;

/// Maximum number of builds that are kept. The oldest that have ended are evicted.
const MAX_KEPT: usize = 64;

/// Maximum number of events of one build that are kept: who follows it later misses the oldest.
const MAX_EVENTS: usize = 20_000;

/// Progress of a build.
#[derive(Debug, Clone)]
pub enum BuildProgress {
    /// It waits for others.
    Queued {
        /// Number of builds before it.
        ahead: usize,
    },
    /// An event.
    Event(BuildEvent),
    /// The result, after which nothing follows.
    Done(Arc<Result<TemplateInfo>>),
}

/// State of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildState {
    /// It waits for others.
    Queued,
    /// Its steps run.
    Running,
    /// The template can be used.
    Done,
    /// It has failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// The step that a build has reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReachedStep {
    /// Its number, from 1; 0 is the base.
    pub number: usize,
    /// Number of steps.
    pub total: usize,
    /// Its kind, such as `pip`.
    pub kind: &'static str,
    /// A one-line summary.
    pub summary: String,
}

/// A build of a template's file.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct BuildInfo {
    /// Its id.
    pub id: String,
    /// The template's name.
    pub name: String,
    /// Its state.
    pub state: BuildState,
    /// Number of builds before it, while it is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<usize>,
    /// The step that it has reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<ReachedStep>,
    /// Time of the request.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time at which it began to run.
    #[serde(with = "json::time::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// Time of its end.
    #[serde(with = "json::time::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// The template that it has made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The reason of its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A build that is being followed. It continues if this is dropped.
pub struct TemplateBuild {
    build: Arc<QueuedBuild>,
    changed: watch::Receiver<u64>,
    /// Index of the next event.
    next: usize,
    /// Number of builds before it, as far as that was told.
    ahead: usize,
    is_over: bool,
}

impl TemplateBuild {
    /// Returns the build's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.build.id
    }

    /// Waits for the next event; returns `None` after the result.
    pub async fn next(&mut self) -> Option<BuildProgress> {
        loop {
            self.changed.mark_unchanged();
            if let Some(progress) = self.take_next() {
                return Some(progress);
            }
            if self.is_over || self.changed.changed().await.is_err() {
                return None;
            }
        }
    }

    fn take_next(&mut self) -> Option<BuildProgress> {
        let state = self.build.state.lock();
        if self.is_over {
            return None;
        }
        // One that need not wait is not told so.
        if let (BuildState::Queued, true) = (state.state, self.ahead != state.ahead) {
            self.ahead = state.ahead;
            return Some(BuildProgress::Queued { ahead: state.ahead });
        }
        self.next = self.next.max(state.evicted);
        if let Some(event) = state.events.get(self.next - state.evicted) {
            self.next += 1;
            return Some(BuildProgress::Event(event.clone()));
        }
        self.is_over = state.result.is_some();
        state.result.clone().map(BuildProgress::Done)
    }
}

/// A build.
pub(crate) struct QueuedBuild {
    pub(crate) id: String,
    tenant: String,
    name: String,
    created_at: Timestamp,
    pub(crate) cancelled: CancellationToken,
    state: Mutex<State>,
    /// Counts changes, for those who follow it.
    changes: watch::Sender<u64>,
}

struct State {
    state: BuildState,
    ahead: usize,
    step: Option<ReachedStep>,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    events: VecDeque<BuildEvent>,
    /// Number of events that are no longer kept.
    evicted: usize,
    result: Option<Arc<Result<TemplateInfo>>>,
}

impl QueuedBuild {
    /// Adds an event.
    pub(crate) fn report(&self, event: BuildEvent) {
        let mut state = self.state.lock();
        if let BuildEvent::Step { number, total, kind, summary, .. } = &event {
            let (number, total, kind) = (*number, *total, *kind);
            state.step = Some(ReachedStep { number, total, kind, summary: summary.clone() });
        }
        if state.events.len() == MAX_EVENTS {
            state.events.pop_front();
            state.evicted += 1;
        }
        state.events.push_back(event);
        drop(state);
        self.notify();
    }

    fn notify(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn is_over(&self) -> bool {
        self.state.lock().ended_at.is_some()
    }

    fn info(&self) -> BuildInfo {
        let state = self.state.lock();
        let result = state.result.as_deref();
        BuildInfo {
            id: self.id.clone(),
            name: self.name.clone(),
            state: state.state,
            ahead: (state.state == BuildState::Queued).then_some(state.ahead),
            step: state.step.clone(),
            created_at: self.created_at,
            started_at: state.started_at,
            ended_at: state.ended_at,
            template: result.and_then(|result| result.as_ref().ok()).map(|info| info.id.clone()),
            error: result.and_then(|result| result.as_ref().err()).map(|error| chain(error)),
        }
    }

    fn follow(self: &Arc<Self>) -> TemplateBuild {
        let changed = self.changes.subscribe();
        TemplateBuild { build: Arc::clone(self), changed, next: 0, ahead: 0, is_over: false }
    }
}

/// All builds of template files, the oldest first.
#[derive(Default)]
pub(crate) struct BuildQueue(Mutex<Vec<Arc<QueuedBuild>>>);

impl BuildQueue {
    /// Adds a build at the end of the queue.
    pub(crate) fn add(&self, caller: &Caller, name: &str) -> Result<(Arc<QueuedBuild>, TemplateBuild)> {
        let mut random = [0u8; 10];
        fill_random(&mut random)?;
        let mut all = self.0.lock();
        let waiting = all.iter().filter(|build| build.tenant == caller.tenant && !build.is_over());
        if waiting.count() >= MAX_QUEUED {
            return Err(KeeperError::Full {
                what: format!("{MAX_QUEUED} builds of this tenant are already waiting or running"),
                retry_after: Duration::from_secs(60),
            });
        }
        while all.len() >= MAX_KEPT {
            let Some(place) = all.iter().position(|build| build.is_over()) else { break };
            all.remove(place);
        }
        let build = Arc::new(QueuedBuild {
            id: format!("bld_{}", hex::encode(random)),
            tenant: caller.tenant.clone(),
            name: name.to_owned(),
            created_at: Timestamp::now(),
            cancelled: CancellationToken::new(),
            state: Mutex::new(State {
                state: BuildState::Queued,
                ahead: 0,
                step: None,
                started_at: None,
                ended_at: None,
                events: VecDeque::new(),
                evicted: 0,
                result: None,
            }),
            changes: watch::Sender::new(0),
        });
        all.push(Arc::clone(&build));
        Self::count(&all);
        let follower = build.follow();
        Ok((build, follower))
    }

    /// Tells every waiting build how many are before it.
    fn count(all: &[Arc<QueuedBuild>]) {
        for (ahead, build) in all.iter().filter(|build| !build.is_over()).enumerate() {
            let mut state = build.state.lock();
            if state.state == BuildState::Queued && state.ahead != ahead {
                state.ahead = ahead;
                drop(state);
                build.notify();
            }
        }
    }

    /// Waits for a build's turn. Returns the lock that keeps others from building; `None` if the build was cancelled.
    pub(crate) async fn wait_for_turn(
        &self,
        build: &QueuedBuild,
        building: &Arc<tokio::sync::Mutex<()>>,
    ) -> Option<OwnedMutexGuard<()>> {
        // The lock is given in the order of the requests.
        let lock = tokio::select! {
            biased;
            () = build.cancelled.cancelled() => return None,
            lock = Arc::clone(building).lock_owned() => lock,
        };
        let mut state = build.state.lock();
        state.state = BuildState::Running;
        state.started_at = Some(Timestamp::now());
        drop(state);
        build.notify();
        Some(lock)
    }

    /// Records a build's result.
    pub(crate) fn end(&self, build: &QueuedBuild, result: Result<TemplateInfo>) {
        let mut state = build.state.lock();
        state.state = match &result {
            Ok(_) => BuildState::Done,
            Err(KeeperError::Cancelled) => BuildState::Cancelled,
            Err(_) => BuildState::Failed,
        };
        state.ended_at = Some(Timestamp::now());
        state.result = Some(Arc::new(result));
        drop(state);
        build.notify();
        Self::count(&self.0.lock());
    }

    fn is_empty(&self) -> bool {
        self.0.lock().iter().all(|build| build.is_over())
    }

    /// Cancels all builds.
    pub(crate) fn cancel_all(&self) {
        self.0.lock().iter().for_each(|build| build.cancelled.cancel());
    }

    fn find(&self, caller: &Caller, id: &str) -> Result<Arc<QueuedBuild>> {
        let is_own = |build: &QueuedBuild| ServiceWall::Tenants.allows(build.tenant == caller.tenant);
        let all = self.0.lock();
        let found = all.iter().find(|build| build.id == id && is_own(build)).cloned();
        found.ok_or_else(|| KeeperError::NotFound { what: "build", id: id.chars().take(64).collect() })
    }
}

impl Keeper {
    /// Reports whether a template's file is being built, or waits for it.
    #[must_use]
    pub fn is_building(&self) -> bool {
        !self.inner.build_queue.is_empty()
    }

    /// Lists the tenant's builds of template files, the oldest first: those that wait or run, and the last that have ended.
    ///
    /// # Errors
    /// Fails if the caller's role is not sufficient.
    pub fn template_builds(&self, caller: &Caller) -> Result<Vec<BuildInfo>> {
        self.require(caller, TEMPLATE_BUILD_LIST)?;
        let all = self.inner.build_queue.0.lock();
        let own = all.iter().filter(|build| ServiceWall::Tenants.allows(build.tenant == caller.tenant));
        Ok(own.map(|build| build.info()).collect())
    }

    /// Returns a build of a template's file.
    ///
    /// # Errors
    /// Fails if the caller's role is not sufficient, or the tenant has no such build.
    pub fn template_build(&self, caller: &Caller, id: &str) -> Result<BuildInfo> {
        self.require(caller, TEMPLATE_BUILD_LIST)?;
        Ok(self.inner.build_queue.find(caller, id)?.info())
    }

    /// Follows a build of a template's file, from its beginning.
    ///
    /// # Errors
    /// Fails if the caller's role is not sufficient, or the tenant has no such build.
    pub fn follow_build(&self, caller: &Caller, id: &str) -> Result<TemplateBuild> {
        self.require(caller, TEMPLATE_BUILD_LIST)?;
        Ok(self.inner.build_queue.find(caller, id)?.follow())
    }

    /// Cancels a build of a template's file, and waits for its end. One that has ended stays as it is.
    ///
    /// # Errors
    /// Fails if the caller's role is not sufficient, or the tenant has no such build.
    pub async fn cancel_build(&self, caller: &Caller, id: &str) -> Result<BuildInfo> {
        self.require(caller, TEMPLATE_BUILD_CANCEL)?;
        let build = self.inner.build_queue.find(caller, id)?;
        let mut follower = build.follow();
        // The build itself is recorded in the audit log, with its end.
        build.cancelled.cancel();
        while follower.next().await.is_some() {}
        Ok(build.info())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: &str) -> Caller {
        Caller { tenant: tenant.to_owned(), ..Caller::operator("test", "r") }
    }

    fn log(line: &str) -> BuildEvent {
        BuildEvent::Log { number: 1, line: line.to_owned() }
    }

    #[tokio::test]
    async fn builds_wait_for_their_turn_in_order() {
        let (queue, building) = (BuildQueue::default(), Arc::default());
        let (first, _) = queue.add(&caller("t"), "first").unwrap();
        let lock = queue.wait_for_turn(&first, &building).await.unwrap();
        let (second, mut follower) = queue.add(&caller("t"), "second").unwrap();
        let (third, _) = queue.add(&caller("u"), "third").unwrap();
        assert_eq!((second.info().ahead, third.info().ahead), (Some(1), Some(2)));
        assert!(matches!(follower.next().await, Some(BuildProgress::Queued { ahead: 1 })));
        third.cancelled.cancel();
        assert!(queue.wait_for_turn(&third, &building).await.is_none());
        queue.end(&third, Err(KeeperError::Cancelled));
        assert_eq!(third.info().state, BuildState::Cancelled);
        queue.end(&first, Err(KeeperError::ShuttingDown));
        assert_eq!((first.info().state, second.info().ahead), (BuildState::Failed, Some(0)));
        drop(lock);
        let _lock = queue.wait_for_turn(&second, &building).await.unwrap();
        assert_eq!(second.info().state, BuildState::Running);
    }

    #[tokio::test]
    async fn followers_get_every_event_and_the_result() {
        let (queue, building) = (BuildQueue::default(), Arc::default());
        let (build, _) = queue.add(&caller("t"), "one").unwrap();
        let _lock = queue.wait_for_turn(&build, &building).await.unwrap();
        build.report(log("before"));
        let mut early = build.follow();
        build.report(log("after"));
        queue.end(&build, Err(KeeperError::Cancelled));
        for follower in [&mut early, &mut build.follow()] {
            let mut lines = Vec::new();
            while let Some(progress) = follower.next().await {
                lines.push(match progress {
                    BuildProgress::Event(BuildEvent::Log { line, .. }) => line,
                    BuildProgress::Done(_) => "end".to_owned(),
                    other => format!("{other:?}"),
                });
            }
            assert_eq!(lines, ["before", "after", "end"]);
        }
        for _ in 0..=MAX_EVENTS {
            build.report(log("more"));
        }
        let mut late = build.follow();
        let Some(BuildProgress::Event(event)) = late.next().await else { panic!() };
        assert_eq!(event, log("more"));
    }

    #[test]
    fn builds_are_bounded_and_of_one_tenant() {
        let queue = BuildQueue::default();
        let own: Vec<_> =
            (0..MAX_QUEUED).map(|index| queue.add(&caller("t"), &index.to_string()).unwrap().0).collect();
        assert!(matches!(queue.add(&caller("t"), "more"), Err(KeeperError::Full { .. })));
        assert!(queue.find(&caller("t"), &own[0].id).is_ok());
        assert!(queue.find(&caller("u"), &own[0].id).is_err());
        queue.end(&own[0], Err(KeeperError::Cancelled));
        queue.add(&caller("t"), "more").unwrap();
        for _ in 0..MAX_KEPT {
            let (build, _) = queue.add(&caller("u"), "one").unwrap();
            queue.end(&build, Err(KeeperError::Cancelled));
        }
        assert_eq!(queue.0.lock().len(), MAX_KEPT);
        assert!(queue.find(&caller("t"), &own[0].id).is_err(), "the oldest that has ended was evicted");
        assert!(queue.find(&caller("t"), &own[1].id).is_ok());
    }
}
