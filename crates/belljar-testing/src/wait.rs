//! Waiting for conditions. A deadline is a net, ten times what is needed or more.

use std::time::{Duration, Instant};

/// How long anything may take that a test waits for.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How long between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `is_so` returns true.
///
/// # Panics
/// When it does not within [`DEADLINE`].
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < DEADLINE, "{what} did not come true within {DEADLINE:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until `look` finds something, and returns that.
///
/// # Panics
/// With what `look` said last, when it does not within [`DEADLINE`].
#[track_caller]
pub fn eventually<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(why) => assert!(begin.elapsed() < DEADLINE, "{why}"),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
