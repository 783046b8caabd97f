//! Archives: packing trees into a tar, unpacking tar and zip.

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

pub use pack::{LinkEntry, PackOptions, PackSummary, Packer, pack_links};
pub use stage::{CreatedDirs, create_dirs};
pub use unpack::{Format, UnpackOptions, UnpackSummary, Unpacker};

use crate::error::FileError;

/// Size of a tar block, in bytes.
const BLOCK: usize = 512;

/// Maximum size of one read from a file, in bytes.
const READ_BYTES: usize = 128 * 1024;

/// Returns the number of padding bytes that follow `length` bytes in a tar.
fn padding(length: u64) -> usize {
    let over = usize::try_from(length % BLOCK as u64).unwrap_or(0);
    (BLOCK - over) % BLOCK
}

/// Creates the error for an archive that cannot be unpacked.
fn invalid_archive(why: impl std::fmt::Display) -> FileError {
    FileError::invalid(format!("the archive cannot be unpacked: {why}"))
}
