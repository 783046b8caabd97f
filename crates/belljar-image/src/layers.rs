//! Squashfs files by their SHA-256, and a cache from step keys to layers.
//!
//! ```text
//! DIR/<sha256>             a layer; it never changes
//! DIR/cache/<key>.json     the layers made from a base and steps; the key is the SHA-256 of all inputs
//! DIR/part-<random>        a layer that is being written, or the tree of an image that becomes one
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use belljar_model::TreeLayer;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::error::BuildError;

/// A layer on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// SHA-256 digest of the file, in hexadecimal.
    pub digest: String,
    /// File size in bytes.
    pub bytes: u64,
}

/// Returns the digest of a template's files: that of its layer; of several layers, the SHA-256 of their digests in hexadecimal, the lowest
/// first, each with a line feed; empty if there are none.
#[must_use]
pub fn digest_of(layers: &[Layer]) -> String {
    match layers {
        [] => String::new(),
        [single] => single.digest.clone(),
        several => {
            let mut hash = Sha256::new();
            several.iter().for_each(|layer| hash.update(format!("{}\n", layer.digest)));
            hex::encode(hash.finalize())
        }
    }
}

/// Returns the size of all layers in bytes.
#[must_use]
pub fn bytes_of(layers: &[Layer]) -> u64 {
    layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.bytes))
}

/// Number of bytes of a file after which the room on the disk is measured again.
const ROOM_INTERVAL_BYTES: u64 = 16 << 20;

/// The directory of all layers. Only the server uses it.
#[derive(Debug, Clone)]
pub struct Layers {
    dir: PathBuf,
    room_bytes: u64,
}

/// The result of a sweep: what was removed, or would be removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// Number of cached steps.
    pub steps: u64,
    /// Layers, and their sizes in bytes.
    pub layers: Vec<(PathBuf, u64)>,
}

/// A layer that is being written. Its file is removed if it is dropped before it is finished.
pub(crate) struct NewLayer {
    file: tokio::fs::File,
    path: PathBuf,
    hash: Sha256,
    bytes: u64,
    room_bytes: u64,
    done: bool,
}

impl Drop for NewLayer {
    fn drop(&mut self) {
        if !self.done {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::File { action, path, source }
}

impl Layers {
    /// Uses the layers in `dir`, which is created when it is first needed.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, room_bytes: 0 }
    }

    /// Sets how many bytes of the disk must stay free while a layer, or the tree of an image, is written.
    #[must_use]
    pub fn leaving(self, room_bytes: u64) -> Self {
        Self { room_bytes, ..self }
    }

    /// Returns the path of the layer with this digest.
    #[must_use]
    pub fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(digest)
    }

    fn cache_path(&self, key: &str) -> PathBuf {
        self.dir.join("cache").join(format!("{key}.json"))
    }

