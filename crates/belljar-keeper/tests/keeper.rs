//! Tests of the keeper with real sandboxes of the local engine, without a network API.

#![expect(clippy::unwrap_used, reason = "a case that fails says so")]

#[path = "keeper/approvals.rs"]
mod approvals;
#[path = "keeper/budgets.rs"]
mod budgets;
#[path = "keeper/built.rs"]
mod built;
#[path = "keeper/calling_code.rs"]
mod calling_code;
#[path = "keeper/cases.rs"]
mod cases;
#[path = "keeper/code_tools.rs"]
mod code_tools;
#[path = "keeper/contexts.rs"]
mod contexts;
#[path = "keeper/copies.rs"]
mod copies;
#[path = "keeper/ends.rs"]
mod ends;
#[path = "keeper/engines.rs"]
mod engines;
#[path = "keeper/faults.rs"]
mod faults;
#[path = "keeper/fixture.rs"]
mod fixture;
#[path = "keeper/holds.rs"]
mod holds;
#[path = "keeper/idempotency.rs"]
mod idempotency;
#[path = "keeper/lifecycle.rs"]
mod lifecycle;
#[path = "keeper/memory.rs"]
mod memory;
#[path = "keeper/policy.rs"]
mod policy;
#[path = "keeper/risk.rs"]
mod risk;
#[path = "keeper/starts.rs"]
mod starts;
#[path = "keeper/steps.rs"]
mod steps;
#[path = "keeper/waits.rs"]
mod waits;
#[path = "keeper/ways_around.rs"]
mod ways_around;
#[path = "keeper/webhooks.rs"]
mod webhooks;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    // This program is also the sandboxes' guest.
    belljar_guest::enter();
    belljar_screen::enter_screener();
    let arguments = Arguments::from_args();
    // Pausing and live limits need control groups, which an unprivileged user may not have.
    let ignored = !rustix::process::geteuid().is_root();
    let trials = cases::all().into_iter().map(|(name, case)| {
        Trial::test(name, move || {
            fixture::run(case);
            Ok(())
        })
        .with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
