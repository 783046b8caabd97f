//! Warm interpreters: a parent per tenant and tree has done Python's start and the template's imports; a child of it moves into a
//! sandbox in a few milliseconds.
//!
//! ```text
//! launcher ── order, descriptors ──► parent ── fork into the sandbox's group ──► child
//!    │                                              becomes the sandbox's user, enters its namespaces, forks twice,
//!    │                                              gives up capabilities, takes the filter
//!    └── the other ends ──► guest ◄── control socket ── the last child, whose parent is the guest now
//! ```
//!
//! A parent runs under a user id of its own in namespaces of its own, on a read-only tree, without a network, without a /proc and
//! under a filter. It sees the host's numbers of processes, as the kernel lets a process into namespaces of processes below its own
//! alone. It has CAP_SETUID and CAP_SETGID to become the user of a sandbox, which is all that its filter lets it become, and
//! CAP_DAC_OVERRIDE to be cloned into a sandbox's group; a child loses them on its way. It runs the template's modules and no
//! user's code. No tenant's sandbox gets a child of another tenant's parent: children share the layout of their memory and the
//! seed of their hashes with it. See decision 0028.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use belljar_engine::{EngineError, Walls as _};
use belljar_linux::{CgroupJoin, LaunchPlan, SPARE, Wall, seccomp::Instruction};
use belljar_model::{Limits, LimitsGrade, SandboxSpec, Tree, TreeBase};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};
use serde::Deserialize;
use tokio::time::Instant;

use crate::engine::LocalEngine;
use crate::progress::async_fd;
use crate::sockets::pair;
use crate::walls::LocalWalls;

/// The most parents at once; the one that was used longest ago makes room.
const MAX_PARENTS: usize = 8;

/// How long a parent may take for its imports.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A parent that nobody has used for so long ends.
const IDLE: Duration = Duration::from_secs(600);

/// A parent older than this makes room for a new one, with another layout of its memory.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// How long a parent that could not start is not tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// The least a child may need, in bytes of an output pipe: as the guest's own.
const PIPE_BYTES: usize = 256 * 1024;

/// What a process needs to know to move into a sandbox.
pub(crate) struct Entry {
    uid: u32,
    gid: u32,
    namespaces: u64,
    groups: Vec<(std::ffi::CString, CgroupJoin)>,
    filter: Option<&'static [Instruction]>,
    rlimits: Vec<(u32, u64)>,
    capabilities: bool,
    keyring: bool,
    spec: SandboxSpec,
}

impl Entry {
    /// The way into a sandbox that is launched by this plan; `None` where an administrator's way does not lead.
    pub(crate) fn of(plan: &LaunchPlan, spec: &SandboxSpec) -> Option<Self> {
        let tree = plan.namespaces.as_ref().filter(|_| plan.identity.privileged)?;
        let is_built = matches!(&spec.tree, Tree::Template(tree) if tree.build.is_some());
        if is_built || plan.without.has(Wall::Owner) {
            return None;
        }
        let has = |wall| !plan.without.has(wall);
        Some(Self {
            uid: plan.identity.outside_uid,
            gid: plan.identity.outside_gid,
            namespaces: tree.flags,
            groups: plan.cgroups.iter().map(|group| (group.dir.clone(), group.join)).collect(),
            filter: plan.seccomp.filter(|_| has(Wall::Seccomp)),
            rlimits: if has(Wall::Rlimits) { plan.rlimits.clone() } else { Vec::new() },
            capabilities: has(Wall::Capabilities),
            keyring: has(Wall::Keyring),
            spec: SandboxSpec {
                mounts: Vec::new(),
                env: Vec::new(),
                limits: Limits::default(),
                grade: LimitsGrade::default(),
                ..spec.clone()
            },
        })
    }

    /// What distinguishes one tree from another.
    fn tree(&self) -> String {
        match &self.spec.tree {
            Tree::Host => "host".to_owned(),
            Tree::Template(tree) => {
                let base = if tree.base == TreeBase::Host { "host" } else { "own" };
                let layer = tree.layer.as_ref().map_or("", |layer| layer.digest.as_str());
                format!("{base}:{layer}")
            }
        }
    }

