//! The same for a host: it packs trees that are to go into a sandbox, and unpacks what comes out of one. What comes out is
//! hostile: the sandbox may send any bytes.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use rustix::fs::Statx;
use tar::EntryType;

use super::meter::Meter;
use super::stage::{MadeDirs, Rules, Stage};
use super::tar_read::TarReader;
use super::tar_write::{Record, append_end, append_record};
use crate::files::path::failure;

/// Why an archive cannot be packed or unpacked: a sentence, without anything that a terminal acts on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ArchiveError {
    message: String,
    is_outward_link: bool,
}

impl ArchiveError {
    /// Whether it is a symbolic link that leads out of the directory, or may. [`UnpackRules::links_may_lead_out`] lets it.
    #[must_use]
    pub fn is_outward_link(&self) -> bool {
        self.is_outward_link
    }
}

impl From<ConnectError> for ArchiveError {
    fn from(error: ConnectError) -> Self {
        let message = error.message.unwrap_or_else(|| error.code.as_str().to_owned());
        Self { message, is_outward_link: false }
    }
}

/// What may come of an archive.
#[derive(Debug, Clone, Copy)]
pub struct UnpackRules {
    /// Permission bits that files and directories may get, at most `0o777`.
    pub mode_mask: u32,
    /// Most bytes of content, and of each file with its holes.
    pub max_bytes: u64,
    /// Most entries.
    pub max_entries: u64,
    /// Make symbolic links also when they lead out of the directory, or may. They are never followed.
    pub links_may_lead_out: bool,
}

/// What came of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What was left out, such as FIFOs.
    pub skipped: u64,
}

/// A tar on its way into a directory. Everything appears when the whole archive has come and has been found good. What is
/// there is added to: files are replaced, directories keep their modes.
///
/// It must be ended by [`finish`](Self::finish) or [`discard`](Self::discard); when it is dropped, what was unpacked is
/// removed by a task of the runtime, if that still runs one.
pub struct Unpacker {
    stage: Stage,
    meter: Meter,
    tar: TarReader,
}

impl Unpacker {
    /// Begins to unpack into an open directory.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub fn begin(target: OwnedFd, rules: &UnpackRules) -> Result<Self, ArchiveError> {
        let limits = v1::UnpackLimits {
            max_bytes: rules.max_bytes,
            max_entries: rules.max_entries,
            ..Default::default()
        };
        let stage_rules = Rules {
            strip: 0,
            mode_mask: rules.mode_mask & 0o777,
            overwrite: true,
            links_may_lead_out: rules.links_may_lead_out,
            is_hosts: true,
            max_file_bytes: rules.max_bytes,
        };
        let stage = Stage::open(target, MadeDirs::default(), stage_rules);
        let stage = stage.map_err(|errno| failure("unpack into", b"the directory", errno))?;
        Ok(Self { stage, meter: Meter::new(&limits), tar: TarReader::default() })
    }

    /// Takes the next bytes of the archive. After an error there is only [`discard`](Self::discard).
    ///
    /// # Errors
    /// The archive is not one that can be unpacked, holds more than it may, or cannot be written.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), ArchiveError> {
        self.tar
            .take(piece, &mut self.stage, &mut self.meter)
            .map_err(|error| ArchiveError { is_outward_link: self.stage.refused_link(), ..error.into() })
    }

    /// Takes it that all of it has come, and moves everything to its place.
    ///
    /// # Errors
    /// The archive is not whole, or something stands in the way. Then nothing of it is left but what had been moved already,
    /// if the host's own files changed meanwhile.
    pub async fn finish(self) -> Result<Unpacked, ArchiveError> {
        if let Err(error) = self.tar.end() {
            self.stage.discard().await;
            return Err(error.into());
        }
        let Meter { entries, bytes, skipped, .. } = self.meter;
        self.stage.finish().await?;
        Ok(Unpacked { entries, bytes, skipped })
    }

    /// Removes all that was unpacked.
    pub async fn discard(self) {
        self.stage.discard().await;
    }
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

/// A tree of the host on its way into a tar.
pub struct Packing {
    pieces: Pin<Box<dyn Stream<Item = Result<v1::PackResponse, ConnectError>> + Send>>,
    left_out: u64,
    changed: u64,
}

impl Packing {
    /// Begins to pack all that is in a directory, by names relative to it. No symbolic link in it is followed.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn begin(dir: &Path) -> Result<Self, ArchiveError> {
        let pieces = super::pack(dir, &v1::PackRequest::default())?;
        Ok(Self { pieces: Box::pin(pieces), left_out: 0, changed: 0 })
    }

    /// The next bytes of the archive; `None` at its end.
    ///
    /// # Errors
    /// It cannot be packed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ArchiveError> {
        while let Some(piece) = self.pieces.next().await {
            let piece = piece?;
            if let Some(summary) = piece.summary.as_option() {
                (self.left_out, self.changed) = (summary.skipped, summary.changed);
            }
            if !piece.data.is_empty() {
                return Ok(Some(piece.data));
            }
        }
        Ok(None)
    }

    /// How much could not be read, or is none that an archive holds, such as sockets. Known at the end.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How many files changed while they were read. Known at the end.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.changed
    }
}

/// A symbolic link of the host on its way into a tar.
#[derive(Debug)]
pub struct LinkEntry {
    /// Its name, relative to the directory that is unpacked into.
    pub name: PathBuf,
    /// Where it leads, as it is written in it.
    pub target: PathBuf,
    /// Its times.
    pub stat: Statx,
}

/// Packs symbolic links into a tar. They are not followed.
#[must_use]
pub fn pack_links<'a>(links: impl IntoIterator<Item = &'a LinkEntry>) -> Bytes {
    let mut out = Vec::new();
    for link in links {
        let (name, target) = (link.name.as_os_str().as_bytes(), link.target.as_os_str().as_bytes());
        let kind = EntryType::Symlink;
        append_record(&mut out, &Record { kind, name, target, stat: &link.stat, size: 0, segments: None });
    }
    append_end(&mut out);
    out.into()
}

impl std::fmt::Debug for Packing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Packing").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}
