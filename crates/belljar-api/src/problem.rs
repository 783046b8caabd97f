//! Errors as callers see them: RFC 9457 problems with stable codes.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

/// Where a code is described. The code follows.
const TYPE_BASE: &str = "https://belljar.dev/errors/";

/// The longest text of an error that is sent, in characters. It may quote what the caller sent.
const MAX_DETAIL_CHARS: usize = 2048;

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $title:literal,)*) => {
        /// A stable name of a kind of error, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $title] $variant,)*
        }

        impl Code {
            /// Every code, in the order of its status.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name, such as `sandbox_not_found`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status, as a number.
            #[must_use]
            pub const fn status_number(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// What it is, in a few words.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

codes! {
    InvalidField "invalid_field" 400 "A value is not allowed",
    InvalidJson "invalid_json" 400 "The body is not JSON",
    InvalidArgument "invalid_argument" 400 "The sandbox does not take this value",
    InvalidRequest "invalid_request" 400 "The request is malformed",
    OutOfRange "out_of_range" 400 "A number is out of range",
    UploadFailed "upload_failed" 400 "The upload broke off",
    Unauthenticated "unauthenticated" 401 "No valid key came with the request",
    Forbidden "forbidden" 403 "This key may not do that",
    PolicyRefused "policy_refused" 403 "The policy of the server does not allow it",
    HostNotAllowed "host_not_allowed" 403 "The server does not have this name",
    OriginNotAllowed "origin_not_allowed" 403 "Pages from there may not use this server",
    PermissionDenied "permission_denied" 403 "The sandbox's own user may not do that",
    NotFound "not_found" 404 "There is nothing here",
    SandboxNotFound "sandbox_not_found" 404 "There is no such sandbox",
    TemplateNotFound "template_not_found" 404 "There is no such template",
    VolumeNotFound "volume_not_found" 404 "There is no such volume",
    KeyNotFound "key_not_found" 404 "There is no such key",
    SecretNotFound "secret_not_found" 404 "Secret not found",
    ProcessNotFound "process_not_found" 404 "There is no such process",
    SessionNotFound "session_not_found" 404 "There is no such session",
    ContextNotFound "context_not_found" 404 "There is no such context",
    PathNotFound "path_not_found" 404 "There is no such file",
    PortNotFound "port_not_found" 404 "The port is not published",
    MethodNotAllowed "method_not_allowed" 405 "This method is not for this place",
    RequestTimeout "request_timeout" 408 "The request came too slowly",
    NameTaken "name_taken" 409 "The name is in use",
    VolumeInUse "volume_in_use" 409 "A sandbox uses the volume",
    WrongState "wrong_state" 409 "The sandbox is in another state",
    PathExists "path_exists" 409 "The file already exists",
    NotRegular "not_regular" 409 "It is no regular file",
    FailedPrecondition "failed_precondition" 409 "It cannot be done as things are",
    ResourceExhausted "resource_exhausted" 409 "A resource of the sandbox is exhausted",
    KernelUnavailable "kernel_unavailable" 409 "The interpreter cannot be used",
    IdempotencyRunning "idempotency_running" 409 "The first request with this key is still under way",
    ExecutionInterrupted "execution_interrupted" 409 "The first request with this key was cut off",
    SandboxGone "sandbox_gone" 410 "The sandbox has ended",
    TooLarge "too_large" 413 "The request is too large",
    UnsupportedMediaType "unsupported_media_type" 415 "The body is of a kind that is not read here",
    RangeNotSatisfiable "range_not_satisfiable" 416 "The file has no such range",
    BuildFailed "build_failed" 422 "The template could not be built",
    IdempotencyMismatch "idempotency_mismatch" 422 "The key came with another request before",
    UpgradeRequired "upgrade_required" 426 "This place speaks WebSocket",
    QuotaExceeded "quota_exceeded" 429 "The key has used up what it may use",
    ContextsExhausted "contexts_exhausted" 429 "There are too many contexts, or too many wait for one",
    TooManyAttempts "too_many_attempts" 429 "Too many wrong keys came from this address",
    Internal "internal" 500 "Internal server error",
    EngineFailed "engine_failed" 500 "The engine failed",
    StoreFailed "store_failed" 500 "The server's records cannot be read or written",
    ServerFileFailed "server_file_failed" 500 "A file of the server cannot be read or written",
    NotOffered "not_offered" 501 "The sandbox cannot do this",
    SandboxFailed "sandbox_failed" 502 "Invalid response from the sandbox",
    SandboxUnreachable "sandbox_unreachable" 502 "The sandbox cannot be reached",
    PortNotOpen "port_not_open" 502 "Nothing listens on the port",
    MachineFull "machine_full" 503 "The machine is full",
    ShuttingDown "shutting_down" 503 "The server is shutting down",
    SandboxUnresponsive "sandbox_unresponsive" 504 "The sandbox does not answer in time",
}

impl Code {
    /// The code of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.status_number()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    code: Code,
    status: StatusCode,
    detail: String,
    field: Option<String>,
    retry_after: Option<Duration>,
}

/// A problem as JSON.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Problem, example = json!({
    "type": "https://belljar.dev/errors/invalid_field",
    "title": "A value is not allowed",
    "status": 400,
    "code": "invalid_field",
    "detail": "timeout: \"25h\" is not allowed; give a time of at most 24 h, such as 300 or \"10m\"",
    "field": "timeout",
    "request_id": "4b825dc642cb6eb9"
}))]
pub struct ProblemBody {
    /// Names the kind of error.
    #[serde(rename = "type")]
    #[schema(format = "uri")]
    pub kind: String,
    /// What it is, in a few words.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// A stable name of the kind of error, for programs.
    pub code: &'static str,
    /// What failed, why, and what to do.
    pub detail: String,
    /// The field of the request that is at fault, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Names the request in the server's log.
    pub request_id: String,
    /// Seconds after which it is worth to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

/// The text of an error as it is sent: cut where it is too long.
pub(crate) fn shorten(detail: String) -> String {
    match detail.char_indices().nth(MAX_DETAIL_CHARS) {
        Some((end, _)) => format!("{}…", detail.get(..end).unwrap_or_default()),
        None => detail,
    }
}

impl Problem {
    /// A problem of this kind. `detail` says what failed, why, and what to do.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, status: code.status(), detail: shorten(detail.into()), field: None, retry_after: None }
    }

