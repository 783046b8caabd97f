//! The gateway: the only way out of a sandbox to a network. One process a sandbox, jailed, with one thread.
//!
//! ```text
//! code ── name ─────────► resolver ─── a synthetic address for each allowed name; no other resolver is queried
//!      ── connection ───► flow ─────── the name behind that address ─► verdict ─► own look-up ─► checked address ─► relay
//!                           │          on 443 the TLS server name must be it, on 80 the host of every request; if the program
//!                           │          used an address, these names must not be denied
//! host ── control socket ───┴── policy, log of decisions
//! ```
//!
//! It serves sockets that were opened in the sandbox's network namespace, which leads nowhere else: when the gateway dies,
//! connections wait for the next one. What it reads comes from untrusted code and untrusted servers, so it can open no file, start no
//! program and change no other process.

mod authority;
mod body;
mod budget;
mod client;
mod config;
mod control;
mod dial;
mod dns;
mod flow;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway;
mod host;
mod log;
mod names;
mod opening;
mod proxy;
mod relay;
mod resolve;
mod secrets;
mod start;
mod terminate;
mod tls;
mod web;
#[cfg(feature = "mutation")]
mod without;

pub use authority::{Authority, AuthorityError};
pub use client::{log, set_policy};
pub use config::{CONNECTION, GatewayConfig, SETUP, STARTED};
pub use start::{ARGUMENT, enter_gateway};
pub use terminate::SYSTEM_ROOTS;
