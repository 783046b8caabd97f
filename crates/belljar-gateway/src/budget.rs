//! Limits on the gateway's use by one sandbox.

use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota};

/// Maximum number of concurrent connections, including those still being established.
pub(crate) const MAX_FLOWS: usize = 256;

/// Maximum number of names with an address at a time.
pub(crate) const MAX_NAMES: usize = 512;

/// Maximum number of concurrent TCP connections to the resolver.
pub(crate) const MAX_STREAMS: usize = 16;

/// New connections per second.
const FLOWS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();

/// New connections accepted in a burst, above the rate.
const FLOW_BURST: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Queries to the resolver per second.
const QUERIES_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();

/// Queries accepted in a burst, above the rate.
const QUERY_BURST: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Rate limiters for requests from the sandbox.
pub(crate) struct Budget {
    pub(crate) flows: DefaultDirectRateLimiter,
    pub(crate) queries: DefaultDirectRateLimiter,
}

impl Budget {
    pub(crate) fn new() -> Self {
        let quota =
            |rate, burst| DefaultDirectRateLimiter::direct(Quota::per_second(rate).allow_burst(burst));
        Self { flows: quota(FLOWS_PER_SECOND, FLOW_BURST), queries: quota(QUERIES_PER_SECOND, QUERY_BURST) }
    }
}
