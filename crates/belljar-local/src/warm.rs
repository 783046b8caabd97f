//! Warm interpreters: one parent per tenant and tree has done Python's start and the template's imports; a child of it moves
//! into a sandbox in a few milliseconds.
//!
//! ```text
//! launcher ── request, descriptors ─► parent ── fork into the sandbox's group ──► child
//!    │                                              becomes the sandbox's user, enters its namespaces, forks twice,
//!    │                                              drops capabilities, installs the filter
//!    └── the other ends ──► guest ◄── control socket ── the last child, whose parent is the guest now
//! ```
//!
//! A parent runs under its own user id in its own namespaces, on a read-only tree, without a network, without a /proc and under
//! a filter. It sees the host's process ids, as the kernel lets a process enter only pid namespaces below its own. It has
//! CAP_SETUID and CAP_SETGID to become the user of a sandbox, which is all that its filter lets it become, and CAP_DAC_OVERRIDE
//! to be cloned into a sandbox's group; a child loses them on its way. It runs the template's modules and no user's code. No
//! tenant's sandbox gets a child of another tenant's parent: children share its memory layout and hash seed. See decision 0028.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use belljar_engine::{EngineError, Walls as _};
use belljar_linux::seccomp::{self, Instruction};
use belljar_linux::{CgroupJoin, CgroupPlan, LaunchPlan, SPARE, Wall};
use belljar_model::{Limits, LimitsGrade, SandboxSpec, Tree};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};
use serde::Deserialize;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::engine::LocalEngine;
use crate::progress::async_fd;
use crate::sockets::pair;
use crate::walls::LocalWalls;

/// Maximum number of parents. The least recently used one of the owner that has most of them is evicted: an owner with many templates keeps
/// no other's from being warm.
const MAX_PARENTS: usize = 8;

/// Maximum number of parents of one owner that are being started.
const MAX_STARTING: usize = MAX_PARENTS / 2;

/// Maximum time for a parent's imports.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which an unused parent ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Age after which a parent is replaced by a new one, with another memory layout.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Time in which a parent forks a child, which takes some milliseconds. Then it is replaced.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Time after which a parent that has not answered gets no further request, as each would wait for the one before.
const BUSY_TIME: Duration = Duration::from_millis(100);

/// Time before a parent that could not start is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Size of an output pipe in bytes, as of the guest's own.
const PIPE_BYTES: usize = 256 * 1024;

/// Data that a process needs to move into a sandbox.
pub(crate) struct Entry {
    uid: u32,
    gid: u32,
    inside: u32,
    namespaces: u64,
    groups: Vec<Group>,
    filter: Option<&'static [Instruction]>,
    rlimits: Vec<(u32, u64)>,
    capabilities: bool,
    keyring: bool,
    spec: SandboxSpec,
}

/// One control group that a process has to join.
struct Group {
    dir: std::ffi::CString,
    join: CgroupJoin,
    /// True if its processes wait for others of the sandbox, or for its owner: the groups of processor time and of the freezer.
    stops: bool,
}

impl Group {
    fn from_plan(plan: &CgroupPlan) -> Self {
        let is_cpu = plan.settings.iter().any(|setting| setting.file.to_bytes().starts_with(b"cpu."));
        Self { dir: plan.dir.clone(), join: plan.join, stops: is_cpu || plan.is_freezer }
    }
}

impl Entry {
    /// Returns the data for a sandbox launched by this plan; `None` if a process cannot move in.
    pub(crate) fn from_plan(plan: &LaunchPlan, spec: &SandboxSpec) -> Option<Self> {
        let tree = plan.namespaces.as_ref().filter(|_| plan.identity.privileged)?;
        let is_excluded = spec.tree.build().is_some() || spec.tree == Tree::Bare;
        if is_excluded || plan.machine.is_some() || plan.without.has(Wall::Owner) {
            return None;
        }
        let has = |wall| !plan.without.has(wall);
        Some(Self {
            uid: plan.identity.outside_uid,
            gid: plan.identity.outside_gid,
            inside: plan.identity.inside,
            namespaces: tree.flags,
            groups: plan.cgroups.iter().map(Group::from_plan).collect(),
            filter: plan.seccomp.filter(|_| has(Wall::Seccomp)).map(seccomp::program),
            rlimits: if has(Wall::Rlimits) { plan.rlimits.clone() } else { Vec::new() },
            capabilities: has(Wall::Capabilities),
            keyring: has(Wall::Keyring),
            spec: SandboxSpec {
                mounts: Vec::new(),
                volumes: Vec::new(),
                env: Vec::new(),
                limits: Limits::default(),
                grade: LimitsGrade::default(),
                ..spec.clone()
            },
        })
    }

