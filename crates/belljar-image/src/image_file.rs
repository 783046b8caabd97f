//! Images in a file: a tar of `docker save`, or a tar of an image layout, each with or without gzip. Becomes a layout directory of a single
//! image, whose blobs are what their digests say.
//!
//! ```text
//!  tar ─► every file to blobs/sha256/<its digest> ─► index.json, or else manifest.json ─► one image ─► only its blobs stay
//! ```
//!
//! Nothing of the tar chooses a path here: its names are only looked up. Layers are not unpacked; a sandbox does that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::io::{BufReader, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use belljar_model::ImageReference;
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tar::{Archive, Entry, EntryType};

use crate::definition::sanitize;
use crate::error::BuildError;
use crate::oci::{
    self, CONFIG_TYPE, Descriptor, GZIP_LAYER_TYPE, INDEX_TYPE, LAYER_TYPE, MANIFEST_TYPE,
    MAX_DOCUMENT_BYTES, invalid,
};

/// Limit of entries of a tar.
const MAX_ENTRIES: usize = 10_000;
/// Limit of a name in a tar, in bytes.
const MAX_NAME_BYTES: usize = 512;
/// Limit of a record with a name or attributes, in bytes.
const MAX_RECORD_BYTES: u64 = 64 << 10;
/// Limit of links from one name to the next.
const MAX_LINKS: usize = 8;
/// Limit of the bytes of all layers, uncompressed.
const MAX_UNPACKED_BYTES: u64 = 64 << 30;
/// Limit of what follows the end of a tar, in bytes: a record of any common size.
const MAX_REST_BYTES: u64 = 1 << 20;
/// Size of the pieces in which files are read and written.
const PIECE_BYTES: usize = 256 << 10;
/// What a file is that is no image.
const NO_IMAGE: &str = "it is neither a tar of docker save nor one of an OCI image layout";
/// Magic numbers of gzip (RFC 1952) and zstd (RFC 8878).
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// How large an image in a file may be.
#[derive(Debug, Clone, Copy)]
pub struct ImageFileLimits {
    /// Size of all files in the tar, in bytes.
    pub max_bytes: u64,
    /// Number of layers.
    pub max_layers: usize,
}

/// An image that was read from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFile {
    /// Names that the file gives it.
    pub names: Vec<ImageReference>,
    /// Digest of its manifest.
    pub digest: String,
    /// Size of its blobs, in bytes.
    pub bytes: u64,
}

/// A file of the tar, by its digest.
#[derive(Debug, Clone)]
struct Blob {
    hex: String,
    bytes: u64,
    is_gzip: bool,
    is_zstd: bool,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> serde_json::Value {
        Descriptor::json(media_type, &self.hex, self.bytes)
    }
}

/// An image of the file.
struct Candidate {
    names: Vec<String>,
    source: Source,
}

enum Source {
    /// A manifest of an image layout, or a list of such.
    Layout(Descriptor),
    /// An entry of `manifest.json`.
    Docker(DockerImage),
}

/// An image in `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Reads an image from a tar into the empty directory `dir`, in the form of an image layout. Of several images, `name` is the one that is
/// read. `has_room` is asked before so many bytes are written, and with 0 while a layer is only read: nothing goes on without room.
///
/// # Errors
/// Returns [`BuildError::Input`] with the field `image` or `name` for a file that is no image, or whose blobs are not what it says;
/// [`BuildError::File`] if `dir` cannot be written.
pub fn read_image_file(
    source: impl Read,
    dir: &Path,
    name: Option<&ImageReference>,
    limits: ImageFileLimits,
    has_room: &dyn Fn(u64) -> bool,
) -> Result<ImageFile, BuildError> {
    let mut source = BufReader::with_capacity(PIECE_BYTES, source);
    let begin = std::io::BufRead::fill_buf(&mut source).map_err(|error| unreadable(&error))?;
    let is_gzip = begin.starts_with(&GZIP);
    let mut reader = Reader::new(dir, limits, has_room)?;
    match is_gzip {
        true => reader.read(MultiGzDecoder::new(source))?,
        false => reader.read(source)?,
    }
    reader.finish(name)
}

fn unreadable(error: &std::io::Error) -> BuildError {
    invalid(format!("it cannot be read: {error}"))
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::File { action, path, source }
}

