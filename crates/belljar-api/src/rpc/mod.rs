//! The RPC facade: Connect, gRPC and gRPC-Web on the same port as REST, distinguished by content type.
//!
//! Services of the whole server are answered here from the keeper. Services of the guest (`Process`, `Filesystem`,
//! `Ports`, `Health`) are forwarded, message by message, to the guest of the sandbox in the header `belljar-sandbox`.

mod call;
mod commands;
mod convert;
mod error;
mod guest;
mod health;
mod router;
mod sandboxes;
mod templates;

pub use convert::limits_message;
pub(crate) use error::{Wire, error, guest_error, refusal};
pub(crate) use router::{is_open, may_be_silent, router};
