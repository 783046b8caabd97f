//! One sandbox that is not gone, as the keeper has it in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belljar_engine::{Sandbox, v1};
use belljar_model::{SandboxId, SandboxSpec, SandboxState};
use belljar_store::SandboxRow;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, watch};

use crate::error::KeeperError;
use crate::events::{Event, Events};
use crate::info::{LogEntry, SandboxInfo};
use crate::request::{Settings, TimeoutAction};
use crate::volumes::Hold;
use crate::warm::Warm;

/// What happened to a sandbox that is remembered.
const LOG_ENTRIES: usize = 1000;

/// The same, once it has ended.
const KEPT_LOG_ENTRIES: usize = 50;

/// What is kept of what its programs wrote last, in bytes.
const LAST_OUTPUT_BYTES: usize = 4096;

/// How many operations of a sandbox may go on without their callers. A guest's connection takes as many at once.
const MAX_UNDER_WAY: usize = 64;

/// A sandbox that is not gone.
pub(crate) struct Entry {
    pub(crate) id: SandboxId,
    pub(crate) tenant: String,
    pub(crate) key: String,
    /// Held by whoever takes it from one state to another: one step at a time.
    pub(crate) step: tokio::sync::Mutex<()>,
    /// Room for operations that go on without their callers.
    pub(crate) under_way: Arc<Semaphore>,
    /// Its guardian looks again: deadlines have moved, or it has become idle.
    pub(crate) changed: Notify,
    live: Mutex<Live>,
    /// What is known of its interpreters. Held while one is sent.
    pub(crate) warm: Arc<tokio::sync::Mutex<Warm>>,
    /// By how many its tenant's weight is shared, as its control groups were told last.
    pub(crate) shared_by: AtomicU16,
    users: AtomicUsize,
    /// Answers to executions that were kept for requests that come again.
    pub(crate) answers: Arc<AtomicU32>,
    log: Mutex<Log>,
    /// The number of the log's last entry; the largest there is once the sandbox is gone.
    logged: watch::Sender<u64>,
    events: Arc<Events>,
    /// The end of what its programs wrote.
    last_output: Mutex<Vec<u8>>,
    /// Holds on its volumes, which prevent their removal.
    volumes: Mutex<Vec<Hold>>,
}

/// What changes.
#[derive(Clone)]
pub(crate) struct Live {
    /// As it was last written.
    pub(crate) row: SandboxRow,
    pub(crate) spec: Arc<SandboxSpec>,
    pub(crate) settings: Settings,
    /// Nothing while it is being made.
    pub(crate) sandbox: Option<Arc<Sandbox>>,
    pub(crate) ports: BTreeMap<u16, bool>,
    /// When its time is over, by the monotonic clock.
    pub(crate) deadline: Option<Instant>,
    /// When it was last used.
    pub(crate) touched: Instant,
    /// Whether a command was started in the background, to whose output nobody needs to listen.
    pub(crate) has_background: bool,
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
            under_way: Arc::new(Semaphore::new(MAX_UNDER_WAY)),
            changed: Notify::new(),
            live: Mutex::new(Live {
                row,
                spec,
                settings,
                sandbox,
                ports: BTreeMap::new(),
                deadline,
                touched: now,
                has_background: false,
            }),
            warm: Arc::default(),
            shared_by: AtomicU16::new(1),
            users: AtomicUsize::new(0),
            answers: Arc::default(),
            log: Mutex::new(Log::default()),
            logged: watch::Sender::new(0),
            events: Arc::clone(events),
            last_output: Mutex::default(),
            volumes: Mutex::default(),
        })
    }

    /// What it is now. Never held over an await.
    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock()
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.live().row.state
    }

    /// Counts a use; it is idle again when the last one is dropped.
    pub(crate) fn begin_use(self: &Arc<Self>) -> Use {
        self.users.fetch_add(1, Ordering::Relaxed);
        Use { entry: Arc::clone(self) }
    }

    /// Returns whether it is in use.
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

    /// When it will have been idle for too long, unless somebody uses it.
    pub(crate) fn idle_until(&self) -> Option<Instant> {
        if self.is_used() {
            return None;
        }
        let live = self.live();
        live.settings.lifetime.idle_timeout.map(|idle| live.touched + idle)
    }

    /// Notes what happened.
    pub(crate) fn note(&self, event: &'static str, process: Option<u64>, detail: impl Into<String>) {
        let detail = detail.into();
        let kind = match event {
            "created" => Some("sandbox.created"),
            "adopted" => Some("sandbox.adopted"),
            "exec" => Some("process.started"),
            EXITED => Some("process.exited"),
            "code_ended" => Some("context.ended"),
            // The others are told by the sandbox's state, or by the audit log.
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

    /// Tells everybody who follows events.
    pub(crate) fn publish(&self, kind: &'static str, process: Option<u64>, detail: String) {
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

    /// Tells when something is noted, and when the sandbox is gone.
    pub(crate) fn logged(&self) -> watch::Receiver<u64> {
        self.logged.subscribe()
    }

    /// Wakes those who follow its log: it is gone.
    pub(crate) fn end_log(&self) {
        self.logged.send_replace(u64::MAX);
    }

    /// Notes how a process ended, once.
    pub(crate) fn note_exit(&self, process: u64, exited: &v1::Exited) {
        let is_noted = {
            let log = self.log.lock();
            let mut latest = log.entries.iter().rev();
            latest.any(|entry| entry.event == EXITED && entry.process == Some(process))
        };
        let detail = match exited.signal {
            0 => format!("exit code {}", exited.code),
            signal => format!("killed by signal {signal}"),
        };
        if !is_noted {
            self.note(EXITED, Some(process), detail);
        }
    }

    /// Takes what a program wrote.
    pub(crate) fn wrote(&self, data: &[u8]) {
        let data = &data[data.len().saturating_sub(LAST_OUTPUT_BYTES)..];
        let mut kept = self.last_output.lock();
        let over = (kept.len() + data.len()).saturating_sub(LAST_OUTPUT_BYTES);
        kept.drain(..over);
        kept.extend_from_slice(data);
    }

    /// What is kept of it once it has ended: what happened last, what was written last, and why it ended. It can be asked for
    /// again where it could not be kept.
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
        // Numbers and texts: they can be written.
        serde_json::to_string(&kept).unwrap_or_default()
    }

    /// What happened after entry `after`, at most `limit` of it.
    pub(crate) fn log(&self, after: u64, limit: usize) -> Vec<LogEntry> {
        let log = self.log.lock();
        log.entries.iter().filter(|entry| entry.seq > after).take(limit).cloned().collect()
    }

    /// The sandbox, if it runs.
    pub(crate) fn running(&self, action: &'static str) -> Result<Arc<Sandbox>, KeeperError> {
        // Not held while the reason is looked up.
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
            state => KeeperError::WrongState { id: self.id.clone(), state, action, needed },
        }
    }

    pub(crate) fn info(&self) -> SandboxInfo {
        let live = self.live();
        info(
            &live.row,
            &live.spec,
            &live.settings,
            live.sandbox.as_deref(),
            live.ports.keys().copied().collect(),
        )
    }
}

