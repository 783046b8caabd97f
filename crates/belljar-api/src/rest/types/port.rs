//! Ports and tokens.

use belljar_keeper::IssuedToken;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time;

/// A request to publish a port.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PublishPort, example = json!({"port": 8000, "public": false}))]
pub(crate) struct PortBody {
    /// Port in the sandbox.
    #[schema(minimum = 1, maximum = 65535)]
    pub(crate) port: u16,
    /// Whether it needs no credential. `false` if not given.
    #[serde(default)]
    pub(crate) public: Option<bool>,
}

/// A published port.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PortInfo)]
pub(crate) struct PortInfoBody {
    /// Port in the sandbox.
    pub(crate) port: u16,
    /// Whether it needs no credential.
    pub(crate) public: bool,
    /// Its address by host name, where the server has a domain.
    #[schema(example = "https://8000-k3v9x2m4q8w1z7t5r6p0.sandbox.example.com/")]
    pub(crate) url: Option<String>,
    /// Its address by path. Pages that are loaded from it cannot use the server.
    #[schema(example = "https://sandbox.example.com/v1/sandboxes/k3v9x2m4q8w1z7t5r6p0/ports/8000/proxy/")]
    pub(crate) path_url: String,
}

/// The ports of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Ports)]
pub(crate) struct PortsBody {
    /// Published ports.
    pub(crate) ports: Vec<PortInfoBody>,
    /// Ports that programs in the sandbox listen on; empty while it does not run.
    pub(crate) listening: Vec<u16>,
}

/// A new token. It is shown only once.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Token)]
pub(crate) struct TokenBody {
    /// The token; missing if `url` contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The URL, with the token in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// Time of expiry.
    #[schema(format = DateTime)]
    pub(crate) expires_at: String,
}

impl From<IssuedToken> for TokenBody {
    fn from(issued: IssuedToken) -> Self {
        Self { token: Some(issued.token), url: None, expires_at: time(issued.expires_at) }
    }
}
