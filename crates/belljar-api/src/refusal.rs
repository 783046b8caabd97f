//! Conversion of errors of the keeper and the guest to problems.

use std::time::Duration;

use belljar_keeper::{BuildError, KeeperError};
use belljar_model::{LimitsFile, ModelError};
use http::StatusCode;

use crate::extract::{BodyFailure, failure_of};
use crate::problem::{Code, Problem};

impl From<belljar_model::ModelError> for Problem {
    fn from(error: belljar_model::ModelError) -> Self {
        KeeperError::from(error).into()
    }
}

impl From<KeeperError> for Problem {
    fn from(error: KeeperError) -> Self {
        Self::from(&error)
    }
}

impl From<&KeeperError> for Problem {
    fn from(error: &KeeperError) -> Self {
        let code = Code::from_name(error.code()).unwrap_or(Code::Internal);
        match error {
            KeeperError::Invalid(model) => from_model(model, error.to_string()),
            KeeperError::Field { field, .. } => Self::new(code, error.to_string()).with_field(*field),
            KeeperError::Policy { field, .. } => Self::new(code, error.to_string()).with_field(*field),
            KeeperError::Build(BuildError::Definition(wrong)) => {
                Self::new(code, error.to_string()).with_field(wrong.field.clone())
            }
            KeeperError::Build(BuildError::Input { field, .. }) => {
                Self::new(code, error.to_string()).with_field(field.clone())
            }
            KeeperError::Build(BuildError::Bundle { .. }) => {
                Self::new(code, error.to_string()).with_field("bundle")
            }
            KeeperError::Guest { .. }
                if code == Code::UploadFailed && failure_of(error) == BodyFailure::Ended =>
            {
                BodyFailure::Ended.problem()
            }
            KeeperError::Guest { .. } if code == Code::NotRegular => {
                Self::new(code, error.to_string()).with_field("path")
            }
            KeeperError::NameTaken { .. } => Self::new(code, error.to_string()).with_field("name"),
            KeeperError::Quota { retry_after, .. } => {
                Self::new(code, error.to_string()).with_retry_after(*retry_after)
            }
            KeeperError::Full { retry_after, .. } | KeeperError::RateLimited { retry_after, .. } => {
                Self::new(code, error.to_string()).with_retry_after(Some(*retry_after))
            }
            KeeperError::ShuttingDown | KeeperError::IdempotencyRunning { .. } => {
                Self::new(code, error.to_string()).with_retry_after(Some(Duration::from_secs(1)))
            }
            // The capabilities of an engine are no secret.
            KeeperError::Engine(_) if code == Code::NotOffered => Self::new(code, error.to_string()),
            // The cause is only in the log, under the request's id.
            KeeperError::Audit(audit) if audit.is_full() => {
                tracing::error!(error = belljar_keeper::chain(error), "a request is not in the audit trail");
                let detail = format!("{}; no space left for a record of it", code.title());
                Self::new(code, detail).with_status(StatusCode::INSUFFICIENT_STORAGE)
            }
            KeeperError::Engine(_)
            | KeeperError::Build(
                BuildError::Engine(_) | BuildError::Guest { .. } | BuildError::File { .. },
            )
            | KeeperError::Store(_)
            | KeeperError::File { .. }
                if code.status().is_server_error() =>
            {
                tracing::error!(
                    code = code.as_str(),
                    error = belljar_keeper::chain(error),
                    "a request failed"
                );
                let what = match error {
                    // Such as the step during which it failed.
                    KeeperError::Build(error) => error.to_string(),
                    _ => code.title().to_owned(),
                };
                let detail = format!("{what}; the server's log has the reason under this request_id");
                let problem = Self::new(code, detail);
                match error {
                    KeeperError::Store(store) if store.is_full() => {
                        problem.with_status(StatusCode::INSUFFICIENT_STORAGE)
                    }
                    KeeperError::Store(store) if store.is_busy() => problem
                        .with_status(StatusCode::SERVICE_UNAVAILABLE)
                        .with_retry_after(Some(Duration::from_secs(1))),
                    _ => problem,
                }
            }
            _ => Self::new(code, error.to_string()),
        }
    }
}

fn from_model(error: &ModelError, detail: String) -> Problem {
    let field = match error {
        ModelError::NotAllowed { field, .. } | ModelError::NotInThisVersion { field, .. } => Some(*field),
        ModelError::EnvValue { .. } => Some("env"),
        ModelError::SameTarget { .. } | ModelError::HiddenTarget { .. } => Some("mounts"),
        _ => None,
    };
    match field {
        // The model's names of limits lack the prefix that they have in a request.
        Some(limit) if LimitsFile::TABLE.iter().any(|info| info.name == limit) => {
            Problem::new(Code::InvalidField, format!("limits.{detail}")).with_field(format!("limits.{limit}"))
        }
        Some(field) if field.starts_with("volume ") => {
            // In a request for a sandbox, volumes are in the field `volumes`.
            Problem::new(Code::InvalidField, format!("volumes: {detail}")).with_field("volumes")
        }
        // The error is about one mount; the field contains all.
        Some("mount") => {
            Problem::new(Code::InvalidField, detail.replacen("mount:", "mounts:", 1)).with_field("mounts")
        }
        Some(field) => Problem::new(Code::InvalidField, detail).with_field(field),
        None => Problem::new(Code::InvalidField, detail),
    }
}
