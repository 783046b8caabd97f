//! One screening: a request becomes a tree, which a reader visits.

mod reader;
mod request;
mod screening;
mod shell;
mod tree;

pub use request::{MAX_CODE_BYTES, MAX_MODULE_BYTES, MAX_MODULES, Modules, Request};
pub use screening::{MAX_TIME, screen};
pub(crate) use screening::{screen_by, unread_report};
pub use tree::MAX_DEPTH;
