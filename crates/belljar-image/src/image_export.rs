//! A template as an image: a tar of an image layout with a single layer, which other programs read, and with `manifest.json` also those that
//! know only the form of `docker save`.

use std::collections::BTreeMap;
use std::fs::File;

use belljar_model::{ImageReference, LimitsFile, NetworkPolicy, TreeBase};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};
use tokio::io::AsyncReadExt as _;

use crate::build::{Builder, EXCLUDED_PATHS};
use crate::error::BuildError;
use crate::layers::{Layer, Layers, NewLayer};
use crate::oci::{self, Descriptor};
use crate::sandbox::{BuildSandbox, BuildSandboxParams};

/// Size of the pieces in which a tree is read, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Size of a block of a tar, in bytes.
const BLOCK: u64 = 512;

/// A tar of an image: its beginning, its only layer, and its end.
#[derive(Debug)]
pub struct ImageExport {
    /// All entries before the layer's content.
    pub head: Vec<u8>,
    /// The layer, a file that has no name any more.
    pub layer: File,
    /// Size of the layer, in bytes.
    pub layer_bytes: u64,
    /// The rest.
    pub tail: Vec<u8>,
}

/// What an exported image says of itself.
#[derive(Debug, Clone, Default)]
pub struct ImageSettings {
    /// Its name.
    pub name: Option<ImageReference>,
    /// Its variables.
    pub env: BTreeMap<String, String>,
    /// Its working directory.
    pub workdir: Option<String>,
}

impl Builder<'_> {
    /// Packs the tree of a template of its own as an image. No sweep of the layers may run meanwhile. `has_room` is asked before so many bytes are
    /// written.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub async fn export_image(
        self,
        layers: &[Layer],
        settings: &ImageSettings,
        has_room: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<ImageExport, BuildError> {
        let params = BuildSandboxParams {
            base: TreeBase::Own,
            below: layers,
            owner: self.owner,
            grade: self.grade,
            shown: Vec::new(),
            limits: &LimitsFile::default(),
            network: NetworkPolicy::default(),
        };
        let sandbox = BuildSandbox::open(self.engine, self.layers, params).await?;
        let packed = pack_tree(self.layers, &sandbox, has_room).await;
        let closed = sandbox.close().await;
        let packed = packed?;
        closed?;
        let (digest, bytes) = (packed.digest(), packed.bytes());
        let file = File::open(packed.path());
        let layer = file.map_err(|source| BuildError::File {
            action: "open",
            path: packed.path().to_owned(),
            source,
        })?;
        Ok(ImageExport {
            head: head(&digest, bytes, settings)?,
            layer,
            layer_bytes: bytes,
            tail: tail(bytes),
        })
    }
}

/// Packs the tree of a sandbox.
async fn pack_tree(
    layers: &Layers,
    sandbox: &BuildSandbox,
    has_room: &(dyn Fn(u64) -> bool + Sync),
) -> Result<NewLayer, BuildError> {
    let mut new = layers.begin().await?;
    let packed = sandbox.pack("/", None, EXCLUDED_PATHS).await?;
    let mut tar = packed.ok_or_else(|| BuildError::input("template", "its tree is empty"))?;
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = tar.read(&mut buffer).await;
        let read =
            read.map_err(|source| BuildError::File { action: "read the tree in", path: "/".into(), source })?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
        if !has_room(piece.len() as u64) {
            return Err(BuildError::input("template", "there is no room on the server's disk for its tree"));
        }
        new.write(piece).await?;
    }
    new.flush().await?;
    Ok(new)
}

