//! Network policies in requests.

use std::fmt;

use belljar_model::{NetworkFile, SecretFile};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use super::object::{TextOr, text_or};
use super::{Object, UniqueMap};

/// A network policy, as a mode or in full.
#[derive(Debug, ToSchema)]
#[schema(as = Network)]
#[serde(untagged)]
pub(crate) enum NetworkBody {
    /// `disabled`, `whitelist` or `open`.
    #[schema(example = "disabled")]
    Mode(String),
    /// The policy in full.
    Policy(NetworkPolicyBody),
}

/// A network policy in full.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NetworkPolicy)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkPolicyBody {
    /// `disabled`, `whitelist` or `open`. If not given and something is allowed, `whitelist`.
    mode: Option<String>,
    /// Names of presets, such as `pip`.
    presets: Option<Vec<String>>,
    /// Allowed destinations, each as `HOST`, `HOST:PORT`, `*.SUFFIX` or `CIDR:PORT`.
    allow: Option<Vec<String>>,
    /// Denied destinations, even if allowed by another rule.
    deny: Option<Vec<String>>,
    /// Allowed requests by host, such as `GET /v1/*` or `* /status`. Hosts without an entry may get any request.
    #[schema(value_type = Option<std::collections::BTreeMap<String, Vec<String>>>)]
    requests: Option<UniqueMap<Vec<String>>>,
    /// Secrets by the names of the variables in which code finds placeholders for them.
    #[schema(value_type = Option<std::collections::BTreeMap<String, NetworkSecretBody>>)]
    secrets: Option<UniqueMap<Object<NetworkSecretBody>>>,
    /// Headers that the gateway sets in requests, overwriting those that code has set. Their hosts may be `*.SUFFIX`; headers
    /// of an exact host replace those of a suffix.
    #[schema(value_type = Option<Vec<NetworkSecretBody>>)]
    headers: Option<Vec<Object<NetworkSecretBody>>>,
    /// Treatment of TLS on port 443 by host or `*.SUFFIX`: `terminate` has the gateway read requests and check their host, `pass`
    /// passes TLS on also to a preset's host.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    tls: Option<UniqueMap<String>>,
}

/// A secret that the gateway inserts into requests, or a header that it sets. Code in the sandbox never sees its value.
#[derive(Deserialize, ToSchema)]
#[schema(as = NetworkSecret)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkSecretBody {
    /// The only host that gets it, over HTTPS on port 443. The policy has to allow it.
    host: String,
    /// The only header that may contain it, such as `authorization`.
    header: String,
    /// The value, in which `${secrets.NAME}` refers to a secret stored on the server. Responses show only these names.
    value: Option<String>,
}

impl fmt::Debug for NetworkSecretBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a secret for {} in {}", self.host, self.header)
    }
}

impl From<NetworkSecretBody> for SecretFile {
    fn from(body: NetworkSecretBody) -> Self {
        let NetworkSecretBody { host, header, value } = body;
        Self { host: Some(host), header: Some(header), value, ..Self::default() }
    }
}

impl NetworkBody {
    pub(crate) fn into_file(self) -> NetworkFile {
        match self {
            Self::Mode(mode) => NetworkFile { mode: Some(mode), ..NetworkFile::default() },
            Self::Policy(NetworkPolicyBody {
                mode,
                presets,
                allow,
                deny,
                requests,
                secrets,
                headers,
                tls,
            }) => {
                let tls = tls.map(|UniqueMap(tls)| tls);
                let requests = requests.map(|UniqueMap(requests)| requests);
                let secrets = secrets.map(|UniqueMap(secrets)| {
                    secrets.into_iter().map(|(name, Object(secret))| (name, secret.into())).collect()
                });
                let headers =
                    headers.map(|headers| headers.into_iter().map(|Object(header)| header.into()).collect());
                NetworkFile { mode, presets, allow, deny, requests, secrets, headers, tls }
            }
        }
    }
}

impl<'de> Deserialize<'de> for NetworkBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match text_or(deserializer, "a mode or an object")? {
            TextOr::Text(mode) => Self::Mode(mode),
            TextOr::Object(policy) => Self::Policy(policy),
        })
    }
}
