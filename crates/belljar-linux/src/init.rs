//! The sandbox's first process, from its clone to its exec of the guest. It sets up the isolation from inside, in
//! the order of docs/threat-model.md, and stops at the first step that fails.
//!
//! ```text
//! clone3 ─ host name ─ copies of the host's mounts ─ wait for the id maps ─ ids ─ keyring
//!        ─ new root ─ nodes ─ mounts ─ /proc and its masks ─ pivot_root
//!        ─ join cgroups and network, which the supervisor has made in the meantime
//!        ─ limits ─ capabilities ─ no new privileges ─ seccomp ─ exec guest
//!   any failure: one record to the host, then exit
//! ```
//!
//! Everything here runs between a clone and an exec: no allocation, no lock, no logging.

// A panic between a clone and an exec would allocate and print: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::convert::Infallible;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::channel::{self, Message};
use crate::kernel;
use crate::plan::{
    GUEST_CONFIG_FD, GUEST_PROC_FD, GUEST_SOCKET_FD, GuestExe, LaunchPlan, MachinePlan, MountSource,
    MountStep, NamespacePlan, Node, Wall,
};
use crate::report::{Failure, LaunchPhase, Phases, Step};
use crate::seccomp;
use crate::supervise::{CGROUP, PROCESSES};

/// Lowest number for temporary copies of the guest's descriptors: above all final numbers, so that arranging them never
/// overwrites one that is still needed.
pub(crate) const SAFE_FD: i32 = 64;

/// Sets up the isolation and execs the guest. Returns only on failure.
pub(crate) fn become_guest(
    plan: &LaunchPlan,
    channel: BorrowedFd<'_>,
    control: BorrowedFd<'_>,
    volumes: &Volumes,
) -> Failure {
    match build(plan, channel, control, volumes) {
        Err(failure) => failure,
        Ok(never) => match never {},
    }
}

fn build(
    plan: &LaunchPlan,
    channel: BorrowedFd<'_>,
    control: BorrowedFd<'_>,
    volumes: &Volumes,
) -> Result<Infallible, Failure> {
    kernel::set_name(c"belljar-init");
    plan.without.allocate(Wall::ForkSafeFirst);
    let mut phases = Phases::new();
    // Work that does not need the mapped ids is done while the supervisor writes the id maps.
    let sources = match &plan.namespaces {
        Some(tree) => Some(clone_sources(plan, tree)?),
        None => None,
    };
    if plan.namespaces.is_some() {
        match channel::receive(channel).map_err(Failure::at(Step::IdMap))? {
            (Message::Mapped, _) => {}
            _ => return Err(Failure::at(Step::IdMap)(Errno::BADMSG)),
        }
    }
    if plan.identity.privileged && plan.namespaces.is_none() && plan.drop_privileges {
        // Here the ids change in the host's own user namespace, which drops CAP_SETPCAP with the other capabilities.
        limit_capabilities(plan, true)?;
    }
    if plan.namespaces.is_some() || (plan.identity.privileged && plan.drop_privileges) {
        let id = if plan.namespaces.is_some() { plan.identity.inside } else { plan.identity.outside_uid };
        let gid = if plan.namespaces.is_some() { plan.identity.inside } else { plan.identity.outside_gid };
        if plan.keep_capabilities != 0 {
            kernel::keep_capabilities_over_ids().map_err(Failure::at(Step::SetIds))?;
        }
        kernel::set_ids(id, gid, plan.identity.privileged).map_err(Failure::at(Step::SetIds))?;
    }
    kernel::die_with_parent(libc::SIGKILL).map_err(Failure::at(Step::ParentDeath))?;
    // The supervisor may have died before that took effect; its end of the pipe then reads as closed.
    if channel::hung_up(channel) {
        return Err(Failure::at(Step::ParentDeath)(Errno::SRCH));
    }
    rustix::process::setsid().map_err(Failure::at(Step::Descriptors))?;
    if !plan.without.has(Wall::Keyring) && plan.drop_privileges {
        kernel::leave_session_keyring().map_err(Failure::at(Step::Keyring))?;
    }
    phases.reached(LaunchPhase::Identity);
    let (exe, proc_fd) = match (&plan.namespaces, sources) {
        (Some(namespaces), Some(sources)) => {
            let (exe, proc_fd) = build_tree(plan, namespaces, sources, volumes, &mut phases)?;
            (exe, Some(proc_fd))
        }
        _ => (open_exe_by_path(plan)?, None),
    };
    phases.reached(LaunchPhase::Pivot);
    join_resources(plan, channel)?;
    phases.reached(LaunchPhase::Equipment);
    arrange_descriptors(plan, exe.as_fd(), proc_fd.as_ref())?;
    for (index, (resource, value)) in plan.rlimits.iter().enumerate() {
        if !plan.without.has(Wall::Rlimits) {
            lower_limit(*resource, *value).map_err(Failure::item(Step::Rlimit, index))?;
        }
    }
    if plan.drop_privileges {
        drop_privileges(plan)?;
    }
    phases.reached(LaunchPhase::Privileges);
    phases.send(control);
    Err(Failure::at(Step::Exec)(exec_arranged(plan)))
}

