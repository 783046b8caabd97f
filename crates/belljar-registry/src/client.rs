//! Requests to a registry.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::challenge::Challenge;
use crate::error::{RegistryError, shown};
use crate::hosts::{Origin, RegistryHosts};
use crate::manifest::{self, Kind, Resolved};
use belljar_model::ImageReference;

/// Time for a connection to one address, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the head of an answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a manifest, in bytes: that which the distribution specification asks registries to accept.
const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Maximum size of a token's answer, or of an error's, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Maximum number of redirects in a row.
const MAX_REDIRECTS: usize = 5;

/// Paths of the file with a system's trusted authorities; the first that exists is used.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Account at a registry.
#[derive(Clone)]
pub struct Credentials {
    /// Name of the account.
    pub user: String,
    /// Its password, or a token in place of one.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Credentials {
    fn header(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

/// Client of all registries that the operator allows.
#[derive(Clone)]
pub struct RegistryClient {
    hosts: Arc<RegistryHosts>,
    tls: Arc<rustls::ClientConfig>,
}

impl std::fmt::Debug for RegistryClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RegistryClient").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// Requests to one registry, for one image unless only its account is checked.
pub(crate) struct Session<'a> {
    client: &'a RegistryClient,
    /// The registry's name.
    name: &'a str,
    image: Option<&'a ImageReference>,
    registry: Origin,
    credentials: Option<&'a Credentials>,
    /// Value of the header, once the registry has asked for one.
    authorization: Mutex<Option<String>>,
}

impl RegistryClient {
    /// Creates a client that trusts the system's authorities, and those in `ca_file`.
    ///
    /// # Errors
    /// Fails if one of these files cannot be read.
    pub fn new(hosts: RegistryHosts, ca_file: Option<&Path>) -> Result<Self, RegistryError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let failed = |reason: String| RegistryError::Tls { reason };
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_root_certificates(roots(ca_file).map_err(failed)?)
            .with_no_client_auth();
        Ok(Self { hosts: Arc::new(hosts), tls: Arc::new(tls) })
    }

    pub(crate) fn session<'a>(
        &'a self,
        reference: &'a ImageReference,
        credentials: Option<&'a Credentials>,
    ) -> Result<Session<'a>, RegistryError> {
        let (name, image) = (reference.registry(), Some(reference));
        let registry = self.hosts.registry(name)?;
        Ok(Session { client: self, name, image, registry, credentials, authorization: Mutex::default() })
    }

    /// Checks that a registry accepts an account, without asking for an image.
    ///
    /// # Errors
    /// Returns [`RegistryError::Login`] if it does not, or another [`RegistryError`].
    pub async fn check_login(&self, name: &str, credentials: &Credentials) -> Result<(), RegistryError> {
        let registry = self.hosts.registry(name)?;
        let credentials = Some(credentials);
        let (image, authorization) = (None, Mutex::default());
        let session = Session { client: self, name, image, registry, credentials, authorization };
        session.get("/v2/", &[]).await.map(drop)
    }

    /// Asks which image a name stands for now, for this machine's architecture.
    ///
    /// # Errors
    /// See [`RegistryError`].
    pub async fn resolve(
        &self,
        reference: &ImageReference,
        credentials: Option<&Credentials>,
    ) -> Result<Resolved, RegistryError> {
        let session = self.session(reference, credentials)?;
        let mut version = reference.version().to_owned();
        // An index, and in it the manifest.
        for _ in 0..2 {
            let (text, digest, media_type) = session.manifest(&version).await?;
            match manifest::parse(reference, &text, manifest::architecture())? {
                Kind::Index(found) => version = found.digest,
                Kind::Image { config, layers } => {
                    return Ok(Resolved { digest, manifest: text, media_type, config, layers });
                }
            }
        }
        Err(session.invalid(format!("{reference} is a list of lists")))
    }

    async fn connect(
        &self,
        origin: &Origin,
    ) -> Result<hyper::client::conn::http1::SendRequest<Full<Bytes>>, RegistryError> {
        let failed = |source: io::Error| RegistryError::Connection {
            action: "connect to",
            host: origin.to_string(),
            source,
        };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
        for address in self.hosts.addresses(origin).await? {
            let connecting = async {
                let stream = TcpStream::connect(address).await?;
                if origin.is_plain {
                    return handshake(stream).await;
                }
                let name = ServerName::try_from(origin.host.clone()).map_err(io::Error::other)?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls));
                handshake(connector.connect(name, stream).await?).await
            };
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(sender)) => return Ok(sender),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(failed(last))
    }

    /// Sends one request.
    async fn send(
        &self,
        origin: &Origin,
        path: &str,
        headers: &[(header::HeaderName, &str)],
    ) -> Result<Response<Incoming>, RegistryError> {
        let failed = |source: io::Error| RegistryError::Connection {
            action: "get an answer of",
            host: origin.to_string(),
            source,
        };
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(path)
            .header(header::HOST, origin.authority())
            .header(header::USER_AGENT, concat!("belljar/", env!("CARGO_PKG_VERSION")))
            .header(header::CONNECTION, "close");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(Full::default()).map_err(|error| failed(io::Error::other(error)))?;
        self.exchange(origin, request).await
    }

    async fn exchange(
        &self,
        origin: &Origin,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let failed = |source: io::Error| RegistryError::Connection {
            action: "get an answer of",
            host: origin.to_string(),
            source,
        };
        let mut sender = self.connect(origin).await?;
        let asked = tokio::time::timeout(HEAD_TIMEOUT, sender.send_request(request)).await;
        asked
            .map_err(|_| failed(io::ErrorKind::TimedOut.into()))?
            .map_err(|error| failed(io::Error::other(error)))
    }

    /// Posts JSON to a host that is no registry, under the same rules: TLS and public addresses, unless the operator has named the host.
    /// Returns the status; a redirect is not followed, and a body is not read.
    ///
    /// # Errors
    /// Returns [`RegistryError::NotAllowed`] or [`RegistryError::Connection`].
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<StatusCode, RegistryError> {
        let invalid = |_| RegistryError::NotAllowed { host: shown(url), reason: ": it is no URL".to_owned() };
        let uri: Uri = url.parse().map_err(invalid)?;
        let origin = self.hosts.referred(&uri)?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str))
            .header(header::HOST, origin.authority())
            .header(header::USER_AGENT, concat!("belljar/", env!("CARGO_PKG_VERSION")))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| RegistryError::Connection {
            action: "make a request to",
            host: origin.to_string(),
            source: io::Error::other(error),
        })?;
        Ok(self.exchange(&origin, request).await?.status())
    }
}

