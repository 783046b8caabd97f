//! Unpacking: the request, the archive's form, and the way from the stream to the reader for that form.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use belljar_proto::{ConnectError, InboundStream, v1};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use futures::StreamExt;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::meter::Meter;
use super::stage::{MadeDirs, Rules, Stage};
use super::tar_read::TarReader;
use super::{BLOCK, bad, zip_read};
use crate::files::path::{failure, mode, resolve};

/// What is given to the decompressor at once, in bytes: at most a thousand times as much comes out.
const COMPRESSED_AT_ONCE: usize = 2048;

/// What is given to the reader of a tar at once, in bytes.
const PLAIN_AT_ONCE: usize = 128 * 1024;

/// The most parts of a name that may be dropped.
const MAX_STRIP: u32 = 1000;

/// Unpacks what the stream brings.
pub(in crate::files) async fn unpack(
    home: &Path,
    mut requests: InboundStream<v1::UnpackRequest>,
) -> Result<v1::UnpackResponse, ConnectError> {
    let first_missing = || ConnectError::invalid_argument("open: it is missing in the first message");
    let first = requests.next().await.ok_or_else(first_missing)??.to_owned_message();
    let open = first.open.as_option().ok_or_else(first_missing)?;
    let mut unpacking = Unpacking::begin(home, open)?;
    let taken = unpacking.take_all(first.data, &mut requests).await;
    unpacking.finish(taken).await
}

/// The same of an archive that is in memory.
#[cfg(feature = "fuzzing")]
pub(crate) async fn unpack_bytes(
    home: &Path,
    open: &v1::UnpackOpen,
    archive: &[u8],
) -> Result<v1::UnpackResponse, ConnectError> {
    let mut unpacking = Unpacking::begin(home, open)?;
    let mut taken = Ok(());
    // In pieces, as they come from outside.
    for piece in archive.chunks(700) {
        if taken.is_ok() {
            taken = unpacking.take(piece).await;
        }
    }
    unpacking.finish(taken).await
}

fn make_dirs(path: &Path, made: &mut MadeDirs) -> Result<(), Errno> {
    use std::os::unix::ffi::OsStrExt;
    let path = path.as_os_str().as_bytes();
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
    for end in ends.chain([path.len()]) {
        let dir = &path[..end];
        match rustix::fs::mkdir(dir, Mode::from_raw_mode(0o755)) {
            Ok(()) => made.0.push(dir.to_vec()),
            // Where it is no directory, opening it says so. A system's own directories may say anything.
            Err(Errno::EXIST | Errno::ISDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn rules(open: &v1::UnpackOpen) -> Result<Rules, ConnectError> {
    if open.strip_components > MAX_STRIP {
        return Err(ConnectError::invalid_argument(format!(
            "strip_components: at most {MAX_STRIP} are allowed"
        )));
    }
    Ok(Rules {
        strip: usize::try_from(open.strip_components).unwrap_or(usize::MAX),
        mode_mask: mode(open.mode_mask, 0o777)?.as_raw_mode() & 0o777,
        overwrite: open.overwrite,
        links_may_lead_out: open.links_may_lead_out,
        is_hosts: false,
        max_file_bytes: u64::MAX,
    })
}

/// `None` is to be found out.
fn wanted_format(open: &v1::UnpackOpen) -> Result<Option<Format>, ConnectError> {
    use v1::ArchiveFormat as Wanted;
    match open.format.as_known() {
        Some(Wanted::ARCHIVE_FORMAT_UNSPECIFIED) => Ok(None),
        Some(Wanted::ARCHIVE_FORMAT_TAR) => Ok(Some(Format::Tar)),
        Some(Wanted::ARCHIVE_FORMAT_TAR_GZIP) => Ok(Some(Format::TarGzip)),
        Some(Wanted::ARCHIVE_FORMAT_ZIP) => Ok(Some(Format::Zip)),
        None => Err(ConnectError::invalid_argument("format: give TAR, TAR_GZIP or ZIP")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Tar,
    TarGzip,
    Zip,
}

/// The format that a file with these first bytes has.
pub(super) fn found_format(head: &[u8]) -> Result<Format, ConnectError> {
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

struct Unpacking {
    stage: Stage,
    meter: Meter,
    format: Option<Format>,
    /// The first bytes, until the format is known.
    head: Vec<u8>,
    reader: Option<Reader>,
    /// Bytes of the archive that have come.
    compressed: u64,
}

impl Unpacking {
    fn begin(home: &Path, open: &v1::UnpackOpen) -> Result<Self, ConnectError> {
        let path = resolve(home, "open.path", &open.path)?;
        let format = wanted_format(open)?;
        let rules = rules(open)?;
        let meter = Meter::new(&open.limits.as_option().cloned().unwrap_or_default());
        let fail = |errno| failure("unpack into", &open.path, errno);
        let mut made = MadeDirs::default();
        make_dirs(&path, &mut made).map_err(fail)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let target = rustix::fs::open(&path, flags, Mode::empty()).map_err(fail)?;
        let stage = Stage::open(target, made, rules).map_err(fail)?;
        Ok(Self { stage, meter, format, head: Vec::new(), reader: None, compressed: 0 })
    }

    /// Moves everything to its place, or removes it.
    async fn finish(mut self, taken: Result<(), ConnectError>) -> Result<v1::UnpackResponse, ConnectError> {
        let ended = match taken {
            Ok(()) => self.end().await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            self.stage.discard().await;
            return Err(error);
        }
        let Meter { entries, bytes, skipped, .. } = self.meter;
        self.stage.finish().await?;
        Ok(v1::UnpackResponse { entries, bytes, skipped, ..Default::default() })
    }

    async fn take_all(
        &mut self,
        first: Bytes,
        requests: &mut InboundStream<v1::UnpackRequest>,
    ) -> Result<(), ConnectError> {
        self.take(&first).await?;
        while let Some(message) = requests.next().await {
            let message = message?.to_owned_message();
            if message.open.is_set() {
                return Err(ConnectError::invalid_argument("open: it may only be in the first message"));
            }
            self.take(&message.data).await?;
        }
        Ok(())
    }

    async fn take(&mut self, data: &[u8]) -> Result<(), ConnectError> {
        if self.reader.is_some() {
            return self.read(data).await;
        }
        self.head.extend_from_slice(data);
        if self.format.is_some() || self.head.len() >= BLOCK { self.begin_reading().await } else { Ok(()) }
    }

    async fn begin_reading(&mut self) -> Result<(), ConnectError> {
        let format = match self.format {
            Some(format) => format,
            None => found_format(&self.head)?,
        };
        self.reader = Some(match format {
            Format::Tar => Reader::Tar(Box::default()),
            Format::TarGzip => Reader::Gzip(Box::new(MultiGzDecoder::new(Vec::new())), Box::default(), 0),
            Format::Zip => Reader::Zip(self.stage.scratch_file()?),
        });
        let head = std::mem::take(&mut self.head);
        self.read(&head).await
    }

    async fn read(&mut self, data: &[u8]) -> Result<(), ConnectError> {
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

    fn read_piece(&mut self, piece: &[u8]) -> Result<(), ConnectError> {
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
    async fn end(&mut self) -> Result<(), ConnectError> {
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
