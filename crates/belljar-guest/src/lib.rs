//! The guest: the agent inside every sandbox. The host starts it as the sandbox's first process and speaks
//! `proto/belljar/v1` with it over one stream. It holds no secret and no privilege: user code in the same sandbox can
//! do everything that it can, so the host validates and bounds everything it sends.

mod bootstrap;
mod clock;
mod connections;
mod direct;
mod enter;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guest;
mod interpreter;
mod output;
mod ports;
mod process;
mod room;
mod service;
mod session;
mod spawner;
mod start;
mod tree;
mod users;
mod warm_parent;
mod watch;

#[cfg(feature = "mutation")]
pub use belljar_linux::ForkGuard;
pub use connections::MAX_CONNECTIONS;
pub use enter::enter;
