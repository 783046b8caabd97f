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

use axum::Router;

pub use convert::limits_message;
pub(crate) use error::{error, guest_error};

use crate::api::Shared;
use crate::facade::{Claims, Facade, Form, Head};
use error::{Wire, refusal};

/// The facade.
pub(crate) struct Rpc(pub(crate) Shared);

impl Facade for Rpc {
    fn name(&self) -> &'static str {
        "rpc"
    }

    fn claims(&self) -> Claims {
        Claims { prefixes: &router::PREFIXES, ..Claims::default() }
    }

    fn form(&self, head: Head<'_>) -> Form {
        let wire = Wire::detect(head.headers);
        Box::new(move |problem, request_id| refusal(problem, &wire, request_id))
    }

    fn router(&self) -> Router {
        router::router(&self.0)
    }

    fn is_open(&self, head: Head<'_>) -> bool {
        router::OPEN.contains(&head.path)
    }

    fn keeps_open_body(&self, head: Head<'_>) -> bool {
        self.is_open(head)
    }

    fn may_always_begin(&self, head: Head<'_>) -> bool {
        router::ENDING.contains(&head.path)
    }

    fn may_be_silent(&self, head: Head<'_>) -> bool {
        router::SILENT.contains(&head.path)
    }
}
