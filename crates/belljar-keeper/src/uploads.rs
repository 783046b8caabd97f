//! Uploads for builds: archives from which copy steps take their files.
//!
//! ```text
//! DIR/uploads/<tenant>/<key>-<hash>     an archive, named after the key that sent it and the client's hash of its files
//! DIR/uploads/<tenant>/part-<random>    an upload in progress
//! ```
//!
//! The server does not parse archives: they are unpacked in sandboxes. So it cannot compare them with their hashes, which are
//! computed over files and not over archives, and a key is only offered what it has sent itself. Archives that were not used for
//! a day are removed.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::action::TEMPLATE_UPLOAD;
use crate::caller::Caller;
use crate::collect::Leftover;
use crate::create::fill_random;
use crate::error::KeeperError;
use crate::head_room::Purpose;
use crate::keeper::{Keeper, Result};
use crate::keys::{Denied, caller as caller_of, check_row};
use crate::plan::{FilesHash, TaggedName};

/// Maximum size of an archive, in bytes.
pub const MAX_UPLOAD_BYTES: u64 = 512 << 20;

/// Maximum size of all archives of one tenant, in bytes.
const MAX_TENANT_BYTES: u64 = 4 << 30;

/// Maximum number of archives of one tenant, as each upload lists them all.
const MAX_TENANT_FILES: u64 = 1000;

/// Time for which an archive is kept after its last use.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Lifetime of a link.
const LINK_LIFE: Duration = Duration::from_secs(3600);

/// Maximum number of links of one tenant. The oldest is evicted.
const MAX_LINKS: usize = 512;

/// Name prefix of uploads in progress.
const PART: &str = "part-";

/// Number of bytes after which quotas and disk space are checked again.
const CHECK_INTERVAL_BYTES: u64 = 4 << 20;

/// Issued links, by the SHA-256 of their tokens.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashMap<[u8; 32], Link>>);

#[derive(Clone)]
struct Link {
    key: String,
    tenant: String,
    hash: FilesHash,
    since: Instant,
}

/// Whether files are present, and the token of a link to upload them.
#[derive(Debug)]
pub struct UploadLink {
    /// Whether they have been uploaded before.
    pub present: bool,
    /// 256 random bits, with which these files may be uploaded any number of times within an hour.
    pub token: String,
}

/// An authorized upload.
pub struct OpenUpload {
    /// The caller.
    pub caller: Caller,
    hash: FilesHash,
}

impl Links {
    fn add(&self, digest: [u8; 32], link: Link) {
        let mut all = self.0.lock();
        all.retain(|_, link| link.since.elapsed() < LINK_LIFE);
        let of_tenant = all.iter().filter(|(_, known)| known.tenant == link.tenant);
        if of_tenant.clone().count() >= MAX_LINKS
            && let Some(oldest) = of_tenant.min_by_key(|(_, known)| known.since).map(|(digest, _)| *digest)
        {
            all.remove(&oldest);
        }
        all.insert(digest, link);
    }

    fn find(&self, token: &str) -> Option<Link> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        self.0.lock().get(&digest).filter(|link| link.since.elapsed() < LINK_LIFE).cloned()
    }
}

/// An upload in progress, removed if this is dropped before its end.
struct Part {
    path: PathBuf,
    done: bool,
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.done {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeeperError {
    let path = path.to_owned();
    move |source| KeeperError::File { action, path, source }
}

impl Keeper {
    fn uploads(&self) -> PathBuf {
        self.inner.config.now().state_dir.join("uploads")
    }

    fn uploads_of(&self, tenant: &str) -> PathBuf {
        let digest = hex::encode(Sha256::digest(tenant));
        self.uploads().join(digest.get(..32).unwrap_or(&digest))
    }

    /// Returns the path of an archive that the caller has uploaded.
    pub(crate) fn upload_path(&self, caller: &Caller, hash: &FilesHash) -> PathBuf {
        self.uploads_of(&caller.tenant).join(format!("{}-{}", caller.key, hash.as_str()))
    }

    /// Issues a link to upload files of a waiting build.
    ///
    /// # Errors
    /// Fails if no build of this template waits.
    pub fn upload_link(&self, caller: &Caller, name: &TaggedName, hash: &FilesHash) -> Result<UploadLink> {
        self.require(caller, TEMPLATE_UPLOAD)?;
        if !self.inner.builds.waits(&caller.tenant, name.name()) {
            return Err(KeeperError::NotFound { what: "build", id: name.name().to_owned() });
        }
        let mut random = [0u8; 32];
        fill_random(&mut random)?;
        let token = hex::encode(random);
        self.inner.links.add(
            Sha256::digest(&token).into(),
            Link {
                key: caller.key.clone(),
                tenant: caller.tenant.clone(),
                hash: hash.clone(),
                since: Instant::now(),
            },
        );
        let path = self.upload_path(caller, hash);
        // Reset, so that files reported as present stay until the build.
        let present =
            std::fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now())).is_ok();
        Ok(UploadLink { present, token })
    }

