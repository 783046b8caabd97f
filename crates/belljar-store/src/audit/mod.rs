//! Audit log: who did what, when, and with which outcome, in a hash chain that reveals tampering.
//!
//! ```text
//!  SQLite      append ──► journal: all pending, one fdatasync ──► acknowledged
//!                            │
//!                            ▼ 20 ms later at most, as soon as somebody reads
//!                         writer: one transaction for all pending ──► audit.jsonl, a copy
//!                            │
//!                            ▼ fails: the journal acknowledges no more until it succeeds
//!
//!  PostgreSQL  append ──► writer: one transaction for all pending ──► acknowledged, then audit.jsonl
//!                            │
//!                            ▼ fails: an error for the whole group, nothing is written
//! ```
//!
//! The oldest records are moved to files: a file is written, read back, and on disk before one transaction makes its last record the
//! base of the chain in the database, and removes the records up to it ([`archive`]).
//!
//! `docs/audit.md` specifies how a record is hashed, so that others can verify an export.

mod archive;
mod canonical;
mod chain;
mod details;
mod error;
mod export;
mod filter;
mod head;
mod journal;
mod journal_file;
mod log;
mod mirror;
mod mirror_file;
mod record;
mod table;
mod verify;
mod writer;

pub use archive::{Archive, ArchiveError, ArchiveOptions, ArchiveUntil, Segment};
pub(crate) use canonical::from_hex;
pub use chain::{Broken, Fault, Verification, Verified};
pub use details::{DetailValue, Details, MAX_DETAILS, MAX_FIELD_BYTES, Redacted};
pub use error::AuditError;
pub use export::{BrokenFile, Expected, verify_export, verify_files};
pub use filter::AuditFilter;
pub use head::Head;
pub(crate) use journal::{JournalQueue, settle};
pub use log::{AuditLog, AuditOptions};
pub use mirror::{MirrorOptions, MirrorState};
pub use record::{AuditRecord, NewRecord};
