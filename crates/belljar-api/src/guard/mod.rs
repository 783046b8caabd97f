//! The guards before every route, in the order in which a request passes them: request id and log, host name and
//! origin, key. Neither body nor path of a request is read before its key has been verified.

mod access;
mod attempts;
mod authenticate;
mod client;
mod envelope;
mod host;
mod origin;
mod pace;
mod streams;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};

pub(crate) use attempts::Attempts;
pub(crate) use authenticate::{KeyId, PresentedCredential, denied, find_credential, refuse, wants_page};
pub(crate) use client::{Client, Peer};
pub(crate) use envelope::RequestId;
pub(crate) use host::{HostName, PortHost, authority, canonical_port};
pub(crate) use streams::{StreamSlot, StreamSlots};

use crate::api::Shared;
use crate::{e2b, proxy, rpc};

/// Wraps `router` in all guards.
pub(crate) fn wrap(router: Router, shared: &Shared) -> Router {
    // The last layer is the outermost.
    router
        .layer(from_fn_with_state(shared.clone(), authenticate::guard))
        .layer(from_fn_with_state(shared.clone(), edge))
        .layer(from_fn_with_state(shared.clone(), access::log))
        .layer(from_fn_with_state(shared.clone(), envelope::guard))
}

/// Checks host name and origin, and routes requests for a sandbox's host name.
async fn edge(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_silent = rpc::may_be_silent(path) || shared.config.e2b && e2b::may_be_silent(path);
    let request = if is_silent { request } else { request.map(pace::limit_pace) };
    let config = shared.current();
    let host = match host::check(&config, &request) {
        Ok(host) => host,
        Err(problem) => return problem.into_response(),
    };
    if let HostName::Port(port) = host {
        let target = config.e2b.then(|| e2b::target_of_host(&shared, &port, request.headers())).flatten();
        return match target {
            Some(target) => e2b::data_plane(shared, target, request).await,
            None => proxy::by_host(shared, port, request).await,
        };
    }
    let verdict = origin::check(&config, &request);
    let target = e2b::target(&request).filter(|_| config.e2b);
    let answer = async |request: Request| match target {
        Some(target) => e2b::data_plane(shared, target, request).await,
        None => next.run(request).await,
    };
    match verdict {
        Ok(origin::Verdict::Own) => answer(request).await,
        Ok(origin::Verdict::Allowed(origin)) => {
            let mut response = match origin::preflight(&request) {
                Some(preflight) => preflight,
                None => answer(request).await,
            };
            origin::allow(&mut response, origin);
            response
        }
        Err(problem) => problem.into_response(),
    }
}