/// Joins the control groups and enters the network namespace, which the supervisor has made in the meantime.
fn join_resources(plan: &LaunchPlan, channel: BorrowedFd<'_>) -> Result<(), Failure> {
    let mut network_pending = plan.namespaces.as_ref().is_some_and(crate::supervise::has_separate_network);
    let mut all_sent = false;
    while network_pending || !all_sent {
        match channel::receive(channel).map_err(Failure::at(Step::CgroupJoin))? {
            (Message::Group, Some(file)) => {
                // `0` moves only the calling thread, which skips the grace period of moving another process.
                rustix::io::write(&file, b"0").map_err(Failure::at(Step::CgroupJoin))?;
            }
            (Message::Network, Some(namespace)) => {
                kernel::enter_namespace(namespace.as_fd(), libc::CLONE_NEWNET)
                    .map_err(Failure::at(Step::Loopback))?;
                network_pending = false;
            }
            (Message::ResourcesSent, _) => all_sent = true,
            _ => return Err(Failure::at(Step::CgroupJoin)(Errno::BADMSG)),
        }
    }
    if plan.namespaces.as_ref().is_some_and(|tree| tree.flags & CGROUP != 0) {
        kernel::unshare(libc::CLONE_NEWCGROUP).map_err(Failure::at(Step::Clone))?;
    }
    Ok(())
}

/// Lowers a resource limit. A value above the current hard limit becomes that limit.
fn lower_limit(resource: u32, value: u64) -> Result<(), Errno> {
    let (_, hard) = kernel::get_rlimit(resource)?;
    let value = value.min(hard);
    kernel::set_rlimit(resource, value, value)
}

fn drop_privileges(plan: &LaunchPlan) -> Result<(), Failure> {
    let at = Failure::at;
    if let Some(machine) = &plan.machine {
        return become_root_of_machine(plan, machine);
    }
    if plan.namespaces.is_some() {
        limit_capabilities(plan, true)?;
    } else if !plan.identity.privileged {
        limit_capabilities(plan, false)?;
    }
    if !plan.without.has(Wall::Capabilities) {
        kernel::set_capabilities(plan.keep_capabilities).map_err(at(Step::Capabilities))?;
    }
    if !plan.without.has(Wall::NoNewPrivileges) {
        rustix::thread::set_no_new_privs(true).map_err(at(Step::NoNewPrivileges))?;
    }
    // Without no-new-privileges, installing a filter needs a capability, so a test that disables one disables both.
    if let Some(profile) = plan.seccomp
        && !plan.without.has(Wall::Seccomp)
        && !plan.without.has(Wall::NoNewPrivileges)
    {
        kernel::install_seccomp(seccomp::program(profile)).map_err(at(Step::Seccomp))?;
    }
    Ok(())
}

