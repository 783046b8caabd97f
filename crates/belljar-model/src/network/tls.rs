//! Treatment of TLS to the hosts of a policy: passed on, or terminated by the gateway.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::error::ModelError;
use crate::network::name::DomainPattern;

pub(super) const FIELD: &str = "network.tls";

/// Treatment of TLS to a host on port 443.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Passed on: the gateway reads the server name alone, and the host may serve another one within.
    #[default]
    Pass,
    /// Terminated by the gateway, which checks that every request is for the host.
    Terminate,
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Terminate => "terminate",
        })
    }
}

/// Checks the treatments of hosts; each host has one.
pub(super) fn resolve_all(
    given: BTreeMap<String, String>,
) -> Result<BTreeMap<DomainPattern, TlsMode>, ModelError> {
    let mut modes = BTreeMap::new();
    for (host, mode) in given {
        let pattern =
            DomainPattern::read(&host).map_err(|allowed| ModelError::not_allowed(FIELD, &host, allowed))?;
        let mode = match mode.as_str() {
            "terminate" => TlsMode::Terminate,
            "pass" => TlsMode::Pass,
            other => {
                return Err(ModelError::not_allowed(FIELD, format!("{host}={other}"), "terminate or pass"));
            }
        };
        if modes.insert(pattern, mode).is_some() {
            return Err(ModelError::not_allowed(FIELD, host, "each host once"));
        }
    }
    Ok(modes)
}
