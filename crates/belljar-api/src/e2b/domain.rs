//! The domain of sandboxes' host names, as a client is to use it.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::api::Shared;
use crate::guard::authority;

/// The server's domain with the port by which the client has come, so that `{port}-{id}.{domain}` leads here; `None` without a domain.
pub(super) struct Domain(pub(super) Option<String>);

impl FromRequestParts<Shared> for Domain {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Infallible> {
        let Some(domain) = &shared.config.domain else { return Ok(Self(None)) };
        let named = authority(&parts.uri, &parts.headers).ok().flatten();
        let port = named.and_then(|authority| authority.port_u16());
        Ok(Self(Some(port.map_or_else(|| domain.clone(), |port| format!("{domain}:{port}")))))
    }
}