/// Leaves root of a machine its capabilities. Programs may gain them by set-user-ID files, so what confines them is in place before:
/// installing it without no-new-privileges takes CAP_SYS_ADMIN, which is dropped last.
fn become_root_of_machine(plan: &LaunchPlan, machine: &MachinePlan) -> Result<(), Failure> {
    let at = Failure::at;
    if !plan.without.has(Wall::MachineDomain) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(c"/", flags, Mode::empty()).map_err(at(Step::MachineDomain))?;
        // The guest's program and its view of /proc are on mounts of their own.
        crate::descriptors_unsafe::with_number(EXE_FD, |exe| {
            crate::descriptors_unsafe::with_number(GUEST_PROC_FD, |proc| {
                kernel::enter_landlock(&machine.domain, &[root.as_fd(), proc], &[exe])
            })
        })
        .map_err(at(Step::MachineDomain))?;
    }
    if let Some(profile) = plan.seccomp
        && !plan.without.has(Wall::Seccomp)
    {
        kernel::install_seccomp(seccomp::program(profile)).map_err(at(Step::Seccomp))?;
    }
    if plan.without.has(Wall::Capabilities) {
        return Ok(());
    }
    for capability in (0..64u32).filter(|capability| machine.capabilities >> capability & 1 == 0) {
        match kernel::drop_bounding(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(at(Step::Capabilities)(errno)),
        }
    }
    kernel::limit_capabilities(machine.capabilities).map_err(at(Step::Capabilities))
}

/// Empties the bounding set and locks the secure bits. An ordinary user without its own user namespace may do neither,
/// and holds no capability that no-new-privileges would not withhold.
fn limit_capabilities(plan: &LaunchPlan, required: bool) -> Result<(), Failure> {
    let at = Failure::at(Step::Capabilities);
    if plan.without.has(Wall::Capabilities) {
        return Ok(());
    }
    for capability in (0..64u32).filter(|capability| plan.keep_capabilities >> capability & 1 == 0) {
        match kernel::drop_bounding(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(Errno::PERM) if !required => return Ok(()),
            Err(errno) => return Err(at(errno)),
        }
    }
    // Kept capabilities survive the exec as ambient ones, which the locked bits would forbid.
    match plan.keep_capabilities {
        0 => kernel::lock_securebits().map_err(at),
        _ => Ok(()),
    }
}

/// Puts the guest's descriptors under their numbers, closes everything else and leaves the program at
/// [`SAFE_FD`], to be closed by the exec.
fn arrange_descriptors(
    plan: &LaunchPlan,
    exe: BorrowedFd<'_>,
    proc_fd: Option<&OwnedFd>,
) -> Result<(), Failure> {
    let at = Failure::at(Step::Descriptors);
    // First move all descriptors above the final numbers, then onto them.
    let socket = rustix::io::fcntl_dupfd_cloexec(&plan.guest_socket, SAFE_FD).map_err(&at)?;
    let config = rustix::io::fcntl_dupfd_cloexec(&plan.guest_config, SAFE_FD).map_err(&at)?;
    let null = rustix::io::fcntl_dupfd_cloexec(&plan.dev_null, SAFE_FD).map_err(&at)?;
    let exe = rustix::io::fcntl_dupfd_cloexec(exe, SAFE_FD).map_err(&at)?;
    let proc_fd = match proc_fd {
        Some(fd) => Some(rustix::io::fcntl_dupfd_cloexec(fd, SAFE_FD).map_err(&at)?),
        None => None,
    };
    for number in 0..3 {
        kernel::dup_onto(null.as_fd(), number).map_err(&at)?;
    }
    kernel::dup_onto(socket.as_fd(), GUEST_SOCKET_FD).map_err(&at)?;
    // A guest without its own `/proc` gets /dev/null here, so that no descriptor of the host remains under that number.
    kernel::dup_onto(proc_fd.as_ref().unwrap_or(&null).as_fd(), GUEST_PROC_FD).map_err(&at)?;
    kernel::dup_onto(config.as_fd(), GUEST_CONFIG_FD).map_err(&at)?;
    kernel::dup_onto(exe.as_fd(), EXE_FD).map_err(&at)?;
    std::mem::forget((socket, config, null, exe, proc_fd));
    if !plan.without.has(Wall::Descriptors) {
        kernel::cloexec_from(EXE_FD.unsigned_abs()).map_err(&at)?;
    }
    Ok(())
}

/// Descriptor number of the guest's program until the exec closes it.
const EXE_FD: i32 = 6;

fn exec_arranged(plan: &LaunchPlan) -> Errno {
    crate::descriptors_unsafe::with_number(EXE_FD, |exe| {
        kernel::exec_fd(exe, &plan.guest.argv, &plan.guest.envp)
    })
}

