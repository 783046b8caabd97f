//! Published ports of sandboxes, by path and by host name.
//!
//! Responses come from untrusted programs in sandboxes. They are bounded, the programs never see a credential, and a
//! response cannot affect the server's own pages or those of other sandboxes.

mod body;
mod credential;
mod forward;
mod headers;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{Entered, KeeperError};
use http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, Uri, header};

use crate::api::Shared;
use crate::guard::{Client, PortHost, RequestId, authority, canonical_port, denied, refuse};
use crate::problem::{Code, Problem};
use credential::{PortCredential, Source};
use forward::Target;

/// The route by path.
pub(crate) const PATH: &str = "/v1/sandboxes/{id}/ports/{port}/proxy/{*path}";
/// [`PATH`] with nothing after the last slash.
pub(crate) const PATH_SLASH: &str = "/v1/sandboxes/{id}/ports/{port}/proxy/";
/// [`PATH`] without the last slash.
pub(crate) const PATH_BARE: &str = "/v1/sandboxes/{id}/ports/{port}/proxy";

/// A port by path: the sandbox, the port, and the rest of the path.
struct ByPath<'a> {
    id: &'a str,
    port: &'a str,
    /// Empty, or begins with a slash.
    rest: &'a str,
}

/// Parses the path of a port. Nothing is percent-decoded: a port has a single valid form.
fn by_path_parts(path: &str) -> Option<ByPath<'_>> {
    let (id, rest) = path.strip_prefix("/v1/sandboxes/")?.split_once('/')?;
    let (port, rest) = rest.strip_prefix("ports/")?.split_once('/')?;
    let rest = rest.strip_prefix("proxy")?;
    (rest.is_empty() || rest.starts_with('/')).then_some(ByPath { id, port, rest })
}

/// Reports whether this is the path of a port, which has credentials of its own.
pub(crate) fn is_by_path(path: &str) -> bool {
    by_path_parts(path).is_some()
}

/// Forwards a request that names the port in its path.
pub(crate) async fn by_path(State(shared): State<Shared>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let Some(parts) = by_path_parts(&path) else {
        return Problem::new(Code::NotFound, "no such endpoint").into_response();
    };
    let presented = credential::find(&request, false);
    let port = canonical_port(parts.port);
    let entered =
        match open(&shared, request.headers(), request.extensions(), &presented, parts.id, port).await {
            Ok(entered) => entered,
            Err(problem) => return problem.into_response(),
        };
    let Some((port, entered)) = port.zip(Some(entered)) else { return denied().into_response() };
    let prefix = format!("/v1/sandboxes/{}/ports/{port}/proxy", parts.id);
    if parts.rest.is_empty() {
        return redirect(&format!("{prefix}/"), request.uri().query(), StatusCode::PERMANENT_REDIRECT);
    }
    let rest = parts.rest.to_owned();
    let target = Target { port, path: rest, prefix: Some(prefix) };
    forward::forward(&shared, entered, target, request).await.unwrap_or_else(Problem::into_response)
}

/// Forwards a request for the host name of a port.
pub(crate) async fn by_host(shared: Shared, host: PortHost, request: Request) -> Response {
    let presented = credential::find(&request, true);
    let entered = match open(
        &shared,
        request.headers(),
        request.extensions(),
        &presented,
        host.id.as_str(),
        Some(host.port),
    )
    .await
    {
        Ok(entered) => entered,
        Err(problem) => return problem.into_response(),
    };
    if presented.source == Source::Query && matches!(*request.method(), Method::GET | Method::HEAD) {
        return move_token_to_cookie(&shared, &request, &presented);
    }
    let target = Target { port: host.port, path: request.uri().path().to_owned(), prefix: None };
    forward::forward(&shared, entered, target, request).await.unwrap_or_else(Problem::into_response)
}

/// Forwards a request of a caller that is authorized for the whole sandbox: every port is open to it.
pub(crate) async fn to_port(shared: &Shared, entered: Entered, port: u16, request: Request) -> Response {
    let target = Target { port, path: request.uri().path().to_owned(), prefix: None };
    forward::forward(shared, entered, target, request).await.unwrap_or_else(Problem::into_response)
}