    /// What the parent is asked for, and the descriptors that go along.
    fn order(&self) -> Result<(serde_json::Value, Vec<OwnedFd>), rustix::io::Errno> {
        let open =
            |path: &std::path::Path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let mut names = Vec::new();
        let (mut named, mut tasks) = (Vec::new(), Vec::new());
        for (dir, join) in &self.groups {
            let dir = std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(
                dir.to_bytes(),
            ));
            match join {
                CgroupJoin::AtClone => {
                    names.push("cgroup");
                    named.push(open(dir, OFlags::PATH | OFlags::DIRECTORY)?);
                }
                CgroupJoin::Tasks => tasks.push(open(&dir.join("tasks"), OFlags::WRONLY)?),
            }
        }
        named.extend(tasks);
        let filter = self.filter.map(|filter| {
            let bytes = filter.iter().flat_map(|one| one.bytes()).collect::<Vec<u8>>();
            base64::engine::general_purpose::STANDARD.encode(bytes)
        });
        let order = serde_json::json!({
            "descriptors": names,
            "uid": self.uid,
            "gid": self.gid,
            "namespaces": self.namespaces,
            "filter": filter,
            "rlimits": self.rlimits,
            "capabilities": self.capabilities,
            "keyring": self.keyring,
        });
        Ok((order, named))
    }
}

/// What parents are kept apart by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    owner: String,
    tree: String,
    imports: Vec<String>,
}

/// All parents of the launcher.
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

/// One parent.
struct Parent {
    number: u64,
    walls: LocalWalls,
    socket: OwnedFd,
    started: Instant,
    used: Mutex<Instant>,
}

/// What a parent says once.
#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    failed: String,
}

