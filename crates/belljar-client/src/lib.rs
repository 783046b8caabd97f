//! The client of a Belljar server, over its RPC interface (typed calls, streams, and each
//! sandbox's guest) and its REST interface (values and files).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use belljar_client::{Client, Credential, Target, v1};
//!
//! let client = Client::connect(Target::http("127.0.0.1:8787")?, Credential::key(std::env::var("BELLJAR_API_KEY")?))?;
//! let sandbox = client.create(v1::CreateSandboxRequest::default(), None).await?.sandbox;
//! let files = client.guest(&sandbox.id)?;
//! files.write(std::path::Path::new("a.txt"), 0o644, "hello".into()).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod calls;
mod client;
mod connector;
mod error;
mod rest;
mod retry;
mod stream;
mod target;

pub use belljar_engine::{GuestClient, GuestError};
pub use belljar_proto::{ErrorCode, MessageField, v1, well_known};
pub use client::Client;
pub use error::ClientError;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
pub use rest::{RestBody, RestEvents, RestResponse};
pub use stream::Messages;
pub use target::{Credential, Roots, Target, TargetError};
