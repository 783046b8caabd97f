//! The server of a case, as REST clients use it.

use std::sync::Arc;

use belljar_api::{Api, ApiConfig};
use belljar_model::Role;
use serde_json::{Value, json};

use crate::client::Client;
pub(crate) use crate::common::{Case, Fixture, Named, cases, config, run};

impl Fixture {
    /// Starts another server for the same keeper.
    pub(crate) async fn beside(&self, config: ApiConfig) -> Self {
        self.listen_beside(&Arc::new(Api::new(config, self.keeper.clone()))).await
    }

    /// Serves the same API on another listener.
    pub(crate) async fn listen_beside(&self, api: &Arc<Api>) -> Self {
        Self::serve(Arc::clone(api), self.keeper.clone(), tempfile::tempdir().unwrap()).await
    }

    /// Creates a client with a key of this tenant and role.
    pub(crate) async fn client(&self, tenant: &str, role: Role) -> Client {
        Client::new(self.address, Some(&self.key(tenant, role).await))
    }

    /// Creates a client with a key for sandboxes.
    pub(crate) async fn user(&self) -> Client {
        self.client("default", Role::User).await
    }

    /// Creates a client without a key.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(self.address, None)
    }
}

/// Creates a sandbox, and returns its id.
pub(crate) async fn sandbox(client: &Client) -> String {
    client.sandbox(&json!({})).await
}

/// Runs a line in a sandbox, and returns the result.
pub(crate) async fn sh(client: &Client, id: &str, line: &str) -> Value {
    client.exec(id, line).await
}