fn open_exe_by_path(plan: &LaunchPlan) -> Result<OwnedFd, Failure> {
    let at = Failure::at(Step::GuestExe);
    match &plan.guest.exe {
        GuestExe::Fd(fd) => rustix::io::fcntl_dupfd_cloexec(fd, SAFE_FD).map_err(at),
        GuestExe::Checked { path, device, inode } => find_checked(path, *device, *inode).map_err(at),
    }
}

const ROOT_ATTRIBUTES: u64 = kernel::MOUNT_ATTR_RDONLY | kernel::MOUNT_ATTR_NOSUID | kernel::MOUNT_ATTR_NODEV;
/// Maximum number of mounts in a tree; the planner enforces it.
pub(crate) const MAX_MOUNTS: usize = 120;
const HIDDEN_FILE: &CStr = c".hidden-file";
const HIDDEN_DIR: &CStr = c".hidden-dir";

/// Sources of the new tree, cloned from the host's.
struct Sources {
    host_root: OwnedFd,
    exe: OwnedFd,
    /// A detached copy of each mount that comes from the host, in the order of the plan.
    mounts: [Option<OwnedFd>; MAX_MOUNTS],
}

/// Clones all mounts that come from the host. The sandbox's user controls none of them yet: only paths chosen by the caller
/// and fixed paths are looked up.
fn clone_sources(plan: &LaunchPlan, tree: &NamespacePlan) -> Result<Sources, Failure> {
    if !plan.without.has(Wall::Uts) {
        rustix::system::sethostname(tree.hostname.to_bytes()).map_err(Failure::at(Step::Hostname))?;
    }
    let host_root = rustix::fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())
        .map_err(Failure::at(Step::Propagation))?;
    kernel::mount_setattr(host_root.as_fd(), 0, kernel::PROPAGATION_PRIVATE, true, None)
        .map_err(Failure::at(Step::Propagation))?;
    let exe = match &plan.guest.exe {
        GuestExe::Fd(fd) => {
            rustix::io::fcntl_dupfd_cloexec(fd, SAFE_FD).map_err(Failure::at(Step::GuestExe))?
        }
        GuestExe::Checked { path, device, inode } => {
            let attributes = kernel::MOUNT_ATTR_RDONLY | kernel::MOUNT_ATTR_NOSUID | kernel::MOUNT_ATTR_NODEV;
            open_checked(path, *device, *inode, attributes).map_err(Failure::at(Step::GuestExe))?
        }
    };
    let mut mounts = [const { None }; MAX_MOUNTS];
    for ((index, step), slot) in tree.mounts.iter().enumerate().zip(&mut mounts) {
        let attributes = attributes(plan, step);
        *slot = match &step.source {
            MountSource::Path(path) => clone_tree(rustix::fs::CWD, path, true, attributes).map(Some),
            MountSource::Checked { path, device, inode } => {
                open_checked(path, *device, *inode, attributes).map(Some)
            }
            MountSource::Detached(_)
            | MountSource::Volume { .. }
            | MountSource::Own(_)
            | MountSource::New { .. } => Ok(None),
        }
        .map_err(Failure::item(Step::Mount, index))?;
    }
    Ok(Sources { host_root, exe, mounts })
}

/// Volumes that the supervisor has mounted, each at the index of its step.
pub(crate) type Volumes = [Option<OwnedFd>; MAX_MOUNTS];

/// Returns the attributes of a mount, without those that a test disables.
pub(crate) fn attributes(plan: &LaunchPlan, step: &MountStep) -> u64 {
    if plan.without.has(Wall::ReadOnly) {
        step.attributes & !kernel::MOUNT_ATTR_RDONLY
    } else {
        step.attributes
    }
}

