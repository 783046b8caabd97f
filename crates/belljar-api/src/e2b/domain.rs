//! The domain of sandboxes' host names, as a client should use it.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::api::Shared;
use crate::guard::authority;

/// The server's domain with the port that the client connected to, so that `{port}-{id}.{domain}` reaches this server. Without a domain it
/// is the authority that the client used: clients that get none fall back to E2B's own, and would send code and tokens there.
pub(super) struct Domain(pub(super) String);

impl FromRequestParts<Shared> for Domain {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Infallible> {
        let named = authority(&parts.uri, &parts.headers).ok().flatten();
        let Some(domain) = &shared.config.domain else {
            return Ok(Self(named.map_or_else(|| "localhost".to_owned(), |authority| authority.to_string())));
        };
        let port = named.and_then(|authority| authority.port_u16());
        Ok(Self(port.map_or_else(|| domain.clone(), |port| format!("{domain}:{port}"))))
    }
}
