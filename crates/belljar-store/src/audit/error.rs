//! What can go wrong with the audit.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::StoreError;

/// What can go wrong with the audit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuditError {
    /// The store did not take the record. Records that were asked for at the same time share the cause.
    #[error("the audit record was not kept")]
    Store(#[source] Arc<StoreError>),
    /// The end of the chain was not written by this server: records may have been removed, or the secret is another one.
    #[error(
        "the end of the audit trail (record {seq}) was not written by this server, so nothing is added to it; see `belljar audit verify`"
    )]
    HeadForged {
        /// The last record, as the forged head has it.
        seq: i64,
    },
    /// The file beside the database cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was to be done, as in `open`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
    /// The log was closed.
    #[error("the audit log was closed")]
    Closed,
}

impl AuditError {
    /// Whether there was no space. Once there is, the log goes on by itself.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Store(error) => matches!(**error, StoreError::Full { .. }),
            Self::File { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::HeadForged { .. } | Self::Closed => false,
        }
    }
}

impl From<StoreError> for AuditError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}
