//! Access to private parsers for `belljar-fuzz`. Not part of any release.

use std::path::{Path, PathBuf};

use belljar_proto::v1;

use crate::files::{archive, path};
use crate::{interpreter, ports, tree};

/// A process as described by `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: i32,
    /// Parent's process id.
    pub parent: i32,
    /// Session id.
    pub session: i32,
    /// Number of threads.
    pub threads: u32,
    /// Time in user mode, in ticks.
    pub user_ticks: u64,
    /// Time in the kernel, in ticks.
    pub system_ticks: u64,
    /// Resident memory, in pages.
    pub resident_pages: u64,
    /// True if the process has ended.
    pub zombie: bool,
}

/// Parses a line of `/proc/PID/stat`.
#[must_use]
pub fn proc_stat(line: &str) -> Option<Stat> {
    tree::Stat::parse(line).map(|stat| Stat {
        pid: stat.pid,
        parent: stat.parent,
        session: stat.session,
        threads: stat.threads,
        user_ticks: stat.user_ticks,
        system_ticks: stat.system_ticks,
        resident_pages: stat.resident_pages,
        zombie: stat.zombie,
    })
}

/// Resolves the path in a request.
///
/// # Errors
/// Returns the message for the host if the path is invalid.
pub fn request_path(home: &Path, bytes: &[u8]) -> Result<PathBuf, String> {
    path::resolve(home, "path", bytes).map_err(|error| error.message.unwrap_or_default())
}

/// Splits a path into directory and name.
#[must_use]
pub fn split_path(path: &[u8]) -> Option<(&[u8], &[u8])> {
    belljar_files::split(path)
}

/// Returns a path as printable text.
#[must_use]
pub fn shown_path(path: &[u8]) -> String {
    belljar_files::show(path)
}

/// Validates the permission bits in a request; `None` if they are refused.
#[must_use]
pub fn request_mode(bits: u32, default: u32) -> Option<u32> {
    path::mode(bits, default).ok().map(|mode| mode.as_raw_mode())
}

/// Returns the output of code in a stream that is read in these parts, and that has the marks of a kernel with the token
/// `0123456789abcdef`. If it `waits`, the results arrive when they are waited for.
#[must_use]
pub fn marked_output(parts: &[&[u8]], waits: bool) -> Vec<u8> {
    interpreter::marked_output(parts, waits)
}

/// Returns the listening port in a line of `/proc/net/tcp`.
#[must_use]
pub fn listening(line: &str) -> Option<u16> {
    ports::listening_port(line)
}

/// Unpacks an archive below `home` with the options in `open`.
///
/// # Errors
/// Returns the message for the host if the archive is refused.
pub fn unpack(home: &Path, open: &v1::UnpackOpen, bytes: &[u8]) -> Result<v1::UnpackResponse, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let unpacked = runtime.block_on(archive::unpack_bytes(home, open, bytes));
    unpacked.map_err(|error| error.message.unwrap_or_default())
}

/// Reports whether a glob pattern matches a path; `None` if the pattern is invalid.
#[must_use]
pub fn glob_matches(pattern: &[u8], path: &[u8]) -> Option<bool> {
    belljar_files::Glob::new(pattern).ok().map(|glob| glob.matches(path))
}
