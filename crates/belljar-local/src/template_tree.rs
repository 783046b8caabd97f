//! Trees of templates: a layer at its place in the machine's own tree, or a separate tree; read-only in use, and with a
//! writable disk on top while it is built.
//!
//! ```text
//! base host, in use      the host's tree, the layer at /opt/template
//! base own, in use       the layer is the root; /dev, /proc, /tmp, the home and three files of /etc are mounted on it; the
//!                        mount points of volumes are a layer on top of it
//! base host, built       the host's tree, layer and disk as one at /opt/template
//! base own, built        layer and disk as one are the root; /dev, /proc, /tmp, the home and, for a network,
//!                        /etc/resolv.conf are mounted on it
//! ```
//!
//! A separate tree is assembled below the sandbox's first root, a small tmpfs, and entered at the end. Mounts are attached to
//! it without following any of its links.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use belljar_linux::{
    MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountSource, MountStep, Node, Without,
};
use belljar_model::{NetworkMode, SandboxSpec, TEMPLATE_DIR, TemplateTree, TreeBase};
use rustix::fs::{AtFlags, FileType};

use crate::host_tree::{HostTree, STAGING, c_string, hosts, options, resolv_conf};
use crate::mounts::is_on_own_disk;

/// Directory where a separate tree is assembled.
const PLACE: &str = "image";
/// Directory of the layer while a disk is on top of it.
const LOWER: &str = "lower";
/// Directory of the mount points of volumes.
const PLACES: &str = "places";
/// Disk on top of the layer.
const DISK: &str = "disk";

const LAYER: u64 = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
const WRITABLE: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;

/// Plans the tree. `layer` is the mounted layer, if there is one.
pub(crate) fn template_tree(
    spec: &SandboxSpec,
    tree: &TemplateTree,
    layer: Option<OwnedFd>,
    without: Without,
) -> HostTree {
    match tree.base {
        TreeBase::Host => on_host(spec, tree, layer, without),
        TreeBase::Own => own(spec, tree, layer, without),
    }
}

fn on_host(spec: &SandboxSpec, tree: &TemplateTree, layer: Option<OwnedFd>, without: Without) -> HostTree {
    let mut host = HostTree::new(spec, without);
    let place = TEMPLATE_DIR.trim_start_matches('/');
    host.dir(place, 0o755);
    match (layer, tree.build.is_some()) {
        (None, false) => {}
        (None, true) => host.memory_disk(place, spec.limits.disk.bytes(), "0755", &spec.limits, without),
        (Some(layer), false) => host.detached(layer, place),
        (Some(layer), true) => with_disk(&mut host, spec, layer, place, without),
    }
    host
}

fn own(spec: &SandboxSpec, tree: &TemplateTree, layer: Option<OwnedFd>, without: Without) -> HostTree {
    let mut root = HostTree::default();
    let is_built = tree.build.is_some();
    root.devices(spec, without);
    // A foreign tree need not have a place for it, and one that is being built keeps its own.
    let has_sys = !is_built && layer.as_ref().is_some_and(|layer| has_directory(layer, c"sys"));
    if has_sys {
        root.limits(&spec.limits);
    }
    root.dir(PLACE, 0o755);
    let hostname = spec.hostname.as_str();
    let mut etc = vec![
        ("resolv.conf", resolv_conf(spec)),
        ("hosts", hosts(spec)),
        ("hostname", format!("{hostname}\n")),
    ];
    if is_built {
        // A tree that is being built keeps its own files, except for `resolv.conf` if it has a network.
        etc.truncate(usize::from(spec.network.mode() != NetworkMode::Disabled));
    }
    for (name, content) in &etc {
        root.dir("etc", 0o755);
        root.file(&format!("etc/{name}"), content.clone().into_bytes());
    }
    // A tree that is being built keeps its own stores of certificates.
    root.layer = layer.as_ref().filter(|_| !is_built).and_then(|layer| layer.try_clone().ok());
    if let Some(layer) = layer {
        match is_built {
            true => with_disk(&mut root, spec, layer, PLACE, without),
            false => with_places(&mut root, spec, layer),
        }
    }
    root.own("dev", &format!("{PLACE}/dev"));
    if has_sys {
        root.own("sys", &format!("{PLACE}/sys"));
    }
    root.prefix = PLACE;
    root.memory_mount(&format!("{PLACE}/tmp"), spec.limits.tmp.bytes(), "1777", &spec.limits, without);
    root.memory_mount(&format!("{PLACE}/home/user"), spec.limits.disk.bytes(), "0755", &spec.limits, without);
    for (name, _) in etc {
        root.own(&format!("etc/{name}"), &format!("{PLACE}/etc/{name}"));
    }
    root
}

/// Reports whether the layer's root has this directory itself, not a link.
fn has_directory(layer: &OwnedFd, name: &CStr) -> bool {
    let found = rustix::fs::statat(layer, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Mounts the layer as the root. If a volume has a mount point that the layer may lack, a second layer with these mount points is
/// on top of it.
fn with_places(tree: &mut HostTree, spec: &SandboxSpec, layer: OwnedFd) {
    let mut places = spec.volumes.iter().filter(|volume| !is_on_own_disk(&volume.path)).peekable();
    if places.peek().is_none() {
        return tree.detached(layer, PLACE);
    }
    for volume in places {
        tree.dir(&format!("{PLACES}{}", volume.path.display()), 0o755);
    }
    tree.dir(LOWER, 0o755);
    tree.detached(layer, LOWER);
    let lower = format!("{STAGING}/{PLACES}:{STAGING}/{LOWER}");
    let list = [("lowerdir", lower.as_str()), ("userxattr", "")];
    tree.mounts.push(MountStep {
        source: MountSource::New { kind: c"overlay".to_owned(), options: options(&list) },
        target: c_string(PLACE),
        attributes: LAYER,
        make: Vec::new(),
    });
}

/// Mounts the layer with a disk on top as one.
fn with_disk(tree: &mut HostTree, spec: &SandboxSpec, layer: OwnedFd, target: &str, without: Without) {
    tree.dir(LOWER, 0o755);
    tree.detached(layer, LOWER);
    tree.memory_disk(DISK, spec.limits.disk.bytes(), "0755", &spec.limits, without);
    let path = |name: &str| format!("{STAGING}/{name}");
    let (lower, upper, work) = (path(LOWER), path(&format!("{DISK}/upper")), path(&format!("{DISK}/work")));
    let list = [("lowerdir", lower.as_str()), ("upperdir", &upper), ("workdir", &work), ("userxattr", "")];
    tree.mounts.push(MountStep {
        source: MountSource::New { kind: c"overlay".to_owned(), options: options(&list) },
        target: c_string(target),
        attributes: WRITABLE,
        make: ["upper", "work"]
            .map(|name| Node::Dir { path: c_string(format!("{DISK}/{name}")), mode: 0o755 })
            .into(),
    });
}

impl HostTree {
    fn detached(&mut self, mount: OwnedFd, target: &str) {
        self.mounts.push(MountStep {
            source: MountSource::Detached(mount),
            target: c_string(target),
            attributes: LAYER,
            make: Vec::new(),
        });
    }

    /// Mounts `source` of the first root at `target` as well.
    pub(crate) fn own(&mut self, source: &str, target: &str) {
        self.mounts.push(MountStep {
            source: MountSource::Own(c_string(source)),
            target: c_string(target),
            attributes: 0,
            make: Vec::new(),
        });
    }
}
