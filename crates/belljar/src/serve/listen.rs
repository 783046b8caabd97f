//! The server's sockets: created by it, or passed by the service manager (sd_listen_fds(3)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use belljar_api::{Listener, Tls, TlsError};
use rustix::fs::Mode;
use tokio::net::{TcpListener, UnixListener};

use crate::config::Loaded;

/// Error from opening the server's sockets.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// An address cannot be bound.
    #[error("{origin}: cannot listen on {address}")]
    Address { origin: String, address: SocketAddr, source: io::Error },
    /// A Unix socket cannot be created.
    #[error("{origin}: cannot listen on {path:?}")]
    Socket { origin: String, path: PathBuf, source: io::Error },
    /// The socket's path exists and is not a socket.
    #[error("{origin}: {path:?} exists and is not a socket; name another path with server.socket")]
    NoSocket { origin: String, path: PathBuf },
    /// A passed descriptor is not a listening socket.
    #[error(
        "descriptor {descriptor} was passed on (LISTEN_FDS) and cannot be served; pass TCP and Unix stream sockets that \
         listen, and nothing else"
    )]
    Passed { descriptor: usize, source: io::Error },
    /// TLS is configured and cannot be set up.
    #[error("{origin}: TLS cannot be set up, and the server does not speak without it")]
    Tls { origin: String, source: Box<TlsError> },
}

/// Number of the first passed descriptor (sd_listen_fds(3)).
const FIRST_PASSED: usize = 3;

/// Sockets that a service manager has created, and keeps open across restarts of the server, so that no connection is refused.
#[derive(Default)]
pub(crate) struct Passed {
    tcp: Vec<std::net::TcpListener>,
    unix: Vec<std::os::unix::net::UnixListener>,
}

impl Passed {
    /// Takes the sockets that `LISTEN_FDS` and `LISTEN_PID` announce. Call it once, before there are other threads: it removes
    /// the variables, so that no child takes them for its own.
    pub(crate) fn take() -> Result<Self, ListenError> {
        let mut given = listenfd::ListenFd::from_env();
        let mut passed = Self::default();
        for index in 0..given.len() {
            let failed = |source| ListenError::Passed { descriptor: FIRST_PASSED + index, source };
            // It is either TCP or Unix; the error of the last attempt counts.
            if let Ok(Some(listener)) = given.take_tcp_listener(index) {
                check_listens(&listener).map_err(failed)?;
                passed.tcp.push(listener);
            } else if let Some(listener) = given.take_unix_listener(index).map_err(failed)? {
                check_listens(&listener).map_err(failed)?;
                passed.unix.push(listener);
            }
        }
        Ok(passed)
    }
}

/// Checks that a socket listens: one that is only connected would fail at the first accept.
fn check_listens(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    if rustix::net::sockopt::socket_acceptconn(socket)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a listening socket"))
}

/// All sockets that the server listens on.
pub(crate) struct Listening {
    /// In the order of the configuration, the Unix socket last.
    pub(crate) listeners: Vec<Listener>,
    /// The addresses, with the actual ports.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The Unix socket.
    pub(crate) socket: Option<PathBuf>,
    /// Whether this server has created it, and removes it.
    pub(crate) owns_socket: bool,
    /// TLS on the addresses.
    pub(crate) tls: Option<Tls>,
}

impl Listening {
    /// Opens all sockets. Passed sockets replace `server.listen` or `server.socket`.
    ///
    /// # Errors
    ///
    /// Fails if a socket or TLS cannot be set up. Nothing listens then.
    pub(crate) async fn open(loaded: &Loaded, passed: Passed) -> Result<Self, ListenError> {
        let tls = tls(loaded)?;
        let mut listening = Self {
            listeners: Vec::new(),
            addresses: Vec::new(),
            socket: None,
            owns_socket: false,
            tls: tls.clone(),
        };
        if passed.tcp.is_empty() {
            listening.bind_addresses(loaded, tls.as_ref()).await?;
        }
        let unusable = |source| ListenError::Passed { descriptor: FIRST_PASSED, source };
        for listener in passed.tcp {
            listening.addresses.push(listener.local_addr().map_err(unusable)?);
            listener.set_nonblocking(true).map_err(unusable)?;
            let listener = TcpListener::from_std(listener).map_err(unusable)?;
            listening.listeners.push(Listener::Tcp(listener, tls.clone()));
        }
        if let (Some(path), true) = (&loaded.config.server.socket, passed.unix.is_empty()) {
            listening.listeners.push(Listener::Unix(unix(loaded, path)?));
            listening.socket = Some(path.clone());
            listening.owns_socket = true;
        }
        for listener in passed.unix {
            let address = listener.local_addr().map_err(unusable)?;
            listening.socket = listening.socket.or_else(|| address.as_pathname().map(Path::to_owned));
            listener.set_nonblocking(true).map_err(unusable)?;
            listening.listeners.push(Listener::Unix(UnixListener::from_std(listener).map_err(unusable)?));
        }
        Ok(listening)
    }

    async fn bind_addresses(&mut self, loaded: &Loaded, tls: Option<&Tls>) -> Result<(), ListenError> {
        for address in &loaded.config.server.listen {
            let failed = |source| ListenError::Address {
                origin: loaded.layers.origin("server.listen").to_string(),
                address: *address,
                source,
            };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            self.addresses.push(listener.local_addr().map_err(failed)?);
            self.listeners.push(Listener::Tcp(listener, tls.cloned()));
        }
        Ok(())
    }

    /// Returns the addresses that others than this machine reach, if there is no TLS on them.
    pub(crate) fn open_addresses(&self) -> Vec<String> {
        let is_open =
            |address: &&SocketAddr| self.tls.is_none() && !address.ip().to_canonical().is_loopback();
        self.addresses.iter().filter(is_open).map(ToString::to_string).collect()
    }

    /// Returns the first address as a URL, by which it is reached on this machine.
    pub(crate) fn url(&self) -> Option<String> {
        let mut address = *self.addresses.first()?;
        match address.ip() {
            IpAddr::V4(all) if all.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(all) if all.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{address}"))
    }
}

/// Loads TLS as configured.
pub(crate) fn tls(loaded: &Loaded) -> Result<Option<Tls>, ListenError> {
    let Some(files) = &loaded.config.server.tls else { return Ok(None) };
    let tls = Tls::load(&files.certificate, &files.key).map_err(|source| ListenError::Tls {
        origin: loaded.layers.origin("server.tls_certificate").to_string(),
        source: Box::new(source),
    })?;
    Ok(Some(tls))
}

/// Binds the configured socket. A leftover of an earlier server is removed first: this one holds the home, so no other listens
/// there.
fn unix(loaded: &Loaded, path: &Path) -> Result<UnixListener, ListenError> {
    let origin = loaded.layers.origin("server.socket").to_string();
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NoSocket { origin, path: path.to_owned() });
        }
        _ => {}
    }
    bind(path).map_err(|source| ListenError::Socket { origin, path: path.to_owned(), source })
}

/// Creates a socket that only this user can connect to, replacing a leftover one.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    // A socket address has room for a path of 107 bytes only. Through the directory's descriptor, every path fits.
    let dir = std::fs::File::open(dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir))).join(name);
    // No other user may connect, not even in the moment before its mode could be changed.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(short);
    rustix::process::umask(before);
    bound
}
