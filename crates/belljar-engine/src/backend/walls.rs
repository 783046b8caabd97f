//! The host's side of such a sandbox: its end, its deadline, and what is left of it.
//!
//! ```text
//!  running ── its guest ends, the deadline, kill ──► ended ── stop ──► removed
//!     └──────────────────── stop ─────────────────────────────────────►
//! ```

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use belljar_model::{LimitsChange, NetworkPolicy, SandboxId};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::launch::{New, Record};
use crate::bootstrap::{Dial, reconnect};
use crate::client::GuestClient;
use crate::engine::{NetworkLog, Usage, Walls};
use crate::engine_error::EngineError;
use crate::records::Records;

/// Time after the deadline at which the guest ends by itself, if no host has ended it.
const GUEST_SLACK: Duration = Duration::from_secs(5);

/// Maximum time for the end of a sandbox to be known after its connection broke.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The gateway of a sandbox's network.
pub trait NetworkControl: Send + Sync {
    /// Replaces the policy. Connections that the new one does not allow are closed.
    fn set_policy<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, ()>;

    /// See [`Walls::network_log`].
    ///
    /// # Errors
    /// Fails if the gateway cannot be reached.
    fn log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>>;
}

/// What runs a sandbox, such as a container or a process.
pub trait Backend: Send + Sync + Sized + 'static {
    /// How the guest's socket is reached.
    type Reach: Dial + Clone;
    /// What a server records of a sandbox for this engine.
    type Facts: Clone + Serialize + DeserializeOwned + Send + Sync + 'static;

    /// Returns how the guest is reached.
    fn reach(&self) -> &Self::Reach;

    /// Returns its network, if it has one.
    fn network(&self) -> Option<&dyn NetworkControl> {
        None
    }

    /// Returns the step that failed, if what runs the guest has ended before it could be configured, and the cause, if that is known.
    fn failed_start(&self) -> impl Future<Output = Option<(String, Option<std::io::Error>)>> + Send;

    /// Waits for the end; returns the exit status, if that is known. Called once.
    fn wait(&self) -> impl Future<Output = Option<i64>> + Send;

    /// Returns how a sandbox ended that nobody has ended.
    fn describe_end(&self, status: Option<i64>, usage: &Usage) -> String;

    /// Kills everything inside, and tries until that is done. What takes no waiting is done when this is first polled.
    fn kill(&self) -> impl Future<Output = ()> + Send;

    /// Kills everything inside, and removes all but the record.
    ///
    /// # Errors
    /// Fails if something is left.
    fn remove(&self) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Reads the usage, if that takes no waiting; `None` afterwards, when it cannot be read any more.
    fn measure(&self) -> Option<Usage>;

    /// Returns the usage, or `None` if it cannot be read. `last` is the usage that was read before.
    fn usage(&self, last: Usage) -> impl Future<Output = Option<Usage>> + Send {
        let _ = last;
        async { self.measure() }
    }

    /// Changes limits, all of those named or none.
    ///
    /// # Errors
    /// See [`Walls::set_limits`].
    fn set_limits(
        &self,
        change: &LimitsChange,
        usage: Usage,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Freezes or thaws everything inside; returns false if it has ended.
    ///
    /// # Errors
    /// See [`Walls::freeze`].
    fn set_frozen(&self, frozen: bool) -> impl Future<Output = Result<bool, EngineError>> + Send;

    /// Returns why a guest does not answer that has not ended, if that is known. `frozen` is whether this host has frozen it.
    fn explain_silence(&self, frozen: bool) -> impl Future<Output = Option<EngineError>> + Send {
        let _ = frozen;
        async { None }
    }
}

