//! Limits on the gateway's use by one sandbox.

use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota};

/// Maximum number of concurrent connections, including those still being established.
pub(crate) const MAX_FLOWS: usize = 256;

/// Maximum number of names with an address at a time.
pub(crate) const MAX_NAMES: usize = 512;

/// Maximum number of concurrent TCP connections to the resolver.
pub(crate) const MAX_STREAMS: usize = 16;

/// Size of a socket's receive buffer and send buffer towards a host, in bytes as setsockopt(2) takes it: the kernel doubles it for
/// its own overhead, and fills at most that. Without it, both grow to megabytes where nobody reads, which is what makes distant hosts
/// fast; so it applies only where no control group limits these buffers. Source: docs/spec.md.
pub(crate) const FAR_BUFFER: u32 = 256 << 10;

/// As [`FAR_BUFFER`], towards the sandbox. That connection is within the machine, so a larger one would not make it faster.
pub(crate) const NEAR_BUFFER: u32 = 64 << 10;

/// Maximum number of connections on which TLS is terminated at a time, and of those with HTTP/2.
///
/// In the worst case, in which nobody reads in either direction, all 256 connections fit into the 128 MiB of memory that the jail
/// leaves a gateway (`belljar_linux::enter_jail`):
///
/// ```text
///  192 × 256 KiB    HTTP/1 in the clear: two buffers of 64 KiB a side                                            48 MiB
///   56 × 512 KiB    HTTP/1 in terminated TLS: that, and two buffers of 64 KiB a side in TLS                       28 MiB
///    8 × 4.5 MiB    HTTP/2: windows of 1 MiB and 256 KiB, 32 requests with 32 KiB in each direction and with one
///                   head of 32 KiB, TLS as above                                                                 36 MiB
///                   the gateway itself                                                                            8 MiB
///                                                                                                               120 MiB
/// ```
///
/// Source: docs/spec.md; held by `n32_unread_downloads_over_http2_do_not_end_the_gateway` in `crates/belljar/tests/network`.
pub(crate) const MAX_TERMINATED: usize = 64;
/// See [`MAX_TERMINATED`].
pub(crate) const MAX_HTTP2: usize = 8;

/// New connections per second.
const FLOWS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();

/// New connections accepted in a burst, above the rate.
const FLOW_BURST: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Queries to the resolver per second, and those accepted in a burst, above the rate: programs ask for two types of address before each
/// connection. A program whose query gets no answer waits for seconds before it asks again.
const QUERIES_PER_SECOND: NonZeroU32 = NonZeroU32::new(2 * FLOWS_PER_SECOND.get()).unwrap();
/// See [`QUERIES_PER_SECOND`].
const QUERY_BURST: NonZeroU32 = NonZeroU32::new(2 * FLOW_BURST.get()).unwrap();

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

#[cfg(test)]
mod tests {
    use super::{Budget, FLOW_BURST};

    #[test]
    fn each_connection_of_a_burst_has_two_queries() {
        let budget = Budget::new();
        for _ in 0..FLOW_BURST.get() {
            assert!(budget.queries.check().is_ok() && budget.queries.check().is_ok());
            assert!(budget.flows.check().is_ok());
        }
        assert!(budget.flows.check().is_err());
    }
}
