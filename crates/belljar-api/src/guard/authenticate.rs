//! Authentication by key. It precedes everything else, and all refusals look alike.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{Caller, Denied};
use http::{Extensions, HeaderMap, Method, header};
use http_body::Body as _;

use super::Guarded;
use super::answers::RequestMemory;
use super::client::{Client, Peer};
use super::envelope::RequestId;
use super::session::{self, PresentedSession};
use crate::api::Shared;
use crate::facade::Head;
use crate::problem::{Code, Problem};

/// Maximum length of a credential, in bytes.
const MAX_CREDENTIAL_BYTES: usize = 512;

/// Id of the key of a request, for the log. Stored in the response's extensions.
#[derive(Clone)]
pub(crate) struct KeyId(pub(crate) String);

/// The credential that a request presents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PresentedCredential {
    /// No credential.
    None,
    /// A single credential.
    Credential(String),
    /// Two credentials that differ, or a malformed one.
    Unusable,
}

/// Forwards a request with a valid key, with the [`Caller`] in its extensions.
pub(super) async fn guard(State(guarded): State<Guarded>, request: Request, next: Next) -> Response {
    let Guarded { shared, own, .. } = guarded;
    if own.is_open(Head::of(&request)) {
        let slots = if own.keeps_open_body(Head::of(&request)) && !request.body().is_end_stream() {
            let client = Client::from_request(&shared.config, request.headers(), request.extensions());
            shared.streams.take_open(client.address).map(Some)
        } else {
            Ok(None)
        };
        return match slots {
            Ok(_slots) => next.run(request).await,
            Err(problem) => problem.into_response(),
        };
    }
    let (headers, extensions) = (request.headers(), request.extensions());
    match caller(&shared, own.takes_sessions(), headers, extensions).await {
        Ok(caller) => {
            let key = KeyId(caller.key.clone());
            // Other methods run nothing that would be lost with its answer.
            if request.method() == Method::POST
                && !own.may_always_begin(Head::of(&request))
                && let Err(problem) = shared.answers.admit(&key.0)
            {
                return problem.into_response();
            }
            let mut request = request.map(|body| shared.streams.bind(&caller, body));
            request.extensions_mut().insert(caller);
            let memory = RequestMemory::new(&shared.answers, &key.0);
            request.extensions_mut().insert(memory.clone());
            let mut response = next.run(request).await;
            if is_fault(&response)
                && let Some(problem) = memory.refusal()
            {
                response = problem.into_response();
            }
            drop(memory);
            let mut response = shared.answers.count(&key.0, response);
            response.extensions_mut().insert(key);
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// Reports whether a response says that the server is at fault, which gRPC does beside the status 200.
fn is_fault(response: &Response) -> bool {
    let is_internal = response.headers().get("grpc-status").is_some_and(|status| status == "13");
    response.status().is_server_error() || is_internal
}

/// Reports whether a person's browser asks.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    accepted.is_some_and(|accepted| accepted.split(',').any(|kind| kind.trim().starts_with("text/html")))
}

async fn caller(
    shared: &Shared,
    takes_sessions: bool,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Caller, Problem> {
    let id = RequestId::from_extensions(extensions);
    let unix = extensions.get::<Peer>().is_some_and(|peer| peer.unix);
    match find_credential(headers) {
        PresentedCredential::Credential(credential) => {
            let client = Client::from_request(&shared.config, headers, extensions);
            let found = shared.keeper.authenticate(&credential, &client.text, &id).await;
            found.map_err(|why| refuse(shared, &client, why, denied()))
        }
        PresentedCredential::None if unix && shared.config.operator_socket => {
            Ok(Caller::operator("unix", &id))
        }
        PresentedCredential::None if takes_sessions => session(shared, headers, extensions).await,
        PresentedCredential::None | PresentedCredential::Unusable => Err(denied()),
    }
}

/// Returns the caller of a page's session. Only the page itself can send its token, and so it is nothing that a browser attaches.
async fn session(shared: &Shared, headers: &HeaderMap, extensions: &Extensions) -> Result<Caller, Problem> {
    let Some(presented) = session::find(headers, extensions) else { return Err(denied()) };
    let id = RequestId::from_extensions(extensions);
    let client = Client::from_request(&shared.config, headers, extensions);
    let PresentedSession { cookies, token } = presented;
    let found = shared.keeper.authenticate_session(&cookies, token, &client.text, &id).await;
    found.map_err(|why| if why == Denied::Unavailable { unavailable() } else { denied() })
}

fn unavailable() -> Problem {
    Problem::new(Code::StoreFailed, "keys cannot be looked up now; try again later")
}

/// Returns the response to every request without a valid key.
pub(crate) fn denied() -> Problem {
    let detail = "missing or invalid key; send it as Authorization: Bearer <key>, or as X-API-Key";
    Problem::new(Code::Unauthenticated, detail)
}

/// Returns the response to a credential that was denied: `refusal`, or after too many failures of this address that it has to wait.
/// Only for credentials that a client presents on purpose: what a browser attaches by itself for any page is not counted.
pub(crate) fn refuse(shared: &Shared, client: &Client, why: Denied, refusal: Problem) -> Problem {
    if why == Denied::Unavailable {
        return unavailable();
    }
    match shared.attempts.record_failure(client.address) {
        Some(wait) => {
            let detail = "too many invalid keys or tokens from this address; wait a minute";
            Problem::new(Code::TooManyAttempts, detail).with_retry_after(Some(wait))
        }
        None => refusal,
    }
}

/// Returns the credential in `Authorization` or `X-API-Key`.
pub(crate) fn find_credential(headers: &HeaderMap) -> PresentedCredential {
    let mut found = PresentedCredential::None;
    let bearer = headers.get_all(header::AUTHORIZATION).iter().map(|value| {
        let text = value.to_str().ok()?;
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_matches(' '))
    });
    let own = headers.get_all("x-api-key").iter().map(|value| value.to_str().ok());
    for credential in bearer.chain(own) {
        let fits = |text: &str| {
            (1..=MAX_CREDENTIAL_BYTES).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let Some(credential) = credential.filter(|text| fits(text)) else {
            return PresentedCredential::Unusable;
        };
        match &found {
            PresentedCredential::None => found = PresentedCredential::Credential(credential.to_owned()),
            PresentedCredential::Credential(before) if before == credential => {}
            _ => return PresentedCredential::Unusable,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_parsed() {
        let one = |text: &str| PresentedCredential::Credential(text.to_owned());
        let cases: &[(&[(&str, &str)], PresentedCredential)] = &[
            (&[], PresentedCredential::None),
            (&[("authorization", "Bearer bj_1")], one("bj_1")),
            (&[("authorization", "bearer  bj_1 ")], one("bj_1")),
            (&[("x-api-key", "bj_1")], one("bj_1")),
            (&[("x-api-key", "bj_1"), ("authorization", "Bearer bj_1")], one("bj_1")),
            (&[("x-api-key", "bj_1"), ("authorization", "Bearer bj_2")], PresentedCredential::Unusable),
            (&[("x-api-key", "bj_1"), ("x-api-key", "bj_2")], PresentedCredential::Unusable),
            (&[("authorization", "Basic eDp5")], PresentedCredential::Unusable),
            (&[("authorization", "Bearer")], PresentedCredential::Unusable),
            (&[("authorization", "Bearer ")], PresentedCredential::Unusable),
            (&[("authorization", "Bearer a b")], PresentedCredential::Unusable),
            (&[("x-api-key", "")], PresentedCredential::Unusable),
        ];
        for (headers, expected) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in *headers {
                map.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
            }
            assert_eq!(find_credential(&map), *expected, "{headers:?}");
        }
        let mut long = HeaderMap::new();
        long.insert("x-api-key", "x".repeat(MAX_CREDENTIAL_BYTES + 1).parse().unwrap());
        assert_eq!(find_credential(&long), PresentedCredential::Unusable);
    }
}
