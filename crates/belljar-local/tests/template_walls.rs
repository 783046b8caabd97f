//! The walls that came with templates and contexts: each attack fails, and succeeds when its wall alone is taken away. Where
//! other walls hold the same thing, they are taken away on both sides.
//!
//! This program is the test, the guest of its sandboxes, and the host that makes them: walls are named in the environment, so each
//! attack runs in a process of its own.

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
    // The sandboxes' guest is this very program.
    belljar_guest::enter();
    if let Some(attack) = std::env::var_os(trials::ATTACK) {
        return attacks::carry_out(&attack.to_string_lossy());
    }
    trials::main()
}

/// Walls can be taken away with the feature `mutation` only.
#[cfg(not(feature = "mutation"))]
fn main() {}
