//! The engine `gvisor`: the guest is the first process under a kernel of gVisor's, the sentry, which `runsc` starts for each sandbox.
//!
//! ```text
//!  host                          sentry, in control groups of its own
//!   │── bundle, runsc run ─────►│ belljar-guest, as root of the sentry, listens in a directory that only root may enter
//!   │◄═ Unix socket of the host ═►│ configuration, then HTTP/2
//! ```

mod backend;
mod bundle;
mod engine;
mod kind;
mod layers;
mod runsc;

pub use engine::{GvisorConfig, GvisorEngine};
pub use kind::GvisorKind;