/// The event of a process that has ended.
pub(crate) const EXITED: &str = "exited";

/// The time until `at`, nothing if it has passed.
pub(crate) fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}

/// What is told of a sandbox.
pub(crate) fn info(
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
        lifetime: settings.lifetime.clone(),
        spec: spec.clone(),
        isolation: sandbox.map(|sandbox| sandbox.isolation.clone().with_limits(&spec.limits)),
        home: sandbox.map(|sandbox| sandbox.home.clone()).unwrap_or_default(),
        ports,
        for_build: settings.for_build,
        pooled: settings.pooled,
        start: Duration::from_micros(settings.start_us),
    }
}

/// A use of a sandbox, for as long as it is held.
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
        self.entry.live().touched = Instant::now();
        if self.entry.users.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Only a sandbox with an idle time is waited for.
            if self.entry.live().settings.lifetime.idle_timeout.is_some() {
                self.entry.changed.notify_one();
            }
        }
    }
}

impl Live {
    /// What happens when its time is over.
    pub(crate) fn on_timeout(&self) -> TimeoutAction {
        self.settings.lifetime.on_timeout
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(state: SandboxState, reason: Option<&str>) -> Arc<Entry> {
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
    fn the_last_output_is_bounded_and_kept_with_the_end() {
        let entry = entry(SandboxState::Running, None);
        entry.wrote(&[b'a'; 3 * LAST_OUTPUT_BYTES]);
        entry.wrote(b"end\xff\0");
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
        // The end is told once, however often it could not be kept.
        for _ in 0..2 * KEPT_LOG_ENTRIES {
            entry.post_mortem("over");
        }
        let kept: Vec<LogEntry> = serde_json::from_str(&entry.post_mortem("over")).expect("it is a log");
        assert_eq!(kept.len(), KEPT_LOG_ENTRIES);
        let events: Vec<_> = kept.iter().map(|entry| entry.event.as_ref()).collect();
        assert_eq!(events[events.len() - 3..], ["exec", "output", "ended"]);
    }

    /// Whoever used a sandbox while another request ended it waited for a lock that he held himself, for ever.
    #[test]
    fn one_that_ends_meanwhile_is_told_as_gone() {
        for (state, reason) in [(SandboxState::Stopping, Some("over")), (SandboxState::Gone, None)] {
            let entry = entry(state, reason);
            let (send, answer) = std::sync::mpsc::channel();
            std::thread::spawn(move || send.send(entry.running("using it").err()));
            let error = answer.recv_timeout(Duration::from_secs(10)).expect("it answers");
            assert!(matches!(error, Some(KeeperError::Gone { .. })), "{error:?}");
        }
        let error = entry(SandboxState::Paused, None).running("using it").err();
        assert!(matches!(error, Some(KeeperError::WrongState { .. })), "{error:?}");
    }
}
