//! How the host is served: on the one connection that the guest is started with, or, in a sandbox that outlives its runs, on
//! each that comes over a control socket.
//!
//! ```text
//! host ── control socket: one descriptor a message ──► guest
//!   └──── stream 1, stream 2, … ─────────────────────► served apart, until each closes
//! ```
//!
//! An interpreter that the host has made ready comes the same way: its control socket, and the pipes of what it prints. Only the
//! host sends descriptors; the guest sends none, and writes nothing to the control socket.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, OnceLock};

use belljar_proto::v1;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::files::Files;
use crate::guest::Guest;
use crate::ports::Ports;
use crate::service::Service;

/// The most connections at once; one more is closed at once.
pub const MAX_CONNECTIONS: usize = 16;

/// What is served on every connection.
#[derive(Clone)]
pub(crate) struct Services {
    service: Arc<Service>,
    files: Arc<Files>,
    ports: Arc<Ports>,
}

impl Services {
    pub(crate) fn of(guest: &Arc<Guest>) -> Self {
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

/// The most interpreters that wait to be used; one more is let go.
const MAX_SPARES: usize = 2;

/// An interpreter that the host has sent: it has moved in, and waits to be told its place.
pub(crate) struct Spare {
    pub(crate) socket: OwnedFd,
    pub(crate) streams: [OwnedFd; 2],
}

/// What has come over the control socket and has not been used.
#[derive(Default)]
pub(crate) struct Arrivals {
    control: OnceLock<Arc<AsyncFd<OwnedFd>>>,
    inner: Mutex<Waiting>,
    streams: Notify,
}

#[derive(Default)]
struct Waiting {
    spares: VecDeque<Spare>,
    streams: VecDeque<OwnedFd>,
}

impl Arrivals {
    fn inner(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock()
    }

    /// Takes one message from the control socket; false at its end.
    fn receive(&self, control: &OwnedFd) -> Result<bool, Errno> {
        let mut byte = [0u8; 1];
        let received = belljar_linux::receive_with(control.as_fd(), &mut byte)?;
        if received.length == 0 {
            return Ok(false);
        }
        let mut waiting = self.inner();
        if byte == [belljar_linux::SPARE] {
            if let Ok([socket, out, err]) = <[OwnedFd; 3]>::try_from(received.descriptors)
                && waiting.spares.len() < MAX_SPARES
            {
                waiting.spares.push_back(Spare { socket, streams: [out, err] });
            }
        } else {
            waiting.streams.extend(received.descriptors);
            self.streams.notify_one();
        }
        Ok(true)
    }

    fn next_stream(&self) -> Option<OwnedFd> {
        self.inner().streams.pop_front()
    }

    /// An interpreter that the host has sent before this was asked.
    pub(crate) fn spare(&self) -> Option<Spare> {
        if let Some(control) = self.control.get() {
            while let Ok(true) | Err(Errno::INTR) = self.receive(control.get_ref()) {}
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

    /// Serves whatever comes until the host closes its end of the control socket. A connection that breaks ends nothing
    /// but itself.
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
                    match guest.arrivals.receive(control.get_ref()) {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(Errno::AGAIN) => ready.clear_ready(),
                        Err(Errno::INTR) => {}
                        // No descriptor was free: the connection is lost, the next one may do.
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
        if let Ok(stream) = stream(descriptor) {
            let router = self.services.router();
            self.open.spawn(async move {
                // Whether it was closed or broke is the same to us.
                let _ = belljar_proto::serve(stream, router).await;
            });
        }
    }
}

/// A connection's socket, for tokio.
pub(crate) fn stream(socket: OwnedFd) -> io::Result<tokio::net::UnixStream> {
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