/// Builds the new root and enters it. Returns the guest's program and a writable view of `/proc`, which is
/// read-only for all other processes.
fn build_tree(
    plan: &LaunchPlan,
    tree: &NamespacePlan,
    sources: Sources,
    volumes: &Volumes,
    phases: &mut Phases,
) -> Result<(OwnedFd, OwnedFd), Failure> {
    let Sources { host_root, exe, mut mounts } = sources;
    let at = Failure::at(Step::Root);
    let root = new_filesystem(c"tmpfs", &tree.root_options, 0).map_err(&at)?;
    attach(root.as_fd(), rustix::fs::CWD, &tree.staging).map_err(&at)?;
    for (index, node) in tree.nodes.iter().enumerate() {
        let (Node::Dir { path, .. } | Node::Symlink { path, .. } | Node::File { path, .. }) = node;
        make_node(root.as_fd(), node, path).map_err(Failure::item(Step::Node, index))?;
    }
    let nothing = Mode::empty();
    rustix::fs::mknodat(&root, HIDDEN_FILE, rustix::fs::FileType::RegularFile, nothing, 0).map_err(&at)?;
    rustix::fs::mkdirat(&root, HIDDEN_DIR, Mode::empty()).map_err(&at)?;
    for file in &tree.proc_files {
        make_file(root.as_fd(), &file.name, &file.content, 0o444).map_err(&at)?;
    }
    if plan.without.has(Wall::Pivot) {
        // The test's attack finds the host's tree under this name.
        rustix::fs::mkdirat(&root, c"old-root", Mode::RWXU).map_err(&at)?;
        let host = clone_tree(host_root.as_fd(), c"", true, 0).map_err(&at)?;
        attach(host.as_fd(), root.as_fd(), c"old-root").map_err(&at)?;
    }
    if !plan.without.has(Wall::ReadOnly) {
        kernel::mount_setattr(root.as_fd(), ROOT_ATTRIBUTES, 0, false, None).map_err(&at)?;
    }
    phases.reached(LaunchPhase::Root);
    for (index, step) in tree.mounts.iter().enumerate() {
        let clone = mounts.get_mut(index).and_then(Option::take);
        let volume = volumes.get(index).and_then(Option::as_ref);
        // A foreign tree may contain any link, so later mounts must not follow one.
        let foreign = tree.enter.is_some();
        make_mount(plan, root.as_fd(), step, (clone, volume), foreign)
            .map_err(Failure::item(Step::Mount, index))?;
    }
    phases.reached(LaunchPhase::Mounts);
    let proc_fd = mount_proc(plan, tree, root.as_fd())?;
    remove_covers(plan, tree, root.as_fd()).map_err(&at)?;

    phases.reached(LaunchPhase::Proc);
    let at = Failure::at(Step::Pivot);
    match &tree.enter {
        Some(place) => {
            let place = open_inside(root.as_fd(), place).map_err(&at)?;
            rustix::process::fchdir(&place).map_err(&at)?;
        }
        None => rustix::process::fchdir(&root).map_err(&at)?,
    }
    rustix::process::pivot_root(c".", c".").map_err(&at)?;
    // Both roots are now mounted at "."; the top one is the old root, and is unmounted with everything below it.
    rustix::mount::unmount(c".", UnmountFlags::DETACH).map_err(&at)?;
    rustix::process::chdir(c"/").map_err(&at)?;
    Ok((exe, proc_fd))
}

/// Removes the entries that only served as covers. The root is writable for that moment, while no other process is in
/// it; a second, writable view of it would cost a grace period when it is removed.
fn remove_covers(plan: &LaunchPlan, tree: &NamespacePlan, root: BorrowedFd<'_>) -> Result<(), Errno> {
    if !plan.without.has(Wall::ReadOnly) {
        kernel::mount_clearattr(root, kernel::MOUNT_ATTR_RDONLY)?;
    }
    rustix::fs::unlinkat(root, HIDDEN_FILE, AtFlags::empty())?;
    rustix::fs::unlinkat(root, HIDDEN_DIR, AtFlags::REMOVEDIR)?;
    for file in &tree.proc_files {
        rustix::fs::unlinkat(root, file.name.as_c_str(), AtFlags::empty())?;
    }
    if !plan.without.has(Wall::ReadOnly) {
        kernel::mount_setattr(root, kernel::MOUNT_ATTR_RDONLY, 0, false, None)?;
    }
    Ok(())
}

