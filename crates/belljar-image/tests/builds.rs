//! Builds with real sandboxes of the local engine. They need root: layers are mounted through loop devices.

#![expect(clippy::print_stderr, reason = "skipped cases print a line")]
#![expect(clippy::unwrap_used, reason = "failing cases panic")]

#[path = "builds/deltas.rs"]
mod deltas;
#[path = "builds/fixture.rs"]
mod fixture;
#[path = "builds/hostile.rs"]
mod hostile;
#[path = "builds/images.rs"]
mod images;
#[path = "builds/steps.rs"]
mod steps;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    // This program is also the guest and the gateway of the sandboxes.
    belljar_guest::enter();
    belljar_local::enter_gateway();
    let arguments = Arguments::from_args();
    let ignored = !rustix::process::geteuid().is_root();
    let cases =
        steps::cases().into_iter().chain(images::cases()).chain(hostile::cases()).chain(deltas::cases());
    let trials = cases.map(|(name, case)| {
        Trial::test(name, move || {
            fixture::run(case);
            Ok(())
        })
        .with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
