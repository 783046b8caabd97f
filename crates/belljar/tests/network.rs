//! Networks: programs in sandboxes against a simulated internet, which each test runs in a network namespace of its own.

#![cfg_attr(
    feature = "mutation",
    expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue has failed")
)]

#[cfg(feature = "mutation")]
#[path = "network/fixture.rs"]
mod fixture;
#[cfg(feature = "mutation")]
#[expect(dead_code, reason = "the commands of a service have more uses for it")]
#[path = "service_cli/fixture.rs"]
mod home;

#[cfg(feature = "mutation")]
#[path = "network/attacks.rs"]
mod attacks;
#[cfg(feature = "mutation")]
#[path = "network/builds.rs"]
mod builds;
#[cfg(feature = "mutation")]
#[path = "network/clients.rs"]
mod clients;
#[cfg(feature = "mutation")]
#[path = "network/headers.rs"]
mod headers;
#[cfg(feature = "mutation")]
#[path = "network/hop.rs"]
mod hop;
#[cfg(feature = "mutation")]
#[path = "network/images.rs"]
mod images;
#[cfg(feature = "mutation")]
#[path = "network/memory.rs"]
mod memory;
#[cfg(feature = "mutation")]
#[path = "network/names.rs"]
mod names;
#[cfg(feature = "mutation")]
#[path = "network/packages.rs"]
mod packages;
#[cfg(feature = "mutation")]
#[path = "network/programs.rs"]
mod programs;
#[cfg(feature = "mutation")]
#[path = "network/secrets.rs"]
mod secrets;
#[cfg(feature = "mutation")]
#[path = "network/service.rs"]
mod service;

/// A test by its name.
#[cfg(feature = "mutation")]
type Case = (&'static str, fn(&fixture::Fixture));

#[cfg(feature = "mutation")]
fn main() -> std::process::ExitCode {
    let arguments = libtest_mimic::Arguments::from_args();
    let cases = [
        clients::CASES,
        programs::CASES,
        attacks::CASES,
        service::CASES,
        builds::CASES,
        secrets::CASES,
        headers::CASES,
        hop::CASES,
        images::CASES,
        memory::CASES,
        names::CASES,
        packages::CASES,
    ]
    .concat();
    // Before there is a second thread; each test has a process of its own.
    let lack = if arguments.list { None } else { fixture::enter().err() };
    let trial = |(name, case): Case| {
        let lack = lack.clone();
        libtest_mimic::Trial::test(name, move || match lack {
            Some(lack) => Err(lack.into()),
            None => {
                case(&fixture::Fixture::start());
                Ok(())
            }
        })
    };
    libtest_mimic::run(&arguments, cases.into_iter().map(trial).collect()).exit_code()
}

#[cfg(not(feature = "mutation"))]
fn main() {}
