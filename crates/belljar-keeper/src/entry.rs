//! In-memory state of a sandbox that is not gone.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belljar_engine::{Sandbox, v1};
use belljar_model::{SandboxId, SandboxSpec, SandboxState};
use belljar_store::SandboxRow;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, watch};

use crate::code_step::CALL_PREFIX;
use crate::error::KeeperError;
use crate::events::{Event, Events};
use crate::exits::{running, wait_for_exit};
use crate::info::{LogEntry, SandboxInfo};
use crate::request::{Settings, TimeoutAction};
use crate::volumes::Hold;
use crate::warm::Warm;

/// Maximum number of log entries of a sandbox.
const LOG_ENTRIES: usize = 1000;

/// Maximum number of log entries kept after its end.
const KEPT_LOG_ENTRIES: usize = 50;

/// Maximum number of contexts whose loss is remembered: more than a guest has.
const MAX_LOST: usize = 64;

/// Number of bytes kept of the last output of its programs.
const LAST_OUTPUT_BYTES: usize = 4096;

/// Maximum number of detached operations in flight in a sandbox, the same as on a guest's connection.
const MAX_IN_FLIGHT: usize = 64;

/// Interval at which a time limit looks whether the sandbox is paused.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of commands in the background that are watched until they end, at a time: each takes a call of the connection to the guest.
const MAX_WATCHED_EXITS: usize = 64;

/// A sandbox that is not gone.
pub(crate) struct Entry {
    pub(crate) id: SandboxId,
    pub(crate) tenant: String,
    pub(crate) key: String,
    /// Serializes state transitions.
    pub(crate) step: tokio::sync::Mutex<()>,
    /// Permits for detached operations.
    pub(crate) in_flight: Arc<Semaphore>,
    /// Wakes the guard task when deadlines have moved or the sandbox has become idle.
    pub(crate) changed: Notify,
    live: Mutex<Live>,
    /// State of its interpreters. Locked while one is sent.
    pub(crate) warm: Arc<tokio::sync::Mutex<Warm>>,
    /// The divisor of its tenant's weight that its control groups currently use.
    pub(crate) shared_by: AtomicU16,
    users: AtomicUsize,
    /// Number of stored answers to executions, for repeated requests. Counted before they are stored.
    pub(crate) answers: Arc<AtomicU32>,
    log: Mutex<Log>,
    /// Number of the log's last entry; `u64::MAX` once the sandbox is gone.
    logged: watch::Sender<u64>,
    /// Permits for watching commands in the background until they end.
    watched_exits: Semaphore,
    events: Arc<Events>,
    /// Held while it is frozen for a call of its code. Calls of several contexts wait one after the other.
    pub(crate) holding: Arc<tokio::sync::Mutex<()>>,
    /// Last output of its programs.
    last_output: Mutex<Vec<u8>>,
    /// Holds on its volumes, which prevent their removal.
    volumes: Mutex<Vec<Hold>>,
}

/// Mutable state of a sandbox.
#[derive(Clone)]
pub(crate) struct Live {
    /// The record as last written.
    pub(crate) row: SandboxRow,
    pub(crate) spec: Arc<SandboxSpec>,
    pub(crate) settings: Settings,
    /// `None` while it is being created.
    pub(crate) sandbox: Option<Arc<Sandbox>>,
    pub(crate) ports: BTreeMap<u16, bool>,
    /// Monotonic deadline of its timeout.
    pub(crate) deadline: Option<Instant>,
    /// Time of the last use.
    pub(crate) last_used: Instant,
    /// Number of calls that wait or run in it with an approval, which have its network and its limits in their record.
    pub(crate) approved_calls: u32,
    /// Whether a background command was started, whose output is collected before the sandbox is stopped.
    pub(crate) has_background: bool,
    /// Whether commands may go on that an earlier server has started, and that nobody watches.
    pub(crate) has_unwatched: bool,
    /// By the id of a context whose interpreter was lost in an execution: the interpreter's generation, and the reason as judged.
    pub(crate) lost: HashMap<String, (u32, String)>,
}

#[derive(Default)]
struct Log {
    entries: VecDeque<LogEntry>,
    last: u64,
}

