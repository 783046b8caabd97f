//! Conformance suite on every engine of this crate, as an administrator and as an ordinary user.
//!
//! `BELLJAR_BLESS=1` rewrites the table of which case runs on which engine.

#[path = "conformance/account.rs"]
mod account;
#[path = "conformance/as_user.rs"]
mod as_user;
#[path = "conformance/leftovers.rs"]
mod leftovers;
#[path = "conformance/variants.rs"]
mod variants;

use std::io::Write as _;
use std::process::ExitCode;

use belljar_engine::conformance::{Case, Outcome, cases};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use variants::{VARIANTS, Variant};

/// Nothing may be allocated between a clone and an exec (docs/fork-safety.md).
#[cfg(feature = "mutation")]
#[global_allocator]
static ALLOCATOR: belljar_local::ForkGuard = belljar_local::ForkGuard;

fn main() -> ExitCode {
    // This program is also the sandboxes' guest, and the launcher.
    belljar_guest::enter();
    belljar_local::enter_launcher();
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(as_user::FLAG) {
        return as_user::child(&args.next().unwrap_or_default());
    }
    let arguments = Arguments::from_args();
    let mut trials = vec![Trial::test("table::cases_by_engine", check_table)];
    for variant in VARIANTS {
        for case in cases().into_iter().filter(|case| variant.includes(case)) {
            let name = variant.test_name(&case);
            // Ignored tests are shown as such by name; the table says which capability is lacking.
            let ignored =
                case.missing_capability(&variant.capabilities()).is_some() || variant.skip_reason().is_some();
            let trial = Trial::ignorable_test(name.clone(), move || run(&name, variant, &case));
            trials.push(trial.with_ignored_flag(ignored));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(name: &str, variant: &'static Variant, case: &Case) -> Result<Completion, Failed> {
    let outcome = match variant.skip_reason() {
        Some(reason) => Outcome::Skipped(reason),
        None if variant.is_root == rustix::process::geteuid().is_root() => variants::run(variant, case)?,
        None => as_user::run(name, variant, case)?,
    };
    match outcome {
        Outcome::Passed => Ok(Completion::Completed),
        Outcome::Failed(text) => Err(text.into()),
        Outcome::Skipped(reason) => {
            writeln!(std::io::stdout(), "SKIPPED {name}: {reason}")?;
            Ok(Completion::ignored_with(reason))
        }
    }
}

/// Checks the table of which case runs on which engine, and why not on the others: a lost test shows in review.
fn check_table() -> Result<(), Failed> {
    let mut text = String::new();
    for case in cases() {
        let variants = VARIANTS.iter().filter(|variant| variant.includes(&case));
        let marks = variants.map(|variant| match case.missing_capability(&variant.capabilities()) {
            None => variant.name.to_owned(),
            Some(lacking) => format!("{}: lacks {}", variant.name, lacking.as_str()),
        });
        text.push_str(&format!("{}\n    {}\n", case.name, marks.collect::<Vec<_>>().join("\n    ")));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/conformance.txt");
    if std::env::var_os("BELLJAR_BLESS").is_some() {
        std::fs::write(path, &text)?;
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let differs = |(kept, now): &(&str, &str)| kept != now;
    if kept == text {
        return Ok(());
    }
    let first = kept.lines().zip(text.lines()).find(differs);
    Err(format!("{path} does not match, first at {first:?}; look at it, then set BELLJAR_BLESS=1").into())
}
