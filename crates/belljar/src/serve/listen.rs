//! Where the server listens.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use belljar_api::{Listener, Tls, TlsError};
use rustix::fs::Mode;
use tokio::net::{TcpListener, UnixListener};

use crate::config::Loaded;

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// An address cannot be had.
    #[error("{origin}: cannot listen on {address}")]
    Address { origin: String, address: SocketAddr, source: io::Error },
    /// A socket cannot be made.
    #[error("{origin}: cannot listen on {path:?}")]
    Socket { origin: String, path: PathBuf, source: io::Error },
    /// Something else has the socket's name.
    #[error("{origin}: {path:?} is there and is no socket; name another path with server.socket")]
    NoSocket { origin: String, path: PathBuf },
    /// TLS was asked for and cannot be had.
    #[error("{origin}: TLS cannot be set up, and the server does not speak without it")]
    Tls { origin: String, source: Box<TlsError> },
}

/// Everything that the server listens on.
pub(crate) struct Listening {
    /// In the order of the configuration, the Unix socket last.
    pub(crate) listeners: Vec<Listener>,
    /// The addresses, with the ports that were really had.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The Unix socket.
    pub(crate) socket: Option<PathBuf>,
    /// TLS on the addresses.
    pub(crate) tls: Option<Tls>,
}

impl Listening {
    /// Opens everything. When this returns an error, nothing listens.
    pub(crate) async fn open(loaded: &Loaded) -> Result<Self, ListenError> {
        let server = &loaded.config.server;
        let tls = tls(loaded)?;
        let mut listening = Self {
            listeners: Vec::new(),
            addresses: Vec::new(),
            socket: server.socket.clone(),
            tls: tls.clone(),
        };
        for address in &server.listen {
            let failed = |source| ListenError::Address {
                origin: loaded.said.origin("server.listen").to_string(),
                address: *address,
                source,
            };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            listening.addresses.push(listener.local_addr().map_err(failed)?);
            listening.listeners.push(Listener::Tcp(listener, tls.clone()));
        }
        if let Some(path) = &server.socket {
            listening.listeners.push(Listener::Unix(unix(loaded, path)?));
        }
        Ok(listening)
    }

    /// The first address as one would type it.
    pub(crate) fn url(&self) -> Option<String> {
        let address = self.addresses.first()?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{address}"))
    }
}

/// TLS as configured.
pub(crate) fn tls(loaded: &Loaded) -> Result<Option<Tls>, ListenError> {
    let Some(files) = &loaded.config.server.tls else { return Ok(None) };
    let tls = Tls::load(&files.certificate, &files.key).map_err(|source| ListenError::Tls {
        origin: loaded.said.origin("server.tls_certificate").to_string(),
        source: Box::new(source),
    })?;
    Ok(Some(tls))
}

/// The socket of an earlier server is taken away first: this one holds the home, so nobody listens there any more.
fn unix(loaded: &Loaded, path: &Path) -> Result<UnixListener, ListenError> {
    let origin = loaded.said.origin("server.socket").to_string();
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NoSocket { origin, path: path.to_owned() });
        }
        _ => {}
    }
    bind(path).map_err(|source| ListenError::Socket { origin, path: path.to_owned(), source })
}

/// Makes a socket that only this user can connect to, in the place of one that is left over.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    // The name of a socket has room for 107 bytes only. By way of the directory's descriptor every path fits.
    let dir = std::fs::File::open(dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir))).join(name);
    // Nobody else may connect, also not in the moment before its mode could be changed.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(short);
    rustix::process::umask(before);
    bound
}
