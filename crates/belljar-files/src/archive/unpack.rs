//! Unpacks archives: detects the format and feeds the bytes to its reader.

use std::io::Write as _;
use std::os::fd::OwnedFd;

use flate2::write::MultiGzDecoder;
use rustix::io::retry_on_intr;

use super::meter::Meter;
use super::stage::{CreatedDirs, Rules, Stage};
use super::tar_read::TarReader;
use super::{BLOCK, invalid_archive, zip_read};
use crate::error::{FileError, failure};

/// Maximum input of one decompression step, in bytes: the output is at most a thousand times as large.
const COMPRESSED_CHUNK_BYTES: usize = 2048;

/// Maximum input of one step of the tar reader, in bytes.
const PLAIN_CHUNK_BYTES: usize = 128 * 1024;

/// Archive format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A tar.
    Tar,
    /// A tar compressed with gzip.
    TarGzip,
    /// A zip.
    Zip,
}

/// Returns the format of a file that starts with `head`.
fn detect_format(head: &[u8]) -> Result<Format, FileError> {
    const OTHERS: [(&[u8], &str); 8] = [
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"LZIP", "lzip"),
        (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
        (b"Rar!", "RAR"),
        (b"!<arch>\n", "ar"),
    ];
    if head.starts_with(b"\x1f\x8b") {
        return Ok(Format::TarGzip);
    }
    if [b"PK\x03\x04", b"PK\x05\x06"].iter().any(|magic| head.starts_with(*magic)) {
        return Ok(Format::Zip);
    }
    if let Some((_, name)) = OTHERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(invalid_archive(format!("format {name} is not supported; use tar, tar.gz or zip")));
    }
    Ok(Format::Tar)
}

enum Reader {
    Tar(Box<TarReader>),
    Gzip(Box<MultiGzDecoder<Vec<u8>>>, Box<TarReader>, u64),
    /// An unnamed file that holds the whole archive, because a zip is read from its end.
    Zip(OwnedFd),
}

/// Unpacks an archive into a directory. Everything appears at once, when the whole archive has arrived and proved
/// valid; after an error or a cancellation nothing of it is left.
///
/// Must be ended with [`finish`](Self::finish) or [`discard`](Self::discard). Dropping it removes the unpacked files in
/// a task of the runtime, if the runtime still accepts one.
pub struct Unpacker {
    stage: Stage,
    meter: Meter,
    format: Option<Format>,
    /// First bytes of the archive, until the format is known.
    head: Vec<u8>,
    reader: Option<Reader>,
    /// Bytes of the archive received so far.
    compressed: u64,
}

/// Options and limits for unpacking an archive.
#[derive(Debug, Clone, Copy)]
pub struct UnpackOptions {
    /// Format; detected from the first bytes if `None`.
    pub format: Option<Format>,
    /// Number of leading components dropped from each name, at most 1,000.
    pub strip: usize,
    /// Mask of the permission bits of files and directories, at most `0o777`.
    pub mode_mask: u32,
    /// Replace existing files; otherwise an existing file is an error.
    pub overwrite: bool,
    /// Also create symbolic links that lead, or may lead, out of the directory. They are never followed.
    pub links_may_lead_out: bool,
    /// The target is a directory of the host, where the archive's owner has fewer rights than the host: existing
    /// directories keep their modes and times, nothing may lead out of the target while other programs change it, and a
    /// sparse file counts with its full size.
    pub is_host_target: bool,
    /// Reports whether there is memory for this many bytes more; always, if `None`.
    pub has_room: Option<fn(u64) -> bool>,
    /// Maximum size of the content, in bytes.
    pub max_bytes: u64,
    /// Maximum number of entries.
    pub max_entries: u64,
    /// Maximum ratio of the content to the size of a compressed archive.
    pub max_ratio: u32,
}

/// Maximum number of components dropped from a name.
const MAX_STRIP: usize = 1000;

impl Default for UnpackOptions {
    fn default() -> Self {
        Self {
            format: None,
            strip: 0,
            mode_mask: 0o777,
            overwrite: false,
            links_may_lead_out: false,
            is_host_target: false,
            has_room: None,
            max_bytes: 4 << 30,
            max_entries: 1_000_000,
            max_ratio: 200,
        }
    }
}

/// Result of unpacking an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackSummary {
    /// Number of files, directories and links.
    pub entries: u64,
    /// File content, in bytes.
    pub bytes: u64,
    /// Number of entries left out, such as FIFOs.
    pub skipped: u64,
}