struct Reader<'a> {
    dir: &'a Path,
    blobs: PathBuf,
    limits: ImageFileLimits,
    has_room: &'a dyn Fn(u64) -> bool,
    /// By their names in the tar.
    files: BTreeMap<String, Blob>,
    /// Names that stand for others.
    links: BTreeMap<String, String>,
    bytes: u64,
}

impl<'a> Reader<'a> {
    fn new(
        dir: &'a Path,
        limits: ImageFileLimits,
        has_room: &'a dyn Fn(u64) -> bool,
    ) -> Result<Self, BuildError> {
        let blobs = dir.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).map_err(file_error("create", &blobs))?;
        // The sandbox that unpacks it has another user, whatever the umask is.
        for made in [dir, &dir.join("blobs"), &blobs] {
            std::fs::set_permissions(made, Permissions::from_mode(0o755))
                .map_err(file_error("change the mode of", made))?;
        }
        Ok(Self { dir, blobs, limits, has_room, files: BTreeMap::new(), links: BTreeMap::new(), bytes: 0 })
    }

    /// Reads all entries of the tar.
    fn read(&mut self, source: impl Read) -> Result<(), BuildError> {
        let mut archive = Archive::new(source);
        // Records of names and attributes are read here, because the library reads them whole, however long they are.
        let entries = archive.entries().map_err(|error| unreadable(&error))?.raw(true);
        let (mut name, mut target) = (None, None);
        for (count, entry) in entries.enumerate() {
            let mut entry = entry.map_err(|error| match count {
                0 => invalid(NO_IMAGE),
                _ => unreadable(&error),
            })?;
            if count >= MAX_ENTRIES {
                return Err(invalid(format!("it has more than {MAX_ENTRIES} entries")));
            }
            match entry.header().entry_type() {
                EntryType::GNULongName => name = Some(record(&mut entry)?),
                EntryType::GNULongLink => target = Some(record(&mut entry)?),
                EntryType::XHeader => {
                    let record = record(&mut entry)?;
                    for attribute in tar::PaxExtensions::new(&record) {
                        let attribute = attribute.map_err(|error| unreadable(&error))?;
                        match attribute.key_bytes() {
                            b"path" => name = Some(attribute.value_bytes().to_vec()),
                            b"linkpath" => target = Some(attribute.value_bytes().to_vec()),
                            b"size" => {
                                return Err(invalid("an entry is too large for the format of its header"));
                            }
                            _ => {}
                        }
                    }
                }
                // Comments, in practice.
                EntryType::XGlobalHeader => drop(record(&mut entry)?),
                _ => self.take(&mut entry, name.take(), target.take())?,
            }
        }
        // The rest of the last record, and the checksum of gzip.
        let mut rest = archive.into_inner().take(MAX_REST_BYTES);
        std::io::copy(&mut rest, &mut std::io::sink()).map_err(|error| unreadable(&error))?;
        match rest.limit() {
            0 => Err(invalid(format!("more than {MAX_REST_BYTES} bytes follow the end of the tar"))),
            _ => Ok(()),
        }
    }

    fn take(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        name: Option<Vec<u8>>,
        target: Option<Vec<u8>>,
    ) -> Result<(), BuildError> {
        let raw = name.unwrap_or_else(|| entry.path_bytes().into_owned());
        let kind = entry.header().entry_type();
        // Whatever its kind is, it may have content, which is read.
        let bytes = entry.header().entry_size().map_err(|error| unreadable(&error))?;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.max_bytes {
            return Err(invalid(format!(
                "its files have more than {} bytes, which images.max_size allows",
                self.limits.max_bytes
            )));
        }
        if kind == EntryType::Directory {
            // The directory itself is `./`.
            return if raw.iter().all(|byte| b"./".contains(byte)) {
                Ok(())
            } else {
                plain_name(&raw).map(drop)
            };
        }
        let name = plain_name(&raw)?;
        if self.files.contains_key(&name) || self.links.contains_key(&name) {
            return Err(invalid(format!("{name} is in it twice")));
        }
        let target = target.or_else(|| Some(entry.link_name_bytes()?.into_owned())).unwrap_or_default();
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let blob = self.write_blob(&name, entry, bytes)?;
                self.files.insert(name, blob);
            }
            EntryType::Link => drop(self.links.insert(name, plain_name(&target)?)),
            EntryType::Symlink => {
                let found = resolve_link(&name, &target)?;
                self.links.insert(name, found);
            }
            _ => {
                return Err(invalid(format!(
                    "{NO_IMAGE}: {name} is neither a file, a directory nor a link, as in a file system of docker export"
                )));
            }
        }
        Ok(())
    }

    /// Writes a file of the tar under its digest.
    fn write_blob(
        &mut self,
        name: &str,
        entry: &mut Entry<'_, impl Read>,
        expected: u64,
    ) -> Result<Blob, BuildError> {
        if !(self.has_room)(expected) {
            return Err(invalid(format!("there is no room on the server's disk for {expected} bytes more")));
        }
        let part = self.dir.join("part");
        let mut out = File::create(&part).map_err(file_error("create", &part))?;
        let (mut hash, mut bytes, mut begin) = (Sha256::new(), 0, Vec::new());
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let read = entry.read(&mut buffer).map_err(|error| unreadable(&error))?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            if begin.len() < ZSTD.len() {
                begin.extend(piece.iter().take(ZSTD.len()));
            }
            hash.update(piece);
            bytes += piece.len() as u64;
            out.write_all(piece).map_err(file_error("write", &part))?;
        }
        if bytes != expected {
            return Err(invalid(format!("it ends within {name}: {bytes} of {expected} bytes")));
        }
        let hex = hex::encode(hash.finalize());
        std::fs::set_permissions(&part, Permissions::from_mode(0o644))
            .map_err(file_error("change the mode of", &part))?;
        let path = self.blobs.join(&hex);
        std::fs::rename(&part, &path).map_err(file_error("put into place", &path))?;
        Ok(Blob { hex, bytes, is_gzip: begin.starts_with(&GZIP), is_zstd: begin.starts_with(&ZSTD) })
    }

    /// Finds a file by its name in the tar.
    fn find(&self, name: &str) -> Result<&Blob, BuildError> {
        let mut found = name;
        for _ in 0..MAX_LINKS {
            if let Some(blob) = self.files.get(found) {
                return Ok(blob);
            }
            let Some(next) = self.links.get(found) else { break };
            found = next;
        }
        Err(invalid(format!("{} is missing in it", sanitize(name, 200))))
    }

    /// Finds a blob of an image layout, which has to be what its descriptor says.
    fn find_blob(&self, descriptor: &Descriptor) -> Result<&Blob, BuildError> {
        let hex = descriptor.hex()?;
        let blob = self.find(&format!("blobs/sha256/{hex}"))?;
        if blob.hex != hex {
            return Err(invalid(format!("the blob sha256:{hex} has the digest sha256:{}", blob.hex)));
        }
        match descriptor.size {
            Some(size) if size != blob.bytes => {
                let bytes = blob.bytes;
                Err(invalid(format!("the blob sha256:{hex} has {bytes} bytes, not {size}")))
            }
            _ => Ok(blob),
        }
    }

    /// Reads a file that is JSON.
    fn document(&self, blob: &Blob) -> Result<Vec<u8>, BuildError> {
        if blob.bytes > MAX_DOCUMENT_BYTES as u64 {
            let bytes = blob.bytes;
            return Err(invalid(format!(
                "a document has {bytes} bytes; at most {MAX_DOCUMENT_BYTES} are allowed"
            )));
        }
        let path = self.blobs.join(&blob.hex);
        std::fs::read(&path).map_err(file_error("read", &path))
    }

    /// Selects the image, checks all of it, and leaves nothing else in the directory.
    fn finish(self, name: Option<&ImageReference>) -> Result<ImageFile, BuildError> {
        let candidate = select(self.candidates()?, name)?;
        let (manifest, media_type) = match &candidate.source {
            Source::Layout(descriptor) => self.layout_manifest(descriptor)?,
            Source::Docker(image) => (self.docker_manifest(image)?, MANIFEST_TYPE.to_owned()),
        };
        let (config, layers) = oci::parse_manifest(&self.document(&manifest)?)?;
        self.check_count(layers.len())?;
        // What the tar does not have under its digest is refused, as what a registry gives.
        let (config, layers) = match &candidate.source {
            Source::Layout(_) => {
                let layers = layers.iter().map(|layer| self.find_blob(layer)).collect::<Result<Vec<_>, _>>();
                (self.find_blob(&config)?, layers?)
            }
            // The manifest was written here, of files that were found.
            Source::Docker(image) => {
                let layers = image.layers.iter().map(|name| self.find(name)).collect::<Result<Vec<_>, _>>();
                (self.find(&image.config)?, layers?)
            }
        };
        oci::parse_config(&self.document(config)?)?;
        let all = layers.into_iter().chain([config, &manifest]);
        let kept: BTreeMap<&str, u64> = all.map(|blob| (blob.hex.as_str(), blob.bytes)).collect();
        for blob in self.files.values().map(|blob| &blob.hex).collect::<BTreeSet<_>>() {
            if !kept.contains_key(blob.as_str()) {
                let path = self.blobs.join(blob);
                std::fs::remove_file(&path).map_err(file_error("remove", &path))?;
            }
        }
        let index = serde_json::json!({
            "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [manifest.descriptor(&media_type)],
        });
        self.write("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        self.write("index.json", index.to_string().as_bytes())?;
        let names = candidate.names.iter().filter_map(|name| name.parse().ok()).collect();
        let digest = format!("sha256:{}", manifest.hex);
        Ok(ImageFile { names, digest, bytes: kept.values().sum() })
    }

    fn check_count(&self, count: usize) -> Result<(), BuildError> {
        let max = self.limits.max_layers;
        if count > max {
            return Err(invalid(format!("it has {count} layers; at most {max} are allowed")));
        }
        Ok(())
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), BuildError> {
        let path = self.dir.join(name);
        std::fs::write(&path, content).map_err(file_error("write", &path))?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o644))
            .map_err(file_error("change the mode of", &path))
    }

    /// Lists the images of the tar, for this machine.
    fn candidates(&self) -> Result<Vec<Candidate>, BuildError> {
        let names = |name: Option<&str>| name.map(str::to_owned).into_iter().collect();
        if let Ok(index) = self.find("index.json") {
            let found = oci::images_of(&self.document(index)?)?.into_iter();
            return Ok(found
                .map(|one| Candidate { names: names(one.name()), source: Source::Layout(one) })
                .collect());
        }
        let Ok(manifest) = self.find("manifest.json") else {
            return Err(invalid(
                "it has neither index.json nor manifest.json; give a tar of docker save, or of an OCI image layout",
            ));
        };
        let images: Vec<DockerImage> = serde_json::from_slice(&self.document(manifest)?)
            .map_err(|error| invalid(format!("its manifest.json is invalid: {error}")))?;
        let candidate = |image: DockerImage| Candidate {
            names: image.repo_tags.clone().unwrap_or_default(),
            source: Source::Docker(image),
        };
        Ok(images.into_iter().map(candidate).collect())
    }

    /// Returns the manifest of an image of a layout, with its type.
    fn layout_manifest(&self, descriptor: &Descriptor) -> Result<(Blob, String), BuildError> {
        let blob = self.find_blob(descriptor)?;
        if !descriptor.is_index() {
            return Ok((blob.clone(), descriptor.media_type.clone()));
        }
        let inner = match oci::choose(&self.document(blob)?, None)? {
            oci::Chosen::Manifest(inner) => inner,
            oci::Chosen::Index(_) => return Err(invalid("it is a list of lists")),
        };
        Ok((self.find_blob(&inner)?.clone(), inner.media_type))
    }

    /// Writes the manifest of an image of `docker save`, whose layers have to have the digests that its configuration says.
    fn docker_manifest(&self, image: &DockerImage) -> Result<Blob, BuildError> {
        self.check_count(image.layers.len())?;
        let config = self.find(&image.config)?;
        let diff_ids = oci::diff_ids(&self.document(config)?)?;
        if diff_ids.len() != image.layers.len() {
            let (has, says) = (image.layers.len(), diff_ids.len());
            return Err(invalid(format!("it has {has} layers, and its configuration says {says}")));
        }
        let (mut layers, mut left, mut digests) = (Vec::new(), MAX_UNPACKED_BYTES, BTreeMap::new());
        for (name, diff_id) in image.layers.iter().zip(&diff_ids) {
            let layer = self.find(name)?;
            if layer.is_zstd {
                return Err(invalid("a layer is compressed with zstd; tar and tar+gzip are supported"));
            }
            let digest = match (layer.is_gzip, digests.get(&layer.hex)) {
                (false, _) => format!("sha256:{}", layer.hex),
                (true, Some(known)) => String::clone(known),
                (true, None) => self.unpacked_digest(layer, &mut left)?,
            };
            digests.insert(layer.hex.clone(), digest.clone());
            if digest != *diff_id {
                let (name, diff_id) = (sanitize(name, 200), sanitize(diff_id, 80));
                return Err(invalid(format!("the layer {name} has the digest {digest}, not {diff_id}")));
            }
            layers.push(layer.descriptor(if layer.is_gzip { GZIP_LAYER_TYPE } else { LAYER_TYPE }));
        }
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config.descriptor(CONFIG_TYPE), "layers": layers,
        });
        let text = manifest.to_string();
        let hex = hex::encode(Sha256::digest(&text));
        self.write(&format!("blobs/sha256/{hex}"), text.as_bytes())?;
        Ok(Blob { hex, bytes: text.len() as u64, is_gzip: false, is_zstd: false })
    }

    /// Returns the digest of a compressed layer's content, of which `left` bytes are allowed.
    fn unpacked_digest(&self, layer: &Blob, left: &mut u64) -> Result<String, BuildError> {
        let path = self.blobs.join(&layer.hex);
        let file = File::open(&path).map_err(file_error("open", &path))?;
        let mut content = MultiGzDecoder::new(BufReader::with_capacity(PIECE_BYTES, file));
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; PIECE_BYTES]);
        loop {
            let read = content.read(&mut buffer).map_err(|error| unreadable(&error))?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            hash.update(piece);
            *left = left.checked_sub(piece.len() as u64).ok_or_else(|| {
                invalid(format!("its layers have more than {} GiB uncompressed", MAX_UNPACKED_BYTES >> 30))
            })?;
            if !(self.has_room)(0) {
                return Err(invalid("reading it has been stopped"));
            }
        }
        Ok(format!("sha256:{}", hex::encode(hash.finalize())))
    }
}

