//! A layer that no build would produce: with a device, and with a program that is to gain capabilities.

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_model::TreeLayer;

/// `struct vfs_cap_data` of version 2: every capability of the first 32, permitted and effective.
const CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Size of the file that is read, in bytes.
const DATA_BYTES: u32 = 4 << 20;

/// Reason why an attack was not run.
pub(crate) enum NotRun {
    /// This machine lacks something.
    Skip(String),
    /// Something failed.
    Fail(String),
}

impl From<std::io::Error> for NotRun {
    fn from(error: std::io::Error) -> Self {
        Self::Fail(error.to_string())
    }
}

/// Creates the layer in a directory. It has `zero`, a device; `plain` and `capable`, which are `cat`; and `data`.
pub(crate) fn make(dir: &Path) -> Result<TreeLayer, NotRun> {
    if !Path::new("/dev/loop-control").exists() {
        return Err(NotRun::Skip("there are no loop devices (/dev/loop-control)".to_owned()));
    }
    let tree = dir.join("tree");
    std::fs::create_dir(&tree)?;
    let cat = ["/usr/bin/cat", "/bin/cat"].into_iter().find(|path| Path::new(path).exists());
    for name in ["plain", "capable"] {
        std::fs::copy(cat.unwrap_or("/bin/cat"), tree.join(name))?;
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(tree.join("capable"), c"security.capability", &CAPABILITIES, flags)
        .map_err(|errno| NotRun::Skip(format!("a file cannot be given capabilities here: {errno}")))?;
    // Its pages all differ, and it cannot be compressed.
    let mut state = 0x9e37_79b9u32;
    let words = (0..DATA_BYTES / 4).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_ne_bytes()
    });
    std::fs::write(tree.join("data"), words.collect::<Vec<u8>>())?;
    let path: PathBuf = dir.join("layer");
    let made = Command::new("mksquashfs")
        .arg(&tree)
        .arg(&path)
        .args(["-noappend", "-quiet", "-no-progress", "-xattrs", "-p", "zero c 666 0 0 1 5"])
        .output()
        .map_err(|error| NotRun::Skip(format!("mksquashfs cannot be run: {error}")))?;
    if !made.status.success() {
        return Err(NotRun::Fail(format!("mksquashfs: {}", String::from_utf8_lossy(&made.stderr))));
    }
    // The digest is checked elsewhere; here any will do.
    Ok(TreeLayer { path, digest: "0".repeat(64) })
}