impl Entry {
    pub(crate) fn new(
        row: SandboxRow,
        spec: Arc<SandboxSpec>,
        settings: Settings,
        sandbox: Option<Arc<Sandbox>>,
        events: &Arc<Events>,
    ) -> Arc<Self> {
        let now = Instant::now();
        let deadline = match row.state {
            SandboxState::Paused => None,
            _ => row.deadline_at.map(|at| now + until(at)),
        };
        Arc::new(Self {
            id: row.id.clone(),
            tenant: row.tenant.clone(),
            key: row.key_id.clone(),
            step: tokio::sync::Mutex::new(()),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            changed: Notify::new(),
            live: Mutex::new(Live {
                row,
                spec,
                settings,
                sandbox,
                ports: BTreeMap::new(),
                deadline,
                last_used: now,
                approved_calls: 0,
                has_background: false,
                has_unwatched: false,
                lost: HashMap::new(),
            }),
            warm: Arc::default(),
            shared_by: AtomicU16::new(1),
            users: AtomicUsize::new(0),
            answers: Arc::default(),
            log: Mutex::new(Log::default()),
            logged: watch::Sender::new(0),
            watched_exits: Semaphore::new(MAX_WATCHED_EXITS),
            events: Arc::clone(events),
            holding: Arc::default(),
            last_output: Mutex::default(),
            volumes: Mutex::default(),
        })
    }

