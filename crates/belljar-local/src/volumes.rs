//! Volumes: files of a tenant that outlive sandboxes and can be mounted in several of them at the same time.
//!
//! A volume is a file with an ext4 file system, so its bytes and inodes are bounded. Only the kernel writes to it. It is mounted
//! by the supervisor of the sandbox, because a mount can block and the server's launcher must not. The mount is idmapped: the
//! sandbox's user owns all files, whatever its id on the host.

use std::os::fd::OwnedFd;

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
        let failed = |source: std::io::Error| EngineError::HostFile {
            action: "open the volume's file".into(),
            path: image.path.clone(),
            source,
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file =
            rustix::fs::open(&image.path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(failed(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "it is no regular file",
            )));
        }
        Ok(Self { volume, image: file })
    }

    /// Adds the volume to a tree. `outside` is the sandbox user's uid and gid on the host.
    pub(crate) fn add_to(self, tree: &mut HostTree, outside: (u32, u32)) -> Result<(), EngineError> {
        let ids = belljar_linux::user_namespace_with_map((USER_ID, USER_ID), outside).map_err(|errno| {
            EngineError::Launch { step: "map the owner of a volume".to_owned(), source: errno.into() }
        })?;
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
