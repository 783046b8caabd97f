//! What must outlive the server: sandboxes, templates, keys and the audit trail, in SQLite or PostgreSQL.
//!
//! [`Store::open`] opens either. What a method has acknowledged survives the death of the process.
#![forbid(unsafe_code)]

mod audit;
mod backup;
mod checkpoint;
mod database;
mod durability;
mod error;
mod filter;
mod held_name;
mod idempotency;
mod keys;
mod meta;
mod place;
mod ports;
mod random;
mod reader;
mod reserve;
mod sandboxes;
mod schema;
mod seal;
mod store;
mod templates;
mod url;
mod wal;
mod without;

pub use audit::{
    AuditError, AuditFilter, AuditLog, AuditOptions, AuditRecord, Broken, DetailValue, Details, Expected,
    Fault, Head, MAX_DETAILS, MAX_FIELD_BYTES, MirrorOptions, MirrorState, NewRecord, Redacted, Verification,
    Verified, verify_export,
};
pub use durability::Durability;
pub use error::StoreError;
pub use held_name::HeldName;
pub use idempotency::{Claim, Claimed, Idempotency};
pub use keys::{KeyRow, Keys};
pub use meta::Meta;
pub use ports::{PortRow, PortVisibility, Ports};
pub use sandboxes::{Cursor, ListQuery, Order, SandboxRow, Sandboxes};
pub use seal::KeyFile;
pub use store::Store;
pub use templates::{TemplateKind, TemplateRow, Templates};
pub use url::StoreUrl;
pub use without::ServiceWall;
