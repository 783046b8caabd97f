//! Which walls were really in force.

use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;
use crate::limits::LimitsGrade;

/// Which walls were really in force, as opposed to asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// What built the walls.
    pub engine: EngineKind,
    /// How limits were held.
    pub grade: LimitsGrade,
    /// Where the sandbox's files came from, such as `host`.
    pub tree: String,
    /// Each wall, in the order in which it was built.
    pub layers: Vec<Layer>,
}

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
