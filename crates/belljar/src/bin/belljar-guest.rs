//! `belljar-guest`: the first process of a sandbox, without any host code. `belljar` looks for it in its own directory.

/// Lets tests check that nothing is allocated between a clone and an exec (docs/fork-safety.md).
#[cfg(feature = "mutation")]
#[global_allocator]
static ALLOCATOR: belljar_guest::ForkGuard = belljar_guest::ForkGuard;

fn main() {
    use std::io::Write as _;
    belljar_guest::enter();
    let _ = writeln!(std::io::stderr(), "belljar-guest: it is started by belljar, not by hand");
    std::process::exit(2);
}
