//! Forwarding of a request into a sandbox, and of its response.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use belljar_engine::{ErrorCode, GuestError};
use belljar_http_hop::{is_reflecting, prepare_request, prepare_response, wants_upgrade};
use belljar_keeper::{Entered, KeeperError};
use futures::FutureExt as _;
use http::header::TRAILER;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{HoldingBody, Task};
use super::{credential, headers, host_of};
use crate::api::Shared;
use crate::guard::{Client, ENDED, StreamSlot};
use crate::problem::{Code, Problem};
use belljar_keeper::GuestResource;

/// Maximum time until a program in the sandbox begins its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum size of a response's head, in bytes. A larger or malformed one is an error.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Maximum number of headers of a response.
const MAX_HEADERS: usize = 128;

/// Target of a forwarded request.
pub(super) struct Target {
    /// The port inside the sandbox.
    pub(super) port: u16,
    /// The path inside the sandbox.
    pub(super) path: String,
    /// Path prefix of the sandbox, if it is served on the server's own host.
    pub(super) prefix: Option<String>,
}

/// Forwards a request and returns its response.
pub(super) async fn forward(
    shared: &Shared,
    entered: Entered,
    target: Target,
    mut request: Request,
) -> Result<Response, Problem> {
    let slot = shared.streams.take_port(entered.id(), entered.opener())?;
    let upgraded = request.extensions_mut().remove::<OnUpgrade>();
    let mut request = to_inner_request(shared, &target, request)?;
    if let Some(host) = entered.masked_host(target.port) {
        let host = HeaderValue::from_str(&host);
        let host = host.map_err(|_| Problem::new(Code::Internal, "the host for its ports is malformed"))?;
        request.headers_mut().insert(header::HOST, host);
    }
    let upgraded = upgraded.filter(|_| wants_upgrade(request.headers()));
    let tunnel = entered.connect(target.port).await?;
    let mut client = hyper::client::conn::http1::Builder::new();
    client.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
    let (mut sender, connection) = client
        .handshake::<_, Body>(TokioIo::new(tunnel.into_io()))
        .await
        .map_err(|error| Problem::new(Code::SandboxFailed, error.to_string()))?;
    let key_end = slot.key_end();
    let connection = Task::spawn(async move {
        tokio::select! {
            // A broken connection shows in the response.
            _ = connection.with_upgrades() => {}
            () = key_end => {}
        }
    });
    let answer = match tokio::time::timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await {
        Err(_) => {
            let detail = format!("the program on port {} did not respond in time", target.port);
            return Err(Problem::new(Code::SandboxUnresponsive, detail));
        }
        Ok(Err(_)) if slot.key_end().now_or_never().is_some() => {
            return Err(Problem::new(Code::Unauthenticated, ENDED));
        }
        Ok(Err(error)) => return Err(to_problem(&entered, target.port, &error).await),
        Ok(Ok(answer)) => answer,
    };
    check_head(answer.headers(), target.port)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let held = (connection, entered, slot);
        let prefix = target.prefix.as_deref();
        return relay_upgrade(answer, prefix, upgraded, held);
    }
    let (mut parts, body) = answer.into_parts();
    prepare_response(&mut parts.headers, false);
    // The body is passed on without its trailers.
    parts.headers.remove(TRAILER);
    headers::sanitize_response(&mut parts.headers, target.prefix.as_deref());
    parts.extensions = http::Extensions::new();
    parts.version = Version::default();
    let body = Body::new(HoldingBody {
        body,
        _held: Held { _connection: connection, _entered: entered, _slot: slot },
    });
    Ok(Response::from_parts(parts, body))
}

/// Checks that a head is not too large. The client's own limit holds only once its buffer is full, so how large a head it accepts depends
/// on the pieces in which it arrives.
fn check_head(headers: &HeaderMap, port: u16) -> Result<(), Problem> {
    // As in the message: `NAME: VALUE\r\n`.
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes <= MAX_HEAD_BYTES {
        return Ok(());
    }
    let detail = format!(
        "invalid HTTP response from the program on port {port}: its headers have {bytes} bytes; at most {MAX_HEAD_BYTES} are allowed"
    );
    Err(Problem::new(Code::SandboxFailed, detail))
}

