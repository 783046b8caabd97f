//! Isolation layers that were in force.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::engine::EngineName;
use crate::limits::{Limits, LimitsGrade};

/// Isolation layers that were actually in force, as opposed to requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Isolation {
    /// Engine of the sandbox.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub engine: EngineName,
    /// How limits were enforced.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub grade: LimitsGrade,
    /// Origin of the sandbox's files, such as `host`.
    pub tree: String,
    /// Layers, in the order in which they were set up.
    pub layers: Vec<Layer>,
}

impl Isolation {
    /// Returns a copy with other limits, as they are set while a sandbox runs.
    #[must_use]
    pub fn with_limits(mut self, limits: &Limits) -> Self {
        for layer in &mut self.layers {
            let limit: &dyn fmt::Display = match layer.name.as_str() {
                "memory" => &limits.memory,
                "pids" => &limits.pids,
                "cpu" => &limits.cpus,
                _ => continue,
            };
            // A limit that is not enforced is not reported.
            if let Some((_, by)) = layer.detail.split_once(LIMITED_BY) {
                layer.detail = format!("{limit}{LIMITED_BY}{by}");
            }
        }
        self
    }
}

/// Separator in a layer's detail between a limit and what enforces it.
pub const LIMITED_BY: &str = " by ";

/// Isolation layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Layer {
    /// Name of the layer, such as `seccomp`.
    pub name: String,
    /// State of the layer.
    pub state: LayerState,
    /// What it consisted of, or why it was absent, in a few words.
    pub detail: String,
}

/// State of an isolation layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum LayerState {
    /// Fully in force.
    InForce,
    /// In force in a weaker form, which was requested by name.
    Weaker,
    /// Not in force.
    Absent,
}
