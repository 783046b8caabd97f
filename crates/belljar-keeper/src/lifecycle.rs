//! The life cycle of a sandbox: its end, pause and resume, its deadlines, and the task that guards it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_engine::Sandbox;
use belljar_model::{SandboxState, format_span};
use belljar_store::SandboxRow;
use jiff::Timestamp;
use tokio::sync::MutexGuard;
use tracing::Instrument as _;

use crate::action::{SANDBOX_KILL, SANDBOX_PAUSE, SANDBOX_RESUME, SANDBOX_TIMEOUT};
use crate::caller::Caller;
use crate::entry::{Entry, until};
use crate::error::KeeperError;
use crate::info::SandboxInfo;
use crate::keeper::{Keeper, Result};
use crate::pool::has_ended;
use crate::request::{Settings, TimeoutAction};
use crate::steps::step;

/// Added to the deadline that the engine enforces: the keeper ends the sandbox first, with the reason.
const HOLDER_SLACK: Duration = Duration::from_secs(10);

impl Keeper {
    /// Ends a sandbox.
    ///
    /// # Errors
    /// As [`Keeper::get`]. When this returns an error of the engine, the sandbox counts as gone only if all its resources
    /// have been released.
    pub async fn kill(&self, caller: &Caller, id: &str) -> Result<()> {
        self.transact(SANDBOX_KILL, caller, id, move |keeper, caller, id| async move {
            let entry = keeper.find(&caller, &id).await?;
            let reason = match caller.is_operator() {
                true => "ended on request of the operator".to_owned(),
                false => format!("ended on request of key {}", caller.key),
            };
            let ending = keeper.end(&entry, &reason);
            let ended = ending.instrument(step!("keeper.kill", sandbox = %entry.id)).await;
            keeper.audit(&caller, SANDBOX_KILL, Some(&entry.id), &ended, Vec::new()).await?;
            ended
        })
        .await
    }

    /// Stops a sandbox. Returns when its resources have been released and its record says that it is gone.
    pub(crate) async fn end(&self, entry: &Arc<Entry>, reason: &str) -> Result<()> {
        // Taken before the lock, so that operations in flight are ended now and do not hold the lock for longer.
        let sandbox = entry.live().sandbox.clone();
        let _step = entry.step.lock().await;
        self.end_in_step(entry, sandbox, reason).await
    }

    /// Stops a sandbox, for a caller who holds its lock.
    pub(crate) async fn end_in_step(
        &self,
        entry: &Arc<Entry>,
        sandbox: Option<Arc<Sandbox>>,
        reason: &str,
    ) -> Result<()> {
        if entry.state() == SandboxState::Gone {
            return Ok(());
        }
        // The guest of a paused sandbox does not answer.
        let can_ask = entry.state() == SandboxState::Running && entry.live().has_background;
        let stopping = |row: &mut SandboxRow| {
            row.state = SandboxState::Stopping;
            row.reason = Some(reason.to_owned());
        };
        if entry.state() != SandboxState::Stopping
            && let Err(KeeperError::TakenOver { id }) = self.write(entry, stopping).await
        {
            // Another keeper ends it.
            self.release(entry);
            return Err(KeeperError::TakenOver { id });
        }
        if let Some(sandbox) = sandbox.or_else(|| entry.live().sandbox.clone()) {
            let usage = sandbox.usage().await;
            self.inner.ledger.record_cpu(entry, usage.cpu.unwrap_or_default());
            if can_ask && !has_ended(&sandbox) {
                self.collect_last_output(entry, &sandbox).await;
            }
            sandbox.stop().instrument(step!("engine.stop")).await?;
        }
        if entry.state() != SandboxState::Stopping {
            // The disk was full. The sandbox has ended, but its record must pass through both states.
            self.write(entry, stopping).await?;
        }
        self.record_gone(entry).await
    }

    /// Records that a sandbox is gone, after its resources have been released.
    pub(crate) async fn record_gone(&self, entry: &Arc<Entry>) -> Result<()> {
        let reason = entry.live().row.reason.clone().unwrap_or_default();
        let log = entry.post_mortem(&reason);
        // Secrets in the environment are not needed any more.
        let mut spec = (*entry.live().spec).clone();
        spec.env.clear();
        spec.network.remove_secrets();
        let spec = serde_json::to_string(&spec).unwrap_or_default();
        let gone = |log: String| {
            let spec = spec.clone();
            |row: &mut SandboxRow| {
                row.state = SandboxState::Gone;
                row.ended_at = Some(Timestamp::now());
                row.deadline_at = None;
                row.spec = spec;
                row.log = log;
            }
        };
        // If there is no space for the log, there may be enough for the state alone.
        if self.write(entry, gone(log)).await.is_err() {
            self.write(entry, gone(String::new())).await?;
        }
        self.inner.metrics.record_end();
        if let Err(error) = self.forget_answers(entry).await {
            // They expire later.
            tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot remove stored answers");
        }
        self.release(entry);
        Ok(())
    }

