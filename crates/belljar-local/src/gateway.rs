//! The gateway of a sandbox with a network: its process, and another one after it ends unexpectedly.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{EngineError, NetworkLog};
use belljar_gateway::{ARGUMENT, Authority, CONNECTION, GatewayConfig, SETUP, STARTED};
use belljar_linux::{GatewayGroup, Without};
use belljar_model::{NetworkPolicy, NetworkSetup};
use futures::StreamExt as _;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::orphans::{SIGKILL, watch_child};
use crate::progress::async_fd;
use crate::sockets::{control_pair, pair, stream};

/// The launch step that fails if the gateway cannot start.
pub(crate) const START_GATEWAY: &str = "start the network's gateway";

/// Timeout for replacing the policy.
const POLICY_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a connection, which waits for a gateway that is being started.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for the start of a gateway after another one.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time that a change of the policy waits for a gateway that is being started.
const RESTART_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay before a gateway is started after another one has ended. It doubles each time. Source: docs/network.md.
const MIN_RESTART_DELAY: Duration = Duration::from_millis(100);
/// See [`MIN_RESTART_DELAY`].
const MAX_RESTART_DELAY: Duration = Duration::from_secs(30);

/// Time after which a gateway that ends had run well, so that the next one is started without a longer delay.
const STABLE_TIME: Duration = Duration::from_secs(60);

/// Interval between attempts to send to a gateway whose queue is full.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Timeout for ending once requested.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length in bytes of a gateway's start error.
const MAX_MESSAGE: usize = 1024;

/// Gateways that are configured, none of which has been started.
pub(crate) struct Prepared {
    config: GatewayConfig,
    network: OwnedFd,
    group: Option<GatewayGroup>,
}

impl Prepared {
    /// Prepares the gateways for this policy, which run as `user` if given. Also returns the socket over which they get those
    /// of the sandbox's network. They are put into `group` if given.
    pub(crate) fn new(
        setup: &NetworkSetup,
        policy: &NetworkPolicy,
        authority: Option<Authority>,
        user: Option<u32>,
        group: Option<GatewayGroup>,
        without: Without,
    ) -> io::Result<(Self, OwnedFd)> {
        let (network, sockets) = control_pair()?;
        let config = GatewayConfig {
            policy: policy.clone(),
            setup: setup.clone(),
            authority,
            generation: 0,
            user,
            fixed_buffers: !group.as_ref().is_some_and(GatewayGroup::counts_sockets),
            #[cfg(feature = "mutation")]
            without: without.names(),
        };
        #[cfg(not(feature = "mutation"))]
        let _ = without;
        Ok((Self { config, network, group }, sockets))
    }

    /// Starts the first gateway. Needs a tokio runtime.
    pub(crate) fn start(self) -> io::Result<Arc<Gateways>> {
        let Self { config, network, group } = self;
        let first = Gateway::start(&config, &network, group.as_ref())?;
        Ok(Arc::new(Gateways {
            config: Mutex::new(config),
            network,
            group,
            current: watch::Sender::new(Arc::new(first)),
            turn: tokio::sync::Mutex::default(),
            is_stopped: watch::Sender::new(false),
        }))
    }
}

/// The gateways of a sandbox: one at a time, and another one after it ends unexpectedly. Until that serves, connections wait
/// in the queue of their socket, and no other way leads out.
pub(crate) struct Gateways {
    /// Configuration of the next one. Its policy is the current one.
    config: Mutex<GatewayConfig>,
    /// Has one message, with the sockets of the sandbox's network.
    network: OwnedFd,
    /// The control group of all of them, which limits their memory.
    group: Option<GatewayGroup>,
    /// The latest one.
    current: watch::Sender<Arc<Gateway>>,
    /// Held while a gateway is started or gets another policy, so that none is left with an earlier one.
    turn: tokio::sync::Mutex<()>,
    is_stopped: watch::Sender<bool>,
}

impl Gateways {
    /// Returns a future that resolves when the first gateway is jailed and ready, or fails with the reason if it could not
    /// start.
    pub(crate) fn started(&self) -> io::Result<impl Future<Output = io::Result<()>> + Send + use<>> {
        self.current.borrow().started()
    }

    /// Starts a gateway whenever one ends, until [`Self::shut_down`].
    pub(crate) async fn keep_running(self: Arc<Self>) {
        let mut delay = MIN_RESTART_DELAY;
        loop {
            let (gateway, begin) = (self.current(), Instant::now());
            if self.until_stopped(gateway.wait_ended()).await.is_none() {
                return;
            }
            drop(gateway);
            if begin.elapsed() >= STABLE_TIME {
                delay = MIN_RESTART_DELAY;
            }
            loop {
                if self.until_stopped(tokio::time::sleep(delay)).await.is_none() {
                    return;
                }
                delay = (delay * 2).min(MAX_RESTART_DELAY);
                match self.until_stopped(self.restart()).await {
                    None => return,
                    Some(Ok(())) => break,
                    Some(Err(_)) => {}
                }
            }
        }
    }

