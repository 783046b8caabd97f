//! Durability of acknowledged writes.

/// Failures that an acknowledged write survives.
///
/// Applies to SQLite. PostgreSQL has its own setting (`synchronous_commit`), by default equivalent to `Power`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// A crash of the process at any point.
    #[default]
    Process,
    /// A power failure too: the write is synced to disk before it is acknowledged.
    Power,
}
