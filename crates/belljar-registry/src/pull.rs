//! Pulls: the blobs of an image, into a layout directory of the image specification.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use http::{StatusCode, header};
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::client::{Credentials, RegistryClient, Session};
use crate::error::RegistryError;
use crate::manifest::{Blob, Resolved};
use belljar_model::ImageReference;

/// Number of blobs that are fetched at a time.
const PARALLEL: usize = 4;

/// The slowest pace of a blob: this many bytes, or what is left of it, must arrive in each such time. A registry that sends some bytes now
/// and then would hold the only pull of all tenants.
const SLOWEST: (u64, Duration) = (512 << 10, Duration::from_secs(60));

/// Time for an image: the least, that for each MiB, and the most. A pull holds the only place of builds, so a slow registry may not hold it
/// for days. A line with 2 Mbit/s is quick enough for all but the largest images, one with 5 Mbit/s for all that may be pulled by default.
const WHOLE: (Duration, Duration, Duration) =
    (Duration::from_secs(600), Duration::from_secs(4), Duration::from_secs(4 * 3600));

/// Number of attempts for a blob whose connection breaks, in each of which something must arrive.
const MAX_ATTEMPTS: u32 = 5;

/// Maximum size of an image's settings, in bytes.
const MAX_SETTINGS_BYTES: u64 = 4 << 20;

/// Size of the pieces in which a file is read again.
const PIECE_BYTES: usize = 256 << 10;

/// How large an image may be.
#[derive(Debug, Clone, Copy)]
pub struct PullLimits {
    /// Size of all blobs, compressed.
    pub max_bytes: u64,
    /// Number of layers.
    pub max_layers: usize,
}

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes of all blobs.
    pub total_bytes: u64,
    /// Number of layers.
    pub layers: usize,
}

impl RegistryClient {
    /// Fetches an image into `dir`, which is made if it is not there. What is there from an earlier attempt is not fetched again. `tell`
    /// is called for each piece.
    ///
    /// # Errors
    /// See [`RegistryError`]. What has arrived stays, for another attempt.
    pub async fn pull(
        &self,
        reference: &ImageReference,
        resolved: &Resolved,
        credentials: Option<&Credentials>,
        dir: &Path,
        limits: PullLimits,
        tell: &(dyn Fn(Progress) + Sync),
    ) -> Result<(), RegistryError> {
        let (layers, total_bytes) = (resolved.layers.len(), resolved.bytes());
        if total_bytes > limits.max_bytes || layers > limits.max_layers {
            return Err(RegistryError::TooLarge {
                reference: reference.to_string(),
                bytes: total_bytes,
                layers,
                max_bytes: limits.max_bytes,
                max_layers: limits.max_layers,
            });
        }
        let done = AtomicU64::new(0);
        let add = |bytes: u64| {
            let bytes = done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
            // What a registry sends twice counts once.
            tell(Progress { bytes: bytes.min(total_bytes), total_bytes, layers });
        };
        let all = resolved.layers.iter().chain([&resolved.config]);
        self.fetch_all(reference, resolved, credentials, dir, all, &add).await
    }

    /// Fetches the manifest and the settings of an image alone, as [`Self::pull`] does.
    ///
    /// # Errors
    /// See [`RegistryError`].
    pub async fn pull_settings(
        &self,
        reference: &ImageReference,
        resolved: &Resolved,
        credentials: Option<&Credentials>,
        dir: &Path,
    ) -> Result<(), RegistryError> {
        self.fetch_all(reference, resolved, credentials, dir, [&resolved.config], &|_| {}).await
    }

    async fn fetch_all<'b>(
        &self,
        reference: &ImageReference,
        resolved: &'b Resolved,
        credentials: Option<&Credentials>,
        dir: &Path,
        all: impl IntoIterator<Item = &'b Blob>,
        add: &(impl Fn(u64) + Sync),
    ) -> Result<(), RegistryError> {
        let session = self.session(reference, credentials)?;
        if resolved.config.size > MAX_SETTINGS_BYTES {
            return Err(
                session.invalid(format!("the settings of {reference} have {} bytes", resolved.config.size))
            );
        }
        let blobs = dir.join("blobs/sha256");
        tokio::fs::create_dir_all(&blobs).await.map_err(file(&blobs))?;
        for made in [dir, &dir.join("blobs"), &blobs] {
            show(made, 0o755).await?;
        }
        let mut seen = BTreeSet::new();
        let mut fetches = Vec::new();
        let mut bytes = 0u64;
        for blob in all {
            if seen.insert(blob.digest.as_str()) {
                bytes = bytes.saturating_add(blob.size);
                fetches.push(fetch(&session, blob, &blobs, add));
            }
        }
        let fetched = futures::stream::iter(fetches).buffer_unordered(PARALLEL).try_collect::<()>();
        let time = time_for(bytes);
        tokio::time::timeout(time, fetched).await.map_err(|_| {
            let why = format!("the image has not arrived within {} minutes", time.as_secs() / 60);
            session.broken(io::Error::new(io::ErrorKind::TimedOut, why))
        })??;
        let path = blobs.join(resolved.digest.strip_prefix("sha256:").unwrap_or_default());
        write(&path, &resolved.manifest).await?;
        write(&dir.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).await?;
        let index = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": resolved.media_type,
                "digest": resolved.digest,
                "size": resolved.manifest.len(),
            }],
        });
        write(&dir.join("index.json"), index.to_string().as_bytes()).await
    }
}

