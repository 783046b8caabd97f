//! Unpacking: the archive's form, and the way from its bytes to the reader for that form.

use std::io::Write as _;
use std::os::fd::OwnedFd;

use flate2::write::MultiGzDecoder;
use rustix::io::retry_on_intr;

use super::meter::Meter;
use super::stage::{CreatedDirs, Rules, Stage};
use super::tar_read::TarReader;
use super::{BLOCK, bad, zip_read};
use crate::error::{FileError, failure};

/// What is given to the decompressor at once, in bytes: at most a thousand times as much comes out.
const COMPRESSED_AT_ONCE: usize = 2048;

/// What is given to the reader of a tar at once, in bytes.
const PLAIN_AT_ONCE: usize = 128 * 1024;

/// The form of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A tar.
    Tar,
    /// A tar that gzip has compressed.
    TarGzip,
    /// A zip.
    Zip,
}

/// Returns the format that a file with these first bytes has.
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
        return Err(bad(format!("it is {name}, which is not supported; give a tar, a tar.gz or a zip")));
    }
    Ok(Format::Tar)
}

enum Reader {
    Tar(Box<TarReader>),
    Gzip(Box<MultiGzDecoder<Vec<u8>>>, Box<TarReader>, u64),
    /// A file without a name, as a zip is read from its end.
    Zip(OwnedFd),
}

/// An archive on its way into a directory. Everything appears when the whole archive has come and has been found good; after an
/// error, or when it is broken off, nothing of it is left.
///
/// It must be ended by [`finish`](Self::finish) or [`discard`](Self::discard); when it is dropped, what was unpacked is removed
/// by a task of the runtime, if that still runs one.
pub struct Unpacker {
    stage: Stage,
    meter: Meter,
    format: Option<Format>,
    /// The first bytes, until the format is known.
    head: Vec<u8>,
    reader: Option<Reader>,
    /// Bytes of the archive that have come.
    compressed: u64,
}

/// What may come of an archive, and how.
#[derive(Debug, Clone, Copy)]
pub struct UnpackOptions {
    /// Its form; if not given, what its first bytes say.
    pub format: Option<Format>,
    /// How many leading parts of each name are dropped, at most 1,000.
    pub strip: usize,
    /// Permission bits that files and directories may get, at most `0o777`.
    pub mode_mask: u32,
    /// Replace files that are there; if not, such a file is an error.
    pub overwrite: bool,
    /// Make symbolic links also when they lead out of the directory, or may. They are never followed.
    pub links_may_lead_out: bool,
    /// The target is a directory of the host, where the archive's owner may do less than the host: directories that are there keep
    /// their modes and times, nothing may lead out of the target while others are at work in it, and a file with its holes
    /// counts in full.
    pub is_hosts: bool,
    /// Most bytes of content.
    pub max_bytes: u64,
    /// Most entries.
    pub max_entries: u64,
    /// How many times its own size a compressed archive may hold.
    pub max_ratio: u32,
}

/// The most parts of a name that may be dropped.
const MAX_STRIP: usize = 1000;

impl Default for UnpackOptions {
    fn default() -> Self {
        Self {
            format: None,
            strip: 0,
            mode_mask: 0o777,
            overwrite: false,
            links_may_lead_out: false,
            is_hosts: false,
            max_bytes: 4 << 30,
            max_entries: 1_000_000,
            max_ratio: 200,
        }
    }
}

/// What came of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackSummary {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What was left out, such as FIFOs.
    pub skipped: u64,
}

impl Unpacker {
    /// Begins to unpack into an open directory. `created` are directories that were made for it, the target among them.
    ///
    /// # Errors
    /// Nothing can be written there; `options` are not allowed.
    pub fn begin(target: OwnedFd, created: CreatedDirs, options: &UnpackOptions) -> Result<Self, FileError> {
        if options.strip > MAX_STRIP {
            return Err(FileError::invalid(format!("strip_components: at most {MAX_STRIP} are allowed")));
        }
        let rules = Rules {
            strip: options.strip,
            mode_mask: options.mode_mask & 0o777,
            overwrite: options.overwrite,
            links_may_lead_out: options.links_may_lead_out,
            is_hosts: options.is_hosts,
            max_file_bytes: if options.is_hosts { options.max_bytes } else { u64::MAX },
        };
        let stage = Stage::open(target, created, rules)
            .map_err(|errno| failure("unpack into", b"the directory", errno))?;
        let meter = Meter::new(options);
        Ok(Self { stage, meter, format: options.format, head: Vec::new(), reader: None, compressed: 0 })
    }

    /// Moves everything to its place.
    ///
    /// # Errors
    /// The archive is not whole, or something stands in the way. Then nothing of it is left but what had been moved already,
    /// if the host's own files changed meanwhile.
    pub async fn finish(mut self) -> Result<UnpackSummary, FileError> {
        if let Err(error) = self.end().await {
            self.stage.discard().await;
            return Err(error);
        }
        let Meter { entries, bytes, skipped, .. } = self.meter;
        self.stage.finish().await?;
        Ok(UnpackSummary { entries, bytes, skipped })
    }

    /// Removes all that was unpacked.
    pub async fn discard(self) {
        self.stage.discard().await;
    }

    /// Takes the next bytes of the archive. After an error there is only [`discard`](Self::discard).
    ///
    /// # Errors
    /// The archive is not one that can be unpacked, holds more than it may, or cannot be written.
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
        let at_once = match self.reader {
            Some(Reader::Gzip(..)) => COMPRESSED_AT_ONCE,
            _ => PLAIN_AT_ONCE,
        };
        for piece in data.chunks(at_once) {
            self.compressed += piece.len() as u64;
            self.read_piece(piece)?;
            // A large archive must not keep the guest from its other work.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn read_piece(&mut self, piece: &[u8]) -> Result<(), FileError> {
        match &mut self.reader {
            Some(Reader::Tar(tar)) => tar.take(piece, &mut self.stage, &mut self.meter),
            Some(Reader::Gzip(gzip, tar, content)) => {
                gzip.write_all(piece).map_err(|error| bad(format!("its compression is broken: {error}")))?;
                let plain = std::mem::take(gzip.get_mut());
                *content += plain.len() as u64;
                self.meter.ratio(self.compressed, *content)?;
                tar.take(&plain, &mut self.stage, &mut self.meter)
            }
            Some(Reader::Zip(spool)) => {
                if self.compressed > self.meter.max_bytes() {
                    return Err(self.meter.too_long());
                }
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

    /// Takes it that no more comes.
    async fn end(&mut self) -> Result<(), FileError> {
        if self.reader.is_none() {
            self.begin_reading().await?;
        }
        match self.reader.take() {
            Some(Reader::Tar(tar)) => tar.end()?,
            Some(Reader::Gzip(mut gzip, mut tar, _)) => {
                gzip.try_finish().map_err(|error| bad(format!("its compression is broken: {error}")))?;
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
