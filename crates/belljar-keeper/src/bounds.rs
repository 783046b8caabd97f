//! What network policies may reach, and what one of them would. Nothing is connected, and no name is resolved.

use belljar_model::{Decision, Destination, Matcher, NetworkCeiling, NetworkFile, NetworkPolicy, Role};
use serde::Serialize;
use utoipa::ToSchema;

use crate::action::{NETWORK_CHECK, NETWORK_GET};
use crate::caller::{Caller, network_ceiling};
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};

/// The most that network policies of a caller may reach.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NetworkBounds {
    /// The ceiling of its key, if it has one.
    #[schema(schema_with = network_ceiling)]
    pub key: Option<NetworkCeiling>,
    /// The ceiling of the server, which keys with the role admin do not have.
    #[schema(schema_with = network_ceiling)]
    pub server: Option<NetworkCeiling>,
}

/// A policy that a caller asks about.
#[derive(Debug)]
pub enum AskedPolicy {
    /// The policy of this sandbox, as it is in force.
    Sandbox(String),
    /// This one.
    Given(NetworkFile),
}

/// What a policy would reach.
#[derive(Debug)]
pub struct NetworkForecast {
    /// The policy, in canonical form.
    pub policy: NetworkPolicy,
    /// The reason why the caller could not give it to a sandbox, if it reaches more than may be.
    pub beyond: Option<String>,
    /// The decisions about destinations, in the order in which they were asked for.
    pub decisions: Vec<(Destination, Decision)>,
}

impl Keeper {
    /// Returns the ceilings of the caller's network policies.
    ///
    /// # Errors
    /// [`KeeperError::Forbidden`] for the token of a sandbox.
    pub fn network_bounds(&self, caller: &Caller) -> Result<NetworkBounds> {
        self.require(caller, NETWORK_GET)?;
        let server = (caller.role != Role::Admin).then(|| self.inner.config.now().max_network.clone());
        Ok(NetworkBounds { key: caller.quotas.network.clone(), server })
    }

    /// Decides about destinations by a policy.
    ///
    /// # Errors
    /// [`KeeperError::Forbidden`] for the token of a sandbox, [`KeeperError::NotFound`] for a missing sandbox, and
    /// [`KeeperError::Field`] for an invalid policy.
    pub async fn forecast_network(
        &self,
        caller: &Caller,
        asked: AskedPolicy,
        destinations: Vec<Destination>,
    ) -> Result<NetworkForecast> {
        self.require(caller, NETWORK_CHECK)?;
        let policy = match asked {
            AskedPolicy::Sandbox(id) => self.find(caller, &id).await?.live().spec.network.clone(),
            AskedPolicy::Given(file) => file.resolve()?,
        };
        let beyond = match self.check_network(caller, &policy) {
            Err(KeeperError::Policy { reason, .. }) => Some(reason),
            checked => checked.map(|()| None)?,
        };
        let matcher = Matcher::new(&policy, &self.inner.config.now().network_exceptions);
        let decide = |destination: Destination| {
            let decision = destination.decide(&matcher);
            (destination, decision)
        };
        let decisions = destinations.into_iter().map(decide).collect();
        Ok(NetworkForecast { policy, beyond, decisions })
    }
}
