//! `belljar`: runs untrusted code in a sandbox.
//!
//! It is two programs: `belljar-service`, which has all of it, and `belljar`, which starts faster and runs the other.

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
mod front;
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

use std::time::Instant;

/// Runs the whole command line, and returns its exit status.
#[must_use]
pub fn service() -> u8 {
    // This executable is also what the service starts itself as: that has to be handled before anything else.
    belljar_guest::enter();
    belljar_local::enter_gateway();
    belljar_local::enter_launcher();
    belljar_screen::enter_screener();
    engines::set(&engines::ALL);
    cli::main(Instant::now())
}

/// Runs the command line if it is a run that needs nothing of the service, and the program that has all of it otherwise. Returns the exit
/// status.
#[must_use]
pub fn front() -> u8 {
    engines::set(&engines::OWN);
    front::main(Instant::now())
}
