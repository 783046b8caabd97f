//! Waits for a condition.

use std::time::{Duration, Instant};

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