/// Selects the only image, or the one with this name.
fn select(mut all: Vec<Candidate>, name: Option<&ImageReference>) -> Result<Candidate, BuildError> {
    if let [_] = all.as_slice() {
        return Ok(all.remove(0));
    }
    if all.is_empty() {
        return Err(invalid("it has no image"));
    }
    let has_name = |one: &Candidate| one.names.iter().any(|text| text.parse().ok().as_ref() == name);
    let listed: Vec<String> =
        all.iter().flat_map(|one| one.names.iter().map(|name| sanitize(name, 200))).collect();
    let refuse = |begin: &str| {
        let listed =
            if listed.is_empty() { "none of which has a name".to_owned() } else { listed.join(", ") };
        BuildError::input("name", format!("{begin} several images: {listed}"))
    };
    match name {
        None => Err(refuse("give that of one; the file has")),
        Some(name) => {
            let found = all.into_iter().find(has_name);
            found.ok_or_else(|| refuse(&format!("{name} is not in the file, which has")))
        }
    }
}

/// Reads a record with a name or attributes, without the zero at its end.
fn record(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, BuildError> {
    let size = entry.header().entry_size().map_err(|error| unreadable(&error))?;
    if size > MAX_RECORD_BYTES {
        return Err(invalid(format!("a name or its attributes have {size} bytes")));
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content).map_err(|error| unreadable(&error))?;
    if content.last() == Some(&0) {
        content.pop();
    }
    Ok(content)
}

/// Checks the name of an entry, and returns it without `./` at its beginning.
fn plain_name(raw: &[u8]) -> Result<String, BuildError> {
    let refuse =
        || invalid(format!("{:?} is not a name in an image", sanitize(&String::from_utf8_lossy(raw), 200)));
    let text = std::str::from_utf8(raw).map_err(|_| refuse())?;
    let text = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
    let parts = text.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if !parts || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(refuse());
    }
    Ok(text.to_owned())
}

/// Returns the name that a symbolic link leads to, which is one in the tar.
fn resolve_link(name: &str, target: &[u8]) -> Result<String, BuildError> {
    let refuse = || invalid(format!("the link {name} leads out of it"));
    let target = std::str::from_utf8(target).map_err(|_| refuse())?;
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        return Err(refuse());
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().ok_or_else(refuse)?),
            part => parts.push(part),
        }
    }
    plain_name(parts.join("/").as_bytes())
}

#[cfg(test)]
#[path = "image_file_tests.rs"]
mod tests;
