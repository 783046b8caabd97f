//! Archive calls: packing trees of the sandbox into tars, unpacking tars and zips.

use std::path::Path;

use belljar_files::{Format, PackOptions, Packer, UnpackOptions, UnpackSummary, Unpacker, create_dirs};
use belljar_proto::{ConnectError, InboundStream, v1};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use rustix::fs::{Mode, OFlags};

use super::path::{failure, mode, resolve, to_connect};

/// Packs the trees in the request.
pub(super) fn pack(
    home: &Path,
    request: &v1::PackRequest,
) -> Result<impl Stream<Item = Result<v1::PackResponse, ConnectError>> + use<>, ConnectError> {
    let base = if request.base.is_empty() { home.to_owned() } else { resolve(home, "base", &request.base)? };
    let gzip = match request.format.as_known() {
        Some(v1::ArchiveFormat::ARCHIVE_FORMAT_UNSPECIFIED | v1::ArchiveFormat::ARCHIVE_FORMAT_TAR) => false,
        Some(v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP) => true,
        _ => return Err(ConnectError::invalid_argument("format: give TAR or TAR_GZIP")),
    };
    let options = PackOptions {
        paths: request.paths.clone(),
        exclude: request.exclude.clone(),
        gzip,
        one_file_system: request.one_file_system,
        lower: match request.lower.is_empty() {
            true => None,
            false => Some(resolve(home, "lower", &request.lower)?),
        },
    };
    let packer = Packer::begin(&base, &options).map_err(to_connect)?;
    Ok(futures::stream::unfold(Some(packer), |packer| async move {
        let mut packer = packer?;
        match packer.next().await {
            Some(data) => Some((Ok(v1::PackResponse { data, ..Default::default() }), Some(packer))),
            None => {
                let summary = packer.summary();
                let summary = v1::PackSummary {
                    entries: summary.entries,
                    bytes: summary.bytes,
                    skipped: summary.skipped,
                    changed: summary.changed,
                    ..Default::default()
                };
                Some((Ok(v1::PackResponse { summary: summary.into(), ..Default::default() }), None))
            }
        }
    }))
}

/// Unpacks an archive from a stream.
pub(super) async fn unpack(
    home: &Path,
    mut requests: InboundStream<v1::UnpackRequest>,
) -> Result<v1::UnpackResponse, ConnectError> {
    let first_missing = || ConnectError::invalid_argument("open: missing in the first message");
    let first = requests.next().await.ok_or_else(first_missing)??.to_owned_message();
    let mut unpacker = begin(home, first.open.as_option().ok_or_else(first_missing)?)?;
    match feed(&mut unpacker, &first.data, &mut requests).await {
        Ok(()) => finish(unpacker).await,
        Err(error) => {
            unpacker.discard().await;
            Err(error)
        }
    }
}

/// Unpacks an archive in memory.
#[cfg(feature = "fuzzing")]
pub(crate) async fn unpack_bytes(
    home: &Path,
    open: &v1::UnpackOpen,
    archive: &[u8],
) -> Result<v1::UnpackResponse, ConnectError> {
    let mut unpacker = begin(home, open)?;
    // In chunks, as from the host.
    for piece in archive.chunks(700) {
        if let Err(error) = unpacker.take(piece).await {
            unpacker.discard().await;
            return Err(to_connect(error));
        }
    }
    finish(unpacker).await
}

fn begin(home: &Path, open: &v1::UnpackOpen) -> Result<Unpacker, ConnectError> {
    let path = resolve(home, "open.path", &open.path)?;
    let options = options(open)?;
    let fail = |errno| failure("unpack into", &open.path, errno);
    let created = create_dirs(&path).map_err(fail)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let target = rustix::fs::open(&path, flags, Mode::empty()).map_err(fail)?;
    Unpacker::begin(target, created, &options).map_err(to_connect)
}

fn options(open: &v1::UnpackOpen) -> Result<UnpackOptions, ConnectError> {
    let default = UnpackOptions::default();
    let format = match open.format.as_known() {
        Some(v1::ArchiveFormat::ARCHIVE_FORMAT_UNSPECIFIED) => None,
        Some(v1::ArchiveFormat::ARCHIVE_FORMAT_TAR) => Some(Format::Tar),
        Some(v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP) => Some(Format::TarGzip),
        Some(v1::ArchiveFormat::ARCHIVE_FORMAT_ZIP) => Some(Format::Zip),
        None => return Err(ConnectError::invalid_argument("format: give TAR, TAR_GZIP or ZIP")),
    };
    let limits = open.limits.as_option().cloned().unwrap_or_default();
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    Ok(UnpackOptions {
        format,
        strip: usize::try_from(open.strip_components).unwrap_or(usize::MAX),
        mode_mask: mode(open.mode_mask, 0o777)?.as_raw_mode(),
        overwrite: open.overwrite,
        links_may_lead_out: open.links_may_lead_out,
        has_room: Some(crate::room::has_room),
        max_bytes: or(limits.max_bytes, default.max_bytes),
        max_entries: or(limits.max_entries, default.max_entries),
        max_ratio: if limits.max_ratio == 0 { default.max_ratio } else { limits.max_ratio },
        ..default
    })
}

async fn feed(
    unpacker: &mut Unpacker,
    first: &Bytes,
    requests: &mut InboundStream<v1::UnpackRequest>,
) -> Result<(), ConnectError> {
    unpacker.take(first).await.map_err(to_connect)?;
    while let Some(message) = requests.next().await {
        let message = message?.to_owned_message();
        if message.open.is_set() {
            return Err(ConnectError::invalid_argument("open: only allowed in the first message"));
        }
        unpacker.take(&message.data).await.map_err(to_connect)?;
    }
    Ok(())
}

async fn finish(unpacker: Unpacker) -> Result<v1::UnpackResponse, ConnectError> {
    let UnpackSummary { entries, bytes, skipped } = unpacker.finish().await.map_err(to_connect)?;
    Ok(v1::UnpackResponse { entries, bytes, skipped, ..Default::default() })
}
