//! The RPC interface with a real keeper and real sandboxes of the local engine, over loopback: with this project's own
//! client, with other protocols, and with hand-written requests.

#![expect(clippy::unwrap_used, reason = "a case that fails says so")]

#[path = "rpc/access.rs"]
mod access;
#[path = "rpc/approvals.rs"]
mod approvals;
#[path = "rpc/code.rs"]
mod code;
#[path = "rpc/commands.rs"]
mod commands;
#[path = "common/fixture.rs"]
mod common;
#[path = "rpc/conformance.rs"]
mod conformance;
#[path = "rpc/credentials.rs"]
mod credentials;
#[path = "rpc/fixture.rs"]
mod fixture;
#[path = "rpc/foreign.rs"]
mod foreign;
#[path = "rpc/guest.rs"]
mod guest;
#[path = "rpc/hostile.rs"]
mod hostile;
#[path = "../../belljar-local/tests/conformance/leftovers.rs"]
#[expect(dead_code, reason = "what it knows of child processes is for the engine's own tests")]
mod leftovers;
#[path = "rpc/reflection.rs"]
mod reflection;
#[path = "rpc/remote.rs"]
mod remote;
#[path = "rpc/sandboxes.rs"]
mod sandboxes;
#[path = "rpc/templates.rs"]
mod templates;
#[path = "rpc/wire.rs"]
mod wire;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    // This program is also the sandboxes' guest.
    belljar_guest::enter();
    let arguments = Arguments::from_args();
    // Pausing and live limits need control groups, which an ordinary user may not have.
    let ignored = !rustix::process::geteuid().is_root();
    let lists = [
        access::all(),
        approvals::all(),
        code::all(),
        commands::all(),
        credentials::all(),
        guest::all(),
        hostile::all(),
        reflection::all(),
        sandboxes::all(),
        templates::all(),
        wire::all(),
    ];
    let trials = lists.into_iter().flatten().map(|(name, case)| {
        Trial::test(name, move || {
            fixture::run(case);
            Ok(())
        })
        .with_ignored_flag(ignored)
    });
    let trials = trials.chain(conformance::trials(ignored)).chain(foreign::trials(ignored));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
