//! Host directories mounted by a specification: each is resolved once, checked, and mounted through the descriptor that was
//! checked.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_engine::EngineError;
use belljar_linux::{
    MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountSource, MountStep, Node, PROPAGATION_PRIVATE,
};
use belljar_model::{Mount, MountMode, MountPolicy};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use crate::host_tree::{HOME, HostTree, c_string};

/// Mount whose source has been opened and allowed by the policy.
#[derive(Debug)]
pub(crate) struct CheckedMount {
    mount: Mount,
    file: OwnedFd,
    canonical: PathBuf,
    is_dir: bool,
    owner: (u32, u32),
    device: u64,
    inode: u64,
}

impl CheckedMount {
    /// Opens the source, resolves its real path, and checks that against the policy.
    pub(crate) fn new(mount: &Mount, policy: &MountPolicy) -> Result<Self, EngineError> {
        let refused =
            |errno: Errno| EngineError::MountSource { path: mount.source.clone(), source: errno.into() };
        // The only look-up that follows links. The result is kept open, and only that is ever mounted.
        let file = rustix::fs::open(&mount.source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(refused)?;
        let canonical = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|source| EngineError::MountSource { path: mount.source.clone(), source })?;
        policy.check(mount, &canonical)?;
        let stat = rustix::fs::fstat(&file).map_err(refused)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::Directory | FileType::RegularFile) {
            let source =
                std::io::Error::new(std::io::ErrorKind::InvalidInput, "neither a directory nor a file");
            return Err(EngineError::MountSource { path: mount.source.clone(), source });
        }
        Ok(Self {
            mount: mount.clone(),
            is_dir: kind == FileType::Directory,
            owner: (stat.st_uid, stat.st_gid),
            device: stat.st_dev,
            inode: stat.st_ino,
            canonical,
            file,
        })
    }

    /// Adds the mount to a tree. As root it is detached here, with the source's owner mapped to the sandbox's user if the
    /// filesystem supports that; an unprivileged user's sandbox opens the source again itself, and requires the same file.
    pub(crate) fn add_to(self, tree: &mut HostTree, outside: Option<(u32, u32)>) -> Result<(), EngineError> {
        let (target, make) = add_mount_point(tree, &self.mount.target, self.is_dir);
        let mut attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
        if self.mount.mode == MountMode::ReadOnly {
            attributes |= MOUNT_ATTR_RDONLY;
        }
        let source = match outside {
            Some(outside) => MountSource::Detached(self.detach(attributes, outside)?),
            None => MountSource::Checked {
                path: c_string(self.canonical.as_os_str()),
                device: self.device,
                inode: self.inode,
            },
        };
        tree.mounts.push(MountStep { source, target, attributes, make });
        Ok(())
    }

    fn detach(&self, attributes: u64, outside: (u32, u32)) -> Result<OwnedFd, EngineError> {
        let failed =
            |errno: Errno| EngineError::MountSource { path: self.mount.source.clone(), source: errno.into() };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE;
        let tree = rustix::mount::open_tree(&self.file, c"", flags).map_err(failed)?;
        belljar_linux::mount_setattr(tree.as_fd(), attributes, PROPAGATION_PRIVATE, true, None)
            .map_err(failed)?;
        let map = belljar_linux::user_namespace_with_map(self.owner, outside, 1).map_err(failed)?;
        match belljar_linux::mount_setattr(tree.as_fd(), 0, 0, false, Some(map.as_fd())) {
            Ok(()) => Ok(tree),
            // Without an id map the source's own permissions decide what the sandbox may read; writing needs a map.
            Err(_) if self.mount.mode == MountMode::ReadOnly => Ok(tree),
            Err(errno) => Err(failed(errno)),
        }
    }
}

/// Adds the mount point of a directory or a file to the tree. Returns its path, and the nodes to create on a disk that is mounted
/// earlier, if it is on one.
pub(crate) fn add_mount_point(tree: &mut HostTree, target: &Path, is_dir: bool) -> (CString, Vec<Node>) {
    let path = Path::new(tree.prefix).join(target.strip_prefix("/").unwrap_or(target));
    let name = path.to_string_lossy();
    let mut make = Vec::new();
    if is_on_own_disk(target) {
        make = nodes(&name, is_dir);
    } else if tree.prefix.is_empty() {
        match (is_dir, name.rsplit_once('/')) {
            (true, _) => tree.dir(&name, 0o755),
            (false, parent) => {
                if let Some((parent, _)) = parent {
                    tree.dir(parent, 0o755);
                }
                tree.file(&name, Vec::new());
            }
        }
    }
    // A separate tree must contain the mount point already.
    (c_string(path.as_os_str()), make)
}

/// Returns whether a path is on one of the sandbox's own disks, which are mounted after the root has been assembled.
pub(crate) fn is_on_own_disk(target: &Path) -> bool {
    [HOME, "/tmp", "/dev/shm"].iter().any(|disk| target.starts_with(disk))
}

/// Returns the nodes of the target and of the directories above it.
fn nodes(name: &str, is_dir: bool) -> Vec<Node> {
    let ends = name.match_indices('/').map(|(index, _)| index);
    let mut nodes: Vec<Node> =
        ends.map(|end| Node::Dir { path: c_string(&name[..end]), mode: 0o755 }).collect();
    nodes.push(if is_dir {
        Node::Dir { path: c_string(name), mode: 0o755 }
    } else {
        Node::File { path: c_string(name), content: Vec::new() }
    });
    nodes
}
