//! Time of a screening.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A time of the processor that this thread may use: other programs on the machine do not shorten it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    end: Duration,
}

impl Budget {
    pub(crate) fn new(time: Duration) -> Self {
        Self { end: used() + time }
    }

    /// Returns for how long it is over.
    #[cfg(test)]
    pub(crate) fn over(self) -> Duration {
        used().saturating_sub(self.end)
    }

    pub(crate) fn is_over(self) -> bool {
        used() > self.end
    }
}

fn used() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}
