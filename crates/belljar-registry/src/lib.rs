//! Images by name: the pull side of the OCI Distribution Specification 1.1 and of Docker's registry protocol.
//!
//! ```text
//!  ImageReference ─► hosts: allowed? ─► manifest by tag ─► digest ─► manifest for this machine ─► blobs, four at a time ─► layout directory
//!                  └─ each connection: TLS, and an address that is public, unless the operator has named the host
//! ```
//!
//! A registry is not trusted: it says where a token is to be had, where a blob is, how long and what it is. All of that is bounded and
//! checked, so that it can neither make this machine reach what its operator has not named, nor fill its disk, nor give other bytes than
//! those of the digest.

mod challenge;
mod client;
mod error;
mod hosts;
mod manifest;
mod pull;

pub use client::{Credentials, RegistryClient};
pub use error::RegistryError;
pub use hosts::RegistryHosts;
pub use manifest::{Blob, Resolved};
pub use pull::{Progress, PullLimits};