/// Returns the sandbox, if the port is published and the credential is valid for it. All refusals look alike: "port not
/// found" with a valid key, and nothing is revealed without one.
async fn open(
    shared: &Shared,
    headers: &HeaderMap,
    extensions: &Extensions,
    presented: &PortCredential,
    id: &str,
    port: Option<u16>,
) -> Result<Entered, Problem> {
    let client = Client::from_request(&shared.config, headers, extensions);
    let request_id = RequestId::from_extensions(extensions);
    let candidates = &presented.candidates;
    let opened = match port {
        Some(port) => shared.keeper.open_port(candidates, &client.text, &request_id, id, port).await,
        None => Err(KeeperError::NotFound { what: "port", id: id.to_owned() }),
    };
    let Err(error) = opened else { return opened.map_err(Into::into) };
    if !matches!(error, KeeperError::NotFound { .. }) {
        return Err(error.into());
    }
    let mut refused = denied();
    for credential in candidates {
        match shared.keeper.authenticate(credential, &client.text, &request_id).await {
            Ok(_) => {
                let detail = "sandbox not found, or the port is not published; publish it first";
                return Err(Problem::new(Code::PortNotFound, detail));
            }
            Err(why) if presented.source.is_deliberate() => refused = refuse(shared, &client, why, denied()),
            Err(_) => {}
        }
    }
    Err(refused)
}

/// Moves the token from the URL into a cookie of this host name, so that it does not stay in history and logs.
fn move_token_to_cookie(shared: &Shared, request: &Request, presented: &PortCredential) -> Response {
    let client = Client::from_request(&shared.config, request.headers(), request.extensions());
    let query = request.uri().query().map(credential::without_token);
    let mut response = redirect(request.uri().path(), query.as_deref(), StatusCode::SEE_OTHER);
    let token = presented.candidates.first().map_or("", String::as_str);
    let cookie = credential::cookie(token, client.tls);
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Redirects the client to another path of the same host.
fn redirect(path: &str, query: Option<&str>, status: StatusCode) -> Response {
    // Two leading slashes would redirect to another host.
    let path = format!("/{}", path.trim_start_matches('/'));
    let location = match query.filter(|query| !query.is_empty()) {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(&location) {
        headers.insert(header::LOCATION, location);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Returns the host that a request names, as received.
fn host_of(uri: &Uri, headers: &HeaderMap) -> String {
    authority(uri, headers).ok().flatten().map_or_else(|| "localhost".to_owned(), |host| host.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_paths_are_parsed() {
        let id = "abcdefghij0123456789";
        let cases = [
            (format!("/v1/sandboxes/{id}/ports/80/proxy"), Some(("80", ""))),
            (format!("/v1/sandboxes/{id}/ports/80/proxy/"), Some(("80", "/"))),
            (format!("/v1/sandboxes/{id}/ports/80/proxy/a//b%2Fc"), Some(("80", "/a//b%2Fc"))),
            (format!("/v1/sandboxes/{id}/ports/%38%30/proxy/"), Some(("%38%30", "/"))),
            (format!("/v1/sandboxes/{id}/ports/80/proxyx"), None),
            (format!("/v1/sandboxes/{id}/ports/80"), None),
            (format!("/v1/sandboxes/{id}/ports/80/tokens"), None),
            (format!("/v1/sandboxes/{id}/exec"), None),
            ("/v1/sandboxes".to_owned(), None),
        ];
        for (path, expected) in cases {
            let found = by_path_parts(&path).map(|parts| (parts.port, parts.rest));
            assert_eq!(found, expected, "{path}");
        }
        for port in ["02280", "+2280", "%32280", "0", "65536", "22 80", "2280x", ""] {
            assert_eq!(canonical_port(port), None, "{port}");
        }
    }

    #[test]
    fn redirects_stay_on_the_host() {
        for (path, query, expected) in [
            ("/a", Some("b=c"), "/a?b=c"),
            ("//evil.example/a", None, "/evil.example/a"),
            ("/", Some(""), "/"),
        ] {
            let response = redirect(path, query, StatusCode::SEE_OTHER);
            assert_eq!(response.headers()[header::LOCATION], expected);
        }
    }
}
