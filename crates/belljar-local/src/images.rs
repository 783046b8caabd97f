//! Mounted layers of templates: one superblock per owner and layer, for as long as a sandbox uses it.
//!
//! Sandboxes of one owner share the page cache of a layer; those of another owner have their own loop device and superblock.
//! Mounts are detached: only descriptors hold a layer, so it is released with the last sandbox, or with this process.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use belljar_engine::EngineError;
use belljar_linux::{ImageMount, MOUNT_ATTR_RDONLY, Wall, Without};
use belljar_model::TreeLayer;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

/// First bytes of a squashfs file.
const MAGIC: [u8; 4] = *b"hsqs";

type Key = (String, String);

/// Layers mounted by this process. Sandboxes of several engines may share one.
static MOUNTED: Mutex<Option<HashMap<Key, Weak<ImageMount>>>> = Mutex::new(None);

/// Returns the mounted layer of an owner, mounting it if needed.
///
/// # Errors
/// Returns [`EngineError::Layer`] if this layer, or any layer, cannot be mounted.
pub(crate) fn get_or_mount(
    owner: &str,
    layer: &TreeLayer,
    without: Without,
) -> Result<Arc<ImageMount>, EngineError> {
    let owner = if without.has(Wall::Superblock) { "" } else { owner };
    let key = (owner.to_owned(), layer.digest.clone());
    let mut table = MOUNTED.lock();
    let table = table.get_or_insert_with(HashMap::new);
    if let Some(mount) = table.get(&key).and_then(Weak::upgrade) {
        return Ok(mount);
    }
    table.retain(|_, mount| mount.strong_count() > 0);
    let mount = Arc::new(mount_file(layer, without)?);
    table.insert(key, Arc::downgrade(&mount));
    Ok(mount)
}

fn mount_file(layer: &TreeLayer, without: Without) -> Result<ImageMount, EngineError> {
    if !rustix::process::geteuid().is_root() {
        return Err(refused(
            "only an administrator may mount a file as a file system".to_owned(),
            "run the server as root, or use the template default, which needs no mount",
        ));
    }
    let host_file = |action: &'static str, source: std::io::Error| EngineError::HostFile {
        action: action.into(),
        path: layer.path.clone(),
        source,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&layer.path, flags, Mode::empty())
        .map_err(|errno| host_file("open the template's layer", errno.into()))?;
    let mut magic = [0u8; 4];
    let read = rustix::io::pread(&file, &mut magic, 0)
        .map_err(|errno| host_file("read the template's layer", errno.into()))?;
    if read != magic.len() || magic != MAGIC {
        return Err(refused(
            format!("{} is not a squashfs file", layer.path.display()),
            "remove the template and build it again",
        ));
    }
    ImageMount::new(file.as_fd(), "squashfs", without).map_err(|error| {
        refused(
            format!("{error}: {}", error.errno),
            "the machine needs loop devices and squashfs (modules loop and squashfs); in a container, /dev/loop*",
        )
    })
}

/// Creates a detached mount of the layer for one sandbox, with `count` owners of its files from 0 on mapped to those from `outside` on, if
/// that is given.
///
/// # Errors
/// Returns [`EngineError::Layer`] if the mount fails.
pub(crate) fn detach(
    mount: &ImageMount,
    outside: Option<(u32, u32)>,
    count: u32,
) -> Result<OwnedFd, EngineError> {
    let tree = mount
        .mount()
        .map_err(|error| refused(format!("{error}: {}", error.errno), "check the kernel log"))?;
    // The other attributes were set when the image was mounted.
    let attributes = MOUNT_ATTR_RDONLY;
    let set = match outside {
        None => belljar_linux::mount_setattr(tree.as_fd(), attributes, 0, false, None),
        Some(outside) => belljar_linux::user_namespace_with_map((0, 0), outside, count).and_then(|map| {
            belljar_linux::mount_setattr(tree.as_fd(), attributes, 0, false, Some(map.as_fd()))
        }),
    };
    set.map_err(|errno| {
        refused(
            format!("cannot map the owners of its files to the sandbox's: {errno}"),
            "builds need idmapped mounts of squashfs, Linux 6.2 or newer",
        )
    })?;
    Ok(tree)
}

fn refused(reason: String, fix: &str) -> EngineError {
    EngineError::Layer { layer: "the template's own tree".into(), reason, fix: fix.to_owned() }
}