/// State of a sandbox.
struct Held<B: Backend> {
    id: SandboxId,
    secret: String,
    /// Where a server records it. Without it the sandbox ends with this handle.
    records: Option<Records<Record<B::Facts>>>,
    phases: Vec<(&'static str, Duration)>,
    backend: B,
    guest: GuestClient,
    runtime: Handle,
    /// How it ended.
    ended: watch::Sender<Option<String>>,
    deadline: watch::Sender<Option<Instant>>,
    /// Set by the deadline, and by a kill, as the reason of the end.
    cause: OnceLock<&'static str>,
    last_usage: Mutex<Usage>,
    /// Whether everything is removed.
    removed: tokio::sync::Mutex<bool>,
    is_removing: AtomicBool,
    /// Whether this host has frozen it.
    is_frozen: AtomicBool,
}

/// Handle of one sandbox.
pub(super) struct BackendWalls<B: Backend>(Arc<Held<B>>);

impl<B: Backend> BackendWalls<B> {
    /// Follows a sandbox whose guest runs, and ends it after this time; `None` is never.
    pub(super) fn new(new: New<B>, guest: GuestClient, deadline: Option<Duration>) -> Self {
        let New { id, record, records, phases, backend, .. } = new;
        let held = Arc::new(Held {
            id,
            secret: record.secret,
            records,
            phases,
            backend,
            guest,
            runtime: Handle::current(),
            ended: watch::Sender::new(None),
            deadline: watch::Sender::new(deadline_after(deadline)),
            cause: OnceLock::new(),
            last_usage: Mutex::default(),
            removed: tokio::sync::Mutex::new(false),
            is_removing: AtomicBool::new(false),
            is_frozen: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&held).follow());
        tokio::spawn(Arc::clone(&held).enforce_deadline());
        Self(held)
    }
}

impl<B: Backend> Drop for BackendWalls<B> {
    fn drop(&mut self) {
        let held = Arc::clone(&self.0);
        if held.records.is_none() && !held.is_removing.load(Ordering::Acquire) {
            // If the runtime ends before, the guest does so as well, as its connection breaks.
            self.0.runtime.spawn(async move { held.remove().await });
        }
    }
}

/// Returns the time of a deadline after this time. One too far away to be represented never comes.
#[must_use]
pub fn deadline_after(after: Option<Duration>) -> Option<Instant> {
    after.and_then(|after| Instant::now().checked_add(after))
}

/// Waits for a deadline that may change meanwhile; returns false if its sender is dropped.
pub async fn deadline_passed(mut deadlines: watch::Receiver<Option<Instant>>) -> bool {
    loop {
        let deadline = *deadlines.borrow_and_update();
        let passed = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = passed => return true,
            changed = deadlines.changed() => if changed.is_err() { return false },
        }
    }
}

/// Returns the guest's own deadline for one that its host enforces: it holds if no host is left.
pub(super) fn guest_deadline(after: Option<Duration>) -> Option<Duration> {
    after.map(|after| after.saturating_add(GUEST_SLACK))
}

impl<B: Backend> Held<B> {
    async fn follow(self: Arc<Self>) {
        let status = self.backend.wait().await;
        let usage = self.measure();
        let how = match self.cause.get() {
            Some(cause) => (*cause).to_owned(),
            None => self.backend.describe_end(status, &usage),
        };
        self.ended.send_replace(Some(how));
        if self.records.is_none() {
            // A failure is reported by whoever stops the sandbox.
            let _ = self.remove().await;
        }
    }

    async fn enforce_deadline(self: Arc<Self>) {
        let mut ended = self.ended.subscribe();
        tokio::select! {
            true = deadline_passed(self.deadline.subscribe()) => {}
            _ = ended.wait_for(Option::is_some) => return,
        }
        self.kill_for("its deadline has passed").await;
    }

