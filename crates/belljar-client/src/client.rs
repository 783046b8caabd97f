//! The client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{GuestClient, GuestError};
use belljar_proto::{ClientConfig, CompressionRegistry, Connection, MAX_MESSAGE_BYTES};
use http::HeaderValue;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName};

use crate::connector;
use crate::error::ClientError;
use crate::retry::ATTEMPTS;
use crate::target::{Credential, Target, TargetError};

/// The header that names the sandbox of a call to its guest.
const SANDBOX: HeaderName = HeaderName::from_static("belljar-sandbox");

/// A client of one server. Clones share its connection, which is opened at the first call, and anew when it broke.
#[derive(Clone)]
pub struct Client {
    pub(crate) connection: Connection,
    pub(crate) config: ClientConfig,
    pub(crate) target: Arc<str>,
    pub(crate) attempts: u32,
    /// What requests to the REST interface name as the server, and as the key.
    pub(crate) authority: http::Uri,
    pub(crate) key: Option<HeaderValue>,
}

impl Client {
    /// A client of the server at `target`. Nothing is sent before the first call.
    ///
    /// # Errors
    /// The target or the credential cannot be one.
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
            attempts: ATTEMPTS,
            authority: target.authority(),
            key,
        })
    }

    /// The same client, whose calls end after this time, also on the server. Streams end then too.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.config = self.config.with_default_timeout(timeout);
        self
    }

    /// The same client, which makes each call once and never again.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.attempts = 1;
        self
    }

    /// Where the server is.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The guest of a sandbox, by id or name, as the server itself speaks with it: processes, files, ports. The
    /// sandbox is looked for with each call.
    ///
    /// # Errors
    /// `sandbox` can be no name.
    pub fn guest(&self, sandbox: &str) -> Result<GuestClient, ClientError> {
        let value =
            HeaderValue::from_str(sandbox).map_err(|_| ClientError::Unsendable { field: "sandbox" })?;
        let config = self.config.clone().with_default_header(SANDBOX, value);
        Ok(GuestClient::routed(self.connection.clone(), config))
    }

    /// Says that the server cannot be reached, if that is why a call to a guest failed.
    #[must_use]
    pub fn unreachable(&self, error: &GuestError) -> Option<ClientError> {
        match error {
            GuestError::Gone(source) => ClientError::unreachable(&self.target, source),
            _ => None,
        }
    }
}

impl fmt::Debug for Client {
    /// Where the server is, and nothing of the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("target", &self.target).finish_non_exhaustive()
    }
}