impl Parents {
    fn inner(&self) -> MutexGuard<'_, HashMap<Key, State>> {
        self.inner.lock()
    }

    /// Has a child of the owner's parent move into a sandbox. Where there is no parent yet, one is started for the next time.
    ///
    /// # Errors
    /// Why there is none, as a sentence.
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
            Some(State::Starting) => return Err(starting()),
            Some(State::Failed { why, at }) if at.elapsed() < TRY_AGAIN => return Err(why.clone()),
            Some(State::Ready(parent)) if !parent.walls.has_ended() => Arc::clone(parent),
            _ => {
                make_room(&mut inner);
                inner.insert(key.clone(), State::Starting);
                drop(inner);
                self.start(engine, key, entry.spec.clone());
                return Err(starting());
            }
        };
        if parent.started.elapsed() > MAX_AGE {
            inner.insert(key.clone(), State::Starting);
            drop(inner);
            self.start(engine, key, entry.spec.clone());
        }
        *parent.used.lock() = Instant::now();
        parent.send(walls, entry)
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

    /// Ends a parent that nobody uses, or that has been replaced.
    async fn end_when_idle(&self, key: &Key, number: u64) {
        loop {
            let wait = match self.inner().get(key) {
                Some(State::Ready(parent)) if parent.number == number => {
                    let used = *parent.used.lock();
                    IDLE.saturating_sub(used.elapsed())
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

    /// Ends all of them.
    pub(crate) async fn end_all(&self) {
        let all: Vec<State> = self.inner().drain().map(|(_, state)| state).collect();
        for state in all {
            if let State::Ready(parent) = state {
                let _ = parent.walls.stop().await;
            }
        }
    }
}

fn starting() -> String {
    "the warm interpreter is being started, for the next one".to_owned()
}

/// Lets the parent go that was used longest ago, where there are too many. It is ended when it is dropped.
fn make_room(parents: &mut HashMap<Key, State>) {
    parents.retain(|_, state| !matches!(state, State::Failed { at, .. } if at.elapsed() >= TRY_AGAIN));
    if parents.len() < MAX_PARENTS {
        return;
    }
    let used = |state: &State| match state {
        State::Ready(parent) => Some(*parent.used.lock()),
        _ => None,
    };
    let oldest =
        parents.iter().filter_map(|(key, state)| Some((used(state)?, key.clone()))).min_by_key(|one| one.0);
    if let Some((_, key)) = oldest {
        parents.remove(&key);
    }
}

impl Parent {
    async fn start(
        engine: &LocalEngine,
        number: u64,
        spec: &SandboxSpec,
        imports: &[String],
    ) -> Result<Self, String> {
        let failed = |why: String| format!("the warm interpreter could not start: {why}");
        let (socket, its) = pair(SocketType::SEQPACKET).map_err(|error| failed(error.to_string()))?;
        let walls = engine.launch_parent(spec, imports, its).map_err(|error| failed(told(&error)))?;
        let ready = match said(&socket).await {
            Ok(said) if said.failed.is_empty() => Ok(()),
            Ok(said) => Err(said.failed),
            Err(why) => {
                // A launch that failed has the better reason.
                let gone = walls.explain_end().await;
                Err(gone.map_or(why, |error| told(&error)))
            }
        };
        if let Err(why) = ready {
            let _ = walls.stop().await;
            return Err(failed(why));
        }
        let now = Instant::now();
        Ok(Self { number, walls, socket, started: now, used: Mutex::new(now) })
    }

    /// Has a child move in, and tells the guest of it.
    fn send(&self, walls: &LocalWalls, entry: &Entry) -> Result<(), String> {
        let failed = |errno: rustix::io::Errno| format!("the warm interpreter could not be sent: {errno}");
        let Some((first, guest)) = walls.first_process().zip(walls.guest_control()) else {
            return Err("the sandbox takes no interpreter from outside".to_owned());
        };
        let pid = Pid::from_raw(first).ok_or_else(|| "the sandbox has no process".to_owned())?;
        // A number that has passed on to somebody else leads nowhere: a child may enter only what its user owns.
        let target = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        let (out, child_out) = output_pipe().map_err(failed)?;
        let (err, child_err) = output_pipe().map_err(failed)?;
        let (control, child_control) = pair(SocketType::STREAM)
            .map_err(|error| format!("the warm interpreter could not be sent: {error}"))?;
        let (mut order, groups) = entry.order().map_err(failed)?;
        let mut fds = vec![target, child_out, child_err, child_control];
        fds.extend(groups);
        if let Some(names) = order["descriptors"].as_array_mut() {
            let first = ["target", "stdout", "stderr", "control"].map(serde_json::Value::from);
            names.splice(0..0, first);
        }
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(OwnedFd::as_fd).collect();
        belljar_linux::send_with(self.socket.as_fd(), order.to_string().as_bytes(), &borrowed)
            .map_err(failed)?;
        let ends = [control.as_fd(), out.as_fd(), err.as_fd()];
        belljar_linux::send_with(guest, &[SPARE], &ends).map_err(failed)?;
        Ok(())
    }
}

/// An error with its cause.
fn told(error: &EngineError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Waits for what a parent says once it is ready, or cannot be.
async fn said(socket: &OwnedFd) -> Result<Said, String> {
    let broken = |_| "its connection broke".to_owned();
    let socket = async_fd(socket.try_clone().map_err(broken)?).map_err(broken)?;
    let mut buffer = vec![0u8; 8192];
    let hear = async {
        loop {
            let mut ready = socket.readable().await.map_err(broken)?;
            match rustix::net::recv(&socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err("it has ended".to_owned()),
                Ok((length, _)) => {
                    return serde_json::from_slice(&buffer[..length])
                        .map_err(|error| format!("it says what is no message: {error}"));
                }
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.to_string()),
            }
        }
    };
    tokio::time::timeout(READY_WITHIN, hear)
        .await
        .unwrap_or_else(|_| Err(format!("it was not ready within {} seconds", READY_WITHIN.as_secs())))
}

fn output_pipe() -> Result<(OwnedFd, OwnedFd), rustix::io::Errno> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // As with the guest's own pipes, one that stays small is no failure.
    let _ = rustix::pipe::fcntl_setpipe_size(&reader, PIPE_BYTES);
    Ok((reader, writer))
}
