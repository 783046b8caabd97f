//! Connections: accept, limits, serving and orderly shutdown.
//!
//! ```text
//!  accept ──► slot ──► TLS ──► HTTP/1.1 or HTTP/2 ──► closed
//!    │          │        └ 10 s      │ idle for 75 s, or maximum number of requests: graceful shutdown
//!    │          └ too many: closed   │ first head within 10 s of the first byte
//!    └ server shutdown ─────────────►│ graceful shutdown, cut off after the drain time
//! ```

mod connection;
mod flight;
mod frames;
mod io;
mod slots;
mod tls;
mod traffic;

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use flight::Flights;
pub use tls::{Tls, TlsError};
pub use traffic::Connections;
pub(crate) use traffic::Traffic;

use crate::api::Api;
use crate::guard::Peer;
use connection::Connection;
use io::Activity;
use slots::Slot;
pub(crate) use slots::Slots;

/// Pause after a failed accept for lack of descriptors or memory.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Interval at which keys with open streams are checked for having expired.
/// Source: docs/spec.md; held by `session::streams_end_with_what_their_key_may_do`.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes of one connection that the kernel keeps before they are sent. Without it a client that reads nothing has
/// megabytes of the machine's memory, until it is closed. Bytes that are on their way do not count, so distant clients lose nothing.
/// Source: docs/spec.md; held by `tests::unread_responses_take_little_memory_of_the_kernel`.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

/// Listening socket of the API.
pub enum Listener {
    /// TCP, with TLS or without.
    Tcp(TcpListener, Option<Tls>),
    /// A Unix socket.
    Unix(UnixListener),
}

/// Error of serving the API.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The listening socket is unusable.
    #[error("cannot accept connections")]
    Accept(#[source] std::io::Error),
}

impl Api {
    /// Serves until `shutdown` completes, and then until all requests are done or the drain time is over. Open streams
    /// get an event.
    ///
    /// # Errors
    /// Fails if the listening socket becomes unusable.
    pub async fn serve<F>(&self, listener: Listener, shutdown: F) -> Result<(), ServeError>
    where
        F: Future<Output = ()>,
    {
        let config = &self.shared.config;
        let server = Server {
            router: self.router(),
            slots: self.shared.connections.clone(),
            flights: self.shared.flights.clone(),
            max_requests: config.max_requests_per_connection,
            tasks: TaskTracker::new(),
            finish: CancellationToken::new(),
            cut: CancellationToken::new(),
            operator_socket: config.operator_socket,
            traffic: Arc::clone(&self.shared.traffic),
        };
        let accepted = tokio::select! {
            accepted = server.accept(&listener) => accepted,
            accepted = self.end_revoked() => accepted,
            () = shutdown => Ok(()),
        };
        drop(listener);
        server.finish.cancel();
        self.shared.stopping.cancel();
        server.tasks.close();
        if tokio::time::timeout(config.drain, server.tasks.wait()).await.is_err() {
            tracing::warn!(
                connections = server.tasks.len(),
                "connections are cut off: the drain time is over"
            );
            server.cut.cancel();
            let _ = tokio::time::timeout(Duration::from_secs(1), server.tasks.wait()).await;
        }
        accepted
    }

    /// Ends the open streams of keys that are revoked or may do less, and now and then those of keys that have expired, or that another
    /// server has revoked or lowered.
    async fn end_revoked(&self) -> Result<(), ServeError> {
        let (keeper, streams) = (&self.shared.keeper, &self.shared.streams);
        let mut revocations = keeper.revocations();
        let mut checks = tokio::time::interval(KEY_CHECK_INTERVAL);
        loop {
            tokio::select! {
                revoked = revocations.recv() => match revoked {
                    Ok(key) => {
                        streams.end(&key);
                        continue;
                    }
                    // Of the keys that were missed, the store tells.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => std::future::pending().await,
                },
                _ = checks.tick() => {}
            }
            for (key, rights) in streams.keys() {
                if keeper.has_ended(&key, &rights).await {
                    streams.end(&key);
                }
            }
        }
    }

    /// Returns the number of connections on all listeners.
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.shared.traffic.now()
    }
}

