//! Calls that are made again. Only those that do no harm twice, and those that were not begun.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use belljar_proto::ErrorCode;

use crate::error::ClientError;

/// How often a call is made at most.
pub(crate) const ATTEMPTS: u32 = 4;

/// The pause after the first attempt. Each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause that a server may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// When a call may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Safe {
    /// Always: to do it twice is to do it once.
    Always,
    /// Only when nothing of it was done.
    NotBegun,
}

/// Makes a call, and makes it again as long as that is safe and worth it.
pub(crate) async fn retried<T, F>(
    attempts: u32,
    safe: Safe,
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
        match pause(&error, safe, attempt) {
            Some(pause) if attempt < attempts => tokio::time::sleep(pause).await,
            _ => return Err(error),
        }
        attempt += 1;
    }
}

/// How long to wait before the next attempt, if there should be one.
fn pause(error: &ClientError, safe: Safe, attempt: u32) -> Option<Duration> {
    let own = FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(8));
    match error {
        // The server has not begun, and knows when it may.
        ClientError::Refused { retry_after: Some(after), rpc, .. } => {
            let worth_it =
                matches!(rpc, ErrorCode::Unavailable | ErrorCode::ResourceExhausted | ErrorCode::Aborted);
            (worth_it && *after <= MAX_PAUSE).then(|| (*after).max(jittered(own)))
        }
        ClientError::Unreachable { .. } => Some(jittered(own)),
        // A time that the caller has set is over.
        ClientError::Broken { source, .. } if source.code == ErrorCode::DeadlineExceeded => None,
        ClientError::Broken { .. } if safe == Safe::Always => Some(jittered(own)),
        _ => None,
    }
}

/// Between half of it and all of it, so that those who failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default();
    pause / 2 + pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// A key that no other request has.
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
    fn only_what_is_safe_is_tried_again() {
        let second = Some(Duration::from_secs(1));
        let cases = [
            (refused(ErrorCode::Unavailable, second), Safe::NotBegun, true),
            (refused(ErrorCode::ResourceExhausted, second), Safe::NotBegun, true),
            (refused(ErrorCode::Unavailable, Some(Duration::from_secs(60))), Safe::Always, false),
            (refused(ErrorCode::Unavailable, None), Safe::Always, false),
            (refused(ErrorCode::NotFound, None), Safe::Always, false),
            (broken(ErrorCode::Unavailable), Safe::Always, true),
            (broken(ErrorCode::Unavailable), Safe::NotBegun, false),
            (broken(ErrorCode::DeadlineExceeded), Safe::Always, false),
            (ClientError::Unsendable { field: "f" }, Safe::Always, false),
        ];
        for (error, safe, again) in cases {
            assert_eq!(pause(&error, safe, 1).is_some(), again, "{error:?} {safe:?}");
        }
        assert!(pause(&refused(ErrorCode::Unavailable, second), Safe::NotBegun, 1) >= second);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_bounded() {
        let mut made = 0;
        let result: Result<(), _> = retried(ATTEMPTS, Safe::Always, || {
            made += 1;
            std::future::ready(Err(broken(ErrorCode::Unavailable)))
        })
        .await;
        assert!(matches!(result, Err(ClientError::Broken { .. })), "{result:?}");
        assert_eq!(made, ATTEMPTS);
    }

    #[test]
    fn keys_differ() {
        assert_ne!(idempotency_key(), idempotency_key());
    }
}
