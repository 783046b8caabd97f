//! What must outlive the server: sandboxes, templates, keys and the audit trail, in SQLite or PostgreSQL.
//!
//! [`Store::open`] opens either. What a method has acknowledged survives the death of the process.
#![forbid(unsafe_code)]

mod audit;
mod database;
mod durability;
mod error;
mod filter;
mod keys;
mod meta;
mod place;
mod random;
mod reader;
mod sandboxes;
mod schema;
mod store;
mod url;
mod wal;

pub use audit::{
    AuditError, AuditFilter, AuditLog, AuditOptions, AuditRecord, Broken, DetailValue, Details, Expected,
    Fault, Head, MAX_DETAILS, MAX_FIELD_BYTES, MirrorOptions, MirrorState, NewRecord, Redacted, Verification,
    Verified, verify_export,
};
pub use durability::Durability;
pub use error::StoreError;
pub use keys::{KeyRow, Keys};
pub use meta::Meta;
pub use sandboxes::{Cursor, ListQuery, Order, SandboxRow, Sandboxes};
pub use store::Store;
pub use url::StoreUrl;
