//! Error responses in E2B's formats.

use axum::body::Body;
use axum::response::Response;
use belljar_engine::ErrorCode;
use belljar_keeper::KeeperError;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use super::connect;
use crate::problem::{Code, Problem, shorten};

/// Header that reports whether the request is worth a retry.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// Format in which a client expects an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A status and `{"code": status, "message": …}`.
    Plain,
    /// An error of Connect, with a status.
    Unary,
    /// An error of Connect in the last frame of a stream.
    Stream,
}

impl Form {
    /// Returns the format for this request.
    pub(super) fn detect(path: &str, headers: &HeaderMap) -> Self {
        match (connect::is_procedure(path), connect::is_stream(headers)) {
            (false, _) => Self::Plain,
            (true, true) => Self::Stream,
            (true, false) => Self::Unary,
        }
    }

    /// Returns the error response in this format.
    pub(super) fn answer(self, problem: &Problem) -> Response {
        let code = crate::rpc::error(problem, "").code;
        match self {
            Self::Plain => plain(problem),
            Self::Unary => connect::refusal(code, problem.detail()),
            Self::Stream => connect::stream_refusal(code, problem.detail()),
        }
    }
}

/// Error of a Connect call.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An error of Connect.
    Error(ErrorCode, String),
    /// The sandbox does not exist.
    Missing(String),
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Error(code, shorten(message.into()))
    }

    /// Returns the error for an invalid argument.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// Converts an error of the keeper or the guest.
    pub(super) fn from_keeper(id: &str, error: KeeperError) -> Self {
        if is_missing(&error) {
            return Self::Missing(id.to_owned());
        }
        let error = crate::rpc::guest_error(error, "");
        Self::Error(error.code, error.message.unwrap_or_default())
    }

    /// Converts the error that ends a stream from a sandbox.
    pub(super) fn ended(id: &str, error: KeeperError) -> Self {
        match error {
            KeeperError::Gone { reason, .. } => Self::new(
                ErrorCode::Unavailable,
                format!("The sandbox was killed or reached its end of life: {reason}"),
            ),
            error => Self::from_keeper(id, error),
        }
    }

    /// Returns the response, for a streaming or a unary call.
    pub(super) fn answer(&self, is_stream: bool) -> Response {
        match self {
            Self::Missing(id) => sandbox_missing(id),
            Self::Error(code, message) if is_stream => connect::stream_refusal(*code, message),
            Self::Error(code, message) => connect::refusal(*code, message),
        }
    }

    pub(super) fn parts(&self) -> (ErrorCode, &str) {
        match self {
            Self::Error(code, message) => (*code, message),
            Self::Missing(_) => (ErrorCode::Unavailable, MISSING),
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::new(crate::rpc::error(&problem, "").code, problem.detail())
    }
}

/// Reports whether the error is reported as a missing sandbox: it does not exist, or it is paused and stays so.
pub(super) fn is_missing(error: &KeeperError) -> bool {
    matches!(
        error,
        KeeperError::NotFound { what: "sandbox", .. }
            | KeeperError::Elsewhere { .. }
            | KeeperError::Gone { .. }
            | KeeperError::TakenOver { .. }
            | KeeperError::WrongState { .. }
    )
}

/// Message by which clients recognize a missing sandbox.
const MISSING: &str = "The sandbox was not found";

/// Returns the data plane's response for a missing sandbox.
pub(super) fn sandbox_missing(id: &str) -> Response {
    json_answer(StatusCode::BAD_GATEWAY, &json!({"sandboxId": id, "message": MISSING, "code": 502}))
}

/// Returns the data plane's response for a port on which nothing listens.
pub(super) fn port_closed(id: &str, port: u16) -> Response {
    let message = "The sandbox is running but port is not open";
    let body = json!({"sandboxId": id, "message": message, "port": port, "code": 502});
    json_answer(StatusCode::BAD_GATEWAY, &body)
}

/// Returns the data plane's response to a request for a port without the token that it needs.
pub(super) fn traffic_refused(id: &str) -> Response {
    let message = "The port needs the sandbox's traffic access token: missing or invalid header e2b-traffic-access-token";
    json_answer(StatusCode::FORBIDDEN, &json!({"sandboxId": id, "message": message, "code": 403}))
}

/// Returns the error response in the plain format.
pub(super) fn plain(problem: &Problem) -> Response {
    let body = problem.body("");
    let status = match problem.code() {
        // E2B has no status for a sandbox that has ended.
        Code::SandboxGone => StatusCode::NOT_FOUND,
        _ => StatusCode::from_u16(body.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    let mut response = json_answer(status, &json!({"code": status.as_u16(), "message": body.detail}));
    let headers = response.headers_mut();
    if let Some(seconds) = body.retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    } else if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    response
}

/// An error response in the plain format.
pub(super) struct Plain(pub(super) Response);

impl From<Problem> for Plain {
    fn from(problem: Problem) -> Self {
        Self(plain(&problem))
    }
}

impl From<KeeperError> for Plain {
    fn from(error: KeeperError) -> Self {
        Self::from(Problem::from(error))
    }
}

impl Plain {
    /// Converts an error of the keeper for a request of the data plane.
    pub(super) fn from_keeper(id: &str, error: KeeperError) -> Self {
        if is_missing(&error) { Self(sandbox_missing(id)) } else { error.into() }
    }
}

/// Returns a JSON response.
pub(super) fn json_answer(status: StatusCode, body: &impl Serialize) -> Response {
    // Only types of this crate are serialized here, and none of them can fail.
    let mut response = Response::new(Body::from(serde_json::to_vec(body).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the problem for a feature that this server does not offer.
pub(super) fn not_offered(what: &str) -> Problem {
    const PAGE: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/e2b.md");
    Problem::new(Code::NotOffered, format!("{what}: this server does not offer it; {PAGE} lists what works"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(path: &str, kind: &str) -> Form {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
        Form::detect(path, &headers)
    }

    #[test]
    fn each_request_has_its_error_format() {
        assert_eq!(form("/v2/sandboxes", "application/json"), Form::Plain);
        assert_eq!(form("/process.Process/List", "application/json"), Form::Unary);
        assert_eq!(form("/process.Process/Start", "application/connect+json"), Form::Stream);
    }

    #[test]
    fn errors_say_whether_to_retry() {
        let quota = Problem::new(Code::QuotaExceeded, "full");
        let refused = plain(&quota);
        assert_eq!(refused.headers()[SHOULD_RETRY], "false");
        let later = plain(&quota.with_retry_after(Some(std::time::Duration::from_secs(2))));
        assert_eq!(later.headers()[header::RETRY_AFTER], "2");
        assert!(!later.headers().contains_key(SHOULD_RETRY));
        assert_eq!(plain(&Problem::new(Code::SandboxGone, "it")).status(), StatusCode::NOT_FOUND);
    }
}
