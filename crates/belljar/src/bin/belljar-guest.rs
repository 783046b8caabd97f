//! `belljar-guest`: the first process of a sandbox, without anything that is the host's. `belljar` looks for it beside itself.

/// Tests watch that nothing is allocated between a clone and an exec (docs/fork-safety.md).
#[cfg(feature = "mutation")]
#[global_allocator]
static ALLOCATOR: belljar_guest::ForkGuard = belljar_guest::ForkGuard;

fn main() {
    use std::io::Write as _;
    belljar_guest::enter();
    let _ = writeln!(std::io::stderr(), "belljar-guest: it is started by belljar, not by hand");
    std::process::exit(2);
}
