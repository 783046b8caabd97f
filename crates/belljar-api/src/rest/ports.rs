//! Published ports.

use axum::extract::State;
use belljar_keeper::PublishedPort;
use http::{Extensions, HeaderMap, StatusCode, Uri};

use super::sandboxes::NewTokenBody;
use super::types::{PortBody, PortInfoBody, PortsBody, TokenBody, time};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, PathNumber, PathOf};
use crate::guard::{Client, authority};
use crate::problem::{Code, Problem};

/// The number of a port.
pub(super) struct Port(u16);

impl std::str::FromStr for Port {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

impl PathNumber for Port {
    const NAME: &'static str = "port";
    const NONE: Code = Code::PortNotFound;
}

/// Returns the base URL under which the caller reaches this server, without a trailing slash.
pub(crate) fn base_url(shared: &Shared, headers: &HeaderMap, extensions: &Extensions) -> String {
    let scheme = Client::from_request(&shared.config, headers, extensions).scheme();
    format!("{scheme}://{}", host(headers, extensions))
}

fn host(headers: &HeaderMap, extensions: &Extensions) -> String {
    let default = Uri::default();
    let target = extensions.get::<axum::extract::OriginalUri>().map_or(&default, |uri| &uri.0);
    match authority(target, headers) {
        Ok(Some(authority)) => authority.to_string(),
        _ => "localhost".to_owned(),
    }
}

/// Addresses of the ports of sandboxes, for a client that reaches the server at a base URL.
pub(crate) struct PortAddresses<'a> {
    /// The domain of the server.
    pub(crate) domain: Option<&'a str>,
    /// The base URL, without a trailing slash.
    pub(crate) base: &'a str,
}

impl PortAddresses<'_> {
    /// Returns the best URL of a port: by host name, where the server has a domain, else by path.
    pub(crate) fn url(&self, id: &str, port: u16) -> String {
        self.by_host(id, port).unwrap_or_else(|| self.by_path(id, port))
    }

    fn by_host(&self, id: &str, port: u16) -> Option<String> {
        let domain = self.domain?;
        let (scheme, own) = self.base.split_once("://")?;
        let server_port = own.parse::<http::uri::Authority>().ok().and_then(|own| own.port_u16());
        let server_port = server_port.map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{scheme}://{port}-{id}.{domain}{server_port}/"))
    }

    fn by_path(&self, id: &str, port: u16) -> String {
        format!("{}/v1/sandboxes/{id}/ports/{port}/proxy/", self.base)
    }

    fn info(&self, id: &str, port: PublishedPort) -> PortInfoBody {
        PortInfoBody {
            port: port.port,
            public: port.public,
            url: self.by_host(id, port.port),
            path_url: self.by_path(id, port.port),
        }
    }
}

/// Publishes a port, or changes whether it needs a credential.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/ports", tag = "ports", request_body = PortBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The published port.", body = PortInfoBody)))]
pub(super) async fn publish(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    headers: HeaderMap,
    extensions: Extensions,
    Json(body): Json<PortBody>,
) -> Result<(StatusCode, axum::Json<PortInfoBody>), Problem> {
    if body.port == 0 {
        return Err(Problem::field("port", "0 is not allowed; give 1 to 65535"));
    }
    let port = shared.keeper.publish_port(&caller, &id, body.port, body.public.unwrap_or(false)).await?;
    // A name is resolved to the id: host names contain only that.
    let id = shared.keeper.get(&caller, &id).await?.id;
    let base = base_url(&shared, &headers, &extensions);
    let addresses = PortAddresses { domain: shared.config.domain.as_deref(), base: &base };
    Ok((StatusCode::CREATED, axum::Json(addresses.info(id.as_str(), port))))
}

/// Lists published ports, and those that programs in the sandbox listen on. Does not resume a paused sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/ports", tag = "ports",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The ports.", body = PortsBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<axum::Json<PortsBody>, Problem> {
    let published = shared.keeper.ports(&caller, &id).await?;
    let listening = shared.keeper.listening_ports(&caller, &id).await?;
    let id = shared.keeper.get(&caller, &id).await?.id;
    let base = base_url(&shared, &headers, &extensions);
    let addresses = PortAddresses { domain: shared.config.domain.as_deref(), base: &base };
    let ports = published.into_iter().map(|port| addresses.info(id.as_str(), port));
    Ok(axum::Json(PortsBody { ports: ports.collect(), listening }))
}

/// Unpublishes a port.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/ports/{port}", tag = "ports",
    params(("id" = String, Path, description = "The sandbox's id or name."), ("port" = u16, Path, description = "Port in the sandbox.")),
    responses((status = 204, description = "Unpublished.")))]
pub(super) async fn unpublish(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Port(port)): PathOf<Port>,
) -> Result<StatusCode, Problem> {
    shared.keeper.unpublish_port(&caller, &id, port).await.map_err(to_port_problem)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Creates a token for one published port, and nothing else.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/ports/{port}/tokens", tag = "ports", request_body = NewTokenBody,
    params(("id" = String, Path, description = "The sandbox's id or name."), ("port" = u16, Path, description = "Port in the sandbox.")),
    responses((status = 201, description = "The token. It is shown only once.", body = TokenBody)))]
pub(super) async fn token(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Port(port)): PathOf<Port>,
    headers: HeaderMap,
    extensions: Extensions,
    Json(body): Json<NewTokenBody>,
) -> Result<(StatusCode, axum::Json<TokenBody>), Problem> {
    let issued =
        shared.keeper.port_token(&caller, &id, port, body.expires()).await.map_err(to_port_problem)?;
    let id = shared.keeper.get(&caller, &id).await?.id;
    let base = base_url(&shared, &headers, &extensions);
    let addresses = PortAddresses { domain: shared.config.domain.as_deref(), base: &base };
    let url = Some(format!("{}?belljar_token={}", addresses.url(id.as_str(), port), issued.token));
    let expires_at = time(issued.expires_at);
    Ok((StatusCode::CREATED, axum::Json(TokenBody { token: Some(issued.token), url, expires_at })))
}

fn to_port_problem(error: belljar_keeper::KeeperError) -> Problem {
    match error {
        belljar_keeper::KeeperError::NotFound { what: "port", id } => {
            Problem::new(Code::PortNotFound, format!("port {id} is not published; publish it first"))
        }
        error => error.into(),
    }
}
