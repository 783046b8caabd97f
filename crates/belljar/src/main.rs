//! `belljar`: runs untrusted code in a sandbox.

mod advice;
mod bring_out;
mod cert;
mod cli;
mod code;
mod colour;
mod config;
mod copy_out;
mod descriptor;
mod doctor;
mod engine;
mod engines;
mod files;
mod input;
mod languages;
mod limits;
mod message;
mod net;
mod output;
mod packages;
mod policy;
mod progress;
mod remote;
mod run;
mod screen;
mod self_test;
mod serve;
mod service;
mod shell;
mod signals;
mod spec;
mod stdin;
mod timings;
mod units;

/// Lets tests check that nothing is allocated between a clone and an exec (docs/fork-safety.md).
#[cfg(feature = "mutation")]
#[global_allocator]
static ALLOCATOR: belljar_local::ForkGuard = belljar_local::ForkGuard;

fn main() {
    // Without a separate guest binary, a sandbox's first process is this executable: that has to be handled before anything else.
    belljar_guest::enter();
    belljar_local::enter_gateway();
    belljar_local::enter_launcher();
    belljar_screen::enter_screener();
    let begin = std::time::Instant::now();
    let status = cli::main(begin);
    // Nothing is left to be dropped, and nothing may keep the process alive.
    std::process::exit(status.into());
}
