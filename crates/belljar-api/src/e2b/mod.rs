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

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use belljar_keeper::PortAccess;
use belljar_model::SandboxId;
use futures::FutureExt as _;
use http::HeaderMap;

use crate::api::Shared;
use crate::facade::{Answer, Claims, Facade, Form as ErrorForm, Head};
use crate::guard::{PortHost, canonical_port};
use error::Form;
use tags::Tags;
use watch::Watchers;

/// The facade, and what its data plane remembers.
#[derive(Clone)]
pub(crate) struct E2b(Arc<Inner>);

struct Inner {
    shared: Shared,
    watchers: Watchers,
    tags: Tags,
}

impl E2b {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self(Arc::new(Inner { shared: shared.clone(), watchers: Watchers::default(), tags: Tags::default() }))
    }
}

impl std::ops::Deref for E2b {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0.shared
    }
}

impl Facade for E2b {
    fn name(&self) -> &'static str {
        "e2b"
    }

    fn claims(&self) -> Claims {
        Claims { labels: &[CONTROL_LABEL], headers: &[SANDBOX_HEADER], prefixes: &PREFIXES }
    }

    fn form(&self, head: Head<'_>) -> ErrorForm {
        let form = Form::detect(head.path, head.headers);
        Box::new(move |problem, _| form.answer(problem))
    }

    fn router(&self) -> Router {
        control::router(self)
    }

    fn is_open(&self, head: Head<'_>) -> bool {
        // The path contains a credential.
        head.path.starts_with(UPLOADS)
    }

    fn may_always_begin(&self, head: Head<'_>) -> bool {
        head.path.ends_with("/pause")
    }

    fn may_be_silent(&self, head: Head<'_>) -> bool {
        head.path == "/process.Process/StreamInput"
    }

    fn direct(&self, head: Head<'_>, port: Option<&PortHost>) -> Option<Answer> {
        let target = match port {
            Some(port) => target_of_host(self, port, head.headers),
            None => target(head),
        }?;
        let facade = self.clone();
        Some(Box::new(move |request| async move { data_plane(facade, target, request).await }.boxed()))
    }
}

/// The port of the daemon in E2B's sandboxes: processes and files.
const ENVD_PORT: u16 = 49983;

/// The port of E2B's code interpreter.
const INTERPRETER_PORT: u16 = 49999;

/// The version of E2B's daemon whose behaviour this is. Clients turn features on by it.
const ENVD_VERSION: &str = "0.6.13";

const SANDBOX_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";

/// The label of the control plane's own host name, below the domain.
const CONTROL_LABEL: &str = "api";

/// Beginnings of the paths of the control plane.
const CONTROL_PREFIXES: [&str; 8] =
    ["/sandboxes", "/v2/", "/v3/", "/templates", UPLOADS, "/snapshots", "/volume", "/secrets"];

/// Beginnings of all paths: those of the control plane, and what needs no header.
const PREFIXES: [&str; 11] = {
    let [a, b, c, d, e, f, g, h] = CONTROL_PREFIXES;
    [a, b, c, d, e, f, g, h, "/files", "/process.Process/", "/filesystem.Filesystem/"]
};

/// Target of a request to the data plane.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// A port of a sandbox. The id is as received.
    Port { id: String, port: u16 },
    /// A file of the sandbox whose token made the signature: such an address names no sandbox.
    SignedFile,
}

/// Returns the target of a data plane request to the server's own host name; `None` for any other request.
fn target(head: Head<'_>) -> Option<Target> {
    let Head { path, headers, .. } = head;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
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
fn target_of_host(shared: &Shared, host: &PortHost, headers: &HeaderMap) -> Option<Target> {
    let is_native =
        || shared.keeper.port_settings(&host.id).is_some_and(|ports| ports.access == PortAccess::Published);
    let is_ours =
        matches!(host.port, ENVD_PORT | INTERPRETER_PORT) || access::token(headers).is_some() || !is_native();
    is_ours.then(|| Target::Port { id: host.id.to_string(), port: host.port })
}

/// Answers a request of the data plane.
async fn data_plane(facade: E2b, target: Target, request: Request) -> Response {
    match target {
        Target::SignedFile => files::answer(&facade, None, request).await,
        Target::Port { id, port } => match id.parse::<SandboxId>() {
            Ok(id) => match port {
                ENVD_PORT => envd::answer(&facade, &id, request).await,
                INTERPRETER_PORT => interpreter::answer(&facade, &id, request).await,
                port => envd::other_port(facade.clone(), PortHost { port, id }, request).await,
            },
            Err(_) => error::sandbox_missing(&id),
        },
    }
}

/// Prefix of the paths that take files for builds.
const UPLOADS: &str = "/uploads/";

/// Reports whether a path belongs to the control plane.
fn is_control(path: &str) -> bool {
    CONTROL_PREFIXES.iter().any(|prefix| path.starts_with(prefix))
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
        let to = |path, headers: &[_]| target(Head::of(&request(path, headers)));
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
