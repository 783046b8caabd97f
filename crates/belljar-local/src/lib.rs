//! Local engine: sandboxes of Linux namespaces, control groups, seccomp and Landlock, as root or as an ordinary user, without a
//! daemon and without an image. `process` and `none` are the same engine with less isolation.
//!
//! The first process of a sandbox is the program `belljar-guest` of the same build, if it is beside the program that uses this
//! crate. Otherwise it is that program itself, which has to call `belljar_guest::enter` at the start of `main`.
//!
//! This crate exports what a program needs to embed sandboxes. The crates below it are not for embedding: they change with
//! Belljar, and use the guest's protocol.

mod control;
mod doctor;
mod engine;
mod failure;
mod forks;
mod freeze;
mod gateway;
mod guest_program;
mod host_tree;
mod images;
mod kind;
mod launcher;
mod layers;
mod lease;
mod limits_view;
mod mounts;
mod network;
mod orphans;
mod planner;
mod progress;
mod sockets;
mod template_tree;
mod trust;
mod unaccepted;
mod volumes;
mod walls;
mod warm;

pub use belljar_engine::{
    Capabilities, CreateRequest, Engine, EngineError, EngineKind, EngineSetup, InputFile, OutputStream,
    RunRequest, Sandbox, Silent, Sink, Usage, run,
};
pub use belljar_gateway::enter_gateway;
pub use belljar_guest_config::OnHostLoss;
#[cfg(feature = "mutation")]
pub use belljar_linux::{ALLOCATED, ForkGuard, enter_test_network};
pub use belljar_linux::{CStringArray, cloexec_from, exec_path};
pub use belljar_model::{
    HintReader, Isolation, Languages, LimitsChange, LimitsFile, Outcome, RunResult, SandboxSpec, SpecFile,
};
pub use engine::{LocalConfig, LocalEngine};
pub use freeze::set_frozen;
pub use guest_program::{check_beside, has_guest};
pub use host_tree::{HOME as HOST_HOME, PATH as HOST_PATH, RESOLVER_OPTIONS, USER_ID as HOST_USER};
pub use kind::LocalKind;
pub use launcher::{LAUNCHER_GENERATION, LauncherConfig, LauncherEngine, enter_launcher};
pub use network::{Network, NetworkFacts};
pub use trust::{TRUST_DIR, Trust, host_tree, system_bundle};
pub use unaccepted::UNACCEPTED;
