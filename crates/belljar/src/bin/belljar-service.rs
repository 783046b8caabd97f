//! `belljar-service`: the whole command line, which `belljar` starts.

/// Lets tests check that nothing is allocated between a clone and an exec (docs/fork-safety.md).
#[cfg(feature = "mutation")]
#[global_allocator]
static ALLOCATOR: belljar_local::ForkGuard = belljar_local::ForkGuard;

fn main() {
    // Nothing is left to be dropped, and nothing may keep the process alive.
    std::process::exit(belljar_cli::service().into());
}
