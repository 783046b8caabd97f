//! Trees of templates: layers at their place in the machine's own tree, or a separate tree; read-only in use, and with a
//! writable disk on top while it is built.
//!
//! ```text
//! base host, in use      the host's tree, the layers as one at /opt/template
//! base own, in use       the layers as one are the root; /dev, /proc, /tmp, the home and three files of /etc are mounted on
//!                        it; the mount points of volumes are a layer on top of it
//! base host, built       the host's tree, layers and disk as one at /opt/template
//! base own, machine      layers and disk as one are the root, with set-user-ID files in effect; mounts as in use
//! base own, built        layers and disk as one are the root; /dev, /proc, /tmp, the home and, for a network,
//!                        /etc/resolv.conf are mounted on it
//! ```
//!
//! A single layer without a disk is mounted as it is; otherwise overlayfs makes one of several. What a build has changed is then the
//! overlay's upper directory, which the build sees read-only at [`TREE_CHANGES`], and the layers below at [`TREE_BEFORE`].
//!
//! A separate tree is assembled below the sandbox's first root, a small tmpfs, and entered at the end. Mounts are attached to
//! it without following any of its links.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use belljar_linux::{
    MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountSource, MountStep, Node, Without,
};
use belljar_model::{
    DISK_CHANGES, DISK_HOME, DISK_WORK, NetworkMode, SandboxSpec, TEMPLATE_DIR, TREE_BEFORE, TREE_CHANGES,
    TemplateTree, TreeBase,
};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use crate::host_tree::{HostTree, STAGING, USER_ID, c_string, hosts, options, resolv_conf};
use crate::mounts::is_on_own_disk;

/// Directory where a separate tree is assembled.
const PLACE: &str = "image";
/// Directory of the mount points of volumes.
const PLACES: &str = "places";
/// Disk on top of the layer.
const DISK: &str = "disk";

const LAYER: u64 = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
const WRITABLE: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;

/// Plans the tree on the mounted layers, the lowest first. `disk` is that of a machine, if it has one.
pub(crate) fn template_tree(
    spec: &SandboxSpec,
    tree: &TemplateTree,
    layers: Vec<OwnedFd>,
    disk: Option<MountSource>,
    without: Without,
) -> HostTree {
    match tree.base {
        TreeBase::Host => on_host(spec, tree, layers, without),
        TreeBase::Own => own(spec, tree, layers, disk, without),
    }
}

fn on_host(spec: &SandboxSpec, tree: &TemplateTree, layers: Vec<OwnedFd>, without: Without) -> HostTree {
    let mut host = HostTree::new(spec, without);
    let place = TEMPLATE_DIR.trim_start_matches('/');
    host.dir(place, 0o755);
    match (layers.is_empty(), tree.build.is_some()) {
        (true, false) => {}
        (true, true) => host.memory_disk(place, spec.limits.disk.bytes(), "0755", &spec.limits, without),
        (false, false) => host.stacked(layers, None, place),
        (false, true) => with_disk(&mut host, spec, layers, place, without),
    }
    host
}

fn own(
    spec: &SandboxSpec,
    tree: &TemplateTree,
    layers: Vec<OwnedFd>,
    disk: Option<MountSource>,
    without: Without,
) -> HostTree {
    let mut root = HostTree::default();
    let has_disk = disk.is_some();
    let is_built = tree.build.is_some();
    root.devices(spec, without);
    // A foreign tree need not have a place for it, and one that is being built keeps its own.
    let has_sys = !is_built && has_directory(&layers, "sys");
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
    if is_built {
        with_disk(&mut root, spec, layers, PLACE, without);
    } else if spec.machine {
        // Root installs packages that write the stores, too.
        let lower = root.lower(layers);
        let on_top = (PLACE, MOUNT_ATTR_NODEV);
        match disk {
            Some(source) => {
                root.dir(DISK, 0o755);
                let target = c_string(DISK);
                root.mounts.push(MountStep { source, target, attributes: WRITABLE, make: Vec::new() });
                over(&mut root, &lower, on_top, Vec::new());
            }
            None => on_disk(&mut root, spec, &lower, on_top, without),
        }
    } else {
        root.layers = layers.iter().filter_map(|layer| layer.try_clone().ok()).collect();
        with_places(&mut root, spec, layers);
    }
    root.own("dev", &format!("{PLACE}/dev"));
    if has_sys {
        root.own("sys", &format!("{PLACE}/sys"));
    }
    root.prefix = PLACE;
    root.memory_mount(&format!("{PLACE}/tmp"), spec.limits.tmp.bytes(), "1777", &spec.limits, without);
    let home = format!("{PLACE}/home/user");
    if has_disk {
        root.own(&format!("{DISK}/{DISK_HOME}"), &home);
    } else {
        root.memory_mount(&home, spec.limits.disk.bytes(), "0755", &spec.limits, without);
    }
    if spec.machine
        && !has_disk
        && let Some(MountStep { source: MountSource::New { options: list, .. }, .. }) = root.mounts.last_mut()
    {
        let id = USER_ID.to_string();
        list.extend(options(&[("uid", id.as_str()), ("gid", &id)]));
    }
    for (name, _) in etc {
        root.own(&format!("etc/{name}"), &format!("{PLACE}/etc/{name}"));
    }
    root
}

