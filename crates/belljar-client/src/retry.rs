//! Retries of calls: only of those that are idempotent, and of those that the server did not start.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use belljar_proto::ErrorCode;

use crate::error::ClientError;

/// Maximum number of attempts of a call.
pub(crate) const MAX_ATTEMPTS: u32 = 4;

/// Backoff after the first attempt. It doubles with each further one.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);

/// Longest delay that a server may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Condition for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryWhen {
    /// Always: the call is idempotent.
    Always,
    /// Only if the server did not start the call.
    NotStarted,
}

/// Makes a call, and retries it as long as that is safe and may succeed.
pub(crate) async fn retry<T, F>(
    attempts: u32,
    when: RetryWhen,
    mut call: impl FnMut() -> F,
) -> Result<T, ClientError>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut attempt = 1;
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match delay(&error, when, attempt) {
            Some(delay) if attempt < attempts => tokio::time::sleep(delay).await,
            _ => return Err(error),
        }
        attempt += 1;
    }
}

/// Returns the delay before the next attempt, or `None` if the call may not be retried.
fn delay(error: &ClientError, when: RetryWhen, attempt: u32) -> Option<Duration> {
    let backoff = INITIAL_BACKOFF.saturating_mul(1 << (attempt - 1).min(8));
    match error {
        // The server did not start the call, and sent a time to retry.
        ClientError::Refused { retry_after: Some(after), rpc, .. } => {
            let is_retryable =
                matches!(rpc, ErrorCode::Unavailable | ErrorCode::ResourceExhausted | ErrorCode::Aborted);
            (is_retryable && *after <= MAX_RETRY_AFTER).then(|| (*after).max(jitter(backoff)))
        }
        ClientError::Unreachable { .. } => Some(jitter(backoff)),
        // The caller's timeout has expired.
        ClientError::Broken { source, .. } if source.code == ErrorCode::DeadlineExceeded => None,
        ClientError::Broken { .. } if when == RetryWhen::Always => Some(jitter(backoff)),
        _ => None,
    }
}

/// Returns a random delay between half of it and all of it, so that clients that failed together do not retry together.
fn jitter(delay: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default();
    delay / 2 + delay.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// Returns a random key for one request.
pub(crate) fn idempotency_key() -> String {
    let (high, low) = (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
    format!("{high:016x}{low:016x}")
}

#[cfg(test)]
mod tests {
    use belljar_proto::ConnectError;

    use super::*;

    fn refused(rpc: ErrorCode, retry_after: Option<Duration>) -> ClientError {
        let (code, message) = ("x".to_owned(), "y".to_owned());
        ClientError::Refused { code, rpc, message, field: None, request_id: String::new(), retry_after }
    }

    fn broken(code: ErrorCode) -> ClientError {
        ClientError::Broken { target: "t".to_owned(), source: Box::new(ConnectError::new(code, "z")) }
    }

    #[test]
    fn only_safe_calls_are_retried() {
        let second = Some(Duration::from_secs(1));
        let cases = [
            (refused(ErrorCode::Unavailable, second), RetryWhen::NotStarted, true),
            (refused(ErrorCode::ResourceExhausted, second), RetryWhen::NotStarted, true),
            (refused(ErrorCode::Unavailable, Some(Duration::from_secs(60))), RetryWhen::Always, false),
            (refused(ErrorCode::Unavailable, None), RetryWhen::Always, false),
            (refused(ErrorCode::NotFound, None), RetryWhen::Always, false),
            (broken(ErrorCode::Unavailable), RetryWhen::Always, true),
            (broken(ErrorCode::Unavailable), RetryWhen::NotStarted, false),
            (broken(ErrorCode::DeadlineExceeded), RetryWhen::Always, false),
            (ClientError::Unsendable { field: "f" }, RetryWhen::Always, false),
        ];
        for (error, when, again) in cases {
            assert_eq!(delay(&error, when, 1).is_some(), again, "{error:?} {when:?}");
        }
        assert!(delay(&refused(ErrorCode::Unavailable, second), RetryWhen::NotStarted, 1) >= second);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_bounded() {
        let mut made = 0;
        let result: Result<(), _> = retry(MAX_ATTEMPTS, RetryWhen::Always, || {
            made += 1;
            std::future::ready(Err(broken(ErrorCode::Unavailable)))
        })
        .await;
        assert!(matches!(result, Err(ClientError::Broken { .. })), "{result:?}");
        assert_eq!(made, MAX_ATTEMPTS);
    }

    #[test]
    fn keys_differ() {
        assert_ne!(idempotency_key(), idempotency_key());
    }
}
