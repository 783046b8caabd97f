//! What must outlive the server: sandboxes, templates, keys and the audit trail, in SQLite or PostgreSQL.

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk is full.
    #[error("the disk is full")]
    Full,
}
