//! Persistent state of a server: sandboxes, templates, keys and the audit log, in SQLite or PostgreSQL.
//!
//! [`Store::open`] opens either. A change that a method has acknowledged survives a crash of the process.
#![forbid(unsafe_code)]

mod approvals;
mod audit;
mod backup;
mod checkpoint;
mod database;
mod durability;
mod error;
mod files;
mod filter;
mod idempotency;
mod keys;
mod meta;
mod name_lock;
mod ports;
mod random;
mod reader;
mod registry_logins;
mod reserve;
mod sandboxes;
mod schema;
mod seal;
mod secrets;
mod service_wall;
mod sessions;
mod store;
mod templates;
mod tools;
mod url;
mod volumes;
mod wal;

pub use approvals::{ApprovalQuery, ApprovalRow, Approvals, Covered, DecisionRow, max_pending_of_one};
pub use audit::{
    Archive, ArchiveError, ArchiveOptions, ArchiveUntil, AuditError, AuditFilter, AuditLog, AuditOptions,
    AuditRecord, Broken, BrokenFile, DetailValue, Details, Expected, Fault, Head, MAX_DETAILS,
    MAX_FIELD_BYTES, MirrorOptions, MirrorState, NewRecord, Redacted, Segment, Verification, Verified,
    verify_export, verify_files,
};
pub use backup::copy_database;
pub use durability::Durability;
pub use error::StoreError;
pub use idempotency::{Claim, Claimed, Idempotency};
pub use keys::{KeyRow, KeyUpdate, Keys};
pub use meta::Meta;
pub use name_lock::NameLock;
pub use ports::{PortRow, PortVisibility, Ports};
pub use registry_logins::{RegistryLoginRow, RegistryLogins};
pub use sandboxes::{Cursor, ListQuery, Order, SandboxRow, Sandboxes};
pub use seal::KeyFile;
pub use secrets::{SecretChange, SecretRow, SecretValue, Secrets};
pub use service_wall::ServiceWall;
pub use sessions::{SessionRow, Sessions};
pub use store::Store;
pub use templates::{TemplateKind, TemplateRow, Templates};
pub use tools::{ToolRow, Tools};
pub use url::StoreUrl;
pub use volumes::{VolumeRow, Volumes};
