//! The health service that load balancers and probes know: it tells nothing but yes or no.
//!
//! To ask needs no key. To watch does: a stream that needs none could be held open by anybody.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::ConnectError;
use connectrpc_health::{Checker, Status, StatusStream};
use tokio::sync::Semaphore;

use crate::api::Shared;

/// How often it is looked at for those who watch.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Streams that watch at once. Each looks for itself.
const MAX_WATCHERS: usize = 64;

/// Whether sandboxes can be made, for `grpc.health.v1.Health`.
pub(super) struct Health {
    shared: Shared,
    /// The services that may be asked for, by their full names.
    services: Vec<String>,
    watchers: Arc<Semaphore>,
}

impl Health {
    pub(super) fn new(shared: Shared, services: Vec<String>) -> Self {
        Self { shared, services, watchers: Arc::new(Semaphore::new(MAX_WATCHERS)) }
    }

    fn check_name(&self, service: &str) -> Result<(), ConnectError> {
        if !service.is_empty() && !self.services.iter().any(|known| known == service) {
            return Err(ConnectError::not_found("there is no such service"));
        }
        Ok(())
    }
}

async fn status(shared: &Shared) -> Status {
    if shared.keeper.ready().await.is_ok() { Status::Serving } else { Status::NotServing }
}

impl Checker for Health {
    async fn check(&self, service: &str) -> Result<Status, ConnectError> {
        self.check_name(service)?;
        Ok(status(&self.shared).await)
    }

    /// Tells how it is, and each change. A server that is told to stop says that it does not serve, and ends the stream.
    async fn watch(&self, service: &str) -> Result<StatusStream, ConnectError> {
        self.check_name(service)?;
        let place = Arc::clone(&self.watchers).try_acquire_owned().map_err(|_| {
            ConnectError::resource_exhausted(format!("{MAX_WATCHERS} streams watch already; ask with Check"))
        })?;
        let shared = self.shared.clone();
        Ok(StatusStream::new(async_stream::stream! {
            let _place = place;
            let mut told = status(&shared).await;
            yield told;
            loop {
                let is_stopping = tokio::select! {
                    () = shared.stopping.cancelled() => true,
                    () = tokio::time::sleep(LOOK_EVERY) => false,
                };
                let now = if is_stopping { Status::NotServing } else { status(&shared).await };
                if now != told {
                    told = now;
                    yield told;
                }
                if is_stopping {
                    break;
                }
            }
        }))
    }
}