    /// Kills everything inside, for this reason.
    async fn kill_for(&self, cause: &'static str) {
        let _ = self.cause.set(cause);
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            () = self.backend.kill() => {}
            _ = ended.wait_for(Option::is_some) => {}
        }
    }

    fn end(&self) -> Option<EngineError> {
        self.ended.borrow().clone().map(|how| EngineError::Ended { how })
    }

    async fn wait(&self) -> String {
        let mut ended = self.ended.subscribe();
        let how = ended.wait_for(Option::is_some).await;
        how.ok().and_then(|how| how.clone()).unwrap_or_default()
    }

    /// Kills everything, and removes it and its record. Does nothing if that is done.
    async fn remove(&self) -> Result<(), EngineError> {
        self.is_removing.store(true, Ordering::Release);
        let mut removed = self.removed.lock().await;
        if *removed {
            return Ok(());
        }
        self.measure();
        let _ = self.cause.set("it was stopped");
        self.backend.remove().await?;
        if let Some(records) = &self.records {
            records.remove(&self.id).map_err(EngineError::launch("remove the record of a sandbox"))?;
        }
        *removed = true;
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert_with(|| "it was stopped".to_owned());
            is_first
        });
        Ok(())
    }

    /// Reads the usage without waiting, and keeps it for when it cannot be read any more.
    fn measure(&self) -> Usage {
        self.keep(self.backend.measure())
    }

    fn keep(&self, usage: Option<Usage>) -> Usage {
        let mut last = self.last_usage.lock();
        *last = usage.unwrap_or(*last);
        *last
    }

    async fn usage(&self) -> Usage {
        let last = *self.last_usage.lock();
        self.keep(self.backend.usage(last).await)
    }

    async fn set_limits(&self, change: &LimitsChange) -> Result<(), EngineError> {
        if change.is_empty() {
            return Ok(());
        }
        match self.backend.set_limits(change, self.usage().await).await {
            Err(error @ EngineError::SetLimit { .. }) => Err(self.end().unwrap_or(error)),
            done => done,
        }
    }

    async fn set_frozen(&self, frozen: bool) -> Result<(), EngineError> {
        match self.backend.set_frozen(frozen).await? {
            true => {
                self.is_frozen.store(frozen, Ordering::Release);
                Ok(())
            }
            false => Err(EngineError::Ended { how: self.wait().await }),
        }
    }

    fn record_deadline(&self, after: Option<Duration>) -> Result<(), EngineError> {
        let Some(records) = &self.records else { return Ok(()) };
        let Some(record) = records.get(&self.id) else { return Ok(()) };
        let deadline = after.and_then(|after| SystemTime::now().checked_add(after));
        let written = records.put(&self.id, &Record { deadline, ..record });
        written.map_err(EngineError::launch("record the deadline of the sandbox"))
    }
}

impl<B: Backend> Walls for BackendWalls<B> {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(self.0.usage())
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(self.0.set_limits(change))
    }

    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async {
            self.0.backend.network().ok_or(EngineError::NoNetwork)?.set_policy(policy).await;
            Ok(())
        })
    }

    fn network_log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        Box::pin(
            async move { self.0.backend.network().ok_or(EngineError::NoNetwork)?.log(after, follow).await },
        )
    }

    fn set_deadline(&self, after: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.0.deadline.send_replace(deadline_after(after));
            // A frozen guest hears of it when it is thawed.
            let guest = self.0.guest.clone();
            self.0.runtime.spawn(async move { guest.set_deadline(guest_deadline(after)).await });
            self.0.record_deadline(after)
        })
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.0.set_frozen(true))
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.0.set_frozen(false))
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        Box::pin(async {
            let guest = reconnect(self.0.backend.reach().clone(), self.0.secret.clone()).await;
            let failed = EngineError::launch("open another connection to the guest");
            guest.map_err(|source| self.0.end().unwrap_or_else(|| failed(source)))
        })
    }

    fn phases(&self) -> Vec<(&'static str, Duration)> {
        self.0.phases.clone()
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        Box::pin(async {
            match tokio::time::timeout(END_TIMEOUT, self.0.wait()).await {
                Ok(how) => Some(EngineError::Ended { how }),
                Err(_) => self.0.backend.explain_silence(self.0.is_frozen.load(Ordering::Acquire)).await,
            }
        })
    }

    fn kill(&self) {
        self.0.measure();
        let held = Arc::clone(&self.0);
        let _runtime = self.0.runtime.enter();
        let mut killing = Box::pin(async move { held.kill_for("it was killed").await });
        // At once, if that takes no waiting.
        if killing.as_mut().now_or_never().is_none() {
            self.0.runtime.spawn(killing);
        }
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.0.remove())
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        Box::pin(self.0.wait())
    }
}
