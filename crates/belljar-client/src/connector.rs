//! Opening connections.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use belljar_proto::Connection;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::target::{Target, TargetError};

/// Maximum time to connect to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Size of the path in a socket's address, in bytes, including the terminating zero.
const SOCKET_PATH_BYTES: usize = 108;

/// Creates an HTTP/2 connection to the target, which is opened at the first call, and again after it breaks.
pub(crate) fn connection(target: &Target) -> Result<Connection, TargetError> {
    let dialer = Dialer::new(target)?;
    let connector = tower::service_fn(move |_: Uri| {
        let dialer = dialer.clone();
        async move {
            let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "the server does not respond");
            let dialed = tokio::time::timeout(CONNECT_TIMEOUT, dialer.dial()).await;
            dialed.unwrap_or_else(|_| Err(timed_out())).map(TokioIo::new)
        }
    });
    Ok(belljar_proto::connect_with(connector, target.authority()))
}

#[derive(Clone)]
enum Dialer {
    Unix(std::path::PathBuf),
    Tcp { address: String },
    Tls { address: String, name: ServerName<'static>, connector: TlsConnector },
}

impl Dialer {
    fn new(target: &Target) -> Result<Self, TargetError> {
        Ok(match target {
            Target::Unix(path) => Self::Unix(path.clone()),
            Target::Http(uri) => Self::Tcp { address: address(uri, 80) },
            Target::Https(uri, roots) => {
                let host = uri.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let refused = |_| TargetError::Address { text: uri.to_string() };
                let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
                let config =
                    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
                let mut config = config
                    .map_err(TargetError::Tls)?
                    .with_root_certificates(roots.clone())
                    .with_no_client_auth();
                config.alpn_protocols = vec![b"h2".to_vec()];
                Self::Tls {
                    address: address(uri, 443),
                    name: ServerName::try_from(host).map_err(refused)?,
                    connector: TlsConnector::from(Arc::new(config)),
                }
            }
        })
    }

    async fn dial(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Unix(path) => Stream::Unix(unix(path).await?),
            Self::Tcp { address } => Stream::Tcp(tcp(address).await?),
            Self::Tls { address, name, connector } => {
                let stream = connector.connect(name.clone(), tcp(address).await?).await?;
                if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err(io::Error::new(
                        io::ErrorKind::Unsupported,
                        "the server does not speak HTTP/2",
                    ));
                }
                Stream::Tls(Box::new(stream))
            }
        })
    }
}

/// Connects to a Unix socket. A path of more than 107 bytes does not fit in an address, so it is reached through its
/// directory's descriptor.
async fn unix(path: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name), SOCKET_PATH_BYTES..) =
        (path.parent(), path.file_name(), path.as_os_str().len())
    else {
        return UnixStream::connect(path).await;
    };
    let dir = std::fs::File::open(dir)?;
    UnixStream::connect(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)).await
}

async fn tcp(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn address(uri: &Uri, port: u16) -> String {
    let host = uri.host().unwrap_or_default();
    format!("{host}:{}", uri.port_u16().unwrap_or(port))
}

/// An open connection.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(context, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, buffer),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
