//! The launcher's own side: it listens, takes requests, and tells of ends.

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
use crate::launcher::client::{self, Outbox};
use crate::launcher::held::{Held, Table};
use crate::launcher::messages::Reply;
use crate::launcher::place::is_same_user;
use crate::launcher::start::{is_single_threaded, log};
use crate::warm::Parents;

/// The most clients at once.
const MAX_CLIENTS: usize = 64;

/// What the tasks of the launcher share.
pub(crate) struct Launcher {
    pub(crate) table: Arc<Table>,
    /// The parents of warm interpreters. They keep the launcher from nothing.
    pub(crate) parents: Arc<Parents>,
    pub(crate) instance: String,
    clients: Mutex<HashMap<u64, Client>>,
    /// Something has ended or gone: there may be nothing to stay for.
    changed: Notify,
    ending: watch::Sender<bool>,
}

/// A client that has said hello, or has not yet.
struct Client {
    kind: Option<LocalKind>,
    outbox: Outbox,
}

/// Serves until there is nothing to do for as long as `linger`, or until it is told to end.
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
                    // No descriptor is free, or the like: it may pass.
                    log(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            () = launcher.idle_for(linger) => {
                launcher.parents.end_all().await;
                return Ok(());
            }
            _ = terminated.recv() => {
                log("told to end by a signal");
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
        if let Err(error) = is_same_user(&stream) {
            return log(&format!("a connection is refused: {error}"));
        }
        if self.clients().len() >= MAX_CLIENTS {
            return log(&format!("a connection is refused: {MAX_CLIENTS} are open"));
        }
        let launcher = Arc::clone(self);
        let (client, outbox) = client::Client::new(number, stream);
        self.clients().insert(number, Client { kind: None, outbox });
        tokio::spawn(async move {
            if let Err(error) = client.serve(&launcher).await {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                log(&format!("a client is dropped: {error}{}", cause.unwrap_or_default()));
            }
            launcher.leave(number);
        });
    }

    /// A client is gone, and what was tied to it goes as well.
    fn leave(self: &Arc<Self>, number: u64) {
        self.clients().remove(&number);
        for held in self.table.all().into_iter().filter(|held| held.tied_to == Some(number)) {
            let launcher = Arc::clone(self);
            tokio::spawn(async move { launcher.stop(&held).await });
        }
        self.changed.notify_one();
    }

    /// Whether this client is still there.
    pub(crate) fn is_connected(&self, number: u64) -> bool {
        self.clients().contains_key(&number)
    }

    /// A client has said what it is: it hears of ends from now on, and of those that it has missed.
    pub(crate) async fn hello(&self, number: u64, kind: LocalKind, outbox: &Outbox) {
        if let Some(client) = self.clients().get_mut(&number) {
            client.kind = Some(kind);
        }
        while let Some((id, how)) = self.table.untold(kind) {
            outbox.send(Reply::Ended { id, how }, None).await;
        }
    }

    /// Refuses to launch with a second thread: what is cloned then could hang.
    pub(crate) fn may_launch(&self) -> Result<(), EngineError> {
        match is_single_threaded() {
            true => Ok(()),
            false => Err(EngineError::Launch {
                step: "launch: the launcher has more than one thread".to_owned(),
                source: std::io::ErrorKind::Other.into(),
            }),
        }
    }

    /// Holds a sandbox from now on, and watches for its end.
    pub(crate) fn hold(self: &Arc<Self>, held: Held) -> Arc<Held> {
        let held = Arc::new(held);
        self.table.insert(Arc::clone(&held));
        let (launcher, watched) = (Arc::clone(self), Arc::clone(&held));
        tokio::spawn(async move {
            let how = watched.wait_ended().await;
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

    /// Ends a sandbox, and removes all that it held.
    pub(crate) async fn stop(&self, held: &Held) -> Result<(), EngineError> {
        let stopped = held.stop().await;
        self.table.remove(&held.id);
        self.changed.notify_one();
        stopped
    }

    /// Tells all clients of its engine that a sandbox has ended. If there is none, the next one is told.
    fn announce(&self, held: &Held, how: String) {
        if !self.tell(held.kind, &held.id, &how) && held.tied_to.is_none() {
            self.table.remember(held.kind, held.id.clone(), how);
        }
    }

    fn tell(&self, kind: LocalKind, id: &SandboxId, how: &str) -> bool {
        let mut told = false;
        self.clients().retain(|_, client| {
            if client.kind != Some(kind) {
                return true;
            }
            let taken = client.outbox.try_send(Reply::Ended { id: id.clone(), how: how.to_owned() });
            told |= taken;
            // One that takes nothing is dropped: it connects again, and asks what there is.
            taken
        });
        told
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

    /// Resolves when there has been no client and no sandbox for so long.
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