    /// Returns a key that distinguishes trees.
    fn tree(&self) -> String {
        let Some(tree) = self.spec.tree.template() else { return "host".to_owned() };
        let layers: Vec<&str> = tree.layers.iter().map(|layer| layer.digest.as_str()).collect();
        format!("{}:{}", tree.base.as_str(), layers.join(":"))
    }

    /// Returns the request to the parent, and the descriptors to send with it.
    fn request(&self) -> Result<(serde_json::Value, Vec<OwnedFd>), rustix::io::Errno> {
        let open =
            |path: &std::path::Path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let mut names = Vec::new();
        let (mut named, mut tasks, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for Group { dir, join, stops } in &self.groups {
            let dir = std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(
                dir.to_bytes(),
            ));
            match join {
                CgroupJoin::AtClone => {
                    names.push("cgroup");
                    named.push(open(dir, OFlags::PATH | OFlags::DIRECTORY)?);
                }
                CgroupJoin::Tasks => {
                    let list = if *stops { &mut late } else { &mut tasks };
                    list.push(open(&dir.join("tasks"), OFlags::WRONLY)?);
                }
            }
        }
        let groups = tasks.len();
        named.extend(tasks);
        named.extend(late);
        let filter = self.filter.map(|filter| {
            let bytes = filter.iter().flat_map(|one| one.bytes()).collect::<Vec<u8>>();
            base64::engine::general_purpose::STANDARD.encode(bytes)
        });
        let request = serde_json::json!({
            "descriptors": names,
            "groups": groups,
            "uid": self.uid,
            "gid": self.gid,
            "inside": self.inside,
            "namespaces": self.namespaces,
            "filter": filter,
            "rlimits": self.rlimits,
            "capabilities": self.capabilities,
            "keyring": self.keyring,
        });
        Ok((request, named))
    }
}

/// Key of a parent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    owner: String,
    tree: String,
    imports: Vec<String>,
}

/// Parents of the launcher.
#[derive(Default)]
pub(crate) struct Parents {
    inner: Mutex<HashMap<Key, State>>,
    last: AtomicU64,
}

enum State {
    Starting,
    Ready(Arc<Parent>),
    Failed { why: String, at: Instant },
}

/// Parent process.
struct Parent {
    number: u64,
    walls: LocalWalls,
    socket: AsyncFd<OwnedFd>,
    started: Instant,
    used: Mutex<Instant>,
    /// When it got the requests that it has not answered, the first one first.
    asked: Mutex<VecDeque<Instant>>,
}

/// Status message of a parent, sent once.
#[derive(Deserialize)]
struct ParentStatus {
    #[serde(default)]
    failed: String,
}

