//! Refusals in E2B's forms.

use axum::body::Body;
use axum::response::Response;
use belljar_engine::ErrorCode;
use belljar_keeper::KeeperError;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use super::connect;
use crate::problem::{Code, Problem, shorten};

/// Says whether it is worth to send a request again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// The form in which a request wants its refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A status and `{"code": status, "message": …}`.
    Plain,
    /// An error of Connect, with a status.
    Unary,
    /// An error of Connect at the end of a stream.
    Stream,
}

impl Form {
    /// The form for this request, if it is one of E2B's clients'.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Option<Self> {
        if connect::is_procedure(path) {
            return Some(if connect::is_stream(headers) { Self::Stream } else { Self::Unary });
        }
        super::is_ours(path, headers).then_some(Self::Plain)
    }

    /// The refusal in this form.
    pub(crate) fn answer(self, problem: &Problem) -> Response {
        let code = crate::rpc::error(problem, "").code;
        match self {
            Self::Plain => plain(problem),
            Self::Unary => connect::refusal(code, problem.detail()),
            Self::Stream => connect::stream_refusal(code, problem.detail()),
        }
    }
}

/// What refuses a call of Connect.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An error of Connect.
    Error(ErrorCode, String),
    /// The sandbox is not there.
    Missing(String),
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Error(code, shorten(message.into()))
    }

    /// What is said of a value that is not allowed.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// What the keeper or the guest refused.
    pub(super) fn of(id: &str, error: KeeperError) -> Self {
        if is_missing(&error) {
            return Self::Missing(id.to_owned());
        }
        let error = crate::rpc::of_guest(error, "");
        Self::Error(error.code, error.message.unwrap_or_default())
    }

    /// The answer, for a call that streams or does not.
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

/// Whether clients are to be told that there is no such sandbox: it is not there, or it is paused and stays so.
pub(super) fn is_missing(error: &KeeperError) -> bool {
    matches!(
        error,
        KeeperError::NotFound { what: "sandbox", .. }
            | KeeperError::Gone { .. }
            | KeeperError::TakenOver { .. }
            | KeeperError::WrongState { .. }
    )
}

/// The words by which clients know that a sandbox is not there.
const MISSING: &str = "The sandbox was not found";

/// The answer of the data plane for a sandbox that is not there.
pub(super) fn sandbox_missing(id: &str) -> Response {
    json_answer(StatusCode::BAD_GATEWAY, &json!({"sandboxId": id, "message": MISSING, "code": 502}))
}

/// The same for a port on which nothing listens.
pub(super) fn port_closed(id: &str, port: u16) -> Response {
    let message = "The sandbox is running but port is not open";
    let body = json!({"sandboxId": id, "message": message, "port": port, "code": 502});
    json_answer(StatusCode::BAD_GATEWAY, &body)
}

/// A refusal in the plain form.
pub(super) fn plain(problem: &Problem) -> Response {
    let body = problem.body("");
    let status = match problem.code() {
        // There is no status for what was there once.
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

/// A refusal in the plain form.
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
    /// What the keeper refused of a request of the data plane.
    pub(super) fn of(id: &str, error: KeeperError) -> Self {
        if is_missing(&error) { Self(sandbox_missing(id)) } else { error.into() }
    }
}

/// Something in JSON.
pub(super) fn json_answer(status: StatusCode, body: &impl Serialize) -> Response {
    // Only types of this crate come here, and each can be written.
    let mut response = Response::new(Body::from(serde_json::to_vec(body).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A refusal of what this server does not have.
pub(super) fn not_offered(what: &str) -> Problem {
    Problem::new(Code::NotOffered, format!("{what}: this server does not offer it; see docs/e2b.md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(path: &str, kind: &str) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
        Form::of(path, &headers)
    }

    #[test]
    fn each_request_has_its_form() {
        assert_eq!(form("/v2/sandboxes", "application/json"), Some(Form::Plain));
        assert_eq!(form("/process.Process/List", "application/json"), Some(Form::Unary));
        assert_eq!(form("/process.Process/Start", "application/connect+json"), Some(Form::Stream));
        assert_eq!(form("/v1/sandboxes", "application/json"), None);
        assert_eq!(form("/belljar.v1.Process/Start", "application/connect+json"), None);
    }

    #[test]
    fn refusals_say_whether_to_try_again() {
        let quota = Problem::new(Code::QuotaExceeded, "full");
        let refused = plain(&quota);
        assert_eq!(refused.headers()[SHOULD_RETRY], "false");
        let later = plain(&quota.with_retry_after(Some(std::time::Duration::from_secs(2))));
        assert_eq!(later.headers()[header::RETRY_AFTER], "2");
        assert!(!later.headers().contains_key(SHOULD_RETRY));
        assert_eq!(plain(&Problem::new(Code::SandboxGone, "it")).status(), StatusCode::NOT_FOUND);
    }
}
