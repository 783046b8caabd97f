//! The health service for load balancers and probes: it reveals only whether the server is serving.
//!
//! Checks need no key. Watches need one, so that streams cannot be held open without a key.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::ConnectError;
use connectrpc_health::{Checker, Status, StatusStream};
use tokio::sync::Semaphore;

use crate::api::Shared;

/// Interval at which the status is polled for watchers.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of concurrent watch streams. Each polls for itself.
const MAX_WATCHERS: usize = 64;

/// Serving status of `grpc.health.v1.Health`: whether sandboxes can be created.
pub(super) struct Health {
    shared: Shared,
    /// Full names of the services that may be queried.
    services: Vec<String>,
    watchers: Arc<Semaphore>,
}

impl Health {
    pub(super) fn new(shared: Shared, services: Vec<String>) -> Self {
        Self { shared, services, watchers: Arc::new(Semaphore::new(MAX_WATCHERS)) }
    }

    fn check_name(&self, service: &str) -> Result<(), ConnectError> {
        if !service.is_empty() && !self.services.iter().any(|known| known == service) {
            return Err(ConnectError::not_found("unknown service"));
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

    /// Streams the status and each change. A server that shuts down reports that it does not serve, and ends the stream.
    async fn watch(&self, service: &str) -> Result<StatusStream, ConnectError> {
        self.check_name(service)?;
        let place = Arc::clone(&self.watchers).try_acquire_owned().map_err(|_| {
            ConnectError::resource_exhausted(format!(
                "too many watch streams: the limit is {MAX_WATCHERS}; use Check instead"
            ))
        })?;
        let shared = self.shared.clone();
        Ok(StatusStream::new(async_stream::stream! {
            let _place = place;
            let mut reported = status(&shared).await;
            yield reported;
            loop {
                let is_stopping = tokio::select! {
                    () = shared.stopping.cancelled() => true,
                    () = tokio::time::sleep(POLL_INTERVAL) => false,
                };
                let now = if is_stopping { Status::NotServing } else { status(&shared).await };
                if now != reported {
                    reported = now;
                    yield reported;
                }
                if is_stopping {
                    break;
                }
            }
        }))
    }
}