/// Returns the entries before the layer's content.
fn head(digest: &str, bytes: u64, settings: &ImageSettings) -> Result<Vec<u8>, BuildError> {
    let env: Vec<String> = settings.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let config = json!({
        "architecture": oci::architecture(), "os": "linux",
        "config": { "Env": env, "WorkingDir": settings.workdir.as_deref().unwrap_or("/") },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let config = config.to_string();
    let blob = |content: &str| hex::encode(Sha256::digest(content));
    let config_digest = blob(&config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": oci::MANIFEST_TYPE,
        "config": Descriptor::json(oci::CONFIG_TYPE, &config_digest, config.len() as u64),
        "layers": [Descriptor::json(oci::LAYER_TYPE, digest, bytes)],
    });
    let manifest = manifest.to_string();
    let manifest_digest = blob(&manifest);
    let mut entry = Descriptor::json(oci::MANIFEST_TYPE, &manifest_digest, manifest.len() as u64);
    if let (Some(name), Some(entry)) = (&settings.name, entry.as_object_mut()) {
        let names = json!({
            "io.containerd.image.name": name.to_string(), "org.opencontainers.image.ref.name": name.version(),
        });
        entry.insert("annotations".to_owned(), names);
    }
    let index = json!({ "schemaVersion": 2, "mediaType": oci::INDEX_TYPE, "manifests": [entry] });
    let tags: Vec<String> = settings.name.iter().map(ToString::to_string).collect();
    let saved = json!([{
        "Config": format!("blobs/sha256/{config_digest}"), "RepoTags": tags,
        "Layers": [format!("blobs/sha256/{digest}")],
    }]);
    let mut tar = Vec::new();
    for (name, content) in [
        ("oci-layout".to_owned(), r#"{"imageLayoutVersion":"1.0.0"}"#.to_owned()),
        ("index.json".to_owned(), index.to_string()),
        ("manifest.json".to_owned(), saved.to_string()),
        (format!("blobs/sha256/{config_digest}"), config),
        (format!("blobs/sha256/{manifest_digest}"), manifest),
    ] {
        let length = content.len() as u64;
        tar.extend_from_slice(header(&name, length)?.as_bytes());
        tar.extend_from_slice(content.as_bytes());
        tar.extend(padding(length));
    }
    tar.extend_from_slice(header(&format!("blobs/sha256/{digest}"), bytes)?.as_bytes());
    Ok(tar)
}

/// Returns what follows the layer's content: its padding, and the mark of the tar's end.
fn tail(bytes: u64) -> Vec<u8> {
    padding(bytes).chain(std::iter::repeat_n(0, 1024)).collect()
}

fn padding(bytes: u64) -> impl Iterator<Item = u8> {
    let missing = (BLOCK - bytes % BLOCK) % BLOCK;
    std::iter::repeat_n(0, usize::try_from(missing).unwrap_or(0))
}

fn header(name: &str, bytes: u64) -> Result<Header, BuildError> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(bytes);
    header.set_path(name).map_err(|source| BuildError::File {
        action: "write",
        path: name.into(),
        source,
    })?;
    header.set_cksum();
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_file::{ImageFileLimits, read_image_file};

    #[test]
    fn exported_images_can_be_imported() {
        let layer = vec![7u8; 700];
        let digest = hex::encode(Sha256::digest(&layer));
        let settings = ImageSettings {
            name: Some("ghcr.io/org/app:1.0".parse().unwrap()),
            env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            workdir: Some("/srv".to_owned()),
        };
        let whole = [head(&digest, 700, &settings).unwrap(), layer, tail(700)].concat();
        let limits = ImageFileLimits { max_bytes: 1 << 20, max_layers: 1 };
        let without_index = |text: &[u8]| {
            // Older versions of Docker know manifest.json alone.
            let mut text = text.to_vec();
            let at = text.windows(10).position(|window| window == b"index.json").unwrap();
            text[at] = b'x';
            let sum: u32 = text[512 * 2..512 * 3]
                .iter()
                .enumerate()
                .map(|(index, byte)| match index {
                    148..156 => 32,
                    _ => u32::from(*byte),
                })
                .sum();
            text[512 * 2 + 148..512 * 2 + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            text
        };
        for source in [whole.clone(), without_index(&whole)] {
            let dir = tempfile::tempdir().unwrap();
            let read = read_image_file(&*source, dir.path(), None, limits, &|_| true).unwrap();
            assert_eq!(read.names, settings.name.iter().cloned().collect::<Vec<_>>());
            assert!(dir.path().join("blobs/sha256").join(&digest).exists());
        }
    }
}
