//! Time limits that do not run on while the sandbox is frozen.
//!
//! A frozen guest cannot be told, and no clock of the kernel stops with it. So it never sleeps for longer than a slice before a deadline: a
//! slice that took much longer was spent frozen, and moves the deadline.

use std::time::Duration;

use tokio::time::Instant;

/// Longest sleep at once, while there is a deadline.
pub(crate) const SLICE: Duration = Duration::from_millis(250);

/// Time by which a slice may be late on a busy machine. The host has a limit of its own for code that makes the guest late.
const MAX_LATE: Duration = Duration::from_millis(750);

/// Sleeps until a deadline, or for a slice.
pub(crate) async fn sleep_until(deadline: Instant) {
    tokio::time::sleep_until(deadline.min(Instant::now() + SLICE)).await;
}

/// Returns the time since `began` in which the sandbox was frozen, after a wait of at most one [`sleep_until`].
pub(crate) fn frozen_since(began: Instant) -> Duration {
    let gap = began.elapsed();
    if gap > SLICE + MAX_LATE { gap - SLICE } else { Duration::ZERO }
}

/// Sleeps for this time, in which the sandbox is not frozen.
pub(crate) async fn sleep(time: Duration) {
    let mut deadline = Instant::now() + time;
    while Instant::now() < deadline {
        let began = Instant::now();
        sleep_until(deadline).await;
        deadline += frozen_since(began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sleep_takes_its_time() {
        let began = Instant::now();
        sleep(Duration::from_secs(3)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }

    #[test]
    fn late_slices_were_frozen() {
        let ago = |millis| Instant::now().checked_sub(Duration::from_millis(millis)).unwrap();
        assert_eq!(frozen_since(ago(900)), Duration::ZERO);
        let frozen = frozen_since(ago(5250));
        assert!((5000..6000).contains(&frozen.as_millis()), "{frozen:?}");
    }
}
