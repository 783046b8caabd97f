//! Doors to private parsers, for the checks of `belljar-fuzz`. Not part of any release.

use std::path::{Path, PathBuf};

use belljar_proto::v1;

use crate::files::{archive, path};
use crate::{ports, tree};

/// A process as `/proc/PID/stat` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub pid: i32,
    /// Its parent's number.
    pub parent: i32,
    /// Its session's number.
    pub session: i32,
    /// Its threads.
    pub threads: u32,
    /// Time in user mode.
    pub user_ticks: u64,
    /// Time in the kernel.
    pub system_ticks: u64,
    /// Resident memory.
    pub resident_pages: u64,
    /// Whether it has ended.
    pub zombie: bool,
}

/// Reads a line of `/proc/PID/stat`.
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

/// The path in a request, or why it is refused.
///
/// # Errors
/// The sentence for the host.
pub fn request_path(home: &Path, bytes: &[u8]) -> Result<PathBuf, String> {
    path::resolve(home, "path", bytes).map_err(|error| error.message.unwrap_or_default())
}

/// The directory and the name of a path.
#[must_use]
pub fn split_path(path: &[u8]) -> Option<(&[u8], &[u8])> {
    belljar_files::split(path)
}

/// A path as text for people.
#[must_use]
pub fn shown_path(path: &[u8]) -> String {
    belljar_files::show(path)
}

/// The permission bits in a request; `None` is refused.
#[must_use]
pub fn request_mode(bits: u32, default: u32) -> Option<u32> {
    path::mode(bits, default).ok().map(|mode| mode.as_raw_mode())
}

/// The port that a line of `/proc/net/tcp` says somebody listens on: at any address, and at one that a tunnel reaches.
#[must_use]
pub fn listening(line: &str) -> (Option<u16>, Option<u16>) {
    (ports::listening(line, ports::any), ports::listening(line, ports::takes_ipv4))
}

/// Unpacks an archive below `home`, as `open` says.
///
/// # Errors
/// The sentence for the host.
pub fn unpack(home: &Path, open: &v1::UnpackOpen, bytes: &[u8]) -> Result<v1::UnpackResponse, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let unpacked = runtime.block_on(archive::unpack_bytes(home, open, bytes));
    unpacked.map_err(|error| error.message.unwrap_or_default())
}

/// Whether a shell pattern matches a path; `None` where it is no pattern.
#[must_use]
pub fn glob_matches(pattern: &[u8], path: &[u8]) -> Option<bool> {
    belljar_files::Glob::new(pattern).ok().map(|glob| glob.matches(path))
}