    async fn restart(&self) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let gateway = {
            let mut config = self.config.lock();
            config.generation = config.generation.saturating_add(1);
            Gateway::start(&config, &self.network, self.group.as_ref())?
        };
        tokio::time::timeout(START_TIMEOUT, gateway.started()?).await??;
        self.current.send_replace(Arc::new(gateway));
        Ok(())
    }

    fn current(&self) -> Arc<Gateway> {
        Arc::clone(&self.current.borrow())
    }

    /// Returns the result of `future`, or `None` once the gateways are stopped.
    async fn until_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut is_stopped = self.is_stopped.subscribe();
        tokio::select! {
            biased;
            _ = is_stopped.wait_for(|is_stopped| *is_stopped) => None,
            result = future => Some(result),
        }
    }

    /// Opens a connection, and returns the host's end. Waits a while for a gateway that is being started.
    pub(crate) async fn connection(&self) -> io::Result<OwnedFd> {
        let mut current = self.current.subscribe();
        let connecting = async {
            loop {
                let gateway = Arc::clone(&current.borrow_and_update());
                match gateway.connection().await {
                    Err(error) if current.changed().await.is_err() => return Err(error),
                    Err(_) => {}
                    connected => return connected,
                }
            }
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, self.until_stopped(connecting)).await? {
            Some(connected) => connected,
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Replaces the policy. A gateway that does not take it is ended: the next one begins with it.
    pub(crate) async fn set_policy(&self, policy: &NetworkPolicy) {
        let mut next = self.current.subscribe();
        {
            let _turn = self.turn.lock().await;
            self.config.lock().policy = policy.clone();
            let gateway = Arc::clone(&next.borrow_and_update());
            let setting = async {
                let connection = stream(gateway.connection().await?)?;
                belljar_gateway::set_policy(connection, policy).await
            };
            match tokio::time::timeout(POLICY_TIMEOUT, self.until_stopped(setting)).await {
                Ok(None | Some(Ok(()))) => return,
                Ok(Some(Err(_))) | Err(_) => gateway.kill(),
            }
        }
        // The policy holds already, as nothing connects without a gateway. This only saves the caller a failed connection.
        let _ = tokio::time::timeout(RESTART_TIMEOUT, self.until_stopped(next.changed())).await;
    }

    /// Forgets the policy, as a server that changes it without this process may know another: the next gateway denies everything
    /// until it gets one.
    pub(crate) fn forget_policy(&self) {
        self.config.lock().policy = NetworkPolicy::default();
    }

    /// Requests the end of the gateway, after which none is started. It flushes its log to followers first.
    pub(crate) fn shut_down(&self) {
        self.is_stopped.send_replace(true);
        self.current().shut_down();
    }

    /// Ends the gateway, and waits until it is gone.
    pub(crate) async fn end(&self) {
        self.shut_down();
        let _turn = self.turn.lock().await;
        self.current().end().await;
        self.group.as_ref().inspect(|group| group.remove());
    }
}

/// A gateway's process.
struct Gateway {
    /// The host's end of its control socket.
    control: OwnedFd,
    pidfd: OwnedFd,
    ended: watch::Receiver<bool>,
}

impl Gateway {
    /// Starts the process in `group`. It serves once `network` has the sockets. Needs a tokio runtime.
    fn start(config: &GatewayConfig, network: &OwnedFd, group: Option<&GatewayGroup>) -> io::Result<Self> {
        let (control, theirs) = control_pair()?;
        let file = crate::planner::memory_file(c"belljar-gateway", config)?;
        // The running executable, even if its file has been replaced.
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (pidfd, ended) = watch_child(child)?;
        let gateway = Self { control, pidfd, ended };
        let group = group.map(GatewayGroup::list).transpose()?;
        let mut descriptors = vec![file.as_fd(), network.as_fd()];
        descriptors.extend(group.as_ref().map(OwnedFd::as_fd));
        belljar_linux::send_with(gateway.control.as_fd(), &[SETUP], &descriptors)?;
        Ok(gateway)
    }

    /// Returns a future that resolves when the gateway is jailed and ready for its sockets, or fails with the reason if it could not start.
    fn started(&self) -> io::Result<impl Future<Output = io::Result<()>> + Send + use<>> {
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
    async fn connection(&self) -> io::Result<OwnedFd> {
        let (host, theirs) = pair(SocketType::STREAM)?;
        loop {
            match belljar_linux::send_with(self.control.as_fd(), &[CONNECTION], &[theirs.as_fd()]) {
                Ok(_) => return Ok(host),
                Err(Errno::AGAIN) => tokio::time::sleep(POLL_INTERVAL).await,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    async fn wait_ended(&self) {
        // A closed channel means that its runtime ends.
        let _ = self.ended.clone().wait_for(|ended| *ended).await.is_ok();
    }

    fn kill(&self) {
        // Fails if the gateway is gone already.
        let _: Result<(), Errno> = belljar_linux::pidfd_kill(self.pidfd.as_fd(), SIGKILL);
    }

    /// Requests the gateway's end. It flushes its log to followers first.
    fn shut_down(&self) {
        // Fails if the gateway is gone already.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Write);
    }

    async fn end(&self) {
        self.shut_down();
        if tokio::time::timeout(END_TIMEOUT, self.wait_ended()).await.is_err() {
            self.kill();
            let _ = tokio::time::timeout(END_TIMEOUT, self.wait_ended()).await;
        }
    }
}

/// Replaces the policy of the gateway at the other end.
pub(crate) async fn set_policy(connection: OwnedFd, policy: &NetworkPolicy) -> Result<(), EngineError> {
    let failed = || EngineError::launch("change the network policy");
    let connection = stream(connection).map_err(failed())?;
    let done = tokio::time::timeout(POLICY_TIMEOUT, belljar_gateway::set_policy(connection, policy)).await;
    done.unwrap_or_else(|late| Err(late.into())).map_err(failed())
}

/// Returns the records of the gateway at the other end.
pub(crate) async fn log(connection: OwnedFd, after: u64, follow: bool) -> Result<NetworkLog, EngineError> {
    let failed = || EngineError::launch("read the network's log");
    let connection = stream(connection).map_err(failed())?;
    Ok(belljar_gateway::log(connection, after, follow).await.map_err(failed())?.boxed())
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It also ends when its control socket is closed; this is only sooner.
        self.kill();
    }
}
