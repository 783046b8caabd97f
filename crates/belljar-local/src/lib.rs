//! The local engine: sandboxes of Linux namespaces, control groups, seccomp and Landlock, as root or as an ordinary user,
//! without a daemon and without an image. `process` and `none` are the same engine with fewer walls.
//!
//! A program that uses this crate is also the guest of its sandboxes: it calls [`enter_guest`] first thing in `main`.
//!
//! What a program needs that embeds sandboxes is exported here. The crates below it are not for embedding: they change as
//! Belljar does, and speak the guest's protocol.

mod doctor;
mod engine;
mod failure;
mod gateway;
mod host_tree;
mod images;
mod kind;
mod launcher;
mod layers;
mod lease;
mod mounts;
mod orphans;
mod planner;
mod progress;
mod sockets;
mod template_tree;
mod trust;
mod walls;
mod warm;

pub use belljar_engine::{
    Capabilities, CreateRequest, Engine, EngineError, InputFile, OutputStream, RunRequest, Sandbox, Silent,
    Sink, Usage, run,
};
pub use belljar_gateway::enter_gateway;
pub use belljar_guest::WhenAlone;
pub use belljar_linux::cloexec_from;
#[cfg(feature = "mutation")]
pub use belljar_linux::{ALLOCATED, ForkGuard, enter_test_network};
pub use belljar_model::{
    HintReader, Isolation, Languages, LimitsChange, LimitsFile, Outcome, RunResult, SandboxSpec, SpecFile,
};
pub use doctor::{Finding, FindingState, THIS_COMMAND};
pub use engine::{LocalConfig, LocalEngine};
pub use kind::LocalKind;
pub use launcher::{LAUNCHER_GENERATION, LauncherConfig, LauncherEngine, enter_launcher};

/// Becomes the guest, and never returns, if this process was started as one. Call it before anything else in `main`: it
/// starts neither threads nor a runtime unless it has to.
pub fn enter_guest() {
    let argument = std::env::args_os().nth(1);
    if argument.as_deref() == Some(std::ffi::OsStr::new(WARM_PARENT)) {
        report(&belljar_guest::run_warm_parent());
        std::process::exit(GUEST_FAILED);
    }
    if argument.as_deref() != Some(std::ffi::OsStr::new("guest")) {
        return;
    }
    let status = match belljar_guest::run() {
        Ok(()) => 0,
        Err(error) => {
            report(&error);
            match error {
                belljar_guest::GuestError::Landlock(_) => GUEST_WITHOUT_LANDLOCK,
                belljar_guest::GuestError::Setup { .. } => GUEST_WITHOUT_SETUP,
                _ => GUEST_FAILED,
            }
        }
    };
    std::process::exit(status);
}

/// The first argument by which this program knows that it is to be the parent of warm interpreters.
const WARM_PARENT: &str = "warm-parent";

/// The status of a guest that could not start.
const GUEST_FAILED: i32 = 125;

/// The status of one that could not make the Landlock domain of user code.
const GUEST_WITHOUT_LANDLOCK: i32 = 121;

/// The status of one that could not build another of its walls.
const GUEST_WITHOUT_SETUP: i32 = 122;

/// The guest's standard error leads nowhere in a sandbox; it is for the person who starts one by hand.
fn report(error: &belljar_guest::GuestError) {
    use std::error::Error as _;
    use std::io::Write as _;
    let mut text = format!("belljar: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    let _ = writeln!(std::io::stderr(), "{text}");
}
