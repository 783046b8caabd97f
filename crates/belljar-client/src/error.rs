//! Errors of calls.

use std::error::Error;
use std::time::Duration;

use belljar_proto::{ConnectError, DialError, ErrorCode, problem};

/// Error of a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server refused the call.
    #[error("{message}")]
    Refused {
        /// Stable code of the kind of error, such as `sandbox_not_found`.
        code: String,
        /// The kind of error in the protocol.
        rpc: ErrorCode,
        /// Explanation of the failure, and a hint.
        message: String,
        /// The invalid field of the request.
        field: Option<String>,
        /// Id of the request in the server's log.
        request_id: String,
        /// Time after which a retry may succeed.
        retry_after: Option<Duration>,
    },
    /// The server cannot be reached: no part of the call arrived there.
    #[error("cannot reach the server at {target}")]
    Unreachable {
        /// The server's address.
        target: String,
        /// The reason.
        #[source]
        source: Box<ConnectError>,
    },
    /// The connection broke, or the answer took too long. The server may have carried out the call.
    #[error("the server at {target} did not complete its answer")]
    Broken {
        /// The server's address.
        target: String,
        /// The reason.
        #[source]
        source: Box<ConnectError>,
    },
    /// The server is not a Belljar server, or not one that this client supports.
    #[error("invalid response from the server at {target}: {what}")]
    Protocol {
        /// The server's address.
        target: String,
        /// Description of the response.
        what: String,
    },
    /// A value contains characters that cannot be sent.
    #[error("invalid {field}: it contains characters that are not allowed")]
    Unsendable {
        /// The value's name.
        field: &'static str,
    },
}

impl ClientError {
    /// Returns the stable code of the kind of error, if the server sent one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Reports whether the server refused with this stable code.
    #[must_use]
    pub fn is(&self, code: &str) -> bool {
        self.code() == Some(code)
    }

    /// Returns the time after which a retry may succeed, if the server sent one. The server has not started the call then.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(crate) fn unreachable(target: &str, error: &ConnectError) -> Option<Self> {
        is_dial_error(error)
            .then(|| Self::Unreachable { target: target.to_owned(), source: Box::new(error.clone()) })
    }

    pub(crate) fn new(target: &str, error: ConnectError) -> Self {
        let target = target.to_owned();
        if let Some(problem) = problem(&error) {
            return Self::Refused {
                rpc: error.code,
                message: problem.detail,
                field: Some(problem.field).filter(|field| !field.is_empty()),
                request_id: problem.request_id,
                retry_after: problem.retry_after.into_option().and_then(|after| after.try_into().ok()),
                code: problem.code,
            };
        }
        if is_dial_error(&error) {
            return Self::Unreachable { target, source: Box::new(error) };
        }
        match error.code {
            ErrorCode::DeadlineExceeded | ErrorCode::Canceled | ErrorCode::Aborted => {
                Self::Broken { target, source: Box::new(error) }
            }
            ErrorCode::Unavailable | ErrorCode::Unknown if error.source_arc().is_some() => {
                Self::Broken { target, source: Box::new(error) }
            }
            code => Self::Protocol {
                target,
                what: match error.message {
                    Some(message) => format!("{}: {message}", code.as_str()),
                    None => code.as_str().to_owned(),
                },
            },
        }
    }
}

fn is_dial_error(error: &ConnectError) -> bool {
    let source = error.source_arc();
    let mut cause: Option<&(dyn Error + 'static)> =
        source.as_ref().map(|source| &**source as &(dyn Error + 'static));
    while let Some(error) = cause {
        if error.is::<DialError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