    /// Starts a new layer.
    pub(crate) async fn begin(&self) -> Result<NewLayer, BuildError> {
        let cache = self.dir.join("cache");
        tokio::fs::create_dir_all(&cache).await.map_err(file_error("create the directory", &cache))?;
        let mut random = [0u8; 8];
        let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let path = self.dir.join(format!("part-{}", hex::encode(random)));
        filled.map_err(|error| file_error("name", &path)(error.into()))?;
        let mut options = tokio::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path).await;
        let file = file.map_err(file_error("create", &path))?;
        let room_bytes = self.room_bytes;
        Ok(NewLayer { file, path, hash: Sha256::new(), bytes: 0, room_bytes, done: false })
    }

    /// Moves a complete layer to its final path.
    pub(crate) async fn finish(&self, mut new: NewLayer) -> Result<Layer, BuildError> {
        new.file.sync_all().await.map_err(file_error("write", &new.path))?;
        let layer = Layer { digest: hex::encode(new.hash.clone().finalize()), bytes: new.bytes };
        let path = self.path(&layer.digest);
        tokio::fs::rename(&new.path, &path).await.map_err(file_error("put into place", &path))?;
        new.done = true;
        Ok(layer)
    }

    /// Returns the paths and digests of layers, as a sandbox needs them.
    #[must_use]
    pub fn tree(&self, layers: &[Layer]) -> Vec<TreeLayer> {
        let tree = |layer: &Layer| TreeLayer { path: self.path(&layer.digest), digest: layer.digest.clone() };
        layers.iter().map(tree).collect()
    }

    /// Returns the cached layers for this key, the lowest first, if all of them still exist.
    pub(crate) async fn find_cached(&self, key: &str) -> Option<Vec<Layer>> {
        let text = tokio::fs::read(self.cache_path(key)).await.ok()?;
        let layers: Vec<Layer> = serde_json::from_slice(&text).ok()?;
        for layer in &layers {
            let length = tokio::fs::metadata(self.path(&layer.digest)).await.ok()?.len();
            if !layer.is_valid() || length != layer.bytes {
                return None;
            }
        }
        // A used step is kept longer. If its time cannot be set, the step may be swept and built again.
        if let Ok(file) = std::fs::File::open(self.cache_path(key)) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(layers)
    }

    /// Records the layers of a key in the cache.
    pub(crate) async fn record(&self, key: &str, layers: &[Layer]) -> Result<(), BuildError> {
        let path = self.cache_path(key);
        tokio::fs::create_dir_all(self.dir.join("cache")).await.map_err(file_error("write", &path))?;
        let part = path.with_extension("part");
        let text =
            serde_json::to_vec(layers).map_err(std::io::Error::from).map_err(file_error("write", &path))?;
        tokio::fs::write(&part, text).await.map_err(file_error("write", &part))?;
        tokio::fs::rename(&part, &path).await.map_err(file_error("write", &path))
    }

    /// Removes every layer that is neither in `used` nor the result of a cached step, cached steps that were not used for
    /// `keep_steps`, and partial files left by a killed server. Without `keep_steps`, cached steps are kept only if that takes no layer
    /// that is not in `used`. With `dry_run` it only returns what would be removed. No build may run meanwhile.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub fn sweep(
        &self,
        used: &BTreeSet<String>,
        keep_steps: Option<Duration>,
        dry_run: bool,
    ) -> Result<Swept, BuildError> {
        let remove = |path: &Path| {
            if dry_run { Ok(()) } else { std::fs::remove_file(path).map_err(file_error("remove", path)) }
        };
        let mut swept = Swept::default();
        let mut keep = used.clone();
        for entry in std::fs::read_dir(self.dir.join("cache")).into_iter().flatten().flatten() {
            let path = entry.path();
            let age = entry.metadata().and_then(|metadata| metadata.modified());
            // A time in the future counts as just used.
            let age = age.ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
            let layers = std::fs::read(&path).ok();
            let is_kept = |layers: &[Layer]| match keep_steps {
                Some(keep_steps) => age <= keep_steps,
                None => layers.iter().all(|layer| used.contains(&layer.digest)),
            };
            match layers.and_then(|text| serde_json::from_slice::<Vec<Layer>>(&text).ok()) {
                Some(layers) if is_kept(&layers) => {
                    keep.extend(layers.into_iter().map(|layer| layer.digest));
                }
                _ => {
                    remove(&path)?;
                    swept.steps += 1;
                }
            }
        }
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_layer = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if (is_layer && !keep.contains(&name)) || name.starts_with("part-") {
                let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
                remove(&entry.path())?;
                swept.layers.push((entry.path(), bytes));
            }
        }
        swept.layers.sort();
        Ok(swept)
    }
}

