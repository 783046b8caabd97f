//! Waits for something to become true.

use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it does not happen that {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
