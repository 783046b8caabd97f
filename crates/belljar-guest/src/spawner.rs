//! Starts user code, in one Landlock domain per sandbox where possible.
//!
//! A domain belongs to a thread (landlock(7)). A thread of the guest enters the domain of user code once, and
//! everything it starts inherits the domain: a sandbox's programs see each other in `/proc`, and can signal each other,
//! as on any machine. The guest's first thread stays outside, so nothing in the domain can trace the guest. The guest
//! could be signalled through that other thread's id, though, so only the first process of a namespace uses such a
//! thread: its namespace cannot kill it (pid_namespaces(7)). Elsewhere each program enters a domain of its own, and so does one that is
//! alone in its sandbox (`direct.rs`).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, mpsc};

use belljar_linux::{CStringArray, LandlockError, OomMark, SpawnError, SpawnPlan, Spawned, User};

use crate::guest::{GuestError, setup};

/// Stack size of the thread, in bytes; a child has a stack of its own until it execs.
const STACK_BYTES: usize = 128 * 1024;

/// Process settings shared by all programs of a sandbox.
pub(crate) struct ProcessDefaults {
    pub(crate) landlock: Option<OwnedFd>,
    pub(crate) oom_mark: Option<OomMark>,
    pub(crate) rlimits: Vec<(u32, u64)>,
    pub(crate) umask: u32,
    pub(crate) die_with_guest: bool,
    pub(crate) close_descriptors: bool,
    pub(crate) allocates: bool,
}

/// A program to start, prepared for the kernel.
pub(crate) struct Program {
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: CStringArray,
    pub(crate) envp: CStringArray,
    pub(crate) cwd: CString,
    /// The user as whom it runs, in a machine.
    pub(crate) user: Option<User>,
}

/// A start request. Its descriptors are closed on this side afterwards.
pub(crate) struct Start {
    pub(crate) program: Arc<Program>,
    pub(crate) streams: [OwnedFd; 3],
    pub(crate) control: Option<OwnedFd>,
    pub(crate) terminal: bool,
}

pub(crate) struct Job {
    start: Start,
    answer: mpsc::SyncSender<Result<Spawned, SpawnError>>,
}

/// The thread that starts programs.
pub(crate) enum Spawner {
    /// A dedicated thread in the domain of user code.
    Thread(mpsc::Sender<Job>),
    /// The calling thread; each program enters a domain of its own.
    Caller(ProcessDefaults),
}

impl Spawner {
    /// Makes a thread start programs from now on. For the first process of a namespace.
    ///
    /// # Errors
    /// See [`Self::thread`].
    pub(crate) fn into_thread(self) -> Result<Self, GuestError> {
        match self {
            Self::Caller(defaults) => Self::thread(defaults),
            Self::Thread(_) => Ok(self),
        }
    }

    /// Starts the thread, which enters the domain.
    ///
    /// # Errors
    /// Fails if the thread cannot start or enter the domain; nothing may be started then.
    pub(crate) fn thread(defaults: ProcessDefaults) -> Result<Self, GuestError> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // Child exits are handled by the first thread; waking this one costs time for nothing.
                let ruleset = defaults.landlock.as_ref();
                let entered = belljar_linux::block_child_signal().and_then(|()| {
                    ruleset.map_or(Ok(()), |ruleset| belljar_linux::restrict_landlock(ruleset.as_fd()))
                });
                let may_continue = entered.is_ok();
                if ready.send(entered).is_err() || !may_continue {
                    return;
                }
                for job in queue {
                    let result = defaults.spawn(&job.start, None);
                    // Closes this side of its streams before anyone reads the other.
                    drop(job.start);
                    let _ = job.answer.send(result);
                }
            })
            .map_err(setup("start the spawner thread"))?;
        let entered = is_ready
            .recv()
            .map_err(|_| thread_ended())
            .map_err(setup("get an answer from the spawner thread"))?;
        entered.map_err(|errno| GuestError::Landlock(LandlockError::Enter(errno.into())))?;
        Ok(Self::Thread(jobs))
    }

    /// Starts a program and returns once it runs or has failed to start.
    pub(crate) fn spawn(&self, start: Start) -> Result<Spawned, SpawnError> {
        let jobs = match self {
            Self::Thread(jobs) => jobs,
            Self::Caller(defaults) => {
                return defaults.spawn(&start, defaults.landlock.as_ref());
            }
        };
        let (answer, result) = mpsc::sync_channel(1);
        jobs.send(Job { start, answer }).map_err(|_| SpawnError::Refused(thread_ended()))?;
        result.recv().map_err(|_| SpawnError::Refused(thread_ended()))?
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("the guest's spawner thread has ended")
}

impl ProcessDefaults {
    fn spawn(&self, start: &Start, landlock: Option<&OwnedFd>) -> Result<Spawned, SpawnError> {
        belljar_linux::spawn(&SpawnPlan {
            candidates: &start.program.candidates,
            argv: &start.program.argv,
            envp: &start.program.envp,
            cwd: start.program.cwd.clone(),
            user: start.program.user.as_ref(),
            streams: start.streams.each_ref().map(|stream| stream.as_fd()),
            control: start.control.as_ref().map(|control| control.as_fd()),
            terminal: start.terminal,
            landlock: landlock.map(|ruleset| ruleset.as_fd()),
            oom_mark: self.oom_mark.as_ref(),
            rlimits: &self.rlimits,
            umask: self.umask,
            die_with_guest: self.die_with_guest,
            close_descriptors: self.close_descriptors,
            allocates: self.allocates,
        })
    }
}