impl Layer {
    /// Reports whether the digest is one.
    pub(crate) fn is_valid(&self) -> bool {
        self.digest.len() == 64 && self.digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

impl NewLayer {
    pub(crate) async fn write(&mut self, piece: &[u8]) -> Result<(), BuildError> {
        let measured = self.bytes / ROOM_INTERVAL_BYTES;
        self.bytes += piece.len() as u64;
        if self.bytes / ROOM_INTERVAL_BYTES > measured {
            self.check_room()?;
        }
        self.hash.update(piece);
        self.file.write_all(piece).await.map_err(file_error("write", &self.path))
    }

    /// Checks that enough of the disk is free.
    fn check_room(&self) -> Result<(), BuildError> {
        let disk = rustix::fs::statvfs(&self.path);
        let disk = disk.map_err(|error| file_error("measure the disk of", &self.path)(error.into()))?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        match free_bytes < self.room_bytes {
            true => Err(BuildError::Full { free_mib: free_bytes >> 20, room_mib: self.room_bytes >> 20 }),
            false => Ok(()),
        }
    }

    /// Returns the number of bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes what is still in memory, for those who open the file.
    pub(crate) async fn flush(&mut self) -> Result<(), BuildError> {
        self.file.flush().await.map_err(file_error("write", &self.path))
    }

    /// Returns the temporary path, valid until the layer is finished.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the SHA-256 of the bytes written so far.
    pub(crate) fn digest(&self) -> String {
        hex::encode(self.hash.clone().finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn layers_leave_room() {
        let dir = tempfile::tempdir().unwrap();
        let layers = Layers::new(dir.path().join("layers"));
        let piece = vec![0; usize::try_from(ROOM_INTERVAL_BYTES).unwrap()];
        layers.begin().await.unwrap().write(&piece).await.unwrap();
        let full = layers.leaving(u64::MAX);
        let mut new = full.begin().await.unwrap();
        new.write(b"small").await.unwrap();
        let refused = new.write(&piece).await.unwrap_err();
        assert!(matches!(refused, BuildError::Full { .. }), "{refused}");
        let path = new.path().to_owned();
        drop(new);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn layers_are_stored_cached_and_swept() {
        let dir = tempfile::tempdir().unwrap();
        let layers = Layers::new(dir.path().join("layers"));
        let mut new = layers.begin().await.unwrap();
        new.write(b"hsqs").await.unwrap();
        let layer = layers.finish(new).await.unwrap();
        assert_eq!(layer.digest, hex::encode(Sha256::digest(b"hsqs")));
        assert_eq!(std::fs::read(layers.path(&layer.digest)).unwrap(), b"hsqs");
        assert_eq!(layers.find_cached("k").await, None);
        layers.record("k", std::slice::from_ref(&layer)).await.unwrap();
        assert_eq!(layers.find_cached("k").await, Some(vec![layer.clone()]));
        drop(layers.begin().await.unwrap());
        let day = Duration::from_secs(24 * 3600);
        let swept = layers.sweep(&BTreeSet::new(), Some(day), false).unwrap();
        assert_eq!(swept, Swept::default());
        assert!(layers.path(&layer.digest).exists());
        let entry = std::fs::File::open(layers.cache_path("k")).unwrap();
        entry.set_modified(SystemTime::now() - 2 * day).unwrap();
        // A used layer is kept, and so is its step if it was used a moment ago.
        assert_eq!(layers.find_cached("k").await, Some(vec![layer.clone()]));
        assert_eq!(layers.sweep(&BTreeSet::new(), Some(day), false).unwrap(), Swept::default());
        entry.set_modified(SystemTime::now() - 2 * day).unwrap();
        let used = BTreeSet::from([layer.digest.clone()]);
        assert_eq!(layers.sweep(&used, Some(day), true).unwrap(), Swept { steps: 1, layers: Vec::new() });
        let all = Swept { steps: 1, layers: vec![(layers.path(&layer.digest), 4)] };
        entry.set_modified(SystemTime::now()).unwrap();
        // Without a time, a step that was just used is kept only with the layers of others.
        assert_eq!(layers.sweep(&used, None, true).unwrap(), Swept::default());
        assert_eq!(layers.sweep(&BTreeSet::new(), None, true).unwrap(), all);
        entry.set_modified(SystemTime::now() - 2 * day).unwrap();
        assert_eq!(layers.sweep(&BTreeSet::new(), Some(day), true).unwrap(), all);
        assert!(layers.path(&layer.digest).exists());
        assert_eq!(layers.sweep(&BTreeSet::new(), Some(day), false).unwrap(), all);
        assert!(!layers.path(&layer.digest).exists());
        assert_eq!(layers.find_cached("k").await, None);
    }
}
