//! Tests of the launcher: what outlives a server, what ends with the launcher, and who may connect to it.
//!
//! This program is the guest, the launcher, the server that gets killed, and the test.

#[path = "conformance/account.rs"]
mod account;
#[path = "launcher/crash.rs"]
mod crash;
#[path = "launcher/fixture.rs"]
mod fixture;
#[path = "conformance/leftovers.rs"]
#[expect(dead_code, reason = "the conformance suite uses all of it")]
mod leftovers;
#[path = "launcher/life.rs"]
mod life;
#[path = "launcher/peers.rs"]
mod peers;
#[path = "launcher/v1.rs"]
mod v1;
#[path = "launcher/warm.rs"]
mod warm;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use fixture::{Fixture, Test};

/// Nothing may be allocated between a clone and an exec (docs/fork-safety.md).
#[cfg(feature = "mutation")]
#[global_allocator]
static ALLOCATOR: belljar_local::ForkGuard = belljar_local::ForkGuard;

fn main() -> ExitCode {
    belljar_guest::enter();
    belljar_local::enter_launcher();
    if let Some(status) = fixture::run_other_role() {
        return status;
    }
    let mut trials = Vec::new();
    for test in fixture::tests() {
        trials.push(Trial::ignorable_test(test.name, move || run_here(test)));
        if test.also_as_user {
            let name = format!("user::{}", test.name);
            trials.push(Trial::ignorable_test(name, move || fixture::run_as_user(test)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run_here(test: Test) -> Result<Completion, Failed> {
    if !test.also_as_user && !rustix::process::geteuid().is_root() {
        return Ok(Completion::ignored_with("it needs root"));
    }
    let dir = tempfile::tempdir()?;
    Fixture::new(dir.path())?.run(test)
}
