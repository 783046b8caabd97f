//! Rate limit on wrong credentials from one address. It delays failures only: a credential is verified first, and a valid one is served
//! whatever else its address has sent.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Window in which attempts are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of remembered addresses. Beyond that the oldest windows are evicted first: a flood of addresses
/// cannot exhaust the memory, and has to come from that many places.
const MAX_ADDRESSES: usize = 16 * 1024;

/// Counter of failed attempts by address.
pub(crate) struct Attempts {
    max: u32,
    windows: Mutex<HashMap<IpAddr, Window>>,
}

struct Window {
    began: Instant,
    failed: u32,
}

impl Attempts {
    /// Allows at most `max` failures in a minute.
    pub(crate) fn new(max: u32) -> Self {
        Self { max, windows: Mutex::new(HashMap::new()) }
    }

    /// Counts a failure. Returns how long this address has to wait, if it has failed too often.
    pub(crate) fn record_failure(&self, address: IpAddr) -> Option<Duration> {
        let now = Instant::now();
        let mut windows = self.lock();
        if windows.len() >= MAX_ADDRESSES && !windows.contains_key(&address) {
            windows.retain(|_, window| window.began.elapsed() < WINDOW);
            if windows.len() >= MAX_ADDRESSES {
                let oldest =
                    windows.iter().min_by_key(|(_, window)| window.began).map(|(address, _)| *address);
                oldest.map(|oldest| windows.remove(&oldest));
            }
        }
        let window = windows.entry(address).or_insert(Window { began: now, failed: 0 });
        if window.began.elapsed() >= WINDOW {
            *window = Window { began: now, failed: 0 };
        }
        window.failed = window.failed.saturating_add(1);
        if window.failed <= self.max {
            return None;
        }
        Some(WINDOW.saturating_sub(window.began.elapsed()).max(Duration::from_secs(1)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Window>> {
        self.windows.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_address() {
        let attempts = Attempts::new(3);
        let (bad, good): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        for _ in 0..3 {
            assert_eq!(attempts.record_failure(bad), None);
        }
        assert!(attempts.record_failure(bad).is_some_and(|wait| wait <= WINDOW));
        assert_eq!(attempts.record_failure(good), None);
    }

    #[test]
    fn memory_is_bounded() {
        let attempts = Attempts::new(1);
        for number in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 100 {
            attempts.record_failure(std::net::Ipv4Addr::from(number).into());
        }
        assert_eq!(attempts.lock().len(), MAX_ADDRESSES);
    }
}
