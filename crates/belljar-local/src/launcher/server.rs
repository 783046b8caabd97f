//! Server side of the launcher: it listens, accepts requests, and announces ends.

use std::collections::HashMap;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::EngineError;
use belljar_model::SandboxId;
use futures::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::LocalKind;
use crate::forks::Forks;
use crate::launcher::client::{self, Outbox};

use crate::launcher::messages::Reply;
use crate::launcher::run_dir::check_same_user;
use crate::launcher::start::log;
use crate::launcher::table::{HeldSandbox, Table};
use crate::warm::Parents;

/// Maximum number of clients.
const MAX_CLIENTS: usize = 64;

/// State shared by the tasks of the launcher.
pub(crate) struct Launcher {
    pub(crate) table: Arc<Table>,
    /// Parents of warm interpreters. They do not keep the launcher from exiting.
    pub(crate) parents: Arc<Parents>,
    /// Starts the supervisors.
    pub(crate) forks: Arc<Forks>,
    pub(crate) instance: String,
    clients: Mutex<HashMap<u64, Client>>,
    /// Notified when a sandbox or a client is gone: the launcher may be idle.
    changed: Notify,
    ending: watch::Sender<bool>,
}

/// Client; its kind is known after its hello.
struct Client {
    kind: Option<LocalKind>,
    outbox: Outbox,
}

/// Serves until the launcher has been idle for `linger`, or is told to end.
pub(crate) async fn serve(
    listener: StdUnixListener,
    instance: String,
    linger: Duration,
) -> std::io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let mut terminated = signal(SignalKind::terminate())?;
    let launcher = Arc::new(Launcher {
        table: Arc::new(Table::default()),
        parents: Arc::new(Parents::default()),
        forks: Arc::default(),
        instance,
        clients: Mutex::default(),
        changed: Notify::new(),
        ending: watch::Sender::new(false),
    });
    let mut ending = launcher.ending.subscribe();
    let mut next = 0u64;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    next += 1;
                    launcher.accept(next, stream);
                }
                Err(error) => {
                    // Possibly a temporary error, such as a lack of descriptors.
                    log(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            () = launcher.idle_for(linger) => {
                launcher.parents.end_all().await;
                return Ok(());
            }
            _ = terminated.recv() => {
                log("terminated by a signal");
                launcher.end_all().await;
                return Ok(());
            }
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        }
    }
}

impl Launcher {
    fn clients(&self) -> MutexGuard<'_, HashMap<u64, Client>> {
        self.clients.lock()
    }

    fn accept(self: &Arc<Self>, number: u64, stream: UnixStream) {
        if let Err(error) = check_same_user(&stream) {
            return log(&format!("connection refused: {error}"));
        }
        if self.clients().len() >= MAX_CLIENTS {
            return log(&format!("connection refused: {MAX_CLIENTS} are open"));
        }
        let launcher = Arc::clone(self);
        let (client, outbox) = client::Client::new(number, stream);
        self.clients().insert(number, Client { kind: None, outbox });
        tokio::spawn(async move {
            if let Err(error) = client.serve(&launcher).await {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                log(&format!("client disconnected: {error}{}", cause.unwrap_or_default()));
            }
            launcher.disconnect(number);
        });
    }

    /// Removes a client, and ends the sandboxes tied to it.
    fn disconnect(self: &Arc<Self>, number: u64) {
        self.clients().remove(&number);
        for held in self.table.all().into_iter().filter(|held| held.tied_to == Some(number)) {
            let launcher = Arc::clone(self);
            tokio::spawn(async move { launcher.stop(&held).await });
        }
        self.changed.notify_one();
    }

    /// Reports whether this client is connected.
    pub(crate) fn is_connected(&self, number: u64) -> bool {
        self.clients().contains_key(&number)
    }

    /// Registers the kind of a client: from now on it is notified of ends, and of those it has missed.
    pub(crate) async fn register(&self, number: u64, kind: LocalKind, outbox: &Outbox) {
        if let Some(client) = self.clients().get_mut(&number) {
            client.kind = Some(kind);
        }
        while let Some((id, how)) = self.table.take_unreported(kind) {
            outbox.send(Reply::Ended { id, how }, None).await;
        }
    }

    /// Takes ownership of a sandbox, and watches for its end.
    pub(crate) fn hold(self: &Arc<Self>, held: HeldSandbox) -> Arc<HeldSandbox> {
        let held = Arc::new(held);
        self.table.insert(Arc::clone(&held));
        let (launcher, watched) = (Arc::clone(self), Arc::clone(&held));
        tokio::spawn(async move {
            let how = watched.wait_for_end().await;
            launcher.announce(&watched, how);
            watched.set_announced();
            if let Err(error) = watched.clean_up().await {
                log(&format!("{}: {error}", watched.id));
            }
            launcher.table.remove(&watched.id);
            launcher.changed.notify_one();
        });
        held
    }

    /// Ends a sandbox, and removes its resources.
    pub(crate) async fn stop(&self, held: &HeldSandbox) -> Result<(), EngineError> {
        let stopped = held.stop().await;
        self.table.remove(&held.id);
        self.changed.notify_one();
        stopped
    }

    /// Announces the end of a sandbox to all clients of its engine. If there is none, it is remembered for the next one.
    fn announce(&self, held: &HeldSandbox, how: String) {
        if !self.broadcast_end(held.kind, &held.id, &how) && held.tied_to.is_none() {
            self.table.remember(held.kind, held.id.clone(), how);
        }
    }

    fn broadcast_end(&self, kind: LocalKind, id: &SandboxId, how: &str) -> bool {
        let mut delivered = false;
        self.clients().retain(|_, client| {
            if client.kind != Some(kind) {
                return true;
            }
            let is_queued = client.outbox.try_send(Reply::Ended { id: id.clone(), how: how.to_owned() });
            delivered |= is_queued;
            // A client that does not receive is disconnected: it reconnects and lists the sandboxes.
            is_queued
        });
        delivered
    }

    /// Ends all sandboxes.
    pub(crate) async fn end_all(&self) {
        let all = self.table.all();
        join_all(all.iter().map(|held| self.stop(held))).await;
        self.parents.end_all().await;
    }

    /// Makes the launcher exit.
    pub(crate) fn exit(&self) {
        self.ending.send_replace(true);
    }

    /// Resolves when there has been no client and no sandbox for this time.
    async fn idle_for(&self, linger: Duration) {
        let is_idle = || self.clients().is_empty() && self.table.is_empty();
        loop {
            let changed = self.changed.notified();
            if !is_idle() {
                changed.await;
                continue;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(linger) => if is_idle() { return },
            }
        }
    }
}