struct Held {
    _connection: Task,
    _entered: Entered,
    _slot: StreamSlot,
}

/// Prepares the request for the sandbox: without credentials, and with forwarding headers.
fn to_inner_request(shared: &Shared, target: &Target, request: Request) -> Result<Request, Problem> {
    let (mut parts, body) = request.into_parts();
    if parts.method == Method::CONNECT || is_reflecting(parts.method.as_str()) {
        let detail = format!("{} is not passed on to ports of sandboxes", parts.method);
        return Err(Problem::new(Code::MethodNotAllowed, detail));
    }
    let client = Client::from_request(&shared.config, &parts.headers, &parts.extensions);
    let host = host_of(&parts.uri, &parts.headers);
    let query = parts.uri.query().map(credential::without_token).filter(|query| !query.is_empty());
    let path = if target.path.is_empty() { "/" } else { &target.path };
    let uri = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    parts.uri =
        Uri::try_from(uri).map_err(|_| Problem::new(Code::InvalidRequest, "the path is malformed"))?;
    prepare_request(&mut parts.headers, parts.version).map_err(|refusal| {
        Problem::new(Code::InvalidRequest, format!("the request cannot be passed on: {refusal}"))
    })?;
    credential::strip(&mut parts.headers);
    headers::set_forwarded(&mut parts.headers, &client, &host, target.prefix.as_deref());
    parts.version = Version::HTTP_11;
    parts.extensions = http::Extensions::new();
    Ok(Request::from_parts(parts, body))
}

/// Relays bytes between both sides after a protocol upgrade.
fn relay_upgrade(
    mut answer: http::Response<hyper::body::Incoming>,
    prefix: Option<&str>,
    outside: Option<OnUpgrade>,
    held: (Task, Entered, StreamSlot),
) -> Result<Response, Problem> {
    let Some(outside) = outside else {
        let detail = "the program on the port switched protocols without an upgrade request";
        return Err(Problem::new(Code::SandboxFailed, detail));
    };
    let inside = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        let (_connection, _entered, slot) = held;
        let both = async {
            let (outside, inside) = tokio::try_join!(outside, inside)?;
            let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
            // Either side may disconnect; no one is left to report an error to.
            let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            Ok::<_, hyper::Error>(())
        };
        tokio::select! {
            _ = both => {}
            _ = slot.wait_for_end() => {}
        }
    });
    let (mut parts, _) = answer.into_parts();
    prepare_response(&mut parts.headers, true);
    headers::sanitize_response(&mut parts.headers, prefix);
    parts.extensions = http::Extensions::new();
    Ok(Response::from_parts(parts, Body::empty()))
}

/// Converts the error of a missing response to a problem.
async fn to_problem(entered: &Entered, port: u16, error: &hyper::Error) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut is_gone = false;
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let guest = error.downcast_ref::<GuestError>();
        let guest = guest.or_else(|| inner.and_then(|inner| inner.downcast_ref::<GuestError>()));
        match guest {
            Some(GuestError::Refused { code: ErrorCode::Unavailable, message, .. }) => {
                return Problem::new(Code::PortNotOpen, message.clone());
            }
            Some(GuestError::Gone(_) | GuestError::Unreachable(_)) => is_gone = true,
            _ => {}
        }
        cause = error.source();
    }
    if is_gone {
        let reason = GuestError::Protocol { what: "the connection to the port broke" };
        return match entered.explain_about(reason, GuestResource::Port).await {
            KeeperError::Guest { .. } => {
                let detail =
                    "the connection to the port broke; it is unknown whether the request took effect";
                Problem::new(Code::ConnectionLost, detail)
            }
            error => error.into(),
        };
    }
    let detail = format!("invalid HTTP response from the program on port {port}: {error}");
    Problem::new(Code::SandboxFailed, detail)
}
