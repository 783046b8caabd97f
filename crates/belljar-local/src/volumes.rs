//! Volumes: files of a tenant that outlive sandboxes and can be mounted in several of them at the same time.
//!
//! A volume is a file with an ext4 file system, so its bytes and inodes are bounded. Only the kernel writes to it. It is mounted
//! by the supervisor of the sandbox, because a mount can block and the server's launcher must not. The mount is idmapped: the
//! sandbox's user owns all files, whatever its id on the host.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use belljar_engine::EngineError;
use belljar_linux::{MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountSource, MountStep};
use belljar_model::{MountMode, VolumeMount};
use rustix::fs::{FileType, Mode, OFlags};

use crate::LocalKind;
use crate::host_tree::{HostTree, USER_ID};
use crate::mounts::add_mount_point;

/// A volume whose file is open, ready to be mounted.
pub(crate) struct Opened<'a> {
    volume: &'a VolumeMount,
    image: OwnedFd,
}

impl<'a> Opened<'a> {
    /// Opens a volume's file.
    ///
    /// # Errors
    /// Returns [`EngineError::Unsupported`] if no server has stored it.
    pub(crate) fn new(volume: &'a VolumeMount, kind: LocalKind) -> Result<Self, EngineError> {
        let Some(image) = &volume.image else {
            return Err(EngineError::Unsupported {
                what: format!("the volume {}", volume.name).into(),
                engine: kind.name(),
                reason: "volumes are stored by a server; use belljar sandbox create --volume".into(),
            });
        };
        Ok(Self { volume, image: open(&image.path)? })
    }

    /// Adds the volume to a tree. `outside` is the sandbox user's uid and gid on the host.
    pub(crate) fn add_to(self, tree: &mut HostTree, outside: (u32, u32)) -> Result<(), EngineError> {
        let ids = map((USER_ID, USER_ID), outside, 1)?;
        let (target, make) = add_mount_point(tree, &self.volume.path, true);
        let mut attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
        if self.volume.mode == MountMode::ReadOnly {
            attributes |= MOUNT_ATTR_RDONLY;
        }
        let source = MountSource::Volume { image: self.image, ids };
        tree.mounts.push(MountStep { source, target, attributes, make });
        Ok(())
    }
}

/// Opens the disk of a machine, whose ids from 0 on are `outside` and the following ones on the host.
pub(crate) fn disk(image: &Path, outside: (u32, u32), count: u32) -> Result<MountSource, EngineError> {
    Ok(MountSource::Volume { image: open(image)?, ids: map((0, 0), outside, count)? })
}

/// Opens the device of the disk of a machine, whose file was at this path.
pub(crate) fn open_disk(disk: &Path) -> Result<File, EngineError> {
    let failed =
        |source| EngineError::HostFile { action: "read the disk".into(), path: disk.to_owned(), source };
    let device = belljar_linux::open_written_device(disk).map_err(failed)?;
    device.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

/// Opens a file with a file system.
fn open(image: &Path) -> Result<OwnedFd, EngineError> {
    let failed = |source: std::io::Error| EngineError::HostFile {
        action: "open the file system in".into(),
        path: image.to_owned(),
        source,
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(image, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let why = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file");
        return Err(failed(why));
    }
    Ok(file)
}

/// Returns a user namespace that maps owners on a disk to those outside.
fn map(own: (u32, u32), outside: (u32, u32), count: u32) -> Result<OwnedFd, EngineError> {
    belljar_linux::user_namespace_with_map(own, outside, count).map_err(|errno| EngineError::Launch {
        step: "map the owners of files on a volume".to_owned(),
        source: errno.into(),
    })
}
