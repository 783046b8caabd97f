//! Errors of the audit log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::StoreError;

/// Error of the audit log.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuditError {
    /// The store did not accept the record. Records of the same group share the cause.
    #[error("the audit record was not kept")]
    Store(#[source] Arc<StoreError>),
    /// The head of the chain was not written by this server: records may have been removed, or the secret is another one.
    #[error(
        "the end of the audit log (record {seq}) was not written by this server, so nothing is appended; run `belljar audit verify`"
    )]
    HeadForged {
        /// Last record according to the forged head.
        seq: i64,
    },
    /// The mirror file cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Operation that failed, as in `open`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// The log was closed.
    #[error("the audit log was closed")]
    Closed,
}

impl AuditError {
    /// Reports whether the disk is full. The log resumes by itself once there is space.
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
