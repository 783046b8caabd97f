//! One request into a sandbox, and its answer.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use belljar_engine::{ErrorCode, GuestError};
use belljar_keeper::Entered;
use http::{HeaderValue, StatusCode, Uri, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{Holding, Task};
use super::{credential, headers, host_of};
use crate::api::Shared;
use crate::guard::{Client, StreamSlot};
use crate::problem::{Code, Problem};
use belljar_keeper::About;

/// How long a program inside may take until its answer begins.
const MAX_ANSWER: Duration = Duration::from_secs(300);

/// The most bytes of an answer's head. More is an error, and so is what is no HTTP.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The most headers of an answer.
const MAX_HEADERS: usize = 128;

/// Where a request goes.
pub(super) struct Target {
    /// The port inside.
    pub(super) port: u16,
    /// The path inside.
    pub(super) path: String,
    /// The path below which the sandbox is, if it is on the server's own host.
    pub(super) prefix: Option<String>,
}

/// Passes a request on, and its answer back.
pub(super) async fn forward(
    shared: &Shared,
    entered: Entered,
    target: Target,
    mut request: Request,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&format!("port of {}", entered.id()))?;
    let upgraded = request.extensions_mut().remove::<OnUpgrade>();
    let wanted = headers::upgrade(request.headers()).filter(|_| request.version() == Version::HTTP_11);
    let request = inwards(shared, &target, request, wanted.clone())?;
    let tunnel = entered.connect(target.port).await?;
    let mut client = hyper::client::conn::http1::Builder::new();
    client.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
    let (mut sender, connection) = client
        .handshake::<_, Body>(TokioIo::new(tunnel.into_io()))
        .await
        .map_err(|error| Problem::new(Code::SandboxFailed, error.to_string()))?;
    let connection = Task::spawn(async move {
        // What breaks it shows in the answer.
        let _ = connection.with_upgrades().await;
    });
    let answer = match tokio::time::timeout(MAX_ANSWER, sender.send_request(request)).await {
        Err(_) => {
            let detail = format!("what listens on port {} has not answered in time", target.port);
            return Err(Problem::new(Code::SandboxUnresponsive, detail));
        }
        Ok(Err(error)) => return Err(failed(&entered, target.port, &error).await),
        Ok(Ok(answer)) => answer,
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let held = (connection, entered, slot);
        let prefix = target.prefix.as_deref();
        return switch(shared, answer, prefix, upgraded.filter(|_| wanted.is_some()), held);
    }
    let (mut parts, body) = answer.into_parts();
    headers::strip_hop_by_hop(&mut parts.headers, None);
    headers::tame(&mut parts.headers, target.prefix.as_deref());
    parts.extensions = http::Extensions::new();
    parts.version = Version::default();
    let body =
        Body::new(Holding { body, _held: Held { _connection: connection, _entered: entered, _slot: slot } });
    Ok(Response::from_parts(parts, body))
}

struct Held {
    _connection: Task,
    _entered: Entered,
    _slot: StreamSlot,
}

/// The request as it goes inside: without credentials, and with what it is to know about its way.
fn inwards(
    shared: &Shared,
    target: &Target,
    request: Request,
    upgrade: Option<HeaderValue>,
) -> Result<Request, Problem> {
    let (mut parts, body) = request.into_parts();
    let client = Client::of(&shared.config, &parts.headers, &parts.extensions);
    let host = host_of(&parts.uri, &parts.headers);
    let query = parts.uri.query().map(credential::without_token).filter(|query| !query.is_empty());
    let path = if target.path.is_empty() { "/" } else { &target.path };
    let place = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    parts.uri =
        Uri::try_from(place).map_err(|_| Problem::new(Code::InvalidRequest, "the path is malformed"))?;
    headers::strip_hop_by_hop(&mut parts.headers, upgrade);
    credential::strip(&mut parts.headers);
    headers::set_forwarded(&mut parts.headers, &client, &host, target.prefix.as_deref());
    parts.version = Version::HTTP_11;
    parts.extensions = http::Extensions::new();
    Ok(Request::from_parts(parts, body))
}

/// Lets both sides speak with each other, in whatever they have agreed on.
fn switch(
    shared: &Shared,
    mut answer: http::Response<hyper::body::Incoming>,
    prefix: Option<&str>,
    outside: Option<OnUpgrade>,
    held: (Task, Entered, StreamSlot),
) -> Result<Response, Problem> {
    let Some(outside) = outside else {
        let detail = "what listens on the port changed the protocol, which nobody had asked for";
        return Err(Problem::new(Code::SandboxFailed, detail));
    };
    let inside = hyper::upgrade::on(&mut answer);
    let stopping = shared.stopping.clone();
    tokio::spawn(async move {
        let _held = held;
        let both = async {
            let (outside, inside) = tokio::try_join!(outside, inside)?;
            let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
            // Either side may break off; there is nobody to tell.
            let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            Ok::<_, hyper::Error>(())
        };
        tokio::select! {
            _ = both => {}
            () = stopping.cancelled() => {}
        }
    });
    let (mut parts, _) = answer.into_parts();
    let protocol = headers::upgrade(&parts.headers);
    headers::strip_hop_by_hop(&mut parts.headers, protocol);
    headers::tame(&mut parts.headers, prefix);
    parts.extensions = http::Extensions::new();
    Ok(Response::from_parts(parts, Body::empty()))
}

/// Why there is no answer.
async fn failed(entered: &Entered, port: u16, error: &hyper::Error) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut gone = false;
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let guest = error.downcast_ref::<GuestError>();
        let guest = guest.or_else(|| inner.and_then(|inner| inner.downcast_ref::<GuestError>()));
        match guest {
            Some(GuestError::Refused { code: ErrorCode::Unavailable, message }) => {
                return Problem::new(Code::PortNotOpen, message.clone());
            }
            Some(GuestError::Gone(_)) => gone = true,
            _ => {}
        }
        cause = error.source();
    }
    if gone {
        let reason = GuestError::Protocol { what: "the connection to the port broke" };
        return entered.explain_about(reason, About::Port).await.into();
    }
    let detail = format!("what listens on port {port} gave no valid HTTP answer: {error}");
    Problem::new(Code::SandboxFailed, detail)
}