fn new_filesystem(
    kind: &CStr,
    options: &[(std::ffi::CString, std::ffi::CString)],
    attributes: u64,
) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(context.as_fd(), key.as_c_str())?;
        } else {
            rustix::mount::fsconfig_set_string(context.as_fd(), key.as_c_str(), value.as_c_str())?;
        }
    }
    make_filesystem(context.as_fd(), attributes)
}

fn make_filesystem(context: BorrowedFd<'_>, attributes: u64) -> Result<OwnedFd, Errno> {
    rustix::mount::fsconfig_create(context)?;
    let attributes = MountAttrFlags::from_bits_retain(u32::try_from(attributes).unwrap_or(0));
    rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn attach(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, target: &CStr) -> Result<(), Errno> {
    rustix::mount::move_mount(mount, c"", dir, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Attaches a mount below the new root. An earlier mount may contain links from an untrusted source; none is followed, and
/// no path leads out of the root.
fn attach_inside(mount: BorrowedFd<'_>, root: BorrowedFd<'_>, target: &CStr) -> Result<(), Errno> {
    let place = open_inside(root, target)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", &place, c"", flags)
}

fn open_inside(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Maximum length of a node's path, including the terminating zero (PATH_MAX).
const MAX_PATH_BYTES: usize = 4096;

/// Makes a node below the new root with the same care as [`attach_inside`]: through its parent, without following a link.
fn make_node_inside(root: BorrowedFd<'_>, node: &Node) -> Result<(), Errno> {
    let (Node::Dir { path, .. } | Node::Symlink { path, .. } | Node::File { path, .. }) = node;
    let bytes = path.to_bytes();
    let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else {
        return make_node(root, node, path);
    };
    let mut parent = [0u8; MAX_PATH_BYTES];
    let (head, _) = bytes.split_at(slash);
    parent.get_mut(..slash).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(head);
    let parent = CStr::from_bytes_until_nul(&parent).map_err(|_| Errno::NAMETOOLONG)?;
    let parent = open_inside(root, parent)?;
    // The part after the slash keeps the path's terminating zero.
    let name = path.to_bytes_with_nul().get(slash + 1..).ok_or(Errno::INVAL)?;
    let name = CStr::from_bytes_with_nul(name).map_err(|_| Errno::INVAL)?;
    make_node(parent.as_fd(), node, name)
}

/// Returns a detached copy of the mount at `path` below `dir` (of the mount of `dir` itself if `path` is empty).
fn clone_tree(dir: BorrowedFd<'_>, path: &CStr, recursive: bool, attributes: u64) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if path.is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = rustix::mount::open_tree(dir, path, flags)?;
    if attributes != 0 {
        kernel::mount_setattr(tree.as_fd(), attributes, 0, recursive, None)?;
    }
    Ok(tree)
}

/// Makes a node under `name` in `dir`.
fn make_node(dir: BorrowedFd<'_>, node: &Node, name: &CStr) -> Result<(), Errno> {
    match node {
        Node::Dir { mode, .. } => rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(*mode)),
        Node::Symlink { target, .. } => rustix::fs::symlinkat(target.as_c_str(), dir, name),
        Node::File { content, .. } if content.is_empty() => {
            let mode = Mode::from_raw_mode(0o444);
            rustix::fs::mknodat(dir, name, rustix::fs::FileType::RegularFile, mode, 0)
        }
        Node::File { content, .. } => make_file(dir, name, content, 0o444),
    }
}

fn make_file(root: BorrowedFd<'_>, path: &CStr, content: &[u8], mode: u32) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(mode))?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

fn make_mount(
    plan: &LaunchPlan,
    root: BorrowedFd<'_>,
    step: &MountStep,
    (clone, volume): (Option<OwnedFd>, Option<&OwnedFd>),
    foreign: bool,
) -> Result<(), Errno> {
    for node in &step.make {
        match make_node_inside(root, node) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    let mount = match &step.source {
        MountSource::Path(_) => clone.ok_or(Errno::BADF)?,
        MountSource::Checked { .. } => {
            return attach_inside(clone.ok_or(Errno::BADF)?.as_fd(), root, &step.target);
        }
        MountSource::Detached(tree) => return attach_inside(tree.as_fd(), root, &step.target),
        MountSource::Volume { .. } => {
            return attach_inside(volume.ok_or(Errno::BADF)?.as_fd(), root, &step.target);
        }
        MountSource::Own(place) => {
            let own = open_inside(root, place)?;
            let tree = clone_tree(own.as_fd(), c"", true, attributes(plan, step))?;
            return attach_inside(tree.as_fd(), root, &step.target);
        }
        MountSource::New { kind, options } => new_filesystem(kind, options, attributes(plan, step))?,
    };
    if foreign {
        return attach_inside(mount.as_fd(), root, &step.target);
    }
    // These go onto names that this process has just made, so none of them can be a link.
    attach(mount.as_fd(), root, &step.target)
}

/// Clones a tree of the host. Fails if the path is no longer the file that the host checked.
fn open_checked(path: &CStr, device: u64, inode: u64, attributes: u64) -> Result<OwnedFd, Errno> {
    let file = find_checked(path, device, inode)?;
    clone_tree(file.as_fd(), c"", true, attributes)
}

fn find_checked(path: &CStr, device: u64, inode: u64) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&file)?;
    if stat.st_dev != device || stat.st_ino != inode {
        return Err(Errno::STALE);
    }
    Ok(file)
}

/// Makes an instance of procfs with one option (proc(5)).
fn new_proc(option: Option<(&CStr, &CStr)>, attributes: u64) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some((key, value)) = option {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    make_filesystem(context.as_fd(), attributes)
}

fn mount_proc(plan: &LaunchPlan, tree: &NamespacePlan, root: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    let at = Failure::at(Step::Proc);
    let attributes = kernel::MOUNT_ATTR_NOSUID | kernel::MOUNT_ATTR_NODEV | kernel::MOUNT_ATTR_NOEXEC;
    if tree.flags & PROCESSES == 0 {
        // Attached, it would show the host's processes; only the guest's program uses it, before it execs anything else.
        return new_proc(None, attributes).map_err(&at);
    }
    // In a machine, root sees the processes of all users, as programs that manage servers expect.
    let hides = plan.machine.is_none().then_some((c"hidepid", c"invisible"));
    let proc_fd = new_proc(hides, attributes).map_err(&at)?;
    match &tree.enter {
        // The target is in a foreign tree.
        Some(_) => attach_inside(proc_fd.as_fd(), root, &tree.proc_target),
        None => attach(proc_fd.as_fd(), root, &tree.proc_target),
    }
    .map_err(&at)?;
    // The guest gets its own instance: writable, so that it can mark its children for the OOM killer, and without
    // `hidepid`, so that it sees every process. It has nothing but processes: a path that the guest opens for its caller may name its
    // descriptors (`/proc/self/fd`), so what is covered for the others must not be there either.
    let only_processes = (!plan.without.has(Wall::ProcMasks)).then_some((c"subset", c"pid"));
    let guests = new_proc(only_processes, attributes).map_err(&at)?;
    if !plan.without.has(Wall::ReadOnly) {
        kernel::mount_setattr(proc_fd.as_fd(), attributes | kernel::MOUNT_ATTR_RDONLY, 0, false, None)
            .map_err(&at)?;
    }
    if plan.without.has(Wall::ProcMasks) {
        return Ok(guests);
    }
    for (index, name) in tree.proc_masks.iter().enumerate() {
        mask(root, proc_fd.as_fd(), name).map_err(Failure::item(Step::ProcMask, index))?;
    }
    for (index, file) in tree.proc_files.iter().enumerate() {
        cover(root, &file.name, proc_fd.as_fd(), &file.name)
            .map_err(Failure::item(Step::ProcMask, tree.proc_masks.len() + index))?;
    }
    Ok(guests)
}

/// Covers one name below `/proc` with an empty file or directory of the new root, which is read-only by now:
/// never with a file that the sandbox could have placed (CVE-2025-31133).
fn mask(root: BorrowedFd<'_>, proc_fd: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let stat = match rustix::fs::statat(proc_fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory;
    cover(root, if is_dir { HIDDEN_DIR } else { HIDDEN_FILE }, proc_fd, name)
}

/// Mounts an entry of the root on a name below `/proc`.
fn cover(root: BorrowedFd<'_>, source: &CStr, proc_fd: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let cover = clone_tree(root, source, false, 0)?;
    attach(cover.as_fd(), proc_fd, name)
}
