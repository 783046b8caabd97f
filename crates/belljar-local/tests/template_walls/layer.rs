//! A layer that no build would produce, and a volume that no sandbox could: with a device, and with a program that is to gain
//! capabilities.

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_model::{MountMode, TreeLayer, VolumeImage, VolumeMount};

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

/// Creates a directory with `plain` and `capable`, which are `cat`.
fn programs(dir: &Path) -> Result<PathBuf, NotRun> {
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
    Ok(tree)
}

/// Creates the volume in a directory. It has `zero`, a device that all may read, and the programs.
pub(crate) fn make_volume(dir: &Path) -> Result<VolumeMount, NotRun> {
    let tree = programs(dir)?;
    let device = rustix::fs::makedev(1, 5);
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o666));
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("zero"), kind, mode, device)
        .and_then(|()| rustix::fs::chmod(tree.join("zero"), mode))
        .map_err(|errno| NotRun::Skip(format!("a device cannot be made here: {errno}")))?;
    let path = dir.join("volume");
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-b", "4096", "-E", "root_owner=1000:1000", "-d"])
        .arg(&tree)
        .arg(&path)
        .arg("32m")
        .output()
        .map_err(|error| NotRun::Skip(format!("mke2fs cannot be run: {error}")))?;
    if !made.status.success() {
        return Err(NotRun::Fail(format!("mke2fs: {}", String::from_utf8_lossy(&made.stderr))));
    }
    let id = "abcdefghij0123456789".parse().map_err(|error| NotRun::Fail(format!("{error}")))?;
    Ok(VolumeMount {
        name: "volume".to_owned(),
        path: PathBuf::from("/opt/template"),
        mode: MountMode::ReadWrite,
        image: Some(VolumeImage { id, path }),
    })
}

/// Creates the layer of a tree of its own in a directory: Python, a shell, users, and `suid`, a Python that runs as root.
pub(crate) fn make_machine(dir: &Path) -> Result<TreeLayer, NotRun> {
    let tree = dir.join("tree");
    for name in
        ["proc", "dev", "sys", "tmp", "run", "home/user", "etc", "var", "root", "usr/bin", "usr/lib", "bin"]
    {
        std::fs::create_dir_all(tree.join(name))?;
    }
    let python = std::fs::canonicalize("/usr/bin/python3")
        .map_err(|error| NotRun::Skip(format!("there is no /usr/bin/python3: {error}")))?;
    copy_program(&python, &tree, "usr/bin/python3")?;
    copy_program(&std::fs::canonicalize("/bin/sh")?, &tree, "bin/sh")?;
    let name = python.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let library = Path::new("/usr/lib").join(&name);
    let copied = Command::new("cp").arg("-a").arg(&library).arg(tree.join("usr/lib")).output()?;
    if !copied.status.success() {
        return Err(NotRun::Fail(String::from_utf8_lossy(&copied.stderr).into_owned()));
    }
    for extension in std::fs::read_dir(library.join("lib-dynload"))? {
        copy_libraries(&extension?.path(), &tree)?;
    }
    std::fs::write(
        tree.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nother:x:1234:1234::/:/bin/sh\n",
    )?;
    std::fs::write(tree.join("etc/group"), "root:x:0:\nuser:x:1000:\nother:x:1234:\nextra:x:77:other\n")?;
    for name in ["hosts", "hostname", "resolv.conf"] {
        std::fs::write(tree.join("etc").join(name), "")?;
    }
    std::fs::copy(&python, tree.join("usr/bin/suid"))?;
    let mode = rustix::fs::Mode::from_raw_mode(0o4755);
    rustix::fs::chmod(tree.join("usr/bin/suid"), mode).map_err(|errno| NotRun::Fail(errno.to_string()))?;
    squash(dir, &tree, &["-noI", "-noD", "-noF"])
}

/// Copies a program, with its libraries.
fn copy_program(program: &Path, tree: &Path, name: &str) -> Result<(), NotRun> {
    std::fs::copy(program, tree.join(name))?;
    copy_libraries(program, tree)
}

fn copy_libraries(program: &Path, tree: &Path) -> Result<(), NotRun> {
    let listed = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    for library in text.split_ascii_whitespace().filter(|word| word.starts_with('/')) {
        let copy = tree.join(library.trim_start_matches('/'));
        if !copy.exists() {
            std::fs::create_dir_all(copy.parent().unwrap_or(tree))?;
            std::fs::copy(library, copy)?;
        }
    }
    Ok(())
}

/// Creates the layer in a directory. It has `zero`, a device; the programs; and `data`.
pub(crate) fn make(dir: &Path) -> Result<TreeLayer, NotRun> {
    let tree = programs(dir)?;
    // Its pages all differ, and it cannot be compressed.
    let mut state = 0x9e37_79b9u32;
    let words = (0..DATA_BYTES / 4).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_ne_bytes()
    });
    std::fs::write(tree.join("data"), words.collect::<Vec<u8>>())?;
    squash(dir, &tree, &["-p", "zero c 666 0 0 1 5"])
}

fn squash(dir: &Path, tree: &Path, flags: &[&str]) -> Result<TreeLayer, NotRun> {
    let path: PathBuf = dir.join("layer");
    let made = Command::new("mksquashfs")
        .arg(tree)
        .arg(&path)
        .args(["-noappend", "-quiet", "-no-progress", "-xattrs"])
        .args(flags)
        .output()
        .map_err(|error| NotRun::Skip(format!("mksquashfs cannot be run: {error}")))?;
    if !made.status.success() {
        return Err(NotRun::Fail(format!("mksquashfs: {}", String::from_utf8_lossy(&made.stderr))));
    }
    // The digest is checked elsewhere; here any will do.
    Ok(TreeLayer { path, digest: "0".repeat(64) })
}