    /// A value of a field that is refused, and why. The detail begins with the field's name.
    #[must_use]
    pub fn field(field: impl Into<String>, reason: impl AsRef<str>) -> Self {
        let field = field.into();
        let detail = format!("{field}: {}", reason.as_ref());
        Self::new(Code::InvalidField, detail).with_field(field)
    }

    /// Names the field that is at fault.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same with other words.
    #[must_use]
    pub(crate) fn with_detail(self, detail: &str) -> Self {
        Self { detail: Self::new(self.code, detail).detail, ..self }
    }

    /// Says when it is worth to try again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }

    /// Answers with another status than the code's own.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Its kind.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// What failed, why, and what to do.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Its form in JSON, for the request of this id.
    #[must_use]
    pub fn body(&self, request_id: &str) -> ProblemBody {
        ProblemBody {
            kind: format!("{TYPE_BASE}{}", self.code.as_str()),
            title: self.code.title(),
            status: self.status.as_u16(),
            code: self.code.as_str(),
            detail: self.detail.clone(),
            field: self.field.clone(),
            request_id: request_id.to_owned(),
            retry_after_s: self
                .retry_after
                .map(|after| after.as_secs_f64().ceil().max(1.0))
                .map(whole_seconds),
        }
    }

    /// The answer to the request of this id.
    pub(crate) fn answer(&self, request_id: &str) -> Response {
        let body = self.body(request_id);
        let retry_after = body.retry_after_s;
        // Texts and numbers only: there is nothing in it that could fail.
        let json = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
fn whole_seconds(seconds: f64) -> u64 {
    seconds as u64
}

impl IntoResponse for Problem {
    /// An answer whose body is written where the request's id is known: by the outermost guard.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_back() {
        for code in Code::ALL {
            assert_eq!(Code::from_name(code.as_str()), Some(*code));
            assert_eq!(code.status().as_u16(), code.status_number());
        }
        assert_eq!(Code::from_name("none"), None);
    }

    #[test]
    fn the_form_is_that_of_the_contract() {
        let problem = Problem::field("limits.memory", "\"x\" is not allowed").with_retry_after(None);
        assert_eq!(
            serde_json::to_value(problem.body("r1")).unwrap(),
            serde_json::json!({
                "type": "https://belljar.dev/errors/invalid_field",
                "title": "A value is not allowed",
                "status": 400,
                "code": "invalid_field",
                "detail": "limits.memory: \"x\" is not allowed",
                "field": "limits.memory",
                "request_id": "r1",
            })
        );
    }

    #[test]
    fn the_time_to_wait_is_in_header_and_body_and_never_zero() {
        for (after, seconds) in
            [(Duration::ZERO, 1), (Duration::from_millis(1200), 2), (Duration::from_secs(9), 9)]
        {
            let problem = Problem::new(Code::MachineFull, "full").with_retry_after(Some(after));
            assert_eq!(problem.body("r").retry_after_s, Some(seconds));
            assert_eq!(problem.answer("r").headers()[header::RETRY_AFTER], seconds.to_string());
        }
    }

    #[test]
    fn a_long_detail_is_cut() {
        let problem = Problem::new(Code::InvalidField, "ü".repeat(MAX_DETAIL_CHARS + 1));
        assert_eq!(problem.detail().chars().count(), MAX_DETAIL_CHARS + 1);
        assert!(problem.detail().ends_with('…'));
    }
}
