//! The guards before every route, in the order in which a request passes them: request id and log, host name and
//! origin, key. Neither body nor path of a request is read before its key has been verified.

mod access;
mod answers;
mod attempts;
mod authenticate;
mod client;
mod envelope;
mod host;
mod origin;
mod pace;
mod session;
mod streams;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};

pub(crate) use answers::{Answers, Held, RequestMemory, count_collected, count_messages};
pub(crate) use attempts::Attempts;
pub(crate) use authenticate::{KeyId, PresentedCredential, denied, find_credential, refuse, wants_page};
pub(crate) use client::{Client, Peer};
pub(crate) use envelope::RequestId;
pub use host::PortHost;
pub(crate) use host::{HostName, authority, canonical_port};
pub(crate) use session::{SESSION_COOKIE, SESSION_PROTOCOL, set_cookie};
pub(crate) use streams::{ENDED, StreamSlot, StreamSlots};

use crate::api::Shared;
use crate::facade::{Facade, Head};
use crate::problem::{Code, Problem};
use crate::proxy;

/// What the guards of one facade's routes know.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) shared: Shared,
    /// The facade.
    pub(crate) own: Arc<dyn Facade>,
    /// All facades.
    pub(crate) all: Arc<[Arc<dyn Facade>]>,
    /// Their labels of host names.
    pub(crate) labels: Arc<[&'static str]>,
}

/// Wraps the routes of a facade in all guards.
pub(crate) fn wrap(guarded: &Guarded) -> Router {
    // The last layer is the outermost.
    guarded
        .own
        .router()
        .fallback(async || Problem::no_endpoint())
        .method_not_allowed_fallback(async || {
            let detail = "method not allowed on this path; the header Allow lists the allowed methods";
            Problem::new(Code::MethodNotAllowed, detail)
        })
        .layer(from_fn_with_state(guarded.clone(), authenticate::guard))
        .layer(from_fn_with_state(guarded.clone(), edge))
        .layer(from_fn_with_state(guarded.shared.clone(), access::log))
        .layer(from_fn_with_state(guarded.clone(), envelope::guard))
}

/// Checks host name and origin, and routes requests for a sandbox's host name.
async fn edge(State(guarded): State<Guarded>, request: Request, next: Next) -> Response {
    let Guarded { shared, own, all, labels } = guarded;
    let is_silent = own.may_be_silent(Head::of(&request));
    let request = if is_silent { request } else { request.map(pace::limit_pace) };
    let config = shared.current();
    let host = match host::check(&config, &labels, &request) {
        Ok(host) => host,
        Err(problem) => return problem.into_response(),
    };
    if let HostName::Port(port) = host {
        let taken = all.iter().find_map(|facade| facade.direct(Head::of(&request), Some(&port)));
        return match taken {
            Some(answer) => answer(request).await,
            None => proxy::by_host(shared, port, request).await,
        };
    }
    let verdict = origin::check(&config, &request);
    let taken = own.direct(Head::of(&request), None);
    let answer = async |request: Request| match taken {
        Some(answer) => answer(request).await,
        None => next.run(request).await,
    };
    match verdict {
        Ok(origin::Verdict::Own) => answer(request).await,
        Ok(origin::Verdict::Allowed(origin)) => {
            let mut response = match origin::preflight(&request) {
                Some(preflight) => preflight,
                None => {
                    let mut request = request;
                    request.extensions_mut().insert(session::ForeignPage);
                    answer(request).await
                }
            };
            origin::allow(&mut response, origin);
            response
        }
        Err(problem) => problem.into_response(),
    }
}
