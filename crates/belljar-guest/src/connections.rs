//! Connections of the host: the one that the guest is started with or, in a long-lived sandbox, any number that arrive
//! over a control socket.
//!
//! ```text
//! host ── control socket: one descriptor per message ──► guest
//!   └──── stream 1, stream 2, … ───────────────────────► served independently, until each closes
//! ```
//!
//! A pre-warmed interpreter arrives the same way: its control socket and its output pipes; so do the files that tell how much memory
//! is left. Only the host sends descriptors; the guest sends none, and writes nothing to the control socket.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, OnceLock};

use belljar_linux::MemoryFiles;
use belljar_proto::v1;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::files::Files;
use crate::guest::Guest;
use crate::interpreter::{Spare, prepare_spare};
use crate::ports::Ports;
use crate::service::Service;

/// Maximum number of connections; further ones are closed immediately.
pub const MAX_CONNECTIONS: usize = 16;

/// The services of every connection.
#[derive(Clone)]
pub(crate) struct Services {
    service: Arc<Service>,
    files: Arc<Files>,
    ports: Arc<Ports>,
}

impl Services {
    pub(crate) fn new(guest: &Arc<Guest>) -> Self {
        Self {
            service: Arc::new(Service { guest: Arc::clone(guest) }),
            files: Arc::new(Files { home: guest.config.home.clone() }),
            ports: Arc::new(Ports::default()),
        }
    }

    pub(crate) fn router(&self) -> connectrpc::Router {
        use v1::{FilesystemExt as _, PortsExt as _};
        let router = connectrpc::Router::new();
        let router = v1::ProcessExt::register(Arc::clone(&self.service), router);
        let router = v1::HealthExt::register(Arc::clone(&self.service), router);
        let router = v1::SessionExt::register(Arc::clone(&self.service), router);
        let router = v1::InterpreterExt::register(Arc::clone(&self.service), router);
        let router = Arc::clone(&self.files).register(router);
        Arc::clone(&self.ports).register(router)
    }
}

/// Maximum number of spare interpreters; further ones are dropped.
const MAX_SPARES: usize = 2;

/// Streams and interpreters that arrived over the control socket and are not in use yet.
#[derive(Default)]
pub(crate) struct Arrivals {
    control: OnceLock<Arc<AsyncFd<OwnedFd>>>,
    inner: Mutex<ArrivalQueues>,
    streams: Notify,
}

#[derive(Default)]
struct ArrivalQueues {
    spares: VecDeque<Spare>,
    streams: VecDeque<OwnedFd>,
}

impl Arrivals {
    fn inner(&self) -> MutexGuard<'_, ArrivalQueues> {
        self.inner.lock()
    }

    /// Receives one message from the control socket; returns false at its end.
    fn receive(&self, guest: &Arc<Guest>, control: &OwnedFd) -> Result<bool, Errno> {
        let mut byte = [0u8; 1];
        let received = belljar_linux::receive_with(control.as_fd(), &mut byte)?;
        if received.length == 0 {
            return Ok(false);
        }
        let mut queues = self.inner();
        if byte == [belljar_linux::MEMORY_FILES] {
            let files = <[OwnedFd; MemoryFiles::COUNT]>::try_from(received.descriptors);
            files
                .into_iter()
                .for_each(|files| crate::room::set_memory_files(MemoryFiles::from_descriptors(files)));
        } else if byte == [belljar_linux::SPARE] {
            if let Ok([socket, out, err]) = <[OwnedFd; 3]>::try_from(received.descriptors)
                && queues.spares.len() < MAX_SPARES
            {
                queues.spares.push_back(prepare_spare(guest, socket, [out, err]));
            }
        } else {
            queues.streams.extend(received.descriptors);
            self.streams.notify_one();
        }
        Ok(true)
    }

    fn next_stream(&self) -> Option<OwnedFd> {
        self.inner().streams.pop_front()
    }

    /// Takes a spare interpreter, if the host has sent one before this call.
    pub(crate) fn take_spare(&self, guest: &Arc<Guest>) -> Option<Spare> {
        if let Some(control) = self.control.get() {
            while let Ok(true) | Err(Errno::INTR) = self.receive(guest, control.get_ref()) {}
        }
        self.inner().spares.pop_front()
    }
}

/// The connections of a long-lived sandbox.
pub(crate) struct Connections {
    control: Arc<AsyncFd<OwnedFd>>,
    guest: Arc<Guest>,
    services: Services,
    open: JoinSet<()>,
}

impl Connections {
    pub(crate) fn new(control: OwnedFd, services: Services, guest: Arc<Guest>) -> io::Result<Self> {
        let control = Arc::new(async_fd(control)?);
        let _ = guest.arrivals.control.set(Arc::clone(&control));
        Ok(Self { control, guest, services, open: JoinSet::new() })
    }

    /// Serves connections until the host closes its end of the control socket. A failed connection ends only itself.
    pub(crate) async fn serve(mut self) {
        let (guest, control) = (Arc::clone(&self.guest), Arc::clone(&self.control));
        loop {
            while let Some(stream) = guest.arrivals.next_stream() {
                self.accept(stream);
            }
            tokio::select! {
                () = guest.arrivals.streams.notified() => {}
                ready = control.readable() => {
                    let Ok(mut ready) = ready else { return };
                    match guest.arrivals.receive(&guest, control.get_ref()) {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(Errno::AGAIN) => ready.clear_ready(),
                        Err(Errno::INTR) => {}
                        // No free descriptor: this connection is lost, the next one may succeed.
                        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {}
                        Err(_) => return,
                    }
                }
                Some(_) = self.open.join_next() => {}
            }
        }
    }

    fn accept(&mut self, descriptor: OwnedFd) {
        while self.open.try_join_next().is_some() {}
        if self.open.len() >= MAX_CONNECTIONS {
            return;
        }
        if let Ok(stream) = into_stream(descriptor) {
            let router = self.services.router();
            self.open.spawn(async move {
                // A closed and a failed connection are treated alike.
                let _ = belljar_proto::serve(stream, router).await;
            });
        }
    }
}

/// Converts a connection's socket for tokio.
pub(crate) fn into_stream(socket: OwnedFd) -> io::Result<tokio::net::UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(socket)
}

#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}