async fn handshake<S>(stream: S) -> io::Result<hyper::client::conn::http1::SendRequest<Full<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the answer.
    tokio::spawn(connection);
    Ok(sender)
}

impl Session<'_> {
    /// Returns the image's repository, without which none is asked for.
    pub(crate) fn repository(&self) -> &str {
        self.image.map_or("", ImageReference::repository)
    }

    pub(crate) fn invalid(&self, what: impl Into<String>) -> RegistryError {
        RegistryError::Invalid { registry: self.name.to_owned(), what: what.into() }
    }

    /// Returns a manifest with its digest and its type.
    async fn manifest(&self, version: &str) -> Result<(Vec<u8>, String, String), RegistryError> {
        let path = format!("/v2/{}/manifests/{version}", self.repository());
        let answer = self.get(&path, &[(header::ACCEPT, &manifest::accept())]).await?;
        let media_type = answer
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let text = self.read(answer, MAX_MANIFEST_BYTES).await?;
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(&text)));
        if version.starts_with("sha256:") && version != digest {
            return Err(self.invalid(format!("the manifest {version} has the digest {digest}")));
        }
        Ok((text, digest, manifest::media_type(media_type.as_deref())))
    }

    /// Gets something of the repository, wherever the registry refers to. Any success is returned.
    pub(crate) async fn get(
        &self,
        path: &str,
        headers: &[(header::HeaderName, &str)],
    ) -> Result<Response<Incoming>, RegistryError> {
        let (mut origin, mut path) = (self.registry.clone(), path.to_owned());
        let mut is_authorized = false;
        let mut redirects = 0;
        loop {
            let authorization = self.authorization.lock().await.clone().filter(|_| origin == self.registry);
            let mut all = headers.to_vec();
            all.extend(authorization.as_deref().map(|value| (header::AUTHORIZATION, value)));
            let answer = self.client.send(&origin, &path, &all).await?;
            let status = answer.status();
            if status == StatusCode::UNAUTHORIZED && origin == self.registry && !is_authorized {
                is_authorized = true;
                self.authorize(answer.headers().get(header::WWW_AUTHENTICATE)).await?;
            } else if status.is_redirection() {
                redirects += 1;
                if redirects > MAX_REDIRECTS {
                    return Err(self.invalid(format!("it redirects more than {MAX_REDIRECTS} times")));
                }
                let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
                (origin, path) = self.follow(origin, location.unwrap_or_default())?;
            } else if status.is_success() {
                return Ok(answer);
            } else {
                return Err(self.refusal(answer).await);
            }
        }
    }

    fn follow(&self, from: Origin, location: &str) -> Result<(Origin, String), RegistryError> {
        let no_place = || self.invalid(format!("it redirects to {:?}", shown(location)));
        if location.starts_with('/') && !location.starts_with("//") {
            return Ok((from, location.to_owned()));
        }
        let uri: Uri = location.parse().map_err(|_| no_place())?;
        let path = uri.path_and_query().ok_or_else(no_place)?.as_str().to_owned();
        Ok((self.client.hosts.referred(&uri)?, path))
    }

    /// Gets what the registry asks for.
    async fn authorize(&self, challenge: Option<&HeaderValue>) -> Result<(), RegistryError> {
        let text = challenge.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let challenge = Challenge::parse(text)
            .ok_or_else(|| self.invalid(format!("it wants {:?}, which is not supported", shown(text))))?;
        let value = match (challenge, self.credentials) {
            (Challenge::Basic, Some(credentials)) => credentials.header(),
            (Challenge::Basic, None) => return Err(self.unauthorized("it wants a user and a password")),
            (Challenge::Bearer { realm, service }, credentials) => {
                self.token(&realm, service.as_deref(), credentials).await?
            }
        };
        *self.authorization.lock().await = Some(value);
        Ok(())
    }

    /// Gets a token to pull from the repository, and for nothing else.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        credentials: Option<&Credentials>,
    ) -> Result<String, RegistryError> {
        #[derive(serde::Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let no_realm = || self.invalid(format!("its tokens are at {:?}", shown(realm)));
        let uri: Uri = realm.parse().map_err(|_| no_realm())?;
        let origin = self.client.hosts.referred(&uri)?;
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let mut path = uri.path_and_query().ok_or_else(no_realm)?.as_str().to_owned();
        let scope = self.image.map(|image| format!("repository:{}:pull", image.repository()));
        for (name, value) in [("service", service), ("scope", scope.as_deref())] {
            if let Some(value) = value {
                path.push(if path.contains('?') { '&' } else { '?' });
                path.push_str(&format!("{name}={}", encode(value)));
            }
        }
        let basic = credentials.map(Credentials::header);
        let headers: Vec<_> =
            basic.as_deref().map(|value| (header::AUTHORIZATION, value)).into_iter().collect();
        let answer = self.client.send(&origin, &path, &headers).await?;
        if !answer.status().is_success() {
            return Err(self.refusal(answer).await);
        }
        let text = self.read(answer, MAX_ANSWER_BYTES).await?;
        let token: Token =
            serde_json::from_slice(&text).map_err(|_| self.invalid("its answer has no token"))?;
        let token = token.token.or(token.access_token).unwrap_or_default();
        let value = format!("Bearer {token}");
        if token.is_empty() || HeaderValue::from_str(&value).is_err() {
            return Err(self.invalid("its answer has no token"));
        }
        Ok(value)
    }

    async fn read(&self, answer: Response<Incoming>, max: usize) -> Result<Vec<u8>, RegistryError> {
        let body = Limited::new(answer.into_body(), max);
        let read = tokio::time::timeout(HEAD_TIMEOUT, body.collect()).await;
        let read = read.map_err(|_| self.broken(io::ErrorKind::TimedOut.into()))?;
        match read {
            Ok(read) => Ok(read.to_bytes().into()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(self.invalid(format!("its answer is longer than {max} bytes")))
            }
            Err(error) => Err(self.broken(io::Error::other(error))),
        }
    }

    pub(crate) fn broken(&self, source: io::Error) -> RegistryError {
        RegistryError::Connection { action: "read from", host: self.name.to_owned(), source }
    }

    fn unauthorized(&self, said: &str) -> RegistryError {
        let (registry, said) = (self.name.to_owned(), said.to_owned());
        let has_account = self.credentials.is_some();
        match self.image {
            Some(image) => {
                let repository = image.repository().to_owned();
                RegistryError::Unauthorized { registry, repository, said, has_account }
            }
            None => RegistryError::Login { registry, said },
        }
    }

    /// Converts an error of the registry.
    async fn refusal(&self, answer: Response<Incoming>) -> RegistryError {
        let status = answer.status();
        let after =
            answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = self.read(answer, MAX_ANSWER_BYTES).await.unwrap_or_default();
        let said = reason(&text).unwrap_or_else(|| status.to_string());
        match (status, self.image) {
            (StatusCode::TOO_MANY_REQUESTS, _) => {
                RegistryError::Limited { registry: self.name.to_owned(), after }
            }
            (StatusCode::NOT_FOUND, Some(image)) => {
                RegistryError::NotFound { reference: image.to_string(), said }
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => self.unauthorized(&said),
            _ => self.invalid(format!("{status}: {said}")),
        }
    }
}

/// Returns the first error of an answer in the form of the distribution specification.
fn reason(text: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Answer {
        errors: Vec<Reason>,
    }
    #[derive(serde::Deserialize)]
    struct Reason {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let answer: Answer = serde_json::from_slice(text).ok()?;
    let Reason { code, message } = answer.errors.into_iter().next()?;
    Some(shown(if message.is_empty() { &code } else { &message }))
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let system = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
    for path in system.into_iter().chain(ca_file) {
        let failed =
            |reason: String| format!("the certificates in {} cannot be read: {reason}", path.display());
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            let added = roots.add(certificate);
            // Systems have certificates that do not parse; these are ignored.
            if Some(path) == ca_file {
                added.map_err(|error| failed(error.to_string()))?;
            }
        }
    }
    Ok(roots)
}
