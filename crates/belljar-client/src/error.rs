//! Why a call failed.

use std::error::Error;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use belljar_proto::{ConnectError, ErrorCode, Message as _, v1};

use crate::connector::DialFailed;

/// The type of the detail that each of the server's own errors has.
const DETAIL: &str = "belljar.v1.Problem";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server refused, and says why.
    #[error("{message}")]
    Refused {
        /// A stable name of the kind of error, such as `sandbox_not_found`.
        code: String,
        /// The kind of error as the protocol has it.
        rpc: ErrorCode,
        /// What failed, why, and what to do.
        message: String,
        /// The field of the request that is at fault.
        field: Option<String>,
        /// Names the request in the server's log.
        request_id: String,
        /// When it is worth to try again.
        retry_after: Option<Duration>,
    },
    /// The server cannot be reached: nothing of the call got to it.
    #[error("cannot reach the server at {target}")]
    Unreachable {
        /// Where it was looked for.
        target: String,
        /// Why.
        #[source]
        source: Box<ConnectError>,
    },
    /// The connection broke, or the answer came too late. What was asked may have been done.
    #[error("the server at {target} did not answer to the end")]
    Broken {
        /// Which.
        target: String,
        /// How.
        #[source]
        source: Box<ConnectError>,
    },
    /// What answered is no Belljar server, or one that this client does not understand.
    #[error("the server at {target} answered with something else: {what}")]
    Protocol {
        /// Which.
        target: String,
        /// With what.
        what: String,
    },
    /// The name of a sandbox or a header cannot be sent.
    #[error("{field}: it has characters that are not allowed")]
    Unsendable {
        /// What.
        field: &'static str,
    },
}

impl ClientError {
    /// The stable name of the kind of error, if the server gave one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the server refused with this stable name.
    #[must_use]
    pub fn is(&self, wanted: &str) -> bool {
        self.code() == Some(wanted)
    }

    /// When it is worth to try again, if the server says so: it has not begun what was asked.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(crate) fn unreachable(target: &str, error: &ConnectError) -> Option<Self> {
        is_dial(error)
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
        if is_dial(&error) {
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

/// What the server says about the error beyond its code.
fn problem(error: &ConnectError) -> Option<v1::Problem> {
    let detail = error.details.iter().find(|detail| detail.type_url.rsplit('/').next() == Some(DETAIL))?;
    let value = detail.value.as_deref()?.trim_end_matches('=');
    let bytes = STANDARD_NO_PAD.decode(value).ok()?;
    v1::Problem::decode_from_slice(&bytes).ok()
}

fn is_dial(error: &ConnectError) -> bool {
    let source = error.source_arc();
    let mut cause: Option<&(dyn Error + 'static)> =
        source.as_ref().map(|source| &**source as &(dyn Error + 'static));
    while let Some(error) = cause {
        if error.is::<DialFailed>() {
            return true;
        }
        cause = error.source();
    }
    false
}
