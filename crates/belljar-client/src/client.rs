//! The client and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{GuestClient, GuestError};
use belljar_proto::{ClientConfig, CompressionRegistry, Connection, MAX_MESSAGE_BYTES};
use http::HeaderValue;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName};

use crate::connector;
use crate::error::ClientError;
use crate::retry::MAX_ATTEMPTS;
use crate::target::{Credential, Target, TargetError};

/// The header that names the sandbox of a call to its guest.
const SANDBOX: HeaderName = HeaderName::from_static("belljar-sandbox");

/// The header that names the volume of a call about its files.
const VOLUME: HeaderName = HeaderName::from_static("belljar-volume");

/// A client of one server. Clones share its connection, which is opened at the first call, and again after it breaks.
#[derive(Clone)]
pub struct Client {
    pub(crate) connection: Connection,
    pub(crate) config: ClientConfig,
    pub(crate) target: Arc<str>,
    pub(crate) attempts: u32,
    /// Server name in requests to the REST interface.
    pub(crate) authority: http::Uri,
    /// `Authorization` header of requests to the REST interface.
    pub(crate) key: Option<HeaderValue>,
}

impl Client {
    /// Creates a client of the server at `target`. Nothing is sent before the first call.
    ///
    /// # Errors
    /// Fails if the target or the credential is invalid.
    pub fn connect(target: Target, credential: Credential) -> Result<Self, TargetError> {
        let mut headers = HeaderMap::new();
        let mut key = None;
        if let Credential::Key(secret) = credential {
            let value = HeaderValue::from_str(&format!("Bearer {secret}"));
            let mut value = value.map_err(|_| TargetError::Credential)?;
            value.set_sensitive(true);
            key = Some(value.clone());
            headers.insert(AUTHORIZATION, value);
        }
        let config = ClientConfig::new(target.authority())
            .with_default_max_message_size(MAX_MESSAGE_BYTES)
            .with_compression(CompressionRegistry::new())
            .with_default_headers(headers);
        Ok(Self {
            connection: connector::connection(&target)?,
            config,
            target: target.to_string().into(),
            attempts: MAX_ATTEMPTS,
            authority: target.authority(),
            key,
        })
    }

    /// Sets a timeout after which calls end, on the server too. Streams end then as well.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.config = self.config.with_default_timeout(timeout);
        self
    }

    /// Disables retries.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.attempts = 1;
        self
    }

    /// Returns the server's address.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns a client of a sandbox's guest, by id or name, as the server itself uses: processes, files, ports. The sandbox is
    /// looked up with each call.
    ///
    /// # Errors
    /// Fails if `sandbox` is not a valid header value.
    pub fn guest(&self, sandbox: &str) -> Result<GuestClient, ClientError> {
        self.guest_by_header(SANDBOX, sandbox, "sandbox")
    }

    /// Returns a client of a volume's files, by id or name. Its guest serves files and nothing else; paths start at the
    /// volume's root.
    ///
    /// # Errors
    /// Fails if `volume` is not a valid header value.
    pub fn volume(&self, volume: &str) -> Result<GuestClient, ClientError> {
        self.guest_by_header(VOLUME, volume, "volume")
    }

    fn guest_by_header(
        &self,
        header: HeaderName,
        name: &str,
        field: &'static str,
    ) -> Result<GuestClient, ClientError> {
        let value = HeaderValue::from_str(name).map_err(|_| ClientError::Unsendable { field })?;
        let config = self.config.clone().with_default_header(header, value);
        Ok(GuestClient::from_connection(self.connection.clone(), config))
    }

    /// Returns [`ClientError::Unreachable`] if a call to a guest failed because the server cannot be reached.
    #[must_use]
    pub fn unreachable(&self, error: &GuestError) -> Option<ClientError> {
        match error {
            GuestError::Unreachable(source) => ClientError::unreachable(&self.target, source),
            _ => None,
        }
    }
}

impl fmt::Debug for Client {
    /// Shows the server's address, but not the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("target", &self.target).finish_non_exhaustive()
    }
}
