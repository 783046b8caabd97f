//! The files of volumes, each with an ext4 file system. e2fsprogs make it before any sandbox has written to it; afterwards only the
//! kernel reads and writes it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use belljar_model::VolumeId;
use rustix::fs::FallocateFlags;

use crate::error::KeeperError;
use crate::keeper::Result;

/// Owner of all files on disk, mapped to the sandbox's user by the mount.
const OWNER: u32 = 1000;

/// File system features, listed in full so that no mke2fs.conf changes them. Checksums let the kernel detect damaged metadata.
const FEATURES: &str = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,\
                        dir_nlink,extra_isize,metadata_csum";

/// A volume's file under construction, removed on drop.
pub(super) struct Part(PathBuf);

impl Part {
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
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make", dir))?;
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(failed("make", &path))?;
    let part = Part(path);
    let path = &part.0;
    // Reserves all disk space now, so that later writes need no more.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| failed("set room aside for", path)(errno.into()))?;
    let owner = format!("root_owner={OWNER}:{OWNER},lazy_itable_init=1,nodiscard");
    let options =
        ["-q", "-F", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-e", "remount-ro", "-O", FEATURES];
    let mut mke2fs = e2fs_command("mke2fs");
    mke2fs.args(options).args(["-E", &owner]).arg(path);
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
