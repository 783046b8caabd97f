//! One server, from its start to its end.

use std::sync::Arc;

use belljar_api::{Api, ServeError};
use belljar_keeper::{Keeper, Leave};
use belljar_local::LauncherEngine;
use belljar_store::{AuditLog, NameLock, Store};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::background::{Background, End};
use super::first_key::{E2bWay, Welcome};
use super::home::Home;
use super::listen::{Listening, Passed};
use super::log::Log;
use super::notify::Manager;
use super::otlp::{Otlp, W3c};
use super::parts;
use super::process_metrics::ProcessMetrics;
use super::reload::Reload;
use crate::config::{Loaded, Sources};
use crate::message::{Quit, chain};
use crate::signals;

/// Serves until a signal says otherwise, and gives the exit status.
pub(crate) async fn run(
    sources: &Sources<'_>,
    loaded: Loaded,
    passed: Passed,
    home: &mut Home,
    background: Option<Background>,
) -> Result<u8, Quit> {
    let has_log_file = loaded.config.log.file.is_some();
    let (otlp, layers) = match loaded.config.otlp.as_ref().map(Otlp::start).transpose()? {
        Some((otlp, layers)) => (Some(otlp), layers),
        None => (None, Vec::new()),
    };
    let log = Log::start(&loaded.config.log, layers)?;
    let served = serve(sources, loaded, log, passed, home, background).await;
    if let (Err(Quit::Error(error)), true) = (&served, has_log_file) {
        // Standard error is told in any case.
        tracing::error!(error = chain(error.as_ref()), "the server cannot go on");
    }
    if let Some(otlp) = otlp {
        // It waits for the collector's last answers.
        let _ = tokio::task::spawn_blocking(move || otlp.close()).await;
    }
    served
}

async fn serve(
    sources: &Sources<'_>,
    loaded: Loaded,
    log: Log,
    passed: Passed,
    home: &mut Home,
    background: Option<Background>,
) -> Result<u8, Quit> {
    let manager = Manager::from_environment();
    let mut signals = Signals::catch()?;
    let mut server = Server::open(&loaded, passed, background).await?;
    let served = server.serve(sources, loaded, log, home, &manager, &mut signals).await;
    manager.stopping();
    if served.is_ok() {
        tracing::info!("stopping; a second signal ends the server at once");
    }
    tokio::select! {
        closed = server.close() => closed?,
        status = signals.again() => return Ok(status),
    }
    tracing::info!("stopped");
    served
}

/// A server that stands.
struct Server {
    listening: Listening,
    store: Store,
    /// Nobody else who shares the store is called so.
    _name: NameLock,
    keeper: Keeper,
    engines: Vec<Arc<LauncherEngine>>,
    api: Arc<Api>,
    /// One for each listener.
    facades: JoinSet<Result<(), ServeError>>,
    stopping: CancellationToken,
    leave: Leave,
    /// Set if a command has started this server.
    background: Option<Background>,
}

impl Server {
    /// Opens everything. Sandboxes of an earlier server are taken over here.
    async fn open(loaded: &Loaded, passed: Passed, background: Option<Background>) -> Result<Self, Quit> {
        let listening = Listening::open(loaded, passed).await?;
        let store = Store::open_with(
            &parts::store_url(loaded)?,
            parts::durability(loaded),
            &parts::store_key(loaded),
        )
        .await?;
        let name = store.lock_name(&loaded.config.store.keeper).await?;
        let audit = AuditLog::open(&store, parts::audit(loaded)).await?;
        let (engines, offered) = parts::engines(loaded)?;
        let keeper = Keeper::open(parts::keeper(loaded), store.clone(), audit, offered).await?;
        keeper.register_metrics(|registry| registry.register_collector(Box::new(ProcessMetrics::new())));
        let api = Arc::new(Api::new(parts::api(loaded), keeper.clone()));
        if loaded.config.otlp.is_some() {
            api.pass_traces_on(Arc::new(W3c::default()));
        }
        let (facades, stopping) = (JoinSet::new(), CancellationToken::new());
        let leave = parts::leave(loaded);
        Ok(Self { listening, store, _name: name, keeper, engines, api, facades, stopping, leave, background })
    }

