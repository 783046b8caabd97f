//! The service as a whole: real server processes, real sandboxes, clients that use it, and clients and sandboxes that attack it.
//! `docs/hostile-c.md` and `docs/hostile-x.md` describe the cases.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a case that fails says so")]

mod archives;
mod bodies;
mod check;
mod code_calls;
mod contexts;
mod contexts_apart;
mod contexts_lost;
mod crash;
mod engines;
mod exhaustion;
mod files;
mod hints;
mod load;
mod memory;
mod mutations;
mod odd_files;
mod pages;
mod policy;
mod programs;
mod races;
mod raw;
mod repeated;
mod routes;
mod secrets;
mod server;
mod shares;
mod soak;
mod timing;
mod transfers;
mod volumes;

use std::io::Write as _;

use belljar_testing::http as client;
pub(crate) use belljar_testing::wait::until;

/// Runs a case.
pub(crate) fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be made").block_on(case);
}

/// Prints a message to standard error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Reports whether the machine lacks a requirement of all cases, and prints that the case is skipped.
pub(crate) fn skipped(case: &str) -> bool {
    let lacks = !rustix::process::geteuid().is_root();
    if lacks {
        say(&format!("SKIPPED {case}: needs root, for control groups and user ids of their own"));
    }
    lacks
}
