//! File trees and archives that may be hostile: walking, removing, packing, unpacking, glob patterns. The guest uses
//! them with the rights of user code, the host for what comes out of a sandbox. Nothing here blocks for long: long work
//! yields to the runtime.

mod archive;
mod dir;
mod error;
mod glob;
mod path;
mod remove;
mod temporary;
mod walk;

pub use archive::{
    CreatedDirs, Format, LinkEntry, PackOptions, PackSummary, Packer, UnpackOptions, UnpackSummary, Unpacker,
    create_dirs, pack_links,
};
pub use dir::{NO_FOLLOW, kind, open_dir, stat_open};
pub use error::{ErrorKind, FileError, failed_precondition, failure};
pub use glob::Glob;
pub use path::{check_path, show, split};
pub use remove::remove_tree;
pub use temporary::Temporary;
pub use walk::{Found, Walk};
