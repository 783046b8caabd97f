//! Isolation layers that were in force.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::engine::EngineName;
use crate::limits::{Limits, LimitsGrade};
use crate::network::{NetworkMode, NetworkPolicy};

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
const LIMITED_BY: &str = " by ";

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

/// The layers of a sandbox as an engine states them, in order. What engines have in common is said here alone.
#[derive(Debug, Default)]
pub struct Layers(Vec<Layer>);

impl Layers {
    /// Adds a layer.
    pub fn add(&mut self, name: &str, state: LayerState, detail: impl Into<String>) {
        self.0.push(Layer { name: name.to_owned(), state, detail: detail.into() });
    }

    /// Adds the layer `network` of a sandbox with this policy, and what it has of its own.
    pub fn add_network(&mut self, has: &str, policy: &NetworkPolicy) {
        let detail = match policy.mode() {
            NetworkMode::Disabled => format!("disabled: {has} with loopback only"),
            _ => format!(
                "{has} with loopback only, whose connections end at a gateway that applies the policy"
            ),
        };
        self.add("network", LayerState::InForce, detail);
    }

    /// Adds the layer `seccomp` of a filter with so many instructions.
    pub fn add_filter(&mut self, instructions: usize, remark: &str) {
        let detail = format!("allow-list, {instructions} instructions{remark}");
        self.add("seccomp", LayerState::InForce, detail);
    }

    /// Adds the layer of a limit that is enforced by something.
    pub fn add_limit(&mut self, name: &str, state: LayerState, limit: &dyn fmt::Display, by: &str) {
        self.add(name, state, format!("{limit}{LIMITED_BY}{by}"));
    }

    /// Adds the layer of a limit that is not enforced.
    pub fn add_no_limit(&mut self, name: &str) {
        self.add(name, LayerState::Absent, "not limited");
    }

    /// Adds the layer `disk` of file systems in memory.
    pub fn add_memory_disk(&mut self, limits: &Limits) {
        let detail =
            format!("{} and {} inodes, in memory: files count as memory", limits.disk, limits.inodes);
        self.add("disk", LayerState::InForce, detail);
    }

    /// Returns the isolation that they make up.
    #[must_use]
    pub fn isolation(self, engine: EngineName, grade: LimitsGrade, tree: &str) -> Isolation {
        Isolation { engine, grade, tree: tree.to_owned(), layers: self.0 }
    }
}

/// What limits a sandbox where its guest does.
pub const WATCHED: &str = "watched by the guest";

/// A root with the programs of the machine.
pub const HOST_TREE: &str =
    "host: a root of its own with the host's /usr read-only, whose page cache it shares";

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