    /// Answers requests until a signal comes.
    async fn serve(
        &mut self,
        sources: &Sources<'_>,
        loaded: Loaded,
        log: Log,
        home: &mut Home,
        manager: &Manager,
        signals: &mut Signals,
    ) -> Result<u8, Quit> {
        // Nobody reads what a server in the background says, and the operator's socket needs no key.
        let welcome = match self.background {
            Some(_) => None,
            None => {
                let e2b = E2bWay::of(&loaded.config.server);
                Some(Welcome::prepare(&self.keeper, &self.listening, e2b).await?)
            }
        };
        for listener in std::mem::take(&mut self.listening.listeners) {
            let (api, stopping) = (Arc::clone(&self.api), self.stopping.clone());
            self.facades.spawn(async move { api.serve(listener, stopping.cancelled_owned()).await });
        }
        home.tell(self.listening.socket.as_deref(), self.listening.url())?;
        if let Some(welcome) = welcome {
            welcome.tell(&self.keeper, &self.listening).await?;
        }
        if let Some(background) = &mut self.background {
            background.ready()?;
        }
        let addresses: Vec<_> = self.listening.addresses.iter().map(ToString::to_string).collect();
        tracing::info!(version = env!("CARGO_PKG_VERSION"), addresses = addresses.join(" "), "serving");
        manager.ready();
        let mut reload = Reload::new(loaded, log, self.listening.tls.clone());
        loop {
            tokio::select! {
                order = signals.next() => match order {
                    Order::Stop { status } => return Ok(status),
                    Order::Reload => {
                        manager.reloading();
                        reload.reload(sources, &self.keeper, &self.api);
                        self.leave = parts::leave(reload.loaded());
                        manager.ready();
                    }
                },
                Some(ended) = self.facades.join_next() => ended??,
                end = end(&mut self.background, &self.keeper, &self.api, reload.loaded()) => {
                    match end {
                        End::Idle => tracing::info!("no sandbox and no connection: nothing to stay for"),
                        End::Asked => {
                            tracing::info!("another server takes over");
                            self.leave = Leave::Running;
                        }
                    }
                    return Ok(0);
                }
            }
        }
    }

    /// Lets requests finish, and closes everything.
    async fn close(mut self) -> Result<(), Quit> {
        self.stopping.cancel();
        let mut ended = Ok(());
        while let Some(facade) = self.facades.join_next().await {
            ended = ended.and(facade.map_err(Quit::from).and_then(|facade| facade.map_err(Quit::from)));
        }
        let closed = self.keeper.close(self.leave).await;
        if self.keeper.is_empty()
            && let Err(error) = LauncherEngine::shut_down_if_idle(&self.engines).await
        {
            tracing::warn!(error = chain(&error), "cannot end the launcher; it ends by itself");
        }
        self.store.close().await;
        if let (Some(path), true) = (&self.listening.socket, self.listening.owns_socket) {
            // A next server takes away what is left of it.
            let _ = std::fs::remove_file(path);
        }
        ended.and(closed.map_err(Quit::from))
    }
}

/// Waits until a server in the background is to end. One that was started by hand ends by signals alone.
async fn end(background: &mut Option<Background>, keeper: &Keeper, api: &Api, loaded: &Loaded) -> End {
    match background {
        Some(background) => background.end(keeper, api, loaded.config.server.linger).await,
        None => std::future::pending().await,
    }
}

/// What a signal asks for.
enum Order {
    /// To read the configuration again.
    Reload,
    /// To end in peace, with the exit status that whoever sent it expects.
    Stop { status: u8 },
}

/// The signals that a server answers.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for an order.
    async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.hangup.recv() => Order::Reload,
            _ = self.interrupt.recv() => {
                Order::Stop { status: signals::status(SignalKind::interrupt().as_raw_value()) }
            }
            _ = self.terminate.recv() => Order::Stop { status: 0 },
        }
    }

    /// Waits for a second order to stop, which is obeyed at once.
    async fn again(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => signals::status(SignalKind::interrupt().as_raw_value()),
            _ = self.terminate.recv() => signals::status(SignalKind::terminate().as_raw_value()),
        }
    }
}
