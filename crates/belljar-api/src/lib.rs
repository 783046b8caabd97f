//! The facades of the service: each translates one wire format, and nothing else.
//!
//! There is no policy and no state of a sandbox here. What may be done, and what is, is the keeper's.
#![forbid(unsafe_code)]

mod api;
mod e2b;
mod extract;
mod guard;
mod metrics;
mod problem;
mod proxy;
mod refusal;
mod rest;
mod rpc;
mod serve;
mod stream;

pub use api::{Api, ApiConfig, TraceContext};
pub use problem::{Code, Problem, ProblemBody};
pub use rest::{openapi, openapi_json};
pub use serve::{Connections, Listener, ServeError, Tls, TlsError, is_operator};
