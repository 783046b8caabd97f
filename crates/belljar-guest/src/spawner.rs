//! Starting user code, in one Landlock domain for all of a sandbox where that can be.
//!
//! A domain is a thread's own (landlock(7)). A thread of the guest enters that of user code once, and all that it starts
//! inherits it: a sandbox's programs see each other in `/proc`, and can signal each other, as on any machine.
//! The guest's first thread stays outside, so nothing of the domain may trace the guest. It can be signalled by that other thread's
//! number, though, so only the first process of a namespace does this, which its namespace cannot kill (pid_namespaces(7)).
//! Elsewhere each program enters a domain of its own.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, mpsc};

use belljar_linux::{CStringArray, LandlockError, OomMark, SpawnError, SpawnPlan, Spawned};

use crate::guest::{GuestError, setup};

/// The stack of the thread, in bytes; what it starts has one of its own until it execs.
const STACK_BYTES: usize = 128 * 1024;

/// What is the same for all that a sandbox runs.
pub(crate) struct Surroundings {
    pub(crate) landlock: Option<OwnedFd>,
    pub(crate) oom_mark: Option<OomMark>,
    pub(crate) rlimits: Vec<(u32, u64)>,
    pub(crate) umask: u32,
    pub(crate) die_with_guest: bool,
    pub(crate) close_descriptors: bool,
    pub(crate) allocates: bool,
}

/// A program to start, in the kernel's terms.
pub(crate) struct Program {
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: CStringArray,
    pub(crate) envp: CStringArray,
    pub(crate) cwd: CString,
}

/// One start. Its descriptors are closed on this side when it is done.
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

/// Who starts it.
pub(crate) enum Spawner {
    /// A thread in the domain of user code.
    Thread(mpsc::Sender<Job>),
    /// Whoever asks; each program enters a domain of its own.
    Caller(Surroundings),
}

impl Spawner {
    /// Starts the thread, which enters the domain, for the first process of a namespace.
    ///
    /// # Errors
    /// There is no thread, or no domain; nothing must be started then.
    pub(crate) fn new(surroundings: Surroundings, is_first_process: bool) -> Result<Self, GuestError> {
        if !is_first_process {
            return Ok(Self::Caller(surroundings));
        }
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // The end of a child is the first thread's news. Waking this one for it takes time, and leads nowhere.
                let ruleset = surroundings.landlock.as_ref();
                let entered = belljar_linux::block_child_signal().and_then(|()| {
                    ruleset.map_or(Ok(()), |ruleset| belljar_linux::restrict_landlock(ruleset.as_fd()))
                });
                let may_go_on = entered.is_ok();
                if ready.send(entered).is_err() || !may_go_on {
                    return;
                }
                for job in queue {
                    let result = surroundings.spawn(&job.start, None);
                    // The ends of its streams are closed before anybody looks at the others.
                    drop(job.start);
                    let _ = job.answer.send(result);
                }
            })
            .map_err(setup("start the thread that starts user code"))?;
        let entered =
            is_ready.recv().map_err(|_| gone()).map_err(setup("hear of the thread that starts user code"))?;
        entered.map_err(|errno| GuestError::Landlock(LandlockError::Enter(errno.into())))?;
        Ok(Self::Thread(jobs))
    }

    /// Starts a program, and returns when it runs or cannot.
    pub(crate) fn spawn(&self, start: Start) -> Result<Spawned, SpawnError> {
        let jobs = match self {
            Self::Thread(jobs) => jobs,
            Self::Caller(surroundings) => {
                return surroundings.spawn(&start, surroundings.landlock.as_ref());
            }
        };
        let (answer, result) = mpsc::sync_channel(1);
        jobs.send(Job { start, answer }).map_err(|_| SpawnError::Refused(gone()))?;
        result.recv().map_err(|_| SpawnError::Refused(gone()))?
    }
}

fn gone() -> io::Error {
    io::Error::other("the guest's thread for that has ended")
}

impl Surroundings {
    fn spawn(&self, start: &Start, landlock: Option<&OwnedFd>) -> Result<Spawned, SpawnError> {
        belljar_linux::spawn(&SpawnPlan {
            candidates: &start.program.candidates,
            argv: &start.program.argv,
            envp: &start.program.envp,
            cwd: start.program.cwd.clone(),
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