struct Server {
    router: Router,
    slots: Slots,
    flights: Flights,
    /// Maximum number of requests on one connection, after which it is closed.
    max_requests: u64,
    tasks: TaskTracker,
    /// Cancelled when connections have to finish their requests.
    finish: CancellationToken,
    /// Cancelled when connections are cut off.
    cut: CancellationToken,
    operator_socket: bool,
    traffic: Arc<Traffic>,
}

impl Server {
    async fn accept(&self, listener: &Listener) -> Result<(), ServeError> {
        loop {
            let accepted = match listener {
                Listener::Tcp(listener, tls) => listener.accept().await.map(|(stream, remote)| {
                    self.tcp(stream, remote, tls.as_ref());
                }),
                Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| self.unix(stream)),
            };
            if let Err(error) = accepted {
                if !is_transient(&error) {
                    return Err(ServeError::Accept(error));
                }
                tracing::warn!(error = %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }

    fn tcp(&self, stream: TcpStream, remote: std::net::SocketAddr, tls: Option<&Tls>) {
        // Over the limit: closed at once. The client may retry later.
        let activity = Activity::new(self.max_requests);
        let Some(slot) = self.slots.take(Some(remote.ip()), &activity) else { return };
        let _ = stream.set_nodelay(true);
        if bound_unsent(&stream).is_err() {
            return;
        }
        let peer =
            Peer { remote: Some(remote), local: stream.local_addr().ok(), unix: false, tls: tls.is_some() };
        let connection = Connection {
            router: self.router.clone(),
            activity,
            flight: self.flights.connection(),
            finish: self.finish.clone(),
            peer,
        };
        let acceptor = tls.map(Tls::acceptor);
        self.spawn(slot, async move {
            match acceptor {
                None => connection.serve(stream).await,
                Some(acceptor) => {
                    if let Ok(Ok(stream)) =
                        tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await
                    {
                        connection.serve(stream).await;
                    }
                }
            }
        });
    }

    fn unix(&self, stream: UnixStream) {
        let activity = Activity::new(self.max_requests);
        let Some(slot) = self.slots.take(None, &activity) else { return };
        if self.operator_socket && !is_operator(&stream) {
            tracing::warn!("a user other than the server's own connected to the operator's socket");
            return;
        }
        let peer = Peer { unix: true, ..Peer::default() };
        let connection = Connection {
            router: self.router.clone(),
            activity,
            flight: self.flights.connection(),
            finish: self.finish.clone(),
            peer,
        };
        self.spawn(slot, connection.serve(stream));
    }

    /// Runs a connection in its slot until it ends or all are cut off.
    fn spawn(&self, slot: Slot, connection: impl Future<Output = ()> + Send + 'static) {
        let cut = self.cut.clone();
        let counted = self.traffic.begin();
        self.tasks.spawn(async move {
            let _held = (slot, counted);
            tokio::select! {
                () = connection => {}
                () = cut.cancelled() => {}
            }
        });
    }
}

fn bound_unsent(stream: &TcpStream) -> std::io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES)
}

/// Reports whether the peer is this process' own user, or root.
#[must_use]
pub fn is_operator(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    let credentials = rustix::net::sockopt::socket_peercred(stream.as_fd());
    credentials.is_ok_and(|credentials| credentials.uid == own || credentials.uid.is_root())
}

/// Reports whether a failed accept is worth a retry: the client had disconnected, or a resource was exhausted.
fn is_transient(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    const TRANSIENT: [Errno; 13] = [
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::AGAIN,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::HOSTDOWN,
        Errno::PERM,
    ];
    Errno::from_io_error(error).is_some_and(|errno| TRANSIENT.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how much a peer that reads nothing can be sent.
    async fn unread(is_bounded: bool) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        if is_bounded {
            bound_unsent(&stream).unwrap();
        }
        let mut sent = 0;
        // The kernel takes more as long as the peer's side accepts something.
        while tokio::time::timeout(Duration::from_secs(1), stream.writable()).await.is_ok() {
            match stream.try_write(&[0; 4096]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        drop(peer);
        sent
    }

    #[tokio::test]
    async fn unread_responses_take_little_memory_of_the_kernel() {
        let (bounded, free) = tokio::join!(unread(true), unread(false));
        assert!(bounded < free / 2, "{bounded} {free}");
    }
}
