//! The facades of the service: each translates one wire format and does nothing else.
//!
//! There is no policy and no sandbox state here: both belong to the keeper.
#![forbid(unsafe_code)]

mod api;
mod console;
mod e2b;
mod extract;
mod facade;
mod guard;
mod mcp;
mod metrics;
mod problem;
mod proxy;
mod refusal;
mod rest;
mod rpc;
mod serve;
mod stream;
mod tool_schema;

/// Access to private parsers for the checks of `belljar-fuzz`. Not part of any release.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::e2b::fuzzing::{
        Call, boundary, call, file_metadata, filter, frames, from_labels, is_signed, network, new_sandbox,
        to_labels, upload,
    };
    pub use crate::mcp::patch_for_fuzzing as patch;
}

pub use api::{Api, ApiConfig, TraceContext};
pub use facade::{Answer, Claims, Facade, FacadeConflict, Form, Head};
pub use guard::PortHost;
pub use problem::{Code, Problem, ProblemBody};
pub use rest::{openapi, openapi_json};
pub use rpc::limits_message;
pub use serve::{Connections, Listener, ServeError, Tls, TlsError, is_operator};
