//! How much one sandbox may ask of its gateway.

use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota};

/// The most connections at once, those that are still being made included.
pub(crate) const MAX_FLOWS: usize = 256;

/// The most names that have an address at once.
pub(crate) const MAX_NAMES: usize = 512;

/// The most streams to the resolver at once.
pub(crate) const MAX_STREAMS: usize = 16;

/// New connections a second.
const FLOWS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();

/// New connections that may come at once, before the rate counts.
const FLOWS_AT_ONCE: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Queries to the resolver a second.
const QUERIES_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();

/// Queries that may come at once.
const QUERIES_AT_ONCE: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Rates of what comes from the sandbox.
pub(crate) struct Budget {
    pub(crate) flows: DefaultDirectRateLimiter,
    pub(crate) queries: DefaultDirectRateLimiter,
}

impl Budget {
    pub(crate) fn new() -> Self {
        let quota =
            |rate, burst| DefaultDirectRateLimiter::direct(Quota::per_second(rate).allow_burst(burst));
        Self {
            flows: quota(FLOWS_PER_SECOND, FLOWS_AT_ONCE),
            queries: quota(QUERIES_PER_SECOND, QUERIES_AT_ONCE),
        }
    }
}
