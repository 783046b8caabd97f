//! Errors in responses: RFC 9457 problems with stable codes.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use belljar_proto::ErrorCode;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

/// Base of the URIs that describe codes.
const TYPE_BASE: &str = "https://belljar.dev/errors/";

/// Maximum length of the detail of an error, in characters. It may quote the request.
const MAX_DETAIL_CHARS: usize = 2048;

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $rpc:ident $title:literal,)*) => {
        /// Stable code of a kind of error, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $title] $variant,)*
        }

        impl Code {
            /// All codes, ordered by status.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name, such as `sandbox_not_found`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the HTTP status, as a number.
            #[must_use]
            pub const fn status_number(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Returns the code over RPC.
            #[must_use]
            pub const fn rpc(self) -> ErrorCode {
                match self { $(Self::$variant => ErrorCode::$rpc,)* }
            }

            /// Returns the short description of the kind of error.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

codes! {
    InvalidField "invalid_field" 400 InvalidArgument "A value is not allowed",
    InvalidJson "invalid_json" 400 InvalidArgument "The body is not JSON",
    InvalidArgument "invalid_argument" 400 InvalidArgument "The sandbox does not take this value",
    InvalidRequest "invalid_request" 400 InvalidArgument "The request is malformed",
    OutOfRange "out_of_range" 400 OutOfRange "A number is out of range",
    UploadFailed "upload_failed" 400 Aborted "The upload broke off",
    Unauthenticated "unauthenticated" 401 Unauthenticated "Missing or invalid key",
    Forbidden "forbidden" 403 PermissionDenied "The key lacks permission",
    PolicyRefused "policy_refused" 403 PermissionDenied "Not allowed by the server's policy",
    HostNotAllowed "host_not_allowed" 403 PermissionDenied "Host name not allowed",
    OriginNotAllowed "origin_not_allowed" 403 PermissionDenied "Origin not allowed",
    NotApproved "not_approved" 403 PermissionDenied "The call was not approved",
    OwnApproval "own_approval" 403 PermissionDenied "Another person has to decide",
    PermissionDenied "permission_denied" 403 PermissionDenied "Permission denied in the sandbox",
    NotFound "not_found" 404 NotFound "Not found",
    SandboxNotFound "sandbox_not_found" 404 NotFound "Sandbox not found",
    TemplateNotFound "template_not_found" 404 NotFound "Template not found",
    VolumeNotFound "volume_not_found" 404 NotFound "Volume not found",
    KeyNotFound "key_not_found" 404 NotFound "Key not found",
    SecretNotFound "secret_not_found" 404 NotFound "Secret not found",
    ToolNotFound "tool_not_found" 404 NotFound "Tool not found",
    ApprovalNotFound "approval_not_found" 404 NotFound "Approval not found",
    CallNotFound "call_not_found" 404 NotFound "Call of code not found",
    ProcessNotFound "process_not_found" 404 NotFound "Process not found",
    SessionNotFound "session_not_found" 404 NotFound "Session not found",
    ContextNotFound "context_not_found" 404 NotFound "Context not found",
    ProgramNotFound "program_not_found" 404 NotFound "Program not found in the sandbox",
    PathNotFound "path_not_found" 404 NotFound "File not found",
    PortNotFound "port_not_found" 404 NotFound "The port is not published",
    MethodNotAllowed "method_not_allowed" 405 Unimplemented "Method not allowed",
    RequestTimeout "request_timeout" 408 DeadlineExceeded "The request was too slow",
    ApprovalDecided "approval_decided" 409 FailedPrecondition "The approval was decided already",
    CallClosed "call_closed" 409 FailedPrecondition "The call of code does not wait for an answer",
    NameTaken "name_taken" 409 AlreadyExists "The name is in use",
    VolumeInUse "volume_in_use" 409 FailedPrecondition "A sandbox uses the volume",
    WrongState "wrong_state" 409 FailedPrecondition "The sandbox is in another state",
    SandboxMoved "sandbox_moved" 409 Aborted "Another server has taken the sandbox over",
    PathExists "path_exists" 409 AlreadyExists "The file already exists",
    NotRegular "not_regular" 409 FailedPrecondition "Not a regular file",
    FailedPrecondition "failed_precondition" 409 FailedPrecondition "Not possible in the current state",
    ResourceExhausted "resource_exhausted" 409 ResourceExhausted "A resource of the sandbox is exhausted",
    KernelUnavailable "kernel_unavailable" 409 FailedPrecondition "The interpreter cannot be used",
    IdempotencyRunning "idempotency_running" 409 Aborted "The first request with this key is still running",
    ExecutionInterrupted "execution_interrupted" 409 Aborted "The first request with this key was cut off",
    SandboxGone "sandbox_gone" 410 NotFound "The sandbox has ended",
    TooLarge "too_large" 413 ResourceExhausted "The request is too large",
    UnsupportedMediaType "unsupported_media_type" 415 InvalidArgument "Unsupported media type",
    RangeNotSatisfiable "range_not_satisfiable" 416 OutOfRange "The file has no such range",
    BuildFailed "build_failed" 422 FailedPrecondition "The template could not be built",
    IdempotencyMismatch "idempotency_mismatch" 422 InvalidArgument "The key was used with another request",
    UpgradeRequired "upgrade_required" 426 Unimplemented "A WebSocket is required",
    QuotaExceeded "quota_exceeded" 429 ResourceExhausted "Quota of the key exceeded",
    ContextsExhausted "contexts_exhausted" 429 ResourceExhausted "Too many contexts, or too many waiting for one",
    RateLimited "rate_limited" 429 ResourceExhausted "Too many requests of this kind at once",
    TooManyAttempts "too_many_attempts" 429 ResourceExhausted "Too many invalid keys or tokens from this address",
    Internal "internal" 500 Internal "Internal server error",
    EngineFailed "engine_failed" 500 Internal "The engine failed",
    StoreFailed "store_failed" 500 Internal "The server's records cannot be read or written",
    ServerFileFailed "server_file_failed" 500 Internal "A file of the server cannot be read or written",
    NotOffered "not_offered" 501 Unimplemented "The sandbox cannot do this",
    SandboxFailed "sandbox_failed" 502 Internal "Invalid response from the sandbox",
    ConnectionLost "connection_lost" 502 Unavailable "The connection to the sandbox broke during the call",
    SandboxUnreachable "sandbox_unreachable" 502 Unavailable "The sandbox cannot be reached",
    PortNotOpen "port_not_open" 502 Unavailable "Nothing listens on the port",
    MachineFull "machine_full" 503 Unavailable "The machine is full",
    ShuttingDown "shutting_down" 503 Unavailable "The server is shutting down",
    SandboxUnresponsive "sandbox_unresponsive" 504 DeadlineExceeded "The sandbox does not answer in time",
}

impl Code {
    /// Returns the code with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }

    /// Returns the HTTP status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.status_number()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// The reason why a request failed.
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
    /// URI of the kind of error.
    #[serde(rename = "type")]
    #[schema(format = "uri")]
    pub kind: String,
    /// Short description of the kind of error.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Stable code of the kind of error, for programs.
    pub code: &'static str,
    /// Description: what failed, why, and how to fix it.
    pub detail: String,
    /// The invalid field of the request, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Id of the request, as in the server's log.
    pub request_id: String,
    /// Seconds after which to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

/// Truncates the detail of an error to its maximum length.
pub(crate) fn shorten(detail: String) -> String {
    match detail.char_indices().nth(MAX_DETAIL_CHARS) {
        Some((end, _)) => format!("{}…", detail.get(..end).unwrap_or_default()),
        None => detail,
    }
}

impl Problem {
    /// Returns the error for an unknown path.
    pub(crate) fn no_endpoint() -> Self {
        Self::new(Code::NotFound, "no such endpoint; see /docs")
    }

    /// Creates a problem. `detail` describes what failed, why, and how to fix it.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, status: code.status(), detail: shorten(detail.into()), field: None, retry_after: None }
    }

    /// Creates a problem for an invalid field. The detail begins with the field's name.
    #[must_use]
    pub fn field(field: impl Into<String>, reason: impl AsRef<str>) -> Self {
        let field = field.into();
        let detail = format!("{field}: {}", reason.as_ref());
        Self::new(Code::InvalidField, detail).with_field(field)
    }

    /// Sets the invalid field.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Replaces the detail.
    #[must_use]
    pub(crate) fn with_detail(self, detail: &str) -> Self {
        Self { detail: Self::new(self.code, detail).detail, ..self }
    }

    /// Sets the delay after which to retry.
    #[must_use]
    pub fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }

    /// Replaces the code's own status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the description: what failed, why, and how to fix it.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the JSON body, for the request with this id.
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

    /// Returns the response to the request with this id.
    pub(crate) fn answer(&self, request_id: &str) -> Response {
        let body = self.body(request_id);
        let retry_after = body.retry_after_s;
        // Only texts and numbers, whose serialization cannot fail.
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
    /// Returns a response without a body: the outermost guard, which knows the request's id, writes it.
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
    fn names_are_unique_and_round_trip() {
        for code in Code::ALL {
            assert_eq!(Code::from_name(code.as_str()), Some(*code));
            assert_eq!(code.status().as_u16(), code.status_number());
        }
        assert_eq!(Code::from_name("none"), None);
    }

    #[test]
    fn body_matches_the_documented_format() {
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
    fn retry_after_is_in_header_and_body_and_never_zero() {
        for (after, seconds) in
            [(Duration::ZERO, 1), (Duration::from_millis(1200), 2), (Duration::from_secs(9), 9)]
        {
            let problem = Problem::new(Code::MachineFull, "full").with_retry_after(Some(after));
            assert_eq!(problem.body("r").retry_after_s, Some(seconds));
            assert_eq!(problem.answer("r").headers()[header::RETRY_AFTER], seconds.to_string());
        }
    }

    #[test]
    fn long_details_are_truncated() {
        let problem = Problem::new(Code::InvalidField, "ü".repeat(MAX_DETAIL_CHARS + 1));
        assert_eq!(problem.detail().chars().count(), MAX_DETAIL_CHARS + 1);
        assert!(problem.detail().ends_with('…'));
    }
}
