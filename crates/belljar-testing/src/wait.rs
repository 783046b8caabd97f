//! Waiting for conditions. Deadlines are at least ten times what is needed.

use std::time::{Duration, Instant};

/// Timeout of everything that a test waits for.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `is_so` returns true. `what` names the condition.
///
/// # Panics
/// Panics if it does not within [`DEADLINE`].
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < DEADLINE, "{what} did not come true within {DEADLINE:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until `check` succeeds, and returns its value.
///
/// # Panics
/// Panics with the last error of `check`, if it does not succeed within [`DEADLINE`].
#[track_caller]
pub fn eventually<T>(mut check: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match check() {
            Ok(found) => return found,
            Err(why) => assert!(begin.elapsed() < DEADLINE, "{why}"),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
