//! Problems as errors of the RPC protocols.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use belljar_engine::{ErrorCode, GuestError, v1};
use belljar_keeper::KeeperError;
use belljar_proto::{ConnectError, ErrorDetail, PROBLEM};
use http::{HeaderMap, HeaderValue, header};

use crate::problem::{Code, Problem};

/// Converts a problem to an error, with [`v1::Problem`] as its detail.
pub(crate) fn error(problem: &Problem, request_id: &str) -> ConnectError {
    with_code(problem.code().rpc(), problem, request_id)
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
    error.with_detail(ErrorDetail::from_message(PROBLEM, &message))
}

/// Converts a problem to a message.
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

/// Converts an error of the guest. The guest's own code is kept where a guest may use it, so that callers see the same
/// codes as with a direct connection to the guest.
pub(crate) fn guest_error(failed: KeeperError, request_id: &str) -> ConnectError {
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
    with_code(kept.unwrap_or_else(|| problem.code().rpc()), &problem, request_id)
}

/// The headers of an RPC that determine the format of its response, known before the request is read.
pub(crate) struct Wire(HeaderMap);

impl Wire {
    /// Returns the format of the response to this request, if it is an RPC.
    pub(super) fn detect(headers: &HeaderMap) -> Self {
        let mut kept = HeaderMap::new();
        for name in [header::CONTENT_TYPE, header::ACCEPT] {
            if let Some(value) = headers.get(&name) {
                kept.insert(name, value.clone());
            }
        }
        Self(kept)
    }
}

/// Returns the response to an RPC that a guard has refused.
pub(super) fn refusal(problem: &Problem, wire: &Wire, request_id: &str) -> Response {
    let error = match problem.code() {
        // An unknown path is an unknown procedure.
        Code::NotFound => with_code(ErrorCode::Unimplemented, problem, request_id),
        _ => error(problem, request_id),
    };
    let mut response = error.into_http_response(&wire.0).map(Body::new);
    if problem.code() == Code::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
