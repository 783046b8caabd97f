//! Archives: packing trees into a tar, and unpacking tar and zip. Neither the tree nor the archive is trusted: both may
//! have been made to trap whoever goes through them.

mod host;
#[cfg(test)]
mod host_tests;
mod merge;
mod meter;
mod names;
mod pack;
mod sparse;
mod stage;
mod tar_read;
mod tar_write;
#[cfg(test)]
mod tests;
mod unpack;
mod zip_read;

pub use host::{ArchiveError, LinkEntry, Packing, UnpackRules, Unpacked, Unpacker, pack_links};
pub(super) use pack::pack;
pub(super) use unpack::unpack;
#[cfg(feature = "fuzzing")]
pub(crate) use unpack::unpack_bytes;

use belljar_proto::ConnectError;

/// The unit of a tar, in bytes.
const BLOCK: usize = 512;

/// What is read of a file at once, in bytes.
const READ_BYTES: usize = 128 * 1024;

/// How many zeros follow `length` bytes in a tar.
fn padding(length: u64) -> usize {
    let over = usize::try_from(length % BLOCK as u64).unwrap_or(0);
    (BLOCK - over) % BLOCK
}

/// The archive is not one that can be unpacked.
fn bad(why: impl std::fmt::Display) -> ConnectError {
    ConnectError::invalid_argument(format!("the archive cannot be unpacked: {why}"))
}