    /// Locks the mutable state. Must not be held across an await.
    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock()
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.live().row.state
    }

    /// Counts a use. The sandbox is idle again when the last use is dropped.
    pub(crate) fn begin_use(self: &Arc<Self>) -> Use {
        self.users.fetch_add(1, Ordering::Relaxed);
        Use { entry: Arc::clone(self) }
    }

    /// Reports whether it is in use.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    /// Keeps the holds on its volumes until it is gone.
    pub(crate) fn keep_volumes(&self, volumes: Vec<Hold>) {
        *self.volumes.lock() = volumes;
        if self.state() == SandboxState::Gone {
            self.release_volumes();
        }
    }

    /// Releases its volumes.
    pub(crate) fn release_volumes(&self) {
        self.volumes.lock().clear();
    }

    /// Waits for a future, for at most this time in which the sandbox is not paused; `None` after that.
    pub(crate) async fn within<T>(&self, time: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut left = time;
        while !left.is_zero() {
            let tick = left.min(CHECK_INTERVAL);
            match tokio::time::timeout(tick, &mut future).await {
                Ok(output) => return Some(output),
                Err(_) if self.state() == SandboxState::Paused => {}
                Err(_) => left -= tick,
            }
        }
        None
    }

    /// Records why a context's interpreter was lost in an execution, or forgets it.
    pub(crate) fn set_lost(&self, context: &str, lost: Option<(u32, String)>) {
        let known = &mut self.live().lost;
        match lost {
            Some(lost) if known.len() < MAX_LOST => drop(known.insert(context.to_owned(), lost)),
            _ => drop(known.remove(context)),
        }
    }

    /// Returns the deadline of its idle timeout, if it has one and is not in use.
    pub(crate) fn idle_until(&self) -> Option<Instant> {
        if self.is_used() {
            return None;
        }
        let live = self.live();
        live.settings.lifetime.idle_timeout.map(|idle| live.last_used + idle)
    }

    /// Adds an entry to the log, and publishes it as an event unless the state or the audit log already does.
    pub(crate) fn note(&self, event: &'static str, process: Option<u64>, detail: impl Into<String>) {
        let detail = detail.into();
        let kind = match event {
            "created" => Some("sandbox.created"),
            "adopted" => Some("sandbox.adopted"),
            "exec" => Some("process.started"),
            EXITED => Some("process.exited"),
            "code_ended" => Some("context.ended"),
            // Published with the sandbox's state or by the audit log.
            _ => None,
        };
        if let Some(kind) = kind {
            self.publish(kind, process, detail.clone());
        }
        let mut log = self.log.lock();
        log.last += 1;
        let seq = log.last;
        if log.entries.len() == LOG_ENTRIES {
            log.entries.pop_front();
        }
        let event = event.into();
        log.entries.push_back(LogEntry { seq, at: Timestamp::now(), event, process, detail });
        drop(log);
        self.logged.send_replace(seq);
    }

    /// Publishes an event.
    pub(crate) fn publish(&self, kind: &'static str, process: Option<u64>, detail: String) {
        debug_assert!(belljar_model::EVENT_KINDS.contains(&kind), "{kind}");
        let labels = self.live().row.labels.clone();
        let event = Event {
            sandbox: Some(self.id.clone()),
            labels,
            process,
            detail,
            ..Event::new(kind, &self.tenant)
        };
        self.events.publish(event);
    }

    /// Subscribes to the number of the log's last entry.
    pub(crate) fn subscribe_log(&self) -> watch::Receiver<u64> {
        self.logged.subscribe()
    }

    /// Ends the log: wakes its followers.
    pub(crate) fn end_log(&self) {
        self.logged.send_replace(u64::MAX);
    }

    /// Logs the exit of a process, once.
    pub(crate) fn note_exit(&self, process: u64, exited: &v1::Exited) {
        let is_logged = {
            let log = self.log.lock();
            let mut latest = log.entries.iter().rev();
            latest.any(|entry| entry.event == EXITED && entry.process == Some(process))
        };
        let detail = match exited.signal {
            0 => format!("exit code {}", exited.code),
            signal => format!("killed by signal {signal}"),
        };
        if !is_logged {
            self.note(EXITED, Some(process), detail);
        }
    }

    /// Logs the end of a command in the background, which nobody may look at. Of more commands than are watched at a time, when one of those has
    /// ended.
    pub(crate) fn watch_exit(self: &Arc<Self>, sandbox: &Arc<Sandbox>, process: u64) {
        let (entry, sandbox) = (Arc::clone(self), Arc::clone(sandbox));
        tokio::spawn(async move {
            let exiting = async {
                let _watched = entry.watched_exits.acquire().await;
                if let Some(exited) = wait_for_exit(&sandbox, process).await {
                    entry.note_exit(process, &exited);
                }
            };
            tokio::select! {
                () = exiting => {}
                _ = sandbox.wait_ended() => {}
            }
        });
    }

    /// Watches the commands that an earlier server has started and that go on, as that server did, if the guest answers.
    pub(crate) async fn watch_running(self: &Arc<Self>) {
        let (sandbox, most) = {
            let live = self.live();
            (live.sandbox.clone(), live.spec.limits.pids.get())
        };
        let Some(sandbox) = sandbox else { return };
        let Some(running) = running(&sandbox, most).await else { return };
        if std::mem::take(&mut self.live().has_unwatched) {
            self.live().has_background |= !running.is_empty();
            running.into_iter().for_each(|process| self.watch_exit(&sandbox, process));
        }
    }

    /// Keeps the end of a program's output.
    pub(crate) fn record_output(&self, data: &[u8]) {
        let data = &data[data.len().saturating_sub(LAST_OUTPUT_BYTES)..];
        let mut kept = self.last_output.lock();
        let over = (kept.len() + data.len()).saturating_sub(LAST_OUTPUT_BYTES);
        kept.drain(..over);
        kept.extend_from_slice(data);
    }

    /// Returns the log to be stored after its end, as JSON: the last entries, the last output, and the reason of its end. May be
    /// called again if storing fails.
    pub(crate) fn post_mortem(&self, reason: &str) -> String {
        let output = self.last_output.lock().clone();
        let output = String::from_utf8_lossy(&output).replace('\0', "\u{fffd}");
        let last = [("output", output), ("ended", reason.to_owned())];
        let last = last.into_iter().filter(|(event, detail)| *event == "ended" || !detail.is_empty());
        let log = self.log.lock();
        let (seqs, at) = (log.last + 1.., Timestamp::now());
        let last = last.zip(seqs).map(|((event, detail), seq)| LogEntry {
            seq,
            at,
            event: event.into(),
            process: None,
            detail,
        });
        let skipped = log.entries.len().saturating_sub(KEPT_LOG_ENTRIES - 2);
        let kept: Vec<_> = log.entries.iter().skip(skipped).cloned().chain(last).collect();
        // Cannot fail: numbers and text only.
        serde_json::to_string(&kept).unwrap_or_default()
    }

    /// Returns at most `limit` log entries after entry `after`.
    pub(crate) fn read_log(&self, after: u64, limit: usize) -> Vec<LogEntry> {
        let log = self.log.lock();
        log.entries.iter().filter(|entry| entry.seq > after).take(limit).cloned().collect()
    }

    /// Returns the sandbox if it is running, else the error for `action`.
    pub(crate) fn require_running(&self, action: &'static str) -> Result<Arc<Sandbox>, KeeperError> {
        // The lock is released before `wrong_state` takes it again.
        let (sandbox, state) = {
            let live = self.live();
            (live.sandbox.clone(), live.row.state)
        };
        match (sandbox, state) {
            (Some(sandbox), SandboxState::Running) => Ok(sandbox),
            (_, state) => Err(self.wrong_state(state, action, "running")),
        }
    }

    pub(crate) fn wrong_state(
        &self,
        state: SandboxState,
        action: &'static str,
        needed: &'static str,
    ) -> KeeperError {
        match state {
            SandboxState::Stopping | SandboxState::Gone => KeeperError::Gone {
                id: self.id.clone(),
                reason: self.live().row.reason.clone().unwrap_or_else(|| "it is being removed".to_owned()),
            },
            state => {
                let needed = match &self.live().settings.held_by {
                    Some(call) if call.starts_with(CALL_PREFIX) => {
                        format!(
                            "released: answer the call {call} of its code with tool_results (of run_code over MCP, of code/continue over REST), \
                             or use another sandbox until its time is over"
                        )
                        .into()
                    }
                    Some(approval) => format!(
                        "released by a decision about the call that waits in it: belljar approval show {approval}"
                    )
                    .into(),
                    None => needed.into(),
                };
                KeeperError::WrongState { id: self.id.clone(), state, action, needed }
            }
        }
    }

    pub(crate) fn info(&self) -> SandboxInfo {
        let live = self.live();
        let ports = live.ports.keys().copied().collect();
        to_info(&live.row, &live.spec, &live.settings, live.sandbox.as_deref(), ports)
    }

    /// Returns the settings as they are stored.
    pub(crate) fn stored_settings(&self, settings: &Settings) -> Result<String, KeeperError> {
        let what = || format!("settings of sandbox {}", self.id);
        serde_json::to_string(settings).map_err(|source| KeeperError::Record { what: what(), source })
    }
}

