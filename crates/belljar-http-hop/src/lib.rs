//! Rules for HTTP messages that an intermediary passes on to the next hop, shared by both intermediaries: the gateway between a
//! sandbox and its hosts, and the proxy between clients and the ports of sandboxes.
//!
//! ```text
//! request ──► method, path, override headers ──► prepare_request ──► headers that the intermediary adds ──► next hop
//!                                                    framing, hop-by-hop, upgrades
//! client  ◄── Redactor ◄── prepare_response, prepare_trailers ◄─────────────────────────────────────────── next hop
//! ```
//!
//! Names are compared as servers see them ([`is_alike`]), because one that is only spelled differently shadows a header that an
//! intermediary sets. No function here does I/O.

mod authority;
#[cfg(any(test, feature = "cases"))]
pub mod cases;
mod framing;
mod headers;
mod method;
mod names;
mod path;
mod redact;

pub use authority::split_authority;
pub use framing::FramingScan;
pub use headers::{Refusal, prepare_request, prepare_response, prepare_trailers, wants_upgrade};
pub use method::{is_reflecting, refuse_reflection};
pub use names::{is_alike, is_override, remove_alike, remove_other_spellings};
pub use path::find_ambiguity;
pub use redact::{MIN_SEARCHED_BYTES, Redactor};