/// Returns the time in which this many bytes have to arrive.
fn time_for(bytes: u64) -> Duration {
    let (least, per_mib, most) = WHOLE;
    let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    least.saturating_add(per_mib.saturating_mul(mib)).min(most)
}

fn file(path: &Path) -> impl Fn(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |source| RegistryError::File { path: path.clone(), source }
}

/// Lets others read a file or directory, whatever the umask is: the layout is unpacked by a sandbox, which has another user.
async fn show(path: &Path, mode: u32) -> Result<(), RegistryError> {
    tokio::fs::set_permissions(path, Permissions::from_mode(mode)).await.map_err(file(path))
}

/// Writes a whole file, or none.
async fn write(path: &Path, content: &[u8]) -> Result<(), RegistryError> {
    let partial = partial(path);
    tokio::fs::write(&partial, content).await.map_err(file(&partial))?;
    show(&partial, 0o644).await?;
    tokio::fs::rename(&partial, path).await.map_err(file(path))
}

fn partial(path: &Path) -> PathBuf {
    path.with_extension("partial")
}

/// Fetches a blob, unless it is there.
async fn fetch(
    session: &Session<'_>,
    blob: &Blob,
    dir: &Path,
    add: &(impl Fn(u64) + Sync),
) -> Result<(), RegistryError> {
    let path = dir.join(blob.hex());
    if tokio::fs::metadata(&path).await.is_ok_and(|there| there.is_file() && there.len() == blob.size) {
        add(blob.size);
        return Ok(());
    }
    let partial = partial(&path);
    let mut part = Part::open(&partial, blob.size).await?;
    add(part.length);
    let mut attempt = 0;
    while part.length < blob.size {
        let before = part.length;
        match part.fetch(session, blob, add).await {
            Ok(()) => {}
            Err(RegistryError::Connection { .. }) if part.length > before && attempt < MAX_ATTEMPTS => {
                attempt += 1
            }
            Err(error) => return Err(error),
        }
    }
    part.file.sync_data().await.map_err(file(&partial))?;
    let digest = format!("sha256:{}", hex::encode(part.hash.finalize()));
    if digest != blob.digest {
        // Another attempt begins anew.
        tokio::fs::remove_file(&partial).await.map_err(file(&partial))?;
        return Err(session.invalid(format!("the blob {} has the digest {digest}", blob.digest)));
    }
    show(&partial, 0o644).await?;
    tokio::fs::rename(&partial, &path).await.map_err(file(&path))
}

/// The beginning of a blob.
struct Part {
    path: PathBuf,
    file: tokio::fs::File,
    hash: Sha256,
    length: u64,
}

impl Part {
    /// Opens the file, and reads what is there.
    async fn open(path: &Path, max: u64) -> Result<Self, RegistryError> {
        let failed = file(path);
        let mut options = tokio::fs::OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).await.map_err(&failed)?;
        let (mut hash, mut length) = (Sha256::new(), 0);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = file.read(&mut piece).await.map_err(&failed)?;
            length += count as u64;
            if count == 0 || length > max {
                break;
            }
            hash.update(piece.get(..count).unwrap_or_default());
        }
        let mut part = Self { path: path.to_owned(), file, hash, length };
        if part.length > max {
            part.restart().await?;
        }
        Ok(part)
    }

    async fn restart(&mut self) -> Result<(), RegistryError> {
        let failed = file(&self.path);
        self.file = tokio::fs::File::create(&self.path).await.map_err(failed)?;
        (self.hash, self.length) = (Sha256::new(), 0);
        Ok(())
    }

    /// Fetches the rest, as far as it comes.
    async fn fetch(
        &mut self,
        session: &Session<'_>,
        blob: &Blob,
        add: &(impl Fn(u64) + Sync),
    ) -> Result<(), RegistryError> {
        let path = format!("/v2/{}/blobs/{}", session.repository(), blob.digest);
        let range = format!("bytes={}-", self.length);
        let headers: &[_] = if self.length > 0 { &[(header::RANGE, range.as_str())] } else { &[] };
        let answer = session.get(&path, headers).await?;
        if self.length > 0 && answer.status() != StatusCode::PARTIAL_CONTENT {
            // It gives all of it again.
            self.restart().await?;
        }
        let too_long =
            || session.invalid(format!("the blob {} is longer than its {} bytes", blob.digest, blob.size));
        let mut body = answer.into_body();
        let (mut goal, mut end) = (self.length.saturating_add(SLOWEST.0), Instant::now() + SLOWEST.1);
        while self.length < blob.size {
            if self.length >= goal {
                (goal, end) = (self.length.saturating_add(SLOWEST.0), Instant::now() + SLOWEST.1);
            }
            let frame = tokio::time::timeout_at(end, body.frame()).await;
            let frame = frame.map_err(|_| session.broken(io::ErrorKind::TimedOut.into()))?;
            let Some(frame) = frame else {
                return Err(session.broken(io::ErrorKind::UnexpectedEof.into()));
            };
            let frame = frame.map_err(|error| session.broken(io::Error::other(error)))?;
            let Ok(data) = frame.into_data() else { continue };
            if data.len() as u64 > blob.size - self.length {
                return Err(too_long());
            }
            self.file.write_all(&data).await.map_err(file(&self.path))?;
            self.hash.update(&data);
            self.length += data.len() as u64;
            add(data.len() as u64);
        }
        self.file.flush().await.map_err(file(&self.path))
    }
}
