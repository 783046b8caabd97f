//! E2B's wire interface: its published clients work unchanged.
//!
//! ```text
//!   E2b-Sandbox-Id, or {49983|49999}-{id}.{domain} ─► data plane: envd (files, processes) and the code interpreter
//!   /sandboxes, /v2, /v3, /templates, …            ─► control plane, behind the API key; its host name is api.{domain}
//! ```
//!
//! The facade decodes, asks the keeper and encodes. docs/e2b.md says what works, what differs and what is not offered.

mod access;
mod builds;
mod connect;
mod control;
mod domain;
mod entry;
mod envd;
mod error;
mod files;
mod filesystem;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod interpreter;
mod metadata;
mod network;
mod process;
mod secrets;
mod tags;
mod templates;
mod types;
mod volumes;
mod watch;

use axum::extract::Request;
use axum::response::Response;
use belljar_keeper::PortAccess;
use belljar_model::SandboxId;
use http::HeaderMap;

use crate::api::Shared;
use crate::guard::{PortHost, canonical_port};

pub(crate) use control::router;
pub(crate) use error::Form;
pub(crate) use tags::Tags;
pub(crate) use watch::Watchers;

/// The port of the daemon in E2B's sandboxes: processes and files.
const ENVD_PORT: u16 = 49983;

/// The port of E2B's code interpreter.
const INTERPRETER_PORT: u16 = 49999;

/// The version of E2B's daemon whose behaviour this is. Clients turn features on by it.
const ENVD_VERSION: &str = "0.6.13";

const SANDBOX_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";

/// The label of the control plane's own host name, below the domain.
pub(crate) const CONTROL_LABEL: &str = "api";

/// Target of a request to the data plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A port of a sandbox. The id is as received.
    Port { id: String, port: u16 },
    /// A file of the sandbox whose token made the signature: such an address names no sandbox.
    SignedFile,
}

/// Returns the target of a data plane request to the server's own host name; `None` for any other request.
pub(crate) fn target(request: &Request) -> Option<Target> {
    let path = request.uri().path();
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    if let Some(id) = text(SANDBOX_HEADER) {
        // An invalid port becomes 0, which is never served.
        let port = text(PORT_HEADER).map_or(Some(ENVD_PORT), canonical_port).unwrap_or(0);
        // Some clients send the header with everything.
        let strays = matches!(port, ENVD_PORT | INTERPRETER_PORT) && is_control(path);
        return (!strays).then(|| Target::Port { id: id.to_owned(), port });
    }
    (path == "/files").then_some(Target::SignedFile)
}

/// Returns the target of a request to the host name of a port. Ports other than E2B's own are left to the proxy if the sandbox was not
/// created by one of E2B's clients, unless the request has the sandbox's token.
pub(crate) fn target_of_host(shared: &Shared, host: &PortHost, headers: &HeaderMap) -> Option<Target> {
    let is_native =
        || shared.keeper.port_settings(&host.id).is_some_and(|ports| ports.access == PortAccess::Published);
    let is_ours =
        matches!(host.port, ENVD_PORT | INTERPRETER_PORT) || access::token(headers).is_some() || !is_native();
    is_ours.then(|| Target::Port { id: host.id.to_string(), port: host.port })
}

/// Answers a request of the data plane.
pub(crate) async fn data_plane(shared: Shared, target: Target, request: Request) -> Response {
    match target {
        Target::SignedFile => files::answer(&shared, None, request).await,
        Target::Port { id, port } => match id.parse::<SandboxId>() {
            Ok(id) => match port {
                ENVD_PORT => envd::answer(&shared, &id, request).await,
                INTERPRETER_PORT => interpreter::answer(&shared, &id, request).await,
                port => envd::other_port(shared, PortHost { port, id }, request).await,
            },
            Err(_) => error::sandbox_missing(&id),
        },
    }
}

/// Reports whether the body of a request may pause for long, as input that a person types does.
pub(crate) fn may_be_silent(path: &str) -> bool {
    path == "/process.Process/StreamInput"
}

/// Prefix of the paths that take files for builds.
const UPLOADS: &str = "/uploads/";

/// Reports whether a path needs no key, because it contains a credential itself.
pub(crate) fn is_open(path: &str) -> bool {
    path.starts_with(UPLOADS)
}

/// Reports whether a path belongs to the control plane.
fn is_control(path: &str) -> bool {
    const PREFIXES: [&str; 8] =
        ["/sandboxes", "/v2/", "/v3/", "/templates", UPLOADS, "/snapshots", "/volume", "/secrets"];
    PREFIXES.iter().any(|prefix| path.starts_with(prefix))
}

/// Reports whether a request comes from an E2B client, judging by headers and path.
fn is_ours(path: &str, headers: &HeaderMap) -> bool {
    headers.contains_key(SANDBOX_HEADER) || is_control(path) || path == "/files"
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(path: &str, headers: &[(&'static str, &str)]) -> Request {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path.parse().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        request
    }

    #[test]
    fn headers_and_path_select_the_plane() {
        let port = |port| Some(Target::Port { id: "abc".to_owned(), port });
        let to = |path, headers: &[_]| target(&request(path, headers));
        assert_eq!(to("/sandboxes", &[]), None);
        assert_eq!(to("/health", &[]), None);
        assert_eq!(to("/sandboxes/abc/connect", &[(SANDBOX_HEADER, "abc")]), None);
        let other = [(SANDBOX_HEADER, "abc"), (PORT_HEADER, "8000")];
        assert_eq!(to("/sandboxes", &other), Some(Target::Port { id: "abc".to_owned(), port: 8000 }));
        assert_eq!(to("/files?path=a", &[]), Some(Target::SignedFile));
        assert_eq!(to("/files", &[(SANDBOX_HEADER, "abc")]), port(49983));
        assert_eq!(to("/execute", &[(SANDBOX_HEADER, "abc"), (PORT_HEADER, "49999")]), port(49999));
        assert_eq!(to("/", &[(SANDBOX_HEADER, "abc"), (PORT_HEADER, "0080")]), port(0));
    }
}