impl Unpacker {
    /// Starts unpacking into an open directory. `created` are directories created for it, which may include the target.
    ///
    /// # Errors
    /// Fails if the directory is not writable or `options` are invalid.
    pub fn begin(target: OwnedFd, created: CreatedDirs, options: &UnpackOptions) -> Result<Self, FileError> {
        if options.strip > MAX_STRIP {
            return Err(FileError::invalid(format!("strip_components: at most {MAX_STRIP} are allowed")));
        }
        let rules = Rules {
            strip: options.strip,
            mode_mask: options.mode_mask & 0o777,
            overwrite: options.overwrite,
            links_may_lead_out: options.links_may_lead_out,
            is_host_target: options.is_host_target,
            max_file_bytes: if options.is_host_target { options.max_bytes } else { u64::MAX },
        };
        let stage = Stage::open(target, created, rules)
            .map_err(|errno| failure("unpack into", b"the directory", errno))?;
        let meter = Meter::new(options);
        Ok(Self { stage, meter, format: options.format, head: Vec::new(), reader: None, compressed: 0 })
    }

    /// Moves everything to its final place.
    ///
    /// # Errors
    /// Fails if the archive is incomplete or conflicts with existing files. Nothing of it is left then, except what had
    /// already been moved if the host's own files changed meanwhile.
    pub async fn finish(mut self) -> Result<UnpackSummary, FileError> {
        if let Err(error) = self.end().await {
            self.stage.discard().await;
            return Err(error);
        }
        let Meter { entries, bytes, skipped, .. } = self.meter;
        self.stage.finish().await?;
        Ok(UnpackSummary { entries, bytes, skipped })
    }

    /// Removes everything that was unpacked.
    pub async fn discard(self) {
        self.stage.discard().await;
    }

    /// Consumes the next bytes of the archive. After an error, only [`discard`](Self::discard) may be called.
    ///
    /// # Errors
    /// Fails if the archive is invalid, exceeds a limit, or cannot be written.
    pub async fn take(&mut self, data: &[u8]) -> Result<(), FileError> {
        if self.reader.is_some() {
            return self.read(data).await;
        }
        self.head.extend_from_slice(data);
        if self.format.is_some() || self.head.len() >= BLOCK { self.begin_reading().await } else { Ok(()) }
    }

    async fn begin_reading(&mut self) -> Result<(), FileError> {
        let format = match self.format {
            Some(format) => format,
            None => detect_format(&self.head)?,
        };
        self.reader = Some(match format {
            Format::Tar => Reader::Tar(Box::default()),
            Format::TarGzip => Reader::Gzip(Box::new(MultiGzDecoder::new(Vec::new())), Box::default(), 0),
            Format::Zip => Reader::Zip(self.stage.scratch_file()?),
        });
        let head = std::mem::take(&mut self.head);
        self.read(&head).await
    }

    async fn read(&mut self, data: &[u8]) -> Result<(), FileError> {
        let chunk_bytes = match self.reader {
            Some(Reader::Gzip(..)) => COMPRESSED_CHUNK_BYTES,
            _ => PLAIN_CHUNK_BYTES,
        };
        for piece in data.chunks(chunk_bytes) {
            self.compressed += piece.len() as u64;
            self.read_piece(piece)?;
            // Lets other tasks of the guest run while a large archive is unpacked.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn read_piece(&mut self, piece: &[u8]) -> Result<(), FileError> {
        match &mut self.reader {
            Some(Reader::Tar(tar)) => tar.take(piece, &mut self.stage, &mut self.meter),
            Some(Reader::Gzip(gzip, tar, content)) => {
                gzip.write_all(piece)
                    .map_err(|error| invalid_archive(format!("corrupt gzip data:  {error}")))?;
                let plain = std::mem::take(gzip.get_mut());
                *content += plain.len() as u64;
                self.meter.check_ratio(self.compressed, *content)?;
                tar.take(&plain, &mut self.stage, &mut self.meter)
            }
            Some(Reader::Zip(spool)) => {
                if self.compressed > self.meter.max_bytes() {
                    return Err(self.meter.archive_too_large());
                }
                self.meter.check_room(piece.len() as u64)?;
                let mut offset = self.compressed - piece.len() as u64;
                let mut rest = piece;
                while !rest.is_empty() {
                    let written = retry_on_intr(|| rustix::io::pwrite(&*spool, rest, offset));
                    let written = written.map_err(|errno| failure("unpack", b"the archive", errno))?;
                    offset += written as u64;
                    rest = &rest[written..];
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Handles the end of the input.
    async fn end(&mut self) -> Result<(), FileError> {
        if self.reader.is_none() {
            self.begin_reading().await?;
        }
        match self.reader.take() {
            Some(Reader::Tar(tar)) => tar.end()?,
            Some(Reader::Gzip(mut gzip, mut tar, _)) => {
                gzip.try_finish().map_err(|error| invalid_archive(format!("corrupt gzip data:  {error}")))?;
                let plain = std::mem::take(gzip.get_mut());
                tar.take(&plain, &mut self.stage, &mut self.meter)?;
                tar.end()?;
            }
            Some(Reader::Zip(spool)) => {
                zip_read::unpack(&spool, self.compressed, &mut self.stage, &mut self.meter).await?;
            }
            None => {}
        }
        Ok(())
    }
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Unpacker").field("format", &self.format).finish_non_exhaustive()
    }
}
