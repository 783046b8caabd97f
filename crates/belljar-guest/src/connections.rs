//! How the host is served: on the one connection that the guest is started with, or, in a sandbox that outlives its runs, on
//! each that comes over a control socket.
//!
//! ```text
//! host ── control socket: one descriptor a message ──► guest
//!   └──── stream 1, stream 2, … ─────────────────────► served apart, until each closes
//! ```
//!
//! Only the host sends descriptors; the guest sends none, and writes nothing to the control socket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use belljar_proto::v1;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
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
        let router = Arc::clone(&self.files).register(router);
        Arc::clone(&self.ports).register(router)
    }
}

/// The connections of a long-lived sandbox.
pub(crate) struct Connections {
    control: AsyncFd<OwnedFd>,
    services: Services,
    open: JoinSet<()>,
}

impl Connections {
    pub(crate) fn new(control: OwnedFd, services: Services) -> io::Result<Self> {
        Ok(Self { control: async_fd(control)?, services, open: JoinSet::new() })
    }

    /// Serves whatever comes until the host closes its end of the control socket. A connection that breaks ends nothing
    /// but itself.
    pub(crate) async fn serve(mut self) {
        loop {
            tokio::select! {
                ready = self.control.readable() => {
                    let Ok(mut ready) = ready else { return };
                    match receive(self.control.get_ref()) {
                        Ok(Some(streams)) => streams.into_iter().for_each(|stream| self.accept(stream)),
                        Ok(None) => return,
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

/// What has come; `None` is the end.
fn receive(control: &OwnedFd) -> Result<Option<Vec<OwnedFd>>, Errno> {
    let mut byte = [0u8; 1];
    let received = belljar_linux::receive_with(control.as_fd(), &mut byte)?;
    Ok((received.length > 0).then_some(received.descriptors))
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