impl Parents {
    fn inner(&self) -> MutexGuard<'_, HashMap<Key, State>> {
        self.inner.lock()
    }

    /// Moves a child of the owner's parent into a sandbox. If there is no parent yet, starts one for the next time.
    ///
    /// # Errors
    /// Fails with a sentence that says why no interpreter is available.
    pub(crate) fn offer(
        self: &Arc<Self>,
        engine: &Arc<LocalEngine>,
        walls: &LocalWalls,
        owner: &str,
        imports: &[String],
    ) -> Result<(), String> {
        let Some(entry) = walls.entry() else {
            return Err(
                "only an administrator's sandboxes of the engine local have warm interpreters".to_owned()
            );
        };
        let key = Key { owner: owner.to_owned(), tree: entry.tree(), imports: imports.to_vec() };
        let mut inner = self.inner();
        let parent = match inner.get(&key) {
            Some(State::Starting) => return Err(starting_message()),
            Some(State::Failed { why, at }) if at.elapsed() < RETRY_INTERVAL => return Err(why.clone()),
            Some(State::Ready(parent)) if !parent.walls.has_ended() => Arc::clone(parent),
            _ => {
                if !make_room(&mut inner, owner) {
                    return Err(
                        "no warm interpreter is started, as many are being started already".to_owned()
                    );
                }
                inner.insert(key.clone(), State::Starting);
                drop(inner);
                self.start(engine, key, entry.spec.clone());
                return Err(starting_message());
            }
        };
        if parent.started.elapsed() > MAX_AGE {
            inner.insert(key.clone(), State::Starting);
            drop(inner);
            self.start(engine, key.clone(), entry.spec.clone());
        }
        *parent.used.lock() = Instant::now();
        if parent.asked.lock().front().is_some_and(|first| first.elapsed() > BUSY_TIME) {
            return Err("the warm interpreter does not answer at the moment".to_owned());
        }
        parent.send(walls, entry)?;
        parent.asked.lock().push_back(Instant::now());
        tokio::spawn(Arc::clone(self).expect_answer(key, parent));
        Ok(())
    }

    /// Replaces a parent that does not answer a request. It waits for the processes by which a child enters the sandbox, and those
    /// stop with a sandbox that is frozen or killed at that instant.
    async fn expect_answer(self: Arc<Self>, key: Key, parent: Arc<Parent>) {
        if tokio::time::timeout(ANSWER_TIMEOUT, parent.answer()).await.is_ok_and(|answer| answer.is_ok()) {
            return;
        }
        self.forget(&key, parent.number);
        let _ = parent.walls.stop().await;
    }

    /// Removes a parent, unless it has been replaced.
    fn forget(&self, key: &Key, number: u64) {
        let mut inner = self.inner();
        if matches!(inner.get(key), Some(State::Ready(parent)) if parent.number == number) {
            inner.remove(key);
        }
    }

    fn start(self: &Arc<Self>, engine: &Arc<LocalEngine>, key: Key, spec: SandboxSpec) {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (parents, engine) = (Arc::clone(self), Arc::clone(engine));
        tokio::spawn(async move {
            let made = Parent::start(&engine, number, &spec, &key.imports).await;
            let state = match made {
                Ok(parent) => State::Ready(Arc::new(parent)),
                Err(why) => State::Failed { why, at: Instant::now() },
            };
            let ready = matches!(state, State::Ready(_));
            parents.inner().insert(key.clone(), state);
            if ready {
                parents.end_when_idle(&key, number).await;
            }
        });
    }

    /// Ends a parent when it has been idle for too long, unless it has been replaced.
    async fn end_when_idle(&self, key: &Key, number: u64) {
        loop {
            let wait = match self.inner().get(key) {
                Some(State::Ready(parent)) if parent.number == number => {
                    let used = *parent.used.lock();
                    IDLE_TIMEOUT.saturating_sub(used.elapsed())
                }
                _ => return,
            };
            if wait.is_zero() {
                self.inner().remove(key);
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Ends all parents.
    pub(crate) async fn end_all(&self) {
        let all: Vec<State> = self.inner().drain().map(|(_, state)| state).collect();
        for state in all {
            if let State::Ready(parent) = state {
                let _ = parent.walls.stop().await;
            }
        }
    }
}

fn starting_message() -> String {
    "the warm interpreter is being started, for the next one".to_owned()
}

/// Makes room for another parent of an owner. If there are too many, one is evicted, which ends when it is dropped. Returns `false` if there
/// is none to evict for it.
fn make_room(parents: &mut HashMap<Key, State>, owner: &str) -> bool {
    parents.retain(|_, state| !matches!(state, State::Failed { at, .. } if at.elapsed() >= RETRY_INTERVAL));
    let used: Vec<_> = parents
        .iter()
        .filter_map(|(key, state)| match state {
            State::Ready(parent) => Some((key, Some(*parent.used.lock()))),
            State::Starting => Some((key, None)),
            State::Failed { .. } => None,
        })
        .collect();
    if used.iter().filter(|(key, used)| key.owner == owner && used.is_none()).count() >= MAX_STARTING {
        return false;
    }
    if used.len() < MAX_PARENTS {
        return true;
    }
    let evicted = to_evict(&used, owner);
    evicted.is_some_and(|key| parents.remove(&key).is_some())
}

/// Chooses the one to evict for an owner, of parents and when they were last used; those without a time are being started. It is the owner's
/// own, or of one that has more.
fn to_evict(parents: &[(&Key, Option<Instant>)], owner: &str) -> Option<Key> {
    let count = |owner: &str| parents.iter().filter(|(key, _)| key.owner == owner).count();
    let ready = parents.iter().filter_map(|(key, used)| Some((*key, (*used)?)));
    let of_others = ready.filter(|(key, _)| key.owner == owner || count(&key.owner) > count(owner));
    let first = of_others.max_by_key(|(key, used)| (count(&key.owner), std::cmp::Reverse(*used)));
    first.map(|(key, _)| key.clone())
}

impl Parent {
    async fn start(
        engine: &LocalEngine,
        number: u64,
        spec: &SandboxSpec,
        imports: &[String],
    ) -> Result<Self, String> {
        let start_error = |why: String| format!("the warm interpreter could not start: {why}");
        let (socket, its) = pair(SocketType::SEQPACKET).map_err(|error| start_error(error.to_string()))?;
        let socket = async_fd(socket).map_err(|error| start_error(error.to_string()))?;
        let walls =
            engine.launch_parent(spec, imports, its).map_err(|error| start_error(with_cause(&error)))?;
        let ready = match read_status(&socket).await {
            Ok(status) if status.failed.is_empty() => Ok(()),
            Ok(status) => Err(status.failed),
            Err(why) => {
                // An error of the launch is more precise.
                let gone = walls.explain_end().await;
                Err(gone.map_or(why, |error| with_cause(&error)))
            }
        };
        if let Err(why) = ready {
            let _ = walls.stop().await;
            return Err(start_error(why));
        }
        let now = Instant::now();
        let (used, asked) = (Mutex::new(now), Mutex::default());
        Ok(Self { number, walls, socket, started: now, used, asked })
    }

    /// Waits until it has handled a request. It answers each with one message, in any order.
    async fn answer(&self) -> Result<(), String> {
        receive(&self.socket, &mut [0; 16]).await?;
        self.asked.lock().pop_front();
        Ok(())
    }

    /// Moves a child into the sandbox, and notifies its guest.
    fn send(&self, walls: &LocalWalls, entry: &Entry) -> Result<(), String> {
        let failed = |errno: rustix::io::Errno| format!("the warm interpreter could not be sent: {errno}");
        let Some((first, guest)) = walls.first_process().zip(walls.guest_control()) else {
            return Err("the sandbox takes no interpreter from outside".to_owned());
        };
        let pid = Pid::from_raw(first).ok_or_else(|| "the sandbox has no process".to_owned())?;
        // A reused process id is harmless: a child may enter only what its user owns.
        let target = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        let (out, child_out) = output_pipe().map_err(failed)?;
        let (err, child_err) = output_pipe().map_err(failed)?;
        let (control, child_control) = pair(SocketType::STREAM)
            .map_err(|error| format!("the warm interpreter could not be sent: {error}"))?;
        let (mut request, groups) = entry.request().map_err(failed)?;
        let mut fds = vec![target, child_out, child_err, child_control];
        fds.extend(groups);
        if let Some(names) = request["descriptors"].as_array_mut() {
            let first = ["target", "stdout", "stderr", "control"].map(serde_json::Value::from);
            names.splice(0..0, first);
        }
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(OwnedFd::as_fd).collect();
        belljar_linux::send_with(self.socket.get_ref().as_fd(), request.to_string().as_bytes(), &borrowed)
            .map_err(failed)?;
        let ends = [control.as_fd(), out.as_fd(), err.as_fd()];
        belljar_linux::send_with(guest, &[SPARE], &ends).map_err(failed)?;
        Ok(())
    }
}

/// Returns an error with its cause.
fn with_cause(error: &EngineError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Waits for the status message of a parent.
async fn read_status(socket: &AsyncFd<OwnedFd>) -> Result<ParentStatus, String> {
    let mut buffer = vec![0u8; 8192];
    let length = tokio::time::timeout(READY_TIMEOUT, receive(socket, &mut buffer))
        .await
        .unwrap_or_else(|_| Err(format!("it was not ready within {} seconds", READY_TIMEOUT.as_secs())))?;
    serde_json::from_slice(&buffer[..length]).map_err(|error| format!("it sent an invalid message: {error}"))
}

/// Waits for a message of a parent, and returns its length.
async fn receive(socket: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> Result<usize, String> {
    loop {
        let mut ready = socket.readable().await.map_err(|_| "its connection broke".to_owned())?;
        match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err("it has ended".to_owned()),
            Ok((length, _)) => return Ok(length),
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.to_string()),
        }
    }
}

fn output_pipe() -> Result<(OwnedFd, OwnedFd), rustix::io::Errno> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A pipe that stays small is not an error, as with the guest's own pipes.
    let _ = rustix::pipe::fcntl_setpipe_size(&reader, PIPE_BYTES);
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_with_many_parents_evict_their_own() {
        let now = Instant::now();
        let key = |owner: &str, tree: &str| Key {
            owner: owner.to_owned(),
            tree: tree.to_owned(),
            imports: Vec::new(),
        };
        let keys = [key("ann", "a"), key("bob", "a"), key("bob", "b"), key("bob", "c"), key("eve", "a")];
        // The first is the one that was used longest ago.
        let parents: Vec<_> =
            keys.iter().zip(0..).map(|(key, index)| (key, Some(now + Duration::from_secs(index)))).collect();
        for owner in ["ann", "bob", "eve", "new"] {
            assert_eq!(to_evict(&parents, owner), Some(key("bob", "a")), "{owner}");
        }
        let one_each = [parents[0], parents[1], parents[4]];
        assert_eq!(to_evict(&one_each, "new"), Some(key("ann", "a")));
        assert_eq!(to_evict(&one_each, "eve"), Some(key("eve", "a")));
        assert_eq!(to_evict(&[], "new"), None);
        // Those that are being started count, and stay.
        let starting: Vec<_> = keys[1..4].iter().map(|key| (key, None)).chain([parents[0]]).collect();
        assert_eq!(to_evict(&starting, "bob"), None);
        assert_eq!(to_evict(&starting, "new"), Some(key("ann", "a")));
    }
}