/// Log event of a process that has exited.
pub(crate) const EXITED: &str = "exited";

/// Returns the time until `at`; zero if it has passed.
pub(crate) fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}

/// Describes a sandbox for its owner.
pub(crate) fn to_info(
    row: &SandboxRow,
    spec: &SandboxSpec,
    settings: &Settings,
    sandbox: Option<&Sandbox>,
    ports: Vec<u16>,
) -> SandboxInfo {
    SandboxInfo {
        id: row.id.clone(),
        name: row.name.clone(),
        state: row.state,
        reason: row.reason.clone(),
        template: row.template.clone(),
        labels: row.labels.clone(),
        tenant: row.tenant.clone(),
        key: row.key_id.clone(),
        created_at: row.created_at,
        started_at: row.started_at,
        expires_at: row.deadline_at.filter(|_| row.state != SandboxState::Paused),
        paused_at: row.paused_at,
        ended_at: row.ended_at,
        held_by: settings.held_by.clone().filter(|_| row.state == SandboxState::Paused),
        idle_timeout: settings.lifetime.idle_timeout,
        on_timeout: settings.lifetime.on_timeout,
        auto_resume: settings.lifetime.auto_resume,
        spec: spec.clone(),
        isolation: sandbox.map(|sandbox| sandbox.isolation.clone().with_limits(&spec.limits)),
        home: sandbox.map(|sandbox| sandbox.home.to_string_lossy().into_owned()).unwrap_or_default(),
        ports,
        for_build: settings.for_build,
        pooled: settings.pooled,
        start: Duration::from_micros(settings.start_us),
    }
}

