//! Audit log: who did what, when, and with which outcome, in a hash chain that reveals tampering.
//!
//! ```text
//!  append ──► queue ──► writer: one transaction for all pending   ──► acknowledged
//!                          │                                              │
//!                          │ fails: an error for the whole group          ▼
//!                          ▼                                    audit.jsonl, a copy
//!                       nothing is written                       fails: reported, retried later
//! ```
//!
//! `docs/audit.md` specifies how a record is hashed, so that others can verify an export.

mod canonical;
mod chain;
mod details;
mod error;
mod export;
mod filter;
mod head;
mod log;
mod mirror;
mod mirror_file;
mod record;
mod table;
mod verify;
mod writer;

pub(crate) use canonical::from_hex;
pub use chain::{Broken, Fault, Verification, Verified};
pub use details::{DetailValue, Details, MAX_DETAILS, MAX_FIELD_BYTES, Redacted};
pub use error::AuditError;
pub use export::{Expected, verify_export};
pub use filter::AuditFilter;
pub use head::Head;
pub use log::{AuditLog, AuditOptions};
pub use mirror::{MirrorOptions, MirrorState};
pub use record::{AuditRecord, NewRecord};