    /// Authenticates an upload by the token of a link.
    ///
    /// # Errors
    /// Fails if the token is unknown or expired, or its key is denied. Clients cannot tell the reasons apart.
    pub async fn open_upload(
        &self,
        token: &str,
        client: &str,
        request_id: &str,
    ) -> std::result::Result<OpenUpload, Denied> {
        let denied = |why| {
            self.note_denied(why, None, client, request_id);
            why
        };
        let link = self.inner.links.find(token).ok_or_else(|| denied(Denied::Unknown))?;
        let validity = self.read_keys();
        let row = self.key_row(&link.key).await.map_err(denied)?;
        check_row(&row).map_err(denied)?;
        let caller = caller_of(&row, None, validity, client, request_id);
        // The key's role may have been lowered since it got the link.
        self.require(&caller, TEMPLATE_UPLOAD).map_err(|_| Denied::Revoked)?;
        Ok(OpenUpload { caller: Caller { tenant: link.tenant, ..caller }, hash: link.hash })
    }

    /// Receives the files of a build. Leaves nothing behind if that fails.
    ///
    /// # Errors
    /// Fails if they are too large or incomplete, the tenant has too many, or the disk is too full.
    pub async fn receive_upload(
        &self,
        upload: &OpenUpload,
        length: Option<u64>,
        content: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<()> {
        let OpenUpload { caller, hash } = upload;
        let received = self.receive(caller, hash, length, content).await;
        let mut details = vec![("files", hash.as_str().to_owned())];
        if let Ok((bytes, digest)) = &received {
            details.extend([("bytes", bytes.to_string()), ("sha256", digest.clone())]);
        }
        self.audit(caller, TEMPLATE_UPLOAD, None, &received, details).await?;
        received.map(drop)
    }

    async fn receive(
        &self,
        caller: &Caller,
        hash: &FilesHash,
        length: Option<u64>,
        mut content: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<(u64, String)> {
        let dir = self.uploads_of(&caller.tenant);
        tokio::fs::create_dir_all(&dir).await.map_err(failed("make", &dir))?;
        let mut random = [0u8; 8];
        fill_random(&mut random)?;
        let mut part = Part { path: dir.join(format!("{PART}{}", hex::encode(random))), done: false };
        let mut options = tokio::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&part.path).await.map_err(failed("make", &part.path))?;
        // The new file is counted as well.
        self.check_upload(caller, length.unwrap_or(0))?;
        self.check_lasting(caller, length.unwrap_or(0)).await?;
        let (mut bytes, mut digest) = (0u64, Sha256::new());
        while let Some(piece) = content.next().await {
            let piece =
                piece.map_err(|error| KeeperError::from(belljar_engine::GuestError::Source(error)))?;
            let before = bytes;
            bytes += piece.len() as u64;
            check_size(bytes)?;
            if before / CHECK_INTERVAL_BYTES != bytes / CHECK_INTERVAL_BYTES {
                // Other writers may have used up the disk meanwhile.
                self.check_upload(caller, 0)?;
            }
            digest.update(&piece);
            file.write_all(&piece).await.map_err(failed("write", &part.path))?;
        }
        if let Some(length) = length.filter(|length| *length != bytes) {
            return Err(KeeperError::field(
                "Content-Length",
                format!("{bytes} bytes came instead of {length}"),
            ));
        }
        file.sync_all().await.map_err(failed("write", &part.path))?;
        let path = self.upload_path(caller, hash);
        tokio::fs::rename(&part.path, &path).await.map_err(failed("put into place", &path))?;
        part.done = true;
        Ok((bytes, hex::encode(digest.finalize())))
    }

    /// Checks that the tenant and the disk have space for `more` bytes.
    fn check_upload(&self, caller: &Caller, more: u64) -> Result<()> {
        check_size(more)?;
        let quota = caller.quotas.disk_bytes.unwrap_or(MAX_TENANT_BYTES).min(MAX_TENANT_BYTES);
        check_room(&self.uploads_of(&caller.tenant), more, quota)?;
        self.inner.config.now().capacity().check(Purpose::Lasting)
    }

    /// Returns the bytes of a tenant's archives.
    pub(crate) fn uploaded_bytes(&self, tenant: &str) -> u64 {
        files(&self.uploads_of(tenant)).map(|(_, file)| file.len()).sum()
    }

    /// Removes files that were not used for a day and, unless `keep_parts`, interrupted uploads; or only lists them.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub(crate) fn sweep_uploads(&self, keep_parts: bool, dry_run: bool) -> Result<Vec<Leftover>> {
        let mut leftovers = Vec::new();
        for (path, bytes) in find_unused(&self.uploads(), keep_parts) {
            match if dry_run { Ok(()) } else { std::fs::remove_file(&path) } {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &path)(error));
                }
                _ => leftovers.push(Leftover { kind: "upload".into(), path: Some(path), bytes, count: 1 }),
            }
        }
        Ok(leftovers)
    }
}