/// A use of a sandbox, which ends when this is dropped.
pub(crate) struct Use {
    entry: Arc<Entry>,
}

impl Clone for Use {
    fn clone(&self) -> Self {
        self.entry.begin_use()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.entry.live().last_used = Instant::now();
        if self.entry.users.fetch_sub(1, Ordering::Relaxed) == 1 {
            // The guard task waits for idleness only if there is an idle timeout.
            if self.entry.live().settings.lifetime.idle_timeout.is_some() {
                self.entry.changed.notify_one();
            }
        }
    }
}

impl Live {
    /// Returns the action on timeout.
    pub(crate) fn on_timeout(&self) -> TimeoutAction {
        self.settings.lifetime.on_timeout
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns a sandbox that nothing holds.
    pub(crate) fn entry(state: SandboxState, reason: Option<&str>) -> Arc<Entry> {
        let now = Timestamp::now();
        let row = SandboxRow {
            id: SandboxId::from_entropy([7; 20]),
            tenant: "default".to_owned(),
            key_id: "key".to_owned(),
            keeper: "local".to_owned(),
            name: None,
            state,
            reason: reason.map(str::to_owned),
            template: "default".to_owned(),
            spec: String::new(),
            settings: String::new(),
            labels: BTreeMap::new(),
            created_at: now,
            updated_at: now,
            started_at: None,
            deadline_at: None,
            paused_at: None,
            ended_at: None,
            log: String::new(),
            generation: 0,
        };
        let events = Arc::new(Events::new().expect("random numbers"));
        Entry::new(row, Arc::new(SandboxSpec::default()), Settings::default(), None, &events)
    }

    #[test]
    fn last_output_is_bounded_and_kept_after_the_end() {
        let entry = entry(SandboxState::Running, None);
        entry.record_output(&[b'a'; 3 * LAST_OUTPUT_BYTES]);
        entry.record_output(b"end\xff\0");
        let exited = v1::Exited { code: 3, ..Default::default() };
        entry.note_exit(1, &exited);
        entry.note_exit(1, &exited);
        let kept: Vec<LogEntry> = serde_json::from_str(&entry.post_mortem("over")).expect("it is a log");
        let events: Vec<_> = kept.iter().map(|entry| (entry.event.as_ref(), entry.detail.as_str())).collect();
        let [exit, (output, text), end] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((exit, output, end), (&(EXITED, "exit code 3"), &"output", &("ended", "over")));
        assert!(
            text.ends_with("aaend\u{fffd}\u{fffd}") && text.chars().count() == LAST_OUTPUT_BYTES,
            "{text}"
        );
        for number in 0..2 * KEPT_LOG_ENTRIES {
            entry.note("exec", Some(number as u64), "");
        }
        // The end appears once, however often storing failed.
        for _ in 0..2 * KEPT_LOG_ENTRIES {
            entry.post_mortem("over");
        }
        let kept: Vec<LogEntry> = serde_json::from_str(&entry.post_mortem("over")).expect("it is a log");
        assert_eq!(kept.len(), KEPT_LOG_ENTRIES);
        let events: Vec<_> = kept.iter().map(|entry| entry.event.as_ref()).collect();
        assert_eq!(events[events.len() - 3..], ["exec", "output", "ended"]);
    }

    /// A use during another request's stop once deadlocked on a lock that it held itself.
    #[test]
    fn ending_sandbox_is_reported_as_gone() {
        for (state, reason) in [(SandboxState::Stopping, Some("over")), (SandboxState::Gone, None)] {
            let entry = entry(state, reason);
            let (send, answer) = std::sync::mpsc::channel();
            std::thread::spawn(move || send.send(entry.require_running("using it").err()));
            let error = answer.recv_timeout(Duration::from_secs(10)).expect("it answers");
            assert!(matches!(error, Some(KeeperError::Gone { .. })), "{error:?}");
        }
        let error = entry(SandboxState::Paused, None).require_running("using it").err();
        assert!(matches!(error, Some(KeeperError::WrongState { .. })), "{error:?}");
    }
}
