//! Network policies: presets, ceilings, and what a policy would reach.

use axum::extract::State;
use belljar_keeper::{AskedPolicy, NetworkBounds};
use belljar_model::{Destination, ModelError, NetworkFile, Preset, PresetHost, presets, presets_version};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::types::NetworkBody;
use crate::api::Shared;
use crate::extract::{Auth, Json};
use crate::problem::Problem;

/// Maximum number of destinations in a request.
const MAX_HOSTS: usize = 64;

/// Maximum number of problems in a response.
const MAX_PROBLEMS: usize = 100;

/// What network policies can be made of.
#[derive(Serialize, ToSchema)]
#[schema(as = NetworkOffer)]
pub(super) struct OfferBody {
    /// The presets, by name.
    presets: Vec<PresetBody>,
    /// Version of the presets' hosts. It grows when a host is added, changed or removed.
    presets_version: u32,
    /// The most that policies of this key may reach.
    most: NetworkBounds,
}

/// The hosts that a package manager needs.
#[derive(Serialize, ToSchema)]
#[schema(as = NetworkPreset)]
struct PresetBody {
    /// Its name.
    #[schema(example = "pip")]
    name: &'static str,
    /// Its purpose.
    purpose: &'static str,
    /// Treatment of TLS to its hosts unless a policy names another: `terminate` or `pass`.
    tls: String,
    /// The hosts.
    hosts: Vec<PresetHostBody>,
}

/// A host of a preset.
#[derive(Serialize, ToSchema)]
#[schema(as = NetworkPresetHost)]
struct PresetHostBody {
    /// Its name, or `*.SUFFIX`.
    name: String,
    /// The allowed ports.
    ports: &'static [u16],
    /// Its purpose.
    purpose: &'static str,
    /// Its risk, if there is one, such as that data can be carried out through it.
    risk: Option<&'static str>,
}

impl From<&'static Preset> for PresetBody {
    fn from(preset: &'static Preset) -> Self {
        Self {
            name: preset.name(),
            purpose: preset.purpose(),
            tls: preset.tls().to_string(),
            hosts: preset.hosts().iter().map(Into::into).collect(),
        }
    }
}

impl From<&'static PresetHost> for PresetHostBody {
    fn from(host: &'static PresetHost) -> Self {
        Self {
            name: host.name().to_string(),
            ports: host.ports(),
            purpose: host.purpose(),
            risk: host.risk(),
        }
    }
}

/// Returns the presets of network policies, and the ceilings of the key's policies.
#[utoipa::path(get, path = "/v1/network", tag = "network",
    responses((status = 200, description = "The presets and ceilings.", body = OfferBody)))]
pub(super) async fn offer(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<axum::Json<OfferBody>, Problem> {
    let most = shared.keeper.network_bounds(&caller)?;
    let presets = presets().iter().map(Into::into).collect();
    Ok(axum::Json(OfferBody { presets, presets_version: presets_version(), most }))
}

/// A question about a network policy.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CheckNetwork, example = json!({"network": {"presets": ["pip"]}, "hosts": ["pypi.org", "example.com:80"]}))]
pub(super) struct CheckBody {
    /// The policy. `disabled`, if neither this nor `sandbox` is given.
    #[serde(default)]
    network: Option<NetworkBody>,
    /// The sandbox whose policy in force is meant, by id or name, instead of `network`.
    #[serde(default)]
    sandbox: Option<String>,
    /// Destinations, each as `HOST` (on port 443) or `HOST:PORT`, at most 64.
    #[serde(default)]
    hosts: Vec<String>,
}

/// What a network policy would reach.
#[derive(Serialize, ToSchema)]
#[schema(as = NetworkForecast)]
pub(super) struct ForecastBody {
    /// What is invalid: each preset and rule, or else the first of what the policy as a whole has. At most 100. If there are any, there
    /// is no policy and no decision.
    problems: Vec<PolicyProblemBody>,
    /// The policy in canonical form, without values of secrets.
    #[schema(value_type = Option<NetworkBody>)]
    network: Option<NetworkFile>,
    /// Why this key could not give the policy to a sandbox, if it reaches more than it may.
    beyond: Option<String>,
    /// The decision about each destination, in their order.
    hosts: Vec<DecisionBody>,
}

/// Something invalid in a network policy.
#[derive(Serialize, ToSchema)]
#[schema(as = NetworkProblem)]
struct PolicyProblemBody {
    /// The field, if it is one that is invalid.
    #[schema(example = "network.allow")]
    field: Option<&'static str>,
    /// The value, if it is one that is invalid.
    value: Option<String>,
    /// What is wrong, and what is allowed.
    detail: String,
}

impl From<ModelError> for PolicyProblemBody {
    fn from(error: ModelError) -> Self {
        let detail = error.to_string();
        match error {
            ModelError::NotAllowed { field, value, .. } => {
                Self { field: Some(field), value: Some(value), detail }
            }
            _ => Self { field: None, value: None, detail },
        }
    }
}

/// The decision about one destination.
#[derive(Serialize, ToSchema)]
#[schema(as = NetworkDecision)]
struct DecisionBody {
    /// The destination, as `HOST:PORT`.
    host: String,
    /// Whether a connection would be allowed. The address of a name is checked when it is resolved, at the connection.
    allowed: bool,
    /// The rule or mode that decides.
    rule: String,
    /// What happens and why, in one sentence.
    reason: String,
    /// The narrowest rule that would allow it, if the policy lacks nothing else.
    missing: Option<String>,
}

/// Decides about connections by a network policy, or by that of a sandbox. Nothing is connected, and no name is resolved.
#[utoipa::path(post, path = "/v1/network/check", tag = "network", request_body = CheckBody,
    responses((status = 200, description = "What the policy would reach.", body = ForecastBody)))]
pub(super) async fn check(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<CheckBody>,
) -> Result<axum::Json<ForecastBody>, Problem> {
    let CheckBody { network, sandbox, hosts } = body;
    if hosts.len() > MAX_HOSTS {
        return Err(Problem::field("hosts", format!("{} hosts; give at most {MAX_HOSTS}", hosts.len())));
    }
    let read = |host: &String| host.parse::<Destination>().map_err(belljar_keeper::KeeperError::from);
    let destinations = hosts.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let asked = match (network, sandbox) {
        (Some(_), Some(_)) => return Err(Problem::field("sandbox", "give either network or sandbox")),
        (None, Some(sandbox)) => AskedPolicy::Sandbox(sandbox),
        (network, None) => AskedPolicy::Given(network.map(NetworkBody::into_file).unwrap_or_default()),
    };
    // Callers without the role learn nothing, not even of mistakes.
    shared.keeper.network_bounds(&caller)?;
    if let AskedPolicy::Given(file) = &asked {
        let problems: Vec<_> = file.problems().into_iter().take(MAX_PROBLEMS).map(Into::into).collect();
        if !problems.is_empty() {
            return Ok(axum::Json(ForecastBody { problems, network: None, beyond: None, hosts: Vec::new() }));
        }
    }
    let forecast = shared.keeper.forecast_network(&caller, asked, destinations).await?;
    let hosts = forecast.decisions.into_iter().map(|(destination, decision)| DecisionBody {
        host: destination.to_string(),
        allowed: decision.allowed,
        rule: decision.by.to_string(),
        missing: destination.missing_rule(&decision),
        reason: decision.reason,
    });
    Ok(axum::Json(ForecastBody {
        problems: Vec::new(),
        network: Some(forecast.policy.without_values()),
        beyond: forecast.beyond,
        hosts: hosts.collect(),
    }))
}
