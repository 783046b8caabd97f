//! What an acknowledged write survives.

/// What an acknowledged write survives.
///
/// It is about SQLite. PostgreSQL keeps its own promise (`synchronous_commit`), which is the power's by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The death of the process, at any instant.
    #[default]
    Process,
    /// The loss of power too: the disk has it before the caller is told.
    Power,
}