/// Checks that a tenant may have `more` bytes.
fn check_room(dir: &Path, more: u64, quota: u64) -> Result<()> {
    let (count, used) = files(dir).fold((0, 0), |(count, used), (_, file)| (count + 1, used + file.len()));
    let over = |quota, used, limit| Err(KeeperError::Quota { quota, used, limit, retry_after: None });
    if count > MAX_TENANT_FILES {
        return over("uploads", count, MAX_TENANT_FILES);
    }
    if used.saturating_add(more) > quota {
        return over("upload_bytes", used, quota);
    }
    Ok(())
}

/// Returns the unused files of all tenants, with their sizes.
fn find_unused(uploads: &Path, keep_parts: bool) -> Vec<(PathBuf, u64)> {
    let dirs = std::fs::read_dir(uploads).into_iter().flatten().flatten();
    let all = dirs.flat_map(|dir| files(&dir.path()).collect::<Vec<_>>());
    let is_unused = |(path, metadata): &(PathBuf, std::fs::Metadata)| {
        let age = metadata.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        let is_part = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PART));
        age > RETENTION || is_part && !keep_parts
    };
    all.filter(is_unused).map(|(path, metadata)| (path, metadata.len())).collect()
}

/// Returns the regular files directly in a directory.
fn files(dir: &Path) -> impl Iterator<Item = (PathBuf, std::fs::Metadata)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        metadata.is_file().then(|| (entry.path(), metadata))
    })
}

fn check_size(bytes: u64) -> Result<()> {
    if bytes <= MAX_UPLOAD_BYTES {
        return Ok(());
    }
    Err(KeeperError::field("files", format!("too large: {bytes} bytes > limit {MAX_UPLOAD_BYTES}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_uploads_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let tenant = dir.path().join("tenant");
        std::fs::create_dir(&tenant).unwrap();
        let file = |name: &str, age: Duration| {
            let path = tenant.join(name);
            std::fs::write(&path, "content").unwrap();
            std::fs::File::open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
            (path, 7)
        };
        let _used = file("used", RETENTION / 2);
        let old = file("old", RETENTION * 2);
        let part = file("part-0", Duration::ZERO);
        assert_eq!(find_unused(dir.path(), true), std::slice::from_ref(&old));
        let mut all = find_unused(dir.path(), false);
        all.sort();
        assert_eq!(all, [old, part]);
    }

    #[test]
    fn files_of_a_tenant_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let file = |number: u64| std::fs::write(dir.path().join(number.to_string()), "1").unwrap();
        (0..MAX_TENANT_FILES).for_each(file);
        assert!(check_room(dir.path(), 24, MAX_TENANT_FILES + 24).is_ok());
        let over = |more, quota| match check_room(dir.path(), more, quota) {
            Err(KeeperError::Quota { quota, used, limit, .. }) => (quota, used, limit),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            over(25, MAX_TENANT_FILES + 24),
            ("upload_bytes", MAX_TENANT_FILES, MAX_TENANT_FILES + 24)
        );
        file(MAX_TENANT_FILES);
        assert_eq!(over(0, u64::MAX), ("uploads", MAX_TENANT_FILES + 1, MAX_TENANT_FILES));
    }

    #[test]
    fn links_of_a_tenant_are_bounded() {
        let links = Links::default();
        let link = |tenant: &str| Link {
            key: "k".to_owned(),
            tenant: tenant.to_owned(),
            hash: "0".repeat(64).parse().unwrap(),
            since: Instant::now(),
        };
        let digest = |token: &str| -> [u8; 32] { Sha256::digest(token).into() };
        links.add(digest("other"), link("other"));
        for number in 0..=MAX_LINKS {
            links.add(digest(&number.to_string()), link("t"));
        }
        assert!(links.find("0").is_none() && links.find("1").is_some() && links.find("other").is_some());
        assert!(links.find("forged").is_none());
    }
}
