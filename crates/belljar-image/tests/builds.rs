//! Builds with real sandboxes of the local engine. As root only: layers are mounted through loop devices.

#![expect(clippy::print_stderr, reason = "a case that is skipped says so")]
#![expect(clippy::unwrap_used, reason = "a case that fails says so")]

#[path = "builds/hostile.rs"]
mod hostile;
#[path = "builds/images.rs"]
mod images;
#[path = "builds/steps.rs"]
mod steps;
#[path = "builds/world.rs"]
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    // The sandboxes' guest is this very program, and so are their gateways.
    belljar_guest::enter();
    belljar_local::enter_gateway();
    let arguments = Arguments::from_args();
    let ignored = !rustix::process::geteuid().is_root();
    let cases = steps::cases().into_iter().chain(images::cases()).chain(hostile::cases());
    let trials = cases.map(|(name, case)| {
        Trial::test(name, move || {
            world::run(case);
            Ok(())
        })
        .with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
