//! Tests of the protections of templates and contexts: each attack fails, and succeeds when its protection alone is disabled.
//! If others stop the same attack, they are disabled on both sides.
//!
//! This program is the test, the guest of its sandboxes, and the host that creates them: disabled protections are named in the
//! environment, so each attack runs in its own process.

#[cfg(feature = "mutation")]
#[path = "template_walls/attacks.rs"]
mod attacks;
#[cfg(feature = "mutation")]
#[path = "template_walls/layer.rs"]
mod layer;
#[cfg(feature = "mutation")]
#[path = "template_walls/trials.rs"]
mod trials;

/// Nothing may be allocated between a clone and an exec (docs/fork-safety.md).
#[cfg(feature = "mutation")]
#[global_allocator]
static ALLOCATOR: belljar_local::ForkGuard = belljar_local::ForkGuard;

#[cfg(feature = "mutation")]
fn main() -> std::process::ExitCode {
    // This program is also the sandboxes' guest.
    belljar_guest::enter();
    if let Some(attack) = std::env::var_os(trials::ATTACK) {
        return attacks::run(&attack.to_string_lossy());
    }
    trials::main()
}

/// Protections can be disabled with the feature `mutation` only.
#[cfg(not(feature = "mutation"))]
fn main() {}
