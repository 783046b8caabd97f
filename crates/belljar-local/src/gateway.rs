//! The gateway's process of a sandbox with a network.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belljar_engine::{EngineError, NetworkLog};
use belljar_gateway::{ARGUMENT, Authority, CONNECTION, GatewayConfig, SETUP, STARTED};
use belljar_linux::Without;
use belljar_model::{NetworkPolicy, NetworkSetup};
use futures::StreamExt as _;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType};
use tokio::sync::watch;

use crate::engine::launch;
use crate::progress::async_fd;
use crate::sockets::{control_pair, pair, stream};

/// The launch step that fails if the gateway cannot start.
pub(crate) const START_GATEWAY: &str = "start the network's gateway";

/// Timeout for replacing the policy.
const POLICY_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for ending once requested.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length in bytes of a gateway's start error.
const MAX_MESSAGE: usize = 1024;

/// A gateway that is configured and not yet started.
pub(crate) struct Prepared {
    control: OwnedFd,
    theirs: OwnedFd,
}

impl Prepared {
    /// Prepares a gateway for this policy, which runs as `user` if given.
    pub(crate) fn new(
        setup: &NetworkSetup,
        policy: &NetworkPolicy,
        authority: Option<Authority>,
        user: Option<u32>,
        without: Without,
    ) -> io::Result<Self> {
        let (control, theirs) = control_pair()?;
        let config = GatewayConfig {
            policy: policy.clone(),
            setup: setup.clone(),
            authority,
            user,
            #[cfg(feature = "mutation")]
            without: without.names(),
        };
        #[cfg(not(feature = "mutation"))]
        let _ = without;
        let file = crate::planner::memory_file(c"belljar-gateway", &config)?;
        belljar_linux::send_with(control.as_fd(), &[SETUP], &[file.as_fd()])?;
        Ok(Self { control, theirs })
    }

    /// Duplicates the host's end of the control socket.
    pub(crate) fn control(&self) -> io::Result<OwnedFd> {
        // Out of the way of the low numbers, which the sandbox's first process rearranges.
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.control, 64)?)
    }

    /// Starts the process. It serves nothing before it receives its sockets over [`Self::control`]. Needs a tokio runtime.
    pub(crate) fn start(self) -> io::Result<Gateway> {
        // The running executable, even if its file has been replaced.
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(self.theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (pidfd, ended) = watch_child(child)?;
        Ok(Gateway { control: self.control, pidfd, ended })
    }
}

/// A gateway's process.
pub(crate) struct Gateway {
    /// The host's end of its control socket.
    control: OwnedFd,
    pidfd: OwnedFd,
    ended: watch::Receiver<bool>,
}

impl Gateway {
    /// Returns a future that resolves when the gateway is jailed and ready for its sockets, or fails with the reason if it could not start.
    pub(crate) fn started(&self) -> io::Result<impl Future<Output = io::Result<()>> + Send + use<>> {
        let control = async_fd(self.control.try_clone()?)?;
        Ok(async move {
            let mut message = [0; MAX_MESSAGE];
            loop {
                let mut ready = control.readable().await?;
                match rustix::net::recv(control.get_ref(), &mut message, RecvFlags::DONTWAIT) {
                    Err(Errno::AGAIN) => ready.clear_ready(),
                    // It ended with unread messages. The error is reported once, before the message that the gateway has sent.
                    Err(Errno::CONNRESET) => {}
                    Err(errno) => return Err(errno.into()),
                    Ok((_, length)) => {
                        let message = message.get(..length).unwrap_or(&message);
                        return match message {
                            [STARTED] => Ok(()),
                            [] => Err(io::Error::other("the gateway has ended")),
                            said => Err(io::Error::other(String::from_utf8_lossy(said).into_owned())),
                        };
                    }
                }
            }
        })
    }

    /// Opens a connection, and returns the host's end. Only a few can wait to be accepted.
    pub(crate) fn connection(&self) -> io::Result<OwnedFd> {
        let (host, theirs) = pair(SocketType::STREAM)?;
        belljar_linux::send_with(self.control.as_fd(), &[CONNECTION], &[theirs.as_fd()])?;
        Ok(host)
    }

    /// Requests the gateway's end. It flushes its log to followers first.
    pub(crate) fn shut_down(&self) {
        // Fails if the gateway is gone already.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Write);
    }

    /// Ends the gateway, and waits until it is gone.
    pub(crate) async fn end(&self) {
        let mut ended = self.ended.clone();
        let mut is_gone = async || {
            let gone = tokio::time::timeout(END_TIMEOUT, ended.wait_for(|ended| *ended)).await;
            gone.is_ok()
        };
        self.shut_down();
        if !is_gone().await {
            let _ = belljar_linux::pidfd_kill(self.pidfd.as_fd(), KILL);
            is_gone().await;
        }
    }
}

/// Replaces the policy of the gateway at the other end.
pub(crate) async fn set_policy(connection: OwnedFd, policy: &NetworkPolicy) -> Result<(), EngineError> {
    let failed = || launch("change the network policy");
    let connection = stream(connection).map_err(failed())?;
    let done = tokio::time::timeout(POLICY_TIMEOUT, belljar_gateway::set_policy(connection, policy)).await;
    done.unwrap_or_else(|late| Err(late.into())).map_err(failed())
}

/// Returns the records of the gateway at the other end.
pub(crate) async fn log(connection: OwnedFd, after: u64, follow: bool) -> Result<NetworkLog, EngineError> {
    let failed = || launch("read the network's log");
    let connection = stream(connection).map_err(failed())?;
    Ok(belljar_gateway::log(connection, after, follow).await.map_err(failed())?.boxed())
}

/// SIGKILL: the gateway has nothing to clean up.
const KILL: i32 = 9;

impl Drop for Gateway {
    fn drop(&mut self) {
        // It also ends when the supervisor does; this is only sooner.
        let _: Result<(), Errno> = belljar_linux::pidfd_kill(self.pidfd.as_fd(), KILL);
    }
}

/// Waits for the end of a child in the background, so that it does not stay a zombie. Returns its pidfd, and a receiver of its end.
pub(crate) fn watch_child(mut child: Child) -> io::Result<(OwnedFd, watch::Receiver<bool>)> {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
    // The child has not been waited for, so the number is still its own.
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let readable = async_fd(pidfd.try_clone()?)?;
    let (sender, ended) = watch::channel(false);
    tokio::spawn(async move {
        if readable.readable().await.is_ok() {
            let _ = child.wait();
            sender.send_replace(true);
        }
    });
    Ok((pidfd, ended))
}
