//! The files of volumes and of the disks of machines, each with an ext4 file system. e2fsprogs make it before any sandbox has written to it; afterwards only the
//! kernel reads and writes it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use belljar_model::{DISK_CHANGES, DISK_HOME, DISK_WORK, Limits, SandboxId, VolumeId};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::error::KeeperError;
use crate::keeper::Result;

/// Owner of all files on disk, mapped to the sandbox's user by the mount.
const OWNER: u32 = 1000;

/// Size of a block, in bytes. A device with direct I/O needs one of a page.
const BLOCK: u64 = 4096;

/// Size of what is copied of a disk at once, in bytes.
const PIECE: usize = 256 << 10;

/// File system features, listed in full so that no mke2fs.conf changes them. Checksums let the kernel detect damaged metadata.
const FEATURES: &str = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,\
                        metadata_csum";

/// Features of volumes besides. A disk of a machine outlives no crash of the host.
const LASTING_FEATURES: &str = ",has_journal";

/// A file under construction, removed on drop.
pub(crate) struct Part(PathBuf);

impl Part {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Gives the file its final name, and keeps it.
    pub(super) async fn finish(self) -> Result<()> {
        rename(&self.0, IMAGE).await?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The extension of a volume's file.
const IMAGE: &str = "img";

/// The extension of a file whose volume is being created or removed.
const PART: &str = "part";

/// Marks the file of a volume that is about to be removed, and returns its new path. A missing file is no error.
pub(super) async fn retire(path: &Path) -> Result<PathBuf> {
    match rename(path, PART).await {
        Err(KeeperError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        renamed => renamed?,
    }
    Ok(path.with_extension(PART))
}

/// Gives a file its final name back, after a removal that was not carried out.
pub(super) async fn restore(part: &Path) -> Result<()> {
    rename(part, IMAGE).await
}

async fn rename(path: &Path, extension: &str) -> Result<()> {
    tokio::fs::rename(path, path.with_extension(extension)).await.map_err(failed("rename", path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeeperError {
    let path = path.to_owned();
    move |source| KeeperError::File { action, path, source }
}

/// Creates the file of a volume.
pub(super) async fn make(dir: &Path, id: &VolumeId, bytes: u64) -> Result<Part> {
    let (dir, path) = (dir.to_owned(), dir.join(format!("{id}.{PART}")));
    let made = tokio::task::spawn_blocking(move || make_now(&dir, path, bytes));
    made.await.unwrap_or_else(|error| {
        Err(KeeperError::File { action: "make", path: PathBuf::new(), source: error.into() })
    })
}

fn make_now(dir: &Path, path: PathBuf, bytes: u64) -> Result<Part> {
    let (part, file) = reserve(dir, path, bytes)?;
    let path = &part.0;
    let mut mke2fs = mke2fs(OWNER, LASTING_FEATURES);
    mke2fs.args(["-i", "16384"]).arg(path);
    run(mke2fs, path)?;
    // Sandboxes start with an empty root.
    for command in ["rmdir lost+found", "ls -p /"] {
        let mut debugfs = e2fs_command("debugfs");
        debugfs.args(["-w", "-R", command]).arg(path);
        let listed = run(debugfs, path)?.stdout;
        if command.starts_with("ls") && String::from_utf8_lossy(&listed).contains("/lost+found/") {
            return Err(failed("empty", path)(io::Error::other("debugfs could not remove lost+found")));
        }
    }
    // The file must be durable before the store acknowledges it.
    file.sync_all().map_err(failed("write", path))?;
    let place = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    place.map_err(failed("write", dir))?;
    Ok(part)
}

/// Makes a file and reserves all its disk space now, so that later writes need no more.
fn reserve(dir: &Path, path: PathBuf, bytes: u64) -> Result<(Part, File)> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make", dir))?;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(failed("make", &path))?;
    let part = Part(path);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| failed("set room aside for", &part.0)(errno.into()))?;
    Ok((part, file))
}

/// Returns the path of the file of a machine's disk.
pub(crate) fn disk_path(dir: &Path, id: &SandboxId) -> PathBuf {
    dir.join(format!("{id}.{PART}"))
}

/// Makes the file of a machine's disk in `dir`, as a copy if one is given. It is removed when the result is dropped, and freed when nothing
/// uses it any more.
pub(crate) async fn make_disk(
    dir: PathBuf,
    id: &SandboxId,
    limits: &Limits,
    copied: Option<PathBuf>,
) -> Result<Part> {
    let (path, bytes) = (disk_path(&dir, id), limits.disk.bytes());
    // A file needs a block at least.
    let inodes = limits.inodes.get().min(bytes / BLOCK).to_string();
    let made = tokio::task::spawn_blocking(move || {
        let (part, file) = reserve(&dir, path, bytes)?;
        if let Some(from) = copied {
            let source = File::open(&from).map_err(failed("read", &from))?;
            let len = source.metadata().map_err(failed("read", &from))?.len();
            if len != bytes {
                let reason = format!("the template's disk has {len} bytes, which cannot change; omit it");
                return Err(KeeperError::field("limits.disk", reason));
            }
            copy_data(&source, &file, len).map_err(failed("copy a disk to", &part.0))?;
            return Ok(part);
        }
        let content = content_of_disk(&dir)?;
        let mut mke2fs = mke2fs(0, "");
        mke2fs.args(["-N", &inodes]).arg("-d").arg(content).arg(&part.0);
        run(mke2fs, &part.0)?;
        Ok(part)
    });
    made.await.unwrap_or_else(|error| {
        Err(KeeperError::File { action: "make", path: PathBuf::new(), source: error.into() })
    })
}

/// Copies what is in a file, without its holes.
fn copy_data(from: &File, to: &File, len: u64) -> io::Result<()> {
    let mut at = 0;
    while at < len {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            data => data?,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))?;
        let (mut read, mut written) = (at, at);
        while read < end {
            let piece = usize::try_from(end - read).unwrap_or(usize::MAX);
            if rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), piece)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(())
}

/// Copies a disk, which nothing writes to meanwhile, into the file at `path`. Returns the number of its bytes that are not zero, in pieces, and
/// the hexadecimal SHA-256 of these pieces with their places.
pub(crate) fn copy_disk(mut disk: File, to: &File, path: &Path) -> Result<(u64, String)> {
    let (mut digest, mut bytes, mut at) = (Sha256::new(), 0, 0);
    let mut piece = vec![0; PIECE];
    loop {
        let count = read_full(&mut disk, &mut piece).map_err(failed("read the disk for", path))?;
        if count == 0 {
            break;
        }
        let data = &piece[..count];
        if data.iter().any(|byte| *byte != 0) {
            to.write_all_at(data, at).map_err(failed("write", path))?;
            digest.update(at.to_be_bytes());
            digest.update(data);
            bytes += count as u64;
        }
        at += count as u64;
    }
    to.set_len(at).and_then(|()| to.sync_all()).map_err(failed("write", path))?;
    // It is complete, although the file system is mounted.
    let mut debugfs = e2fs_command("debugfs");
    debugfs.args(["-w", "-R", "set_super_value state 1"]).arg(path);
    run(debugfs, path)?;
    Ok((bytes, hex::encode(digest.finalize())))
}

/// Reads until the buffer is full, or there is no more.
fn read_full(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Returns a directory with what is on each new disk.
fn content_of_disk(dir: &Path) -> Result<PathBuf> {
    let content = dir.join("content");
    let mut make = DirBuilder::new();
    make.recursive(true).mode(0o755);
    for name in [DISK_CHANGES, DISK_WORK, DISK_HOME] {
        let path = content.join(name);
        make.create(&path).map_err(failed("make", &path))?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).map_err(failed("set the mode of", &path))?;
    }
    let home = content.join(DISK_HOME);
    std::os::unix::fs::chown(&home, Some(OWNER), Some(OWNER)).map_err(failed("set the owner of", &home))?;
    Ok(content)
}

/// Returns the command that makes a file system, whose root has this owner, without its file.
fn mke2fs(owner: u32, features: &str) -> Command {
    let mut mke2fs = e2fs_command("mke2fs");
    let block = BLOCK.to_string();
    mke2fs.args(["-q", "-F", "-b", &block, "-I", "256", "-m", "0", "-e", "remount-ro"]);
    mke2fs.args(["-O", &format!("{FEATURES}{features}")]);
    mke2fs.args(["-E", &format!("root_owner={owner}:{owner},lazy_itable_init=1,nodiscard")]);
    mke2fs
}

/// Returns a command for a program of e2fsprogs, without the server's environment and the machine's settings.
fn e2fs_command(name: &str) -> Command {
    let mut command = Command::new(name);
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
        .env("MKE2FS_CONFIG", "/dev/null")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

fn run(mut command: Command, path: &Path) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| {
        let reason = format!("{name} cannot be run: {error}; install e2fsprogs");
        failed("make the file system of", path)(io::Error::new(error.kind(), reason))
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let reason = format!("{name}: {}: {}", output.status, stderr.trim());
    Err(failed("make the file system of", path)(io::Error::other(reason)))
}

/// Removes the file of a volume. A missing file is no error.
pub(super) async fn remove(path: &Path) -> Result<()> {
    match tokio::fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// A file in the directory of volumes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Set if its volume was being created or removed.
    pub(super) is_part: bool,
}

impl Found {
    /// Reports whether this is the file of a volume with this id.
    pub(super) fn is_of(&self, id: &VolumeId) -> bool {
        self.path.file_stem().is_some_and(|stem| stem.as_encoded_bytes() == id.as_str().as_bytes())
    }
}

/// Lists the files of volumes.
pub(super) async fn list(dir: &Path) -> Result<Vec<Found>> {
    let mut entries = match tokio::fs::read_dir(dir).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("read", dir)(error)),
    };
    let mut found = Vec::new();
    while let Some(entry) = entries.next_entry().await.map_err(failed("read", dir))? {
        let path = entry.path();
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        let is_part = match extension.as_deref() {
            Some(IMAGE) => false,
            Some(PART) => true,
            _ => continue,
        };
        if let Ok(metadata) = entry.metadata().await
            && metadata.is_file()
        {
            found.push(Found { path, bytes: metadata.len(), is_part });
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[tokio::test]
    async fn new_file_is_sound_and_fully_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, id) = (dir.path().join("volumes"), VolumeId::from_entropy([1; 20]));
        let part = match make(&dir, &id, 32 << 20).await {
            Err(KeeperError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                println!("SKIPPED new_file_is_sound_and_fully_allocated: {source}");
                return;
            }
            made => made.unwrap(),
        };
        let metadata = std::fs::metadata(&part.0).unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o7777), (32 << 20, 0o600));
        assert!(metadata.blocks() * 512 >= 32 << 20, "{}", metadata.blocks());
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        let check = e2fs_command("e2fsck").args(["-f", "-n"]).arg(&part.0).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
        part.finish().await.unwrap();
        let path = dir.join(format!("{id}.img"));
        let file = |path: &Path, is_part| Found { path: path.to_owned(), bytes: 32 << 20, is_part };
        let found = list(&dir).await.unwrap();
        assert_eq!(found, [file(&path, false)]);
        assert!(found[0].is_of(&id) && !found[0].is_of(&VolumeId::from_entropy([2; 20])));
        let part = retire(&path).await.unwrap();
        assert_eq!(list(&dir).await.unwrap(), [file(&part, true)]);
        restore(&part).await.unwrap();
        remove(&path).await.unwrap();
        remove(&retire(&path).await.unwrap()).await.unwrap();
        assert_eq!(list(&dir).await.unwrap(), []);
    }

    #[tokio::test]
    async fn full_disk_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let id = VolumeId::from_entropy([1; 20]);
        let refused = make(dir.path(), &id, 1 << 50).await.err().unwrap();
        assert!(matches!(refused, KeeperError::File { .. }), "{refused}");
        assert_eq!(list(dir.path()).await.unwrap(), []);
    }
}
