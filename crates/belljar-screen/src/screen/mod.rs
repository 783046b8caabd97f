//! One screening: a request becomes a tree, which a reader visits.

mod reader;
mod request;
mod screening;
mod shell;
mod tree;

pub use request::{MAX_CODE_BYTES, MAX_MODULE_BYTES, MAX_MODULES, Modules, Request};
pub(crate) use screening::unread_report;
pub use screening::{MAX_TIME, screen};
pub use tree::MAX_DEPTH;
