//! Which walls were really in force.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::engine::EngineName;
use crate::limits::{Limits, LimitsGrade};

/// Which walls were really in force, as opposed to asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// What built the walls.
    pub engine: EngineName,
    /// How limits were held.
    pub grade: LimitsGrade,
    /// Where the sandbox's files came from, such as `host`.
    pub tree: String,
    /// Each wall, in the order in which it was built.
    pub layers: Vec<Layer>,
}

impl Isolation {
    /// The same with other limits, as they are set while a sandbox runs.
    #[must_use]
    pub fn with_limits(mut self, limits: &Limits) -> Self {
        for layer in &mut self.layers {
            let limit: &dyn fmt::Display = match layer.name.as_str() {
                "memory" => &limits.memory,
                "pids" => &limits.pids,
                "cpu" => &limits.cpus,
                _ => continue,
            };
            // Where nothing is limited, nothing is said to be.
            if let Some((_, by)) = layer.detail.split_once(LIMITED_BY) {
                layer.detail = format!("{limit}{LIMITED_BY}{by}");
            }
        }
        self
    }
}

/// Stands in a layer's detail between a limit and what holds it.
pub const LIMITED_BY: &str = " by ";

/// One wall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The wall's name, such as `seccomp`.
    pub name: String,
    /// Whether it stood.
    pub state: LayerState,
    /// What it consisted of, or why it did not stand, in a few words.
    pub detail: String,
}

/// Whether a wall stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// It stood in full.
    InForce,
    /// A weaker form of it stood, which was asked for by name.
    Weaker,
    /// It did not stand.
    Absent,
}
