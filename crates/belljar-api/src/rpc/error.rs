//! Problems as errors of the RPC protocols.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use belljar_engine::{ErrorCode, GuestError, v1};
use belljar_keeper::KeeperError;
use belljar_proto::{ConnectError, ErrorDetail};
use http::{HeaderMap, HeaderValue, header};

use crate::problem::{Code, Problem};

/// The name of the message that is in each error.
const DETAIL: &str = "belljar.v1.Problem";

/// The problem as an error, with [`v1::Problem`] as its detail.
pub(crate) fn error(problem: &Problem, request_id: &str) -> ConnectError {
    with_code(code(problem.code()), problem, request_id)
}

fn with_code(code: ErrorCode, problem: &Problem, request_id: &str) -> ConnectError {
    let message = message(problem, request_id);
    let error = ConnectError::new(code, problem.detail());
    let error = match problem.body(request_id).retry_after_s {
        Some(seconds) => {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            error.with_headers(headers)
        }
        None => error,
    };
    error.with_detail(ErrorDetail::from_message(DETAIL, &message))
}

/// The problem as a message.
pub(super) fn message(problem: &Problem, request_id: &str) -> v1::Problem {
    let body = problem.body(request_id);
    v1::Problem {
        code: body.code.to_owned(),
        detail: body.detail,
        field: body.field.unwrap_or_default(),
        request_id: body.request_id,
        retry_after: body
            .retry_after_s
            .map(|seconds| super::convert::duration(Duration::from_secs(seconds)))
            .into(),
        ..Default::default()
    }
}

/// What the guest answered instead of a result. The guest's own code stays where a guest may say such a thing: who
/// speaks with the guest by way of the server is to see what it would see without.
pub(crate) fn of_guest(failed: KeeperError, request_id: &str) -> ConnectError {
    let kept = match &failed {
        KeeperError::Guest { source: GuestError::Refused { code, .. }, .. } => Some(*code).filter(|code| {
            use ErrorCode::{
                Aborted, AlreadyExists, DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound,
                OutOfRange, PermissionDenied, ResourceExhausted, Unavailable, Unimplemented,
            };
            matches!(
                code,
                Aborted
                    | AlreadyExists
                    | DeadlineExceeded
                    | FailedPrecondition
                    | InvalidArgument
                    | NotFound
                    | OutOfRange
                    | PermissionDenied
                    | ResourceExhausted
                    | Unavailable
                    | Unimplemented
            )
        }),
        _ => None,
    };
    let problem = Problem::from(failed);
    with_code(kept.unwrap_or_else(|| code(problem.code())), &problem, request_id)
}

/// The code that the protocols have for it.
fn code(code: Code) -> ErrorCode {
    match code {
        Code::InvalidField
        | Code::InvalidJson
        | Code::InvalidArgument
        | Code::InvalidRequest
        | Code::UnsupportedMediaType
        | Code::IdempotencyMismatch => ErrorCode::InvalidArgument,
        Code::OutOfRange | Code::RangeNotSatisfiable => ErrorCode::OutOfRange,
        Code::Unauthenticated => ErrorCode::Unauthenticated,
        Code::Forbidden
        | Code::PolicyRefused
        | Code::HostNotAllowed
        | Code::OriginNotAllowed
        | Code::PermissionDenied => ErrorCode::PermissionDenied,
        Code::NotFound
        | Code::SandboxNotFound
        | Code::TemplateNotFound
        | Code::VolumeNotFound
        | Code::KeyNotFound
        | Code::SecretNotFound
        | Code::ProcessNotFound
        | Code::SessionNotFound
        | Code::ContextNotFound
        | Code::PathNotFound
        | Code::PortNotFound
        | Code::SandboxGone => ErrorCode::NotFound,
        Code::NameTaken | Code::PathExists => ErrorCode::AlreadyExists,
        Code::WrongState
        | Code::VolumeInUse
        | Code::NotRegular
        | Code::KernelUnavailable
        | Code::BuildFailed
        | Code::FailedPrecondition => ErrorCode::FailedPrecondition,
        Code::IdempotencyRunning | Code::ExecutionInterrupted | Code::UploadFailed => ErrorCode::Aborted,
        Code::ResourceExhausted
        | Code::TooLarge
        | Code::ContextsExhausted
        | Code::QuotaExceeded
        | Code::TooManyAttempts => ErrorCode::ResourceExhausted,
        Code::MethodNotAllowed | Code::UpgradeRequired | Code::NotOffered => ErrorCode::Unimplemented,
        Code::SandboxUnreachable | Code::PortNotOpen | Code::MachineFull | Code::ShuttingDown => {
            ErrorCode::Unavailable
        }
        Code::RequestTimeout | Code::SandboxUnresponsive => ErrorCode::DeadlineExceeded,
        Code::Internal
        | Code::EngineFailed
        | Code::StoreFailed
        | Code::ServerFileFailed
        | Code::SandboxFailed => ErrorCode::Internal,
    }
}

/// What an answer to an RPC must look like, as far as it is known before the request is read.
pub(crate) struct Wire(HeaderMap);

impl Wire {
    /// The form of the answer to this request, if it is an RPC.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Option<Self> {
        if !super::router::is_rpc(path) {
            return None;
        }
        let mut kept = HeaderMap::new();
        for name in [header::CONTENT_TYPE, header::ACCEPT] {
            if let Some(value) = headers.get(&name) {
                kept.insert(name, value.clone());
            }
        }
        Some(Self(kept))
    }
}

/// The answer to an RPC that a guard has refused.
pub(crate) fn refusal(problem: &Problem, wire: &Wire, request_id: &str) -> Response {
    let error = match problem.code() {
        // No such place is no such procedure.
        Code::NotFound => with_code(ErrorCode::Unimplemented, problem, request_id),
        _ => error(problem, request_id),
    };
    let mut response = error.into_http_response(&wire.0).map(Body::new);
    if problem.code() == Code::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