/// Returns the layer, of several with the lowest first, that has what the whole tree has at this relative path: none if nothing is
/// there, or a path to it has links.
pub(crate) fn layer_with<'l>(layers: &'l [OwnedFd], path: &str) -> Option<BorrowedFd<'l>> {
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    let prefixes: Vec<&str> = ends.filter_map(|end| path.get(..end)).collect();
    'layers: for layer in layers.iter().rev() {
        for prefix in &prefixes {
            match rustix::fs::statat(layer, *prefix, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {}
                // A file, or a mark that removes what the layers below have there.
                Ok(_) => return Some(layer.as_fd()).filter(|_| *prefix == path),
                Err(Errno::NOENT) => continue 'layers,
                Err(_) => return None,
            }
        }
        return Some(layer.as_fd());
    }
    None
}

/// Reports whether the tree has this directory itself, not a link.
fn has_directory(layers: &[OwnedFd], name: &str) -> bool {
    layer_with(layers, name).is_some_and(|layer| {
        let found = rustix::fs::statat(layer, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    })
}

/// Mounts the layers as the root. If a volume has a mount point that they may lack, another layer with these mount points is on top
/// of them.
fn with_places(tree: &mut HostTree, spec: &SandboxSpec, layers: Vec<OwnedFd>) {
    let mut places = spec.volumes.iter().filter(|volume| !is_on_own_disk(&volume.path)).peekable();
    let has_places = places.peek().is_some();
    for volume in places {
        tree.dir(&format!("{PLACES}{}", volume.path.display()), 0o755);
    }
    tree.stacked(layers, has_places.then_some(PLACES), PLACE);
}

/// Mounts the layers with a disk on top as one, and shows apart what is on the disk and what is below it.
fn with_disk(tree: &mut HostTree, spec: &SandboxSpec, layers: Vec<OwnedFd>, target: &str, without: Without) {
    let lower = tree.lower(layers);
    on_disk(tree, spec, &lower, (target, WRITABLE), without);
    let (before, changes) = (TREE_BEFORE.trim_start_matches('/'), TREE_CHANGES.trim_start_matches('/'));
    tree.dir(before, 0o755);
    tree.dir(changes, 0o755);
    tree.overlay(&lower, before);
    tree.mounts.push(MountStep {
        source: MountSource::Own(c_string(format!("{DISK}/{DISK_CHANGES}"))),
        target: c_string(changes),
        attributes: LAYER,
        make: Vec::new(),
    });
}

/// Mounts layers, by their paths during the launch, with a disk on top as one at `target`, with these attributes.
fn on_disk(
    tree: &mut HostTree,
    spec: &SandboxSpec,
    lower: &[String],
    (target, attributes): (&str, u64),
    without: Without,
) {
    tree.memory_disk(DISK, spec.limits.disk.bytes(), "0755", &spec.limits, without);
    let dirs = [DISK_CHANGES, DISK_WORK];
    let make = dirs.map(|name| Node::Dir { path: c_string(format!("{DISK}/{name}")), mode: 0o755 });
    over(tree, lower, (target, attributes), make.into());
}

/// Mounts layers with the mounted disk on top as one at `target`. `make` are nodes that are made before.
fn over(tree: &mut HostTree, lower: &[String], (target, attributes): (&str, u64), make: Vec<Node>) {
    let path = |name: &str| format!("{STAGING}/{name}");
    let (upper, work) = (path(&format!("{DISK}/{DISK_CHANGES}")), path(&format!("{DISK}/{DISK_WORK}")));
    let lowerdir = lower.join(":");
    let list = [("lowerdir", lowerdir.as_str()), ("upperdir", &upper), ("workdir", &work), ("userxattr", "")];
    tree.mounts.push(MountStep {
        source: MountSource::New { kind: c"overlay".to_owned(), options: options(&list) },
        target: c_string(target),
        attributes,
        make,
    });
}

impl HostTree {
    /// Mounts layers as one at `target`, under the directory `top` of the first root, if there is one.
    fn stacked(&mut self, layers: Vec<OwnedFd>, top: Option<&str>, target: &str) {
        match <[OwnedFd; 1]>::try_from(layers) {
            Ok([layer]) if top.is_none() => self.detached(layer, target),
            layers => {
                let mut lower = self.lower(layers.map_or_else(|layers| layers, Into::into));
                lower.splice(0..0, top.map(|top| format!("{STAGING}/{top}")));
                self.overlay(&lower, target);
            }
        }
    }

    /// Mounts each layer apart, and returns their paths during the launch, the highest first.
    fn lower(&mut self, layers: Vec<OwnedFd>) -> Vec<String> {
        let mut paths = Vec::new();
        for (index, layer) in layers.into_iter().enumerate() {
            let place = format!("l{index}");
            self.dir(&place, 0o755);
            self.detached(layer, &place);
            paths.insert(0, format!("{STAGING}/{place}"));
        }
        paths
    }

    /// Mounts directories, by their paths during the launch, the highest first, as one that is read-only.
    fn overlay(&mut self, lower: &[String], target: &str) {
        if let [single] = lower {
            // The kernel makes no overlay of one.
            return self.own(single.trim_start_matches(STAGING).trim_start_matches('/'), target);
        }
        let lowerdir = lower.join(":");
        self.mounts.push(MountStep {
            source: MountSource::New {
                kind: c"overlay".to_owned(),
                options: options(&[("lowerdir", lowerdir.as_str()), ("userxattr", "")]),
            },
            target: c_string(target),
            attributes: LAYER,
            make: Vec::new(),
        });
    }

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
