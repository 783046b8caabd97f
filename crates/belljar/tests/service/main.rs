//! The service as a whole: real server processes, real sandboxes, clients that use it, and clients and sandboxes that attack it.
//! What each case covers is in `docs/hostile-c.md` and
//! `docs/hostile-x.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a case that fails says so")]

mod bodies;
mod check;
mod contexts;
mod contexts_apart;
mod contexts_lost;
mod crash;
mod doors;
mod engines;
mod files;
mod greed;
mod load;
mod mutations;
mod pages;
mod policy;
mod programs;
mod races;
mod raw;
mod secrets;
mod server;
mod soak;
mod timing;
mod volumes;

use std::io::Write as _;

use belljar_testing::http as client;
pub(crate) use belljar_testing::wait::until;

/// Runs a case.
pub(crate) fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be made").block_on(case);
}

/// Says something besides the outcome.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Whether the machine lacks what all cases need; then it is said.
pub(crate) fn skipped(case: &str) -> bool {
    let lacks = !rustix::process::geteuid().is_root();
    if lacks {
        say(&format!("SKIPPED {case}: needs root, for control groups and user ids of their own"));
    }
    lacks
}
