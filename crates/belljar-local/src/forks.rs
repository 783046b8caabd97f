//! The launcher's fork server: the process in which it has supervisors started, as it grows with the number of its sandboxes itself.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use belljar_linux::{ForkError, ForkServer, LaunchPlan, Supervisor};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::orphans::{SIGKILL, watch_child};

/// First argument that makes this program the fork server of a launcher.
pub(crate) const FORK_SERVER: &str = "fork-server";

/// The current fork server, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Forks {
    current: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    server: Arc<ForkServer>,
    pidfd: OwnedFd,
}

impl Forks {
    /// Starts a supervisor in the fork server, which is started first if there is none. If it does not answer, the supervisor is started
    /// without it, and the next one in another fork server. Must be called within a runtime.
    pub(crate) fn start(&self, plan: &LaunchPlan, control: &OwnedFd) -> io::Result<Supervisor> {
        let mut current = self.current.lock();
        let mut is_new = current.is_none();
        loop {
            let running = match current.take() {
                Some(running) => running,
                None => Running::start()?,
            };
            if let Err(errno) = running.server.check(is_new) {
                // It has got nothing. One that hangs must not go on later.
                let _ = belljar_linux::pidfd_kill(running.pidfd.as_fd(), SIGKILL);
                if errno != Errno::TIMEDOUT && !is_new {
                    is_new = true;
                    continue;
                }
                return belljar_linux::start(plan, control).map_err(io::Error::from);
            }
            match running.server.start(plan, control) {
                Err(ForkError::Lost(errno)) => {
                    // One that hangs must not go on later.
                    let _ = belljar_linux::pidfd_kill(running.pidfd.as_fd(), SIGKILL);
                    // It was gone before it got anything.
                    if errno == Errno::PIPE && !is_new {
                        is_new = true;
                        continue;
                    }
                    return Err(errno.into());
                }
                done => {
                    *current = Some(running);
                    return done.map_err(|error| match error {
                        ForkError::Refused(errno) | ForkError::Lost(errno) => errno.into(),
                    });
                }
            }
        }
    }
}

impl Running {
    fn start() -> io::Result<Self> {
        let (ours, theirs) = ForkServer::pair()?;
        // The launcher's own program, even if its file has been replaced.
        let mut command = Command::new("/proc/self/exe");
        command.arg(FORK_SERVER).env_clear().stdin(theirs).stdout(Stdio::null());
        let (pidfd, _) = watch_child(command.spawn()?)?;
        Ok(Self { server: Arc::new(ForkServer::new(ours)), pidfd })
    }
}
