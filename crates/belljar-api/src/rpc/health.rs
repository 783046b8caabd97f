//! The health service that load balancers and probes know. It needs no key and tells nothing but yes or no.

use belljar_proto::ConnectError;
use connectrpc_health::{Checker, Status};

use crate::api::Shared;

/// Whether sandboxes can be made, for `grpc.health.v1.Health`. A client asks again; it is not told of changes, as
/// a stream that needs no key could be held open by anybody.
pub(super) struct Health {
    pub(super) shared: Shared,
    /// The services that may be asked for, by their full names.
    pub(super) services: Vec<String>,
}

impl Checker for Health {
    async fn check(&self, service: &str) -> Result<Status, ConnectError> {
        if !service.is_empty() && !self.services.iter().any(|known| known == service) {
            return Err(ConnectError::not_found("there is no such service"));
        }
        Ok(if self.shared.keeper.ready().await.is_ok() { Status::Serving } else { Status::NotServing })
    }
}
