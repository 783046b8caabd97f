//! The outermost guard: every request gets an id of the server's, every response carries it, and a panic in a handler becomes an
//! error response.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use http::{Extensions, HeaderName, HeaderValue, header};

use super::Guarded;
use crate::facade::Head;
use crate::problem::{Code, Problem};

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of a request id that the caller chose, in bytes.
const MAX_ID_BYTES: usize = 64;

/// Id of a request in logs, in the audit log and in errors.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

impl RequestId {
    /// Returns the id of the request with these extensions.
    pub(crate) fn from_extensions(extensions: &Extensions) -> String {
        extensions.get::<Self>().map_or_else(String::new, |id| id.0.clone())
    }
}

/// Assigns the request id, and serializes the problem of the response.
pub(super) async fn guard(State(guarded): State<Guarded>, mut request: Request, next: Next) -> Response {
    let id = match own_id(&request) {
        // Callers may send the same id twice, or another's: theirs only follows the server's own.
        Some(own) => format!("{}/{own}", new_id()),
        None => new_id(),
    };
    request.extensions_mut().insert(RequestId(id.clone()));
    let form = guarded.own.form(Head::of(&request));
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            tracing::error!(request_id = id, panic = text, "a handler panicked");
            Problem::new(Code::Internal, "internal server error; the log has more under this request_id")
                .into_response()
        }
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let mut answer = form(&problem, &id);
        answer.extensions_mut().extend(std::mem::take(response.extensions_mut()));
        // Headers that other guards added, such as for pages of another origin, are kept.
        for (name, value) in response.headers() {
            if !answer.headers().contains_key(name) && name != header::CONTENT_LENGTH {
                answer.headers_mut().append(name, value.clone());
            }
        }
        response = answer;
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// Returns the caller's own id, if it is valid.
fn own_id(request: &Request) -> Option<String> {
    let text = request.headers().get(HEADER)?.to_str().ok()?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let fits = (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(allowed);
    fits.then(|| text.to_owned())
}

/// Returns an id that is unique in this server. It need not be unguessable.
fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(count);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_request_ids_are_accepted() {
        let long = "a".repeat(65);
        let cases =
            [("abc-1_2.3", true), ("", false), ("a b", false), ("a\u{1b}", false), (long.as_str(), false)];
        for (id, taken) in cases {
            let Ok(value) = HeaderValue::from_str(id) else { continue };
            let mut request = Request::new(axum::body::Body::empty());
            request.headers_mut().insert(HEADER, value);
            assert_eq!(own_id(&request).is_some(), taken, "{id:?}");
        }
        assert_ne!(new_id(), new_id());
        assert_eq!(new_id().len(), 16);
    }
}
