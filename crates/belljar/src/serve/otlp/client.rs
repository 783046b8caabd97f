//! The way to the collector: a request now and then, each on a connection of its own.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Where systems keep the certificates of the authorities that they trust.
const AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why the collector cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// It is no address.
    #[error("it is no address of a host")]
    Address,
    /// Nobody vouches for the host's name.
    #[error("no file with trusted authorities is there; name one with SSL_CERT_FILE")]
    NoAuthorities,
    /// The file cannot be read.
    #[error("cannot read the trusted authorities in {path:?}")]
    Authorities { path: String, source: rustls::pki_types::pem::Error },
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// It cannot be spoken with.
    #[error("cannot connect")]
    Connect(#[from] io::Error),
    /// It does not speak HTTP.
    #[error("cannot send the request")]
    Http(#[from] hyper::Error),
    /// It takes too long.
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    TimedOut,
    /// It says too much.
    #[error("the answer has more than {MAX_ANSWER_BYTES} bytes")]
    TooLong,
}

/// The collector, as the exporter speaks with it.
#[derive(Clone)]
pub(crate) struct Client {
    target: Arc<Target>,
    runtime: Handle,
}

struct Target {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Client({}:{})", self.target.host, self.target.port)
    }
}

impl Client {
    /// A client for a collector at `endpoint`, which makes its requests on this runtime.
    pub(crate) fn new(endpoint: &str) -> Result<Self, ClientError> {
        let uri: Uri = endpoint.parse().map_err(|_| ClientError::Address)?;
        let host = uri.host().ok_or(ClientError::Address)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_secure = uri.scheme_str() == Some("https");
        let tls = if is_secure {
            let name = ServerName::try_from(host.clone()).map_err(|_| ClientError::Address)?;
            Some((connector()?, name))
        } else {
            None
        };
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        Ok(Self { target: Arc::new(Target { host, port, tls }), runtime: Handle::current() })
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let target = Arc::clone(&self.target);
        // The exporter waits in a thread of its own, which has no runtime.
        let sent = self.runtime.spawn(async move {
            let sent = tokio::time::timeout(TIMEOUT, target.send(request)).await;
            sent.unwrap_or(Err(ClientError::TimedOut))
        });
        Box::pin(async move { Ok(sent.await??) })
    }
}

impl Target {
    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let authority = request.uri().authority().ok_or(ClientError::Address)?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| ClientError::Address)?;
        request.headers_mut().insert(header::HOST, host);
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().map_err(|_| ClientError::Address)?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => exchange(stream, request).await,
            Some((connector, name)) => {
                exchange(connector.connect(name.clone(), stream).await?, request).await
            }
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, ClientError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head, Once(Some(body)));
    let answer = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok::<_, ClientError>(Response::from_parts(head, collect(body).await?))
    };
    tokio::pin!(connection, answer);
    let mut open = true;
    loop {
        tokio::select! {
            answer = &mut answer => return answer,
            // What went wrong with the connection, the answer tells.
            _ = &mut connection, if open => open = false,
        }
    }
}

async fn collect(mut body: Incoming) -> Result<Bytes, ClientError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > MAX_ANSWER_BYTES {
            return Err(ClientError::TooLong);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// A body of one piece.
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// TLS with the authorities that this system trusts, or those of `SSL_CERT_FILE`.
fn connector() -> Result<TlsConnector, ClientError> {
    let named = std::env::var("SSL_CERT_FILE").ok().filter(|path| !path.is_empty());
    let there =
        || AUTHORITIES.into_iter().find(|path| std::path::Path::new(path).exists()).map(str::to_owned);
    let path = named.or_else(there).ok_or(ClientError::NoAuthorities)?;
    let unreadable = |source| ClientError::Authorities { path: path.clone(), source };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls::pki_types::CertificateDer::pem_file_iter(&path).map_err(unreadable)? {
        // One that rustls does not know what to do with must not keep the others out.
        let _ = roots.add(certificate.map_err(unreadable)?);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