    /// Removes a sandbox from this keeper.
    fn release(&self, entry: &Arc<Entry>) {
        entry.live().sandbox = None;
        self.forget(&entry.id);
        self.inner.ledger.forget(&entry.id);
        self.inner.release_share(&entry.id);
        entry.release_volumes();
        entry.end_log();
        entry.changed.notify_one();
    }

    /// Pauses a sandbox: freezes its processes and suspends its timeout.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::WrongState`] when it does not run; an engine that cannot pause refuses.
    pub async fn pause(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> {
        self.transact(SANDBOX_PAUSE, caller, id, move |keeper, caller, id| async move {
            let entry = keeper.find(&caller, &id).await?;
            let paused = keeper.freeze(&entry).await;
            keeper.audit(&caller, SANDBOX_PAUSE, Some(&entry.id), &paused, Vec::new()).await?;
            paused.map(|()| entry.info())
        })
        .await
    }

    pub(crate) async fn freeze(&self, entry: &Arc<Entry>) -> Result<()> {
        let step = entry.step.lock().await;
        self.freeze_in(entry, None, &step).await
    }

    /// Pauses the sandbox in a step of it, for a call that waits if one is given.
    pub(crate) async fn freeze_in(
        &self,
        entry: &Arc<Entry>,
        held_by: Option<&str>,
        _step: &MutexGuard<'_, ()>,
    ) -> Result<()> {
        let sandbox = entry.require_running("pausing it")?;
        let spec = Arc::clone(&entry.live().spec);
        self.check_can(&spec, "pausing it", |can| can.pause)?;
        let settings = Settings { held_by: held_by.map(str::to_owned), ..entry.live().settings.clone() };
        let text = entry.stored_settings(&settings)?;
        self.write(entry, |row| {
            row.state = SandboxState::Paused;
            row.paused_at = Some(Timestamp::now());
            row.settings = text;
        })
        .await?;
        {
            let mut live = entry.live();
            live.settings = settings;
            live.deadline = None;
        }
        let frozen = match sandbox.set_deadline(None).await {
            Ok(()) => sandbox.freeze().instrument(step!("engine.freeze")).await,
            error => error,
        };
        if let Err(error) = frozen {
            // It keeps running, and its deadline holds even if the store fails.
            entry.live().settings.held_by = None;
            let limited = self.set_deadlines(entry, &sandbox).await;
            warn_of_failed_undo(entry, limited);
            warn_of_failed_undo(entry, self.write_running(entry, |_| ()).await);
            return Err(error.into());
        }
        entry.note("paused", None, "");
        entry.changed.notify_one();
        Ok(())
    }

    /// Resumes a paused sandbox. A running one is unchanged, except that a later `timeout` extends its own.
    ///
    /// # Errors
    /// As [`Keeper::get`].
    pub async fn resume(&self, caller: &Caller, id: &str, timeout: Option<Duration>) -> Result<SandboxInfo> {
        self.transact(SANDBOX_RESUME, caller, id, move |keeper, caller, id| async move {
            let timeout = timeout.map(|timeout| keeper.checked_lifetime(timeout)).transpose()?;
            let entry = keeper.find(&caller, &id).await?;
            let resumed = keeper.thaw(&entry, timeout).await;
            keeper.audit(&caller, SANDBOX_RESUME, Some(&entry.id), &resumed, Vec::new()).await?;
            resumed.map(|()| entry.info())
        })
        .await
    }

    pub(crate) async fn thaw(&self, entry: &Arc<Entry>, timeout: Option<Duration>) -> Result<()> {
        let step = entry.step.lock().await;
        self.thaw_in(entry, timeout, &step).await
    }

    /// Resumes the sandbox in a step of it.
    pub(crate) async fn thaw_in(
        &self,
        entry: &Arc<Entry>,
        timeout: Option<Duration>,
        _step: &MutexGuard<'_, ()>,
    ) -> Result<()> {
        if entry.state() == SandboxState::Running {
            let is_later =
                |timeout: &Duration| entry.live().row.deadline_at.is_some_and(|at| until(at) < *timeout);
            if let Some(timeout) = timeout.filter(is_later) {
                self.move_deadline(entry, timeout).await?;
            }
            return Ok(());
        }
        let (sandbox, row, lifetime) = {
            let live = entry.live();
            (live.sandbox.clone(), live.row.clone(), live.settings.lifetime.clone())
        };
        let is_held = entry.live().settings.held_by.is_some();
        let (Some(sandbox), SandboxState::Paused, false) = (sandbox, row.state, is_held) else {
            return Err(entry.wrong_state(row.state, "resuming it", "paused"));
        };
        // The timeout was suspended, so the time left at the pause is left now. An expired one starts again in full.
        let left = match (row.deadline_at, row.paused_at) {
            (Some(deadline), Some(paused)) => {
                Duration::try_from(deadline.duration_since(paused)).unwrap_or_default()
            }
            _ => lifetime.timeout,
        };
        let left = timeout.unwrap_or(if left.is_zero() { lifetime.timeout } else { left });
        self.write_running(entry, |row| row.deadline_at = after(left)).await?;
        let thawed = match self.set_deadlines(entry, &sandbox).await {
            Ok(()) => sandbox.thaw().instrument(step!("engine.thaw")).await.map_err(KeeperError::from),
            error => error,
        };
        if let Err(error) = thawed {
            warn_of_failed_undo(entry, self.stay_paused(entry, &sandbox, row).await);
            return Err(error);
        }
        if entry.live().has_unwatched {
            entry.watch_running().await;
        }
        entry.live().last_used = Instant::now();
        entry.note("resumed", None, "");
        entry.changed.notify_one();
        Ok(())
    }

    /// Writes the record that a sandbox had before a failed resume. While the store says that it runs, its deadline holds.
    async fn stay_paused(&self, entry: &Arc<Entry>, sandbox: &Sandbox, before: SandboxRow) -> Result<()> {
        let written = self
            .write(entry, |row| {
                (row.state, row.settings) = (before.state, before.settings);
                (row.paused_at, row.deadline_at) = (before.paused_at, before.deadline_at);
            })
            .await;
        if written.is_ok() {
            entry.live().deadline = None;
            let _ = sandbox.set_deadline(None).await;
        }
        entry.changed.notify_one();
        written
    }

    /// Writes that a paused sandbox runs, and that nothing waits in it.
    async fn write_running(&self, entry: &Arc<Entry>, change: impl FnOnce(&mut SandboxRow)) -> Result<()> {
        let settings = entry.live().settings.clone();
        let text = entry.stored_settings(&settings)?;
        self.write(entry, |row| {
            row.state = SandboxState::Running;
            row.paused_at = None;
            row.settings = text;
            change(row);
        })
        .await
    }

    /// Sets the timeout, counted from now; zero expires it at once.
    ///
    /// # Errors
    /// As [`Keeper::get`]; a timeout above the maximum is refused.
    pub async fn set_timeout(&self, caller: &Caller, id: &str, timeout: Duration) -> Result<SandboxInfo> {
        self.transact(SANDBOX_TIMEOUT, caller, id, move |keeper, caller, id| async move {
            let timeout = if timeout.is_zero() { timeout } else { keeper.checked_lifetime(timeout)? };
            let entry = keeper.find(&caller, &id).await?;
            {
                let _step = entry.step.lock().await;
                if entry.state() == SandboxState::Paused {
                    // The timeout is suspended: this is the time left when it is resumed.
                    keeper
                        .write(&entry, |row| {
                            let paused = row.paused_at.unwrap_or_else(Timestamp::now);
                            row.deadline_at = paused.checked_add(timeout).ok();
                        })
                        .await?;
                } else {
                    keeper.move_deadline(&entry, timeout).await?;
                }
            }
            let set = Ok(());
            let details = vec![("timeout_s", timeout.as_secs_f64().to_string())];
            keeper.audit(&caller, SANDBOX_TIMEOUT, Some(&entry.id), &set, details).await?;
            if timeout.is_zero() && entry.state() != SandboxState::Paused {
                // If the guard task is already expiring it, this waits for that.
                match keeper.expire(&entry).await {
                    Err(
                        KeeperError::WrongState { state: SandboxState::Paused, .. }
                        | KeeperError::Gone { .. },
                    ) => {}
                    done => done?,
                }
            }
            Ok(entry.info())
        })
        .await
    }

    /// Writes a new deadline, and sets it. The caller holds the step lock.
    async fn move_deadline(&self, entry: &Arc<Entry>, timeout: Duration) -> Result<()> {
        let sandbox = entry.require_running("setting its timeout")?;
        self.write(entry, |row| row.deadline_at = after(timeout)).await?;
        self.set_deadlines(entry, &sandbox).await?;
        entry.changed.notify_one();
        Ok(())
    }

    /// Sets the deadlines of the keeper and of the engine to that of the record.
    pub(crate) async fn set_deadlines(&self, entry: &Arc<Entry>, sandbox: &Sandbox) -> Result<()> {
        let (left, action) = {
            let mut live = entry.live();
            let left = live.row.deadline_at.map(until);
            live.deadline = left.map(|left| Instant::now() + left);
            (left, live.on_timeout())
        };
        sandbox.set_deadline(holder_deadline(left, action)).await?;
        Ok(())
    }

    /// Carries out the sandbox's action on timeout: ends or pauses it.
    pub(crate) async fn expire(&self, entry: &Arc<Entry>) -> Result<()> {
        let action = entry.live().on_timeout();
        match action {
            TimeoutAction::Kill => self.end(entry, "timed out").await,
            TimeoutAction::Pause => match self.freeze(entry).await {
                // If it cannot be paused, it must not keep running.
                Err(KeeperError::Engine(belljar_engine::EngineError::Unsupported { .. })) => {
                    self.end(entry, "timed out, and it could not be paused").await
                }
                paused => paused,
            },
        }
    }

    /// Checks that a timeout is in the allowed range.
    pub(crate) fn checked_lifetime(&self, timeout: Duration) -> Result<Duration> {
        let max = self.inner.config.now().max_lifetime;
        if timeout < Duration::from_secs(1) || timeout > max {
            let max = format_span(max);
            let reason = format!("{timeout:?} is not allowed; give a time from 1 s to {max}");
            return Err(KeeperError::field("timeout", reason));
        }
        Ok(timeout)
    }

    /// Spawns a task that guards a sandbox until it is gone: it handles its end, its deadline and its idle timeout; and one
    /// that handles a guest that does not answer.
    pub(crate) fn guard(&self, entry: &Arc<Entry>) {
        self.watch_guest(entry);
        let (keeper, entry) = (self.clone(), Arc::clone(entry));
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                let changed = entry.changed.notified();
                let (state, sandbox, deadline) = {
                    let live = entry.live();
                    (live.row.state, live.sandbox.clone(), live.deadline)
                };
                let Some(sandbox) = sandbox.filter(|_| state != SandboxState::Gone) else { return };
                let idle = entry.idle_until().filter(|_| state == SandboxState::Running);
                let next = deadline.into_iter().chain(idle).min();
                let done = tokio::select! {
                    how = sandbox.wait_ended() => keeper.end(&entry, &how).await,
                    () = sleep_until(next) => keeper.check_deadlines(&entry).await,
                    () = changed => Ok(()),
                };
                if let Err(error) = done {
                    tracing::error!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot end or pause a sandbox; trying again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        });
    }

    /// Expires the sandbox if its deadline or idle timeout has passed and has not been moved meanwhile.
    async fn check_deadlines(&self, entry: &Arc<Entry>) -> Result<()> {
        let now = Instant::now();
        let deadline = entry.live().deadline;
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if passed(deadline) || passed(entry.idle_until()) {
            return self.expire(entry).await;
        }
        Ok(())
    }
}

/// Logs that a failed pause or resume could not be undone completely. Its caller gets the error that came first.
fn warn_of_failed_undo(entry: &Entry, undone: Result<()>) {
    if let Err(error) = undone {
        tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot undo a failed pause or resume completely");
    }
}

/// Delay before the guard task tries again after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the deadline for the engine; none for a sandbox that is paused on timeout, which the engine must not end.
pub(crate) fn holder_deadline(left: Option<Duration>, action: TimeoutAction) -> Option<Duration> {
    left.filter(|_| action == TimeoutAction::Kill).map(|left| left + HOLDER_SLACK)
}

/// Returns the time after `timeout` from now.
pub(crate) fn after(timeout: Duration) -> Option<Timestamp> {
    Timestamp::now().checked_add(timeout).ok()
}
