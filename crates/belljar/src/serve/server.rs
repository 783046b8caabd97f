//! Life cycle of one server.

use std::sync::Arc;

use belljar_api::{Api, ServeError};
use belljar_engine::Engines;
use belljar_keeper::{Keeper, OnShutdown};
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

/// Serves until a signal ends the server, and returns the exit status.
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
        // The caller reports it on standard error anyway.
        tracing::error!(error = chain(error.as_ref()), "the server failed");
    }
    if let Some(otlp) = otlp {
        // Blocks until the collector has answered the last requests.
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
        status = signals.next_stop() => return Ok(status),
    }
    tracing::info!("stopped");
    served
}

/// A server whose parts are all open.
struct Server {
    listening: Listening,
    store: Store,
    /// Keeps other servers that share the store from using the same name.
    _name: NameLock,
    keeper: Keeper,
    engines: Engines,
    api: Arc<Api>,
    /// One task for each listener.
    facades: JoinSet<Result<(), ServeError>>,
    stopping: CancellationToken,
    on_shutdown: OnShutdown,
    /// Set if a command has started this server.
    background: Option<Background>,
}

impl Server {
    /// Opens all parts. Takes over the sandboxes of an earlier server.
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
        let engines = parts::engines(loaded)?;
        parts::warn_of_obstacles(&engines);
        let keeper = Keeper::open(parts::keeper(loaded), store.clone(), audit, engines.clone()).await?;
        keeper.warn_of_missing_default().await?;
        keeper.register_metrics(|registry| registry.register_collector(Box::new(ProcessMetrics::new())));
        let api = Arc::new(Api::new(parts::api(loaded), keeper.clone()));
        if loaded.config.otlp.is_some() {
            api.set_trace_context(Arc::new(W3c::default()));
        }
        let (facades, stopping) = (JoinSet::new(), CancellationToken::new());
        let on_shutdown = parts::on_shutdown(loaded);
        Ok(Self {
            listening,
            store,
            _name: name,
            keeper,
            engines,
            api,
            facades,
            stopping,
            on_shutdown,
            background,
        })
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
        // The output of a server in the background is not read, and the operator's socket needs no key.
        let welcome = match self.background {
            Some(_) => None,
            None => {
                let e2b = E2bWay::from_config(&loaded.config.server);
                let has_closed_ports = !loaded.config.server.e2b_public_ports;
                Some(Welcome::prepare(&self.keeper, &self.listening, e2b, has_closed_ports).await?)
            }
        };
        for listener in std::mem::take(&mut self.listening.listeners) {
            let (api, stopping) = (Arc::clone(&self.api), self.stopping.clone());
            self.facades.spawn(async move { api.serve(listener, stopping.cancelled_owned()).await });
        }
        home.publish(self.listening.socket.as_deref(), self.listening.url())?;
        if let Some(welcome) = welcome {
            welcome.print(&self.keeper, &self.listening).await?;
        }
        if let Some(background) = &mut self.background {
            background.ready()?;
        }
        let addresses: Vec<_> = self.listening.addresses.iter().map(ToString::to_string).collect();
        tracing::info!(version = env!("CARGO_PKG_VERSION"), addresses = addresses.join(" "), "serving");
        let open = self.listening.open_addresses();
        if !open.is_empty() {
            tracing::warn!(
                addresses = open.join(" "),
                "without TLS: keys and data can be read on their way to these addresses, unless a proxy with TLS is in front of them; set \
                 server.tls_certificate and server.tls_key, or listen on 127.0.0.1"
            );
        }
        manager.ready();
        let mut reload = Reload::new(loaded, log, self.listening.tls.clone());
        loop {
            tokio::select! {
                action = signals.next() => match action {
                    SignalAction::Stop { status } => return Ok(status),
                    SignalAction::Reload => {
                        manager.reloading();
                        reload.reload(sources, &self.keeper, &self.api);
                        self.on_shutdown = parts::on_shutdown(reload.loaded());
                        manager.ready();
                    }
                },
                Some(ended) = self.facades.join_next() => ended??,
                end = end(&mut self.background, &self.keeper, &self.api, reload.loaded()) => {
                    match end {
                        End::Idle => tracing::info!("no sandbox and no connection: exiting"),
                        End::Asked => {
                            tracing::info!("another server takes over");
                            self.on_shutdown = OnShutdown::Keep;
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
        let closed = self.keeper.close(self.on_shutdown).await;
        if self.keeper.is_empty()
            && let Err(error) = self.engines.shut_down_if_idle().await
        {
            tracing::warn!(error = chain(&error), "cannot end the launcher; it ends by itself");
        }
        self.store.close().await;
        if let (Some(path), true) = (&self.listening.socket, self.listening.owns_socket) {
            // The next server removes a leftover.
            let _ = std::fs::remove_file(path);
        }
        ended.and(closed.map_err(Quit::from))
    }
}

/// Waits for a reason to end a server in the background. One that was started by hand is only ended by signals.
async fn end(background: &mut Option<Background>, keeper: &Keeper, api: &Api, loaded: &Loaded) -> End {
    match background {
        Some(background) => background.end(keeper, api, loaded.config.server.linger).await,
        None => std::future::pending().await,
    }
}

/// The action that a signal requests.
enum SignalAction {
    /// Reload the configuration.
    Reload,
    /// Shut down gracefully, with the conventional exit status for the signal.
    Stop { status: u8 },
}

/// The signals that a server handles.
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

    /// Waits for the next signal.
    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.hangup.recv() => SignalAction::Reload,
            _ = self.interrupt.recv() => {
                SignalAction::Stop { status: signals::status(SignalKind::interrupt().as_raw_value()) }
            }
            _ = self.terminate.recv() => SignalAction::Stop { status: 0 },
        }
    }

    /// Waits for a second signal to stop, and returns the exit status.
    async fn next_stop(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => signals::status(SignalKind::interrupt().as_raw_value()),
            _ = self.terminate.recv() => signals::status(SignalKind::terminate().as_raw_value()),
        }
    }
}
