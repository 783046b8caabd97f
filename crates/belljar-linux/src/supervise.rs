//! The supervisor: one small process per sandbox, outside of it, that makes its control groups, clones its first
//! process, and cleans everything up when that process ends, when the host asks, or when the host is gone.
//!
//! ```text
//! host ── clone ──► supervisor ── clone ──► first process (the guest)
//!   ▲                  │  ▲
//!   └── records ───────┘  └─ pidfd
//!
//! Making ──► Running ──► Ending ──► Cleaned
//!    │          │ the guest ended · the host wrote a byte · the host's end closed
//!    └──────────┴─► any failure goes through Ending as well, so nothing is left over
//! ```
//!
//! It is a bare clone of the host's process, which saves an exec; it therefore allocates nothing and takes no lock.

// A panic between a clone and an exec would allocate and print: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions};

use crate::channel::{self, Message};
use crate::image::mount_volume;
use crate::init::Volumes;
use crate::kernel::{self, Cloned};
use crate::line::Line;
use crate::network::{GATEWAY_SOCKETS, RECEIVE_BUFFERS, TCP_MAX_TW_BUCKETS, TCP_RMEM, TIME_WAITS};
use crate::network_unsafe::loopback_up;
use crate::passing::send_with;
use crate::plan::{CgroupJoin, CgroupPlan, Identity, LaunchPlan, MountSource, NamespacePlan, Scratch, Wall};
use crate::report::{Failure, LaunchPhase, Phases, Report, Step};

/// Maximum number of control groups; no layout has as many (three v1 controllers, the v1 freezer and the v2 group).
pub(crate) const MAX_CGROUPS: usize = 8;

/// `CLONE_NEWUSER`.
const NEW_USER: u64 = 0x1000_0000;

/// `CLONE_NEWPID`.
pub(crate) const PROCESSES: u64 = 0x2000_0000;

/// `CLONE_NEWNET`, which a separate process makes.
pub(crate) const NETWORK: u64 = 0x4000_0000;

/// `CLONE_NEWCGROUP`, whose root is the creator's current group: made after the groups have been joined.
pub(crate) const CGROUP: u64 = 0x0200_0000;

/// Maximum number of descriptors that a launch needs: those of the plan and two per mount.
const MAX_KEPT_FDS: usize = 2 * crate::init::MAX_MOUNTS + 16;

/// Attempts, one millisecond apart, to remove an emptied control group.
const MAX_CLEAN_ATTEMPTS: u32 = 5_000;

/// Runs the supervisor until it exits.
pub(crate) fn run(plan: &LaunchPlan, control: BorrowedFd<'_>) -> ! {
    let _exits = ExitOnUnwind;
    kernel::ignore_group_signals();
    kernel::set_name(c"belljar-super");
    let _ = rustix::process::setsid();
    let _ = kernel::become_subreaper();
    let mut keep = [-1; MAX_KEPT_FDS];
    if kernel::close_all_but(kept_for_launch(plan, control, &mut keep)).is_err() {
        kernel::exit_now(125);
    }
    plan.without.allocate(Wall::ForkSafeSupervisor);
    let mut made = Made::default();
    match launch(plan, control, &mut made) {
        Ok(first) => match attach_resources(plan, control, &first, &mut made) {
            Ok(()) => supervise(plan, control, &first.pidfd, first.channel, &made),
            Err(failure) => {
                let _ = rustix::io::write(control, &failure.report().encode());
                let _ = kernel::pidfd_kill(first.pidfd.as_fd(), libc::SIGKILL);
                reap(&first.pidfd);
                clean(plan, control, None, &made);
            }
        },
        Err(failure) => clean(plan, control, Some(failure.report()), &made),
    }
    kernel::exit_now(0)
}

/// The sandbox's first process and the supervisor's end of the channel that carries its resources.
struct First {
    pid: i32,
    pidfd: OwnedFd,
    channel: OwnedFd,
}

/// Resources made so far, in the plan's order. Only these are removed: anything that existed before has another owner.
#[derive(Default)]
struct Made {
    /// Number of control groups made.
    cgroups: usize,
    /// True if the scratch directory was made.
    scratch: bool,
    /// The maker of the network namespace, until it is reaped.
    network_maker: Option<OwnedFd>,
}

/// Exits on a panic, which must not unwind into the copied frames of the host.
struct ExitOnUnwind;

impl Drop for ExitOnUnwind {
    fn drop(&mut self) {
        kernel::exit_now(125);
    }
}

/// Returns the descriptors that the launch needs, in a table of fixed size; the planner keeps within that size.
fn kept_for_launch<'a>(
    plan: &LaunchPlan,
    control: BorrowedFd<'_>,
    keep: &'a mut [i32; MAX_KEPT_FDS],
) -> &'a mut [i32] {
    let mounts = plan.namespaces.iter().flat_map(|tree| &tree.mounts);
    let mounts = mounts.flat_map(|step| match &step.source {
        MountSource::Detached(fd) => [fd.as_raw_fd(), -1],
        MountSource::Volume { image, ids } => [image.as_raw_fd(), ids.as_raw_fd()],
        _ => [-1, -1],
    });
    let fixed = [
        control.as_raw_fd(),
        plan.guest_socket.as_raw_fd(),
        plan.guest_config.as_raw_fd(),
        plan.dev_null.as_raw_fd(),
        program_fd(plan),
        gateway_fd(plan),
        plan.uid_lease.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        plan.scratch.as_ref().map_or(-1, |scratch| scratch.parent.as_raw_fd()),
    ];
    let mut count = 0;
    for (slot, fd) in keep.iter_mut().zip(fixed.into_iter().chain(mounts)) {
        *slot = fd;
        count += 1;
    }
    keep.get_mut(..count).unwrap_or_default()
}

/// Makes the group that the first process is cloned into, and clones it.
fn launch(plan: &LaunchPlan, control: BorrowedFd<'_>, made: &mut Made) -> Result<First, Failure> {
    let mut phases = Phases::new();
    phases.reached(LaunchPhase::Supervisor);
    if plan.drop_privileges {
        kernel::reset_priority().map_err(Failure::at(Step::Rlimit))?;
    }
    // Mounting can take long, so it comes before anything that a failure would have to clean up.
    let volumes = mount_volumes(plan)?;
    let mut into = None;
    for (index, group) in plan.cgroups.iter().enumerate() {
        if group.join == CgroupJoin::AtClone {
            into = Some(make_cgroup(plan, group, index, made)?);
        }
    }
    if let Some(scratch) = &plan.scratch {
        make_scratch(plan, scratch, made).map_err(Failure::at(Step::Scratch))?;
    }
    let (ours, theirs) = socket_pair().map_err(Failure::at(Step::Descriptors))?;
    let made_later =
        |tree: &NamespacePlan| if has_separate_network(tree) { NETWORK | CGROUP } else { CGROUP };
    let flags = plan.namespaces.as_ref().map_or(0, |tree| tree.flags & !made_later(tree));
    let cloned = clone_first(plan, flags, into.as_ref().map(AsFd::as_fd))?;
    match cloned {
        Cloned::Child => {
            // This copy of the supervisor's end would hide the supervisor's death from the first process.
            kernel::close_number(ours.as_raw_fd());
            let failure = crate::init::become_guest(plan, theirs.as_fd(), control, &volumes);
            let _ = rustix::io::write(control, &failure.report().encode());
            kernel::exit_now(125)
        }
        Cloned::Parent { pid, pidfd } => {
            phases.reached(LaunchPhase::Namespaces);
            phases.push(Report::Started { pid });
            phases.send(control);
            Ok(First { pid, pidfd, channel: ours })
        }
    }
}

/// Mounts the volumes, and returns each at the index of its step.
fn mount_volumes(plan: &LaunchPlan) -> Result<Volumes, Failure> {
    let mut volumes = [const { None }; crate::init::MAX_MOUNTS];
    let steps = plan.namespaces.iter().flat_map(|tree| &tree.mounts).enumerate();
    for ((index, step), slot) in steps.zip(&mut volumes) {
        if let MountSource::Volume { image, ids } = &step.source {
            let attributes = crate::init::attributes(plan, step);
            let mount = mount_volume(image.as_fd(), ids.as_fd(), attributes, plan.without);
            *slot = Some(mount.map_err(Failure::item(Step::Volume, index))?);
        }
    }
    Ok(volumes)
}

/// Clones the first process. The kernel also charges what a user namespace uses (inotify(7) instances and the like) to the
/// user who made it. If root made it, all sandboxes and the host would share one account, so it is made as the sandbox's
/// own user.
fn clone_first(plan: &LaunchPlan, flags: u64, into: Option<BorrowedFd<'_>>) -> Result<Cloned, Failure> {
    let as_sandbox_user = plan.identity.privileged && flags & NEW_USER != 0 && !plan.without.has(Wall::Owner);
    if as_sandbox_user {
        kernel::set_effective_uid(plan.identity.outside_uid).map_err(Failure::at(Step::SetIds))?;
    }
    let cloned = crate::launch_unsafe::clone_child(flags, into).map_err(Failure::at(Step::Clone))?;
    if as_sandbox_user && matches!(cloned, Cloned::Parent { .. }) {
        kernel::set_effective_uid(0).map_err(Failure::at(Step::SetIds))?;
    }
    Ok(cloned)
}

/// Reports whether a separate process makes the network namespace, which takes a user namespace that owns it.
pub(crate) fn has_separate_network(tree: &NamespacePlan) -> bool {
    tree.flags & NETWORK != 0 && tree.flags & NEW_USER != 0
}

/// Sends the first process what it cannot make itself, while it builds its tree: its id maps, its network namespace, and
/// the files through which it joins its v1 control groups.
fn attach_resources(
    plan: &LaunchPlan,
    control: BorrowedFd<'_>,
    first: &First,
    made: &mut Made,
) -> Result<(), Failure> {
    if let Some(tree) = &plan.namespaces {
        if tree.flags & NEW_USER != 0 {
            write_id_maps(first.pid, &plan.identity).map_err(Failure::at(Step::IdMap))?;
        }
        channel::send(first.channel.as_fd(), Message::Mapped, &[]).map_err(Failure::at(Step::IdMap))?;
        if has_separate_network(tree) {
            made.network_maker = Some(start_network_maker(plan, control, first)?);
        }
    }
    let mut tasks: [Option<OwnedFd>; MAX_CGROUPS] = [const { None }; MAX_CGROUPS];
    for ((index, group), slot) in plan.cgroups.iter().enumerate().zip(&mut tasks) {
        if group.join == CgroupJoin::Tasks {
            let dir = make_cgroup(plan, group, index, made)?;
            let file = rustix::fs::openat(&dir, c"tasks", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            *slot = Some(file.map_err(Failure::item(Step::CgroupJoin, index))?);
        }
    }
    for (index, file) in tasks.iter().enumerate() {
        if let Some(file) = file {
            channel::send(first.channel.as_fd(), Message::Group, &[file.as_fd()])
                .map_err(Failure::item(Step::CgroupJoin, index))?;
        }
    }
    channel::send(first.channel.as_fd(), Message::ResourcesSent, &[]).map_err(Failure::at(Step::CgroupJoin))
}

/// Starts the process that makes the network namespace: that takes as long as all other steps together, so it runs in
/// parallel. It enters the sandbox's user namespace first, so that the sandbox owns its network and the host does not.
fn start_network_maker(
    plan: &LaunchPlan,
    control: BorrowedFd<'_>,
    first: &First,
) -> Result<OwnedFd, Failure> {
    let cloned = crate::launch_unsafe::clone_child(0, None).map_err(Failure::at(Step::Loopback))?;
    let Cloned::Parent { pidfd, .. } = cloned else {
        plan.without.allocate(Wall::ForkSafeHelper);
        if let Err(failure) = make_network(plan, first) {
            let _ = rustix::io::write(control, &failure.report().encode());
            let _ = kernel::pidfd_kill(first.pidfd.as_fd(), libc::SIGKILL);
        }
        kernel::exit_now(0)
    };
    Ok(pidfd)
}

fn make_network(plan: &LaunchPlan, first: &First) -> Result<(), Failure> {
    let at = Failure::at(Step::Loopback);
    let proc = own_proc();
    kernel::enter_namespace(first.pidfd.as_fd(), libc::CLONE_NEWUSER).map_err(&at)?;
    kernel::unshare(libc::CLONE_NEWNET).map_err(&at)?;
    loopback_up().map_err(&at)?;
    if !plan.without.has(Wall::ReceiveBuffers) {
        set_receive_buffers(proc.as_ref()).map_err(Failure::at(Step::ReceiveBuffers))?;
    }
    if plan.machine.is_some() {
        // Servers of ordinary users and of root bind the ports that they are known by.
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file =
            open_sysctl(proc.as_ref(), c"sys/net/ipv4/ip_unprivileged_port_start", flags).map_err(&at)?;
        write_whole(&file, b"0").map_err(&at)?;
    }
    if let Some(gateway) = &plan.gateway {
        // Before the namespace is passed on: no process may enter it before the gateway's sockets exist in it.
        let at = Failure::at(Step::Gateway);
        let (listener, resolver) = gateway.redirect().map_err(&at)?;
        send_with(gateway.sockets.as_fd(), &[GATEWAY_SOCKETS], &[listener.as_fd(), resolver.as_fd()])
            .map_err(&at)?;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let namespace = rustix::fs::open(c"/proc/self/ns/net", flags, Mode::empty()).map_err(&at)?;
    channel::send(first.channel.as_fd(), Message::Network, &[namespace.as_fd()]).map_err(&at)
}

/// Sets the sizes of the receive buffers of TCP in this network namespace, which cannot be changed per socket ([`SO_RCVBUF`] does
/// nothing in a sandbox), and the number of closed connections that the kernel remembers, which no group counts. In a container with a
/// read-only `/proc/sys` they stay those of the machine; whoever counts connections that are not accepted asks
/// [`crate::unaccepted_bytes`].
///
/// [`SO_RCVBUF`]: https://man7.org/linux/man-pages/man7/socket.7.html
pub(crate) fn set_receive_buffers(proc: Option<&OwnedFd>) -> Result<(), Errno> {
    for (path, value) in [(TCP_RMEM, RECEIVE_BUFFERS), (TCP_MAX_TW_BUCKETS, TIME_WAITS)] {
        match open_sysctl(proc, path, OFlags::WRONLY | OFlags::CLOEXEC) {
            Err(Errno::ROFS) => {}
            file => write_whole(&file?, value.as_bytes()).map(drop)?,
        }
    }
    Ok(())
}

/// Opens a file of this network namespace below `/proc`.
fn open_sysctl(proc: Option<&OwnedFd>, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    match proc {
        Some(proc) => rustix::fs::openat(proc, path, flags, Mode::empty()),
        None => {
            let shared = rustix::fs::open(c"/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::openat(shared, path, flags, Mode::empty())
        }
    }
}

/// Mounts a `/proc` for this process alone, if it may: each file below `sys/net` exists once for each network namespace, and a mount keeps
/// those of all namespaces under one name, so that looking one up takes as long as there are namespaces. One that is read-only here is left
/// as it is.
fn own_proc() -> Option<OwnedFd> {
    use rustix::fs::StatVfsMountFlags;
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    let shown = rustix::fs::statvfs(c"/proc/sys").ok()?;
    if shown.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return None;
    }
    let context = rustix::mount::fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    rustix::mount::fsconfig_create(context.as_fd()).ok()?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
}

fn make_scratch(plan: &LaunchPlan, scratch: &Scratch, made: &mut Made) -> Result<(), Errno> {
    rustix::fs::mkdirat(&scratch.parent, scratch.name.as_c_str(), Mode::RWXU)?;
    made.scratch = true;
    if plan.identity.privileged && plan.drop_privileges {
        let uid = rustix::fs::Uid::from_raw(plan.identity.outside_uid);
        let gid = rustix::fs::Gid::from_raw(plan.identity.outside_gid);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&scratch.parent, scratch.name.as_c_str(), Some(uid), Some(gid), flags)?;
    }
    Ok(())
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn make_cgroup(
    plan: &LaunchPlan,
    group: &CgroupPlan,
    index: usize,
    made: &mut Made,
) -> Result<OwnedFd, Failure> {
    let make = Failure::item(Step::CgroupMake, index);
    rustix::fs::mkdir(group.dir.as_c_str(), Mode::from_raw_mode(0o755)).map_err(&make)?;
    made.cgroups = index + 1;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(group.dir.as_c_str(), flags, Mode::empty()).map_err(&make)?;
    for setting in &group.settings {
        if is_disabled(plan, &setting.file) {
            continue;
        }
        let file = match rustix::fs::openat(
            &dir,
            setting.file.as_c_str(),
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) if setting.optional => continue,
            other => other.map_err(Failure::item(Step::CgroupSet, index))?,
        };
        match write_whole(&file, setting.value.to_bytes()) {
            Ok(_) => {}
            Err(_) if setting.optional => {}
            Err(errno) => return Err(Failure::item(Step::CgroupSet, index)(errno)),
        }
    }
    Ok(dir)
}

/// Reports whether a test disables the limit in `file`.
fn is_disabled(plan: &LaunchPlan, file: &CStr) -> bool {
    let name = file.to_bytes();
    (plan.without.has(Wall::Memory) && name.starts_with(b"memory."))
        || (plan.without.has(Wall::Pids) && name.starts_with(b"pids."))
        || (plan.without.has(Wall::Cpu) && name.starts_with(b"cpu."))
}

fn write_id_maps(pid: i32, identity: &Identity) -> Result<(), Errno> {
    let dir = Line::<32>::new().text(b"/proc/").number(pid.unsigned_abs());
    let dir =
        rustix::fs::open(dir.as_cstr()?, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    if !identity.privileged {
        // Without this an ordinary user may not map any group (user_namespaces(7)).
        write_file(dir.as_fd(), c"setgroups", b"deny")?;
    }
    let map = |outside| {
        Line::<48>::new().number(identity.inside).text(b" ").number(outside).text(b" ").number(identity.count)
    };
    write_file(dir.as_fd(), c"uid_map", map(identity.outside_uid).as_bytes())?;
    write_file(dir.as_fd(), c"gid_map", map(identity.outside_gid).as_bytes())
}

fn write_file(dir: BorrowedFd<'_>, name: &CStr, content: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    write_whole(&file, content).map(drop)
}

/// Writes to a kernel file in one call, retrying on `EINTR`. Even an ignored signal may interrupt the call: when a tracer
/// intercepts it, or when the machine is suspended.
fn write_whole(file: &OwnedFd, content: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::write(file, content) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn supervise(plan: &LaunchPlan, control: BorrowedFd<'_>, pidfd: &OwnedFd, channel: OwnedFd, made: &Made) {
    let program = program_fd(plan);
    // The guest's end of its connection must not stay open here, or the host would not notice that the guest has ended.
    let mut keep = [
        control.as_raw_fd(),
        pidfd.as_raw_fd(),
        channel.as_raw_fd(),
        program,
        plan.uid_lease.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        plan.scratch.as_ref().map_or(-1, |scratch| scratch.parent.as_raw_fd()),
        made.network_maker.as_ref().map_or(-1, AsRawFd::as_raw_fd),
    ];
    let _ = kernel::close_all_but(&mut keep);
    let mut exec_done = false;
    // Watched until it ends, which is before the exec that waits for the network.
    let mut maker = made.network_maker.as_ref();
    loop {
        // The first process's end of the channel is closed by its exec.
        let exec = if exec_done { control } else { channel.as_fd() };
        let network = maker.map_or(control, AsFd::as_fd);
        let mut polls =
            [control, pidfd.as_fd(), exec, network].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match rustix::event::poll(&mut polls, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => break,
        }
        let [host, first, exec, network] = polls.map(|poll| !poll.revents().is_empty());
        if host || first {
            break;
        }
        if let Some(ended) = maker.take_if(|_| network) {
            // Reaped now, so that a long-lived sandbox keeps no zombie. A maker that failed has sent a report; one that
            // was killed could not.
            let status = reap(ended);
            kernel::close_number(ended.as_raw_fd());
            if status != Some(0) {
                let failure = Failure::at(Step::Loopback)(Errno::SRCH);
                let _ = rustix::io::write(control, &failure.report().encode());
                break;
            }
        }
        if exec && !exec_done {
            // The last close of the program's mount waits for a grace period: better here than in the starting guest.
            exec_done = true;
            kernel::close_number(program);
        }
    }
    let host_reads_counters = receive_kill(control);
    let _ = kernel::pidfd_kill(pidfd.as_fd(), libc::SIGKILL);
    thaw(plan);
    let ended = reap(pidfd).map(|status| Report::Ended { status, oom_kills: oom_kills(plan) });
    if let Some(report) = ended {
        let _ = rustix::io::write(control, &report.encode());
    }
    if host_reads_counters {
        // The control groups stay until the host has read their counters and says so.
        wait_for_host(control);
    }
    clean(plan, control, None, made);
}

/// Receives the host's byte, if there is one: an unread byte would reset the connection when this end closes, and lose the
/// last records. Reports whether it was [`KILL`], after which the host reads the counters before they are removed.
fn receive_kill(control: BorrowedFd<'_>) -> bool {
    let mut byte = [0u8; 1];
    let received = rustix::net::recv(control, &mut byte, rustix::net::RecvFlags::DONTWAIT);
    matches!(received, Ok((1, _))) && byte == [KILL]
}

fn wait_for_host(control: BorrowedFd<'_>) {
    let mut byte = [0u8; 1];
    while let Err(Errno::INTR) | Ok((1, _)) =
        rustix::net::recv(control, &mut byte, rustix::net::RecvFlags::empty())
        && byte != [CLEAN]
    {}
}

/// Byte by which the host ends the sandbox and keeps its control groups, to read their counters.
pub const KILL: u8 = b'k';
/// Byte by which the host ends the sandbox, if it still runs, and has everything removed.
pub const CLEAN: u8 = b'c';

fn gateway_fd(plan: &LaunchPlan) -> i32 {
    plan.gateway.as_ref().map_or(-1, |gateway| gateway.sockets.as_raw_fd())
}

fn program_fd(plan: &LaunchPlan) -> i32 {
    match &plan.guest.exe {
        crate::plan::GuestExe::Fd(fd) => fd.as_raw_fd(),
        crate::plan::GuestExe::Checked { .. } => -1,
    }
}

/// Waits for a child and reaps it. Returns its exit status, or minus the number of its signal.
fn reap(pidfd: &OwnedFd) -> Option<i32> {
    loop {
        match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Err(Errno::INTR) => {}
            Ok(Some(status)) => {
                return status.exit_status().or_else(|| status.terminating_signal().map(|signal| -signal));
            }
            _ => return None,
        }
    }
}

/// Thaws the v1 freezer, in which a kill takes effect only after the thaw. On v2 a kill works at once.
fn thaw(plan: &LaunchPlan) {
    for group in plan.cgroups.iter().filter(|group| group.is_freezer) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(dir) = rustix::fs::open(group.dir.as_c_str(), flags, Mode::empty()) {
            let _ = write_file(dir.as_fd(), c"freezer.state", b"THAWED");
        }
    }
}

/// Returns the number of the sandbox's processes that the OOM killer ended. Read before the groups that count them are removed.
fn oom_kills(plan: &LaunchPlan) -> u32 {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let of_group = |group: &CgroupPlan| {
        let dir = rustix::fs::open(group.dir.as_c_str(), flags, Mode::empty()).ok()?;
        // The files of v2 and of v1.
        [c"memory.events", c"memory.oom_control"].into_iter().find_map(|name| oom_kills_in(dir.as_fd(), name))
    };
    plan.cgroups.iter().find_map(of_group).unwrap_or(0)
}

fn oom_kills_in(dir: BorrowedFd<'_>, name: &CStr) -> Option<u32> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0u8; 512];
    let length = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    u32::try_from(crate::cgroup_live::field(text, "oom_kill")?).ok()
}

/// Kills all leftover processes, removes everything that was made, and reports the result.
fn clean(plan: &LaunchPlan, control: BorrowedFd<'_>, first: Option<Report>, made: &Made) {
    if let Some(report) = first {
        let _ = rustix::io::write(control, &report.encode());
    }
    if plan.namespaces.as_ref().is_none_or(|tree| tree.flags & PROCESSES == 0) {
        kill_leftovers(plan, made);
    }
    // If the launch failed before the exec, the maker of the network has not been reaped yet.
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
    let mut left = 0;
    let mut reason = 0;
    for group in plan.cgroups.iter().take(made.cgroups).rev() {
        if let Err(errno) = remove_cgroup(group) {
            left += 1;
            reason = errno.raw_os_error();
        }
    }
    if let Some(scratch) = plan.scratch.as_ref().filter(|_| made.scratch)
        && let Err(errno) = crate::remove::remove_tree(scratch.parent.as_fd(), &scratch.name)
    {
        left += 1;
        reason = errno.raw_os_error();
    }
    let _ = rustix::io::write(control, &Report::Cleaned { left, errno: reason }.encode());
}

/// Kills the descendants of the guest, which outlive it without a pid namespace. They are children of the supervisor, which
/// is a subreaper, and are in the control group if there is one.
fn kill_leftovers(plan: &LaunchPlan, made: &Made) {
    let mut idle = 0;
    while idle < MAX_CLEAN_ATTEMPTS {
        for group in plan.cgroups.iter().take(made.cgroups) {
            kill_cgroup(group);
        }
        // A process that keeps forking and exiting may be gone before its pid is used; only fast retries catch it.
        kill_children();
        loop {
            match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
                Err(Errno::CHILD) => return,
                Ok(Some(_)) => idle = 0,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        idle += 1;
        if idle > 100 {
            pause();
        }
    }
}

fn kill_children() {
    let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let path = Line::<64>::new().text(b"/proc/self/task/").number(own).text(b"/children");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if let Ok(path) = path.as_cstr()
        && let Ok(file) = rustix::fs::open(path, flags, Mode::empty())
    {
        // A child's pid is not reused before this process reaps it.
        each_number(file.as_fd(), b' ', |number| {
            let _ = kernel::kill(number, libc::SIGKILL);
        });
    }
}

fn kill_cgroup(group: &CgroupPlan) {
    let Ok(dir) = rustix::fs::open(
        group.dir.as_c_str(),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    ) else {
        return;
    };
    if group.can_kill {
        let _ = write_file(dir.as_fd(), c"cgroup.kill", b"1");
        return;
    }
    each_member(dir.as_fd(), |number| {
        let flags = rustix::process::PidfdFlags::empty();
        let Some(pid) = rustix::process::Pid::from_raw(number) else { return };
        let Ok(member) = rustix::process::pidfd_open(pid, flags) else { return };
        // The pid may have been reused before it was opened; from then on it cannot be.
        let mut is_member = false;
        each_member(dir.as_fd(), |other| is_member |= other == number);
        if is_member {
            let _ = kernel::pidfd_kill(member.as_fd(), libc::SIGKILL);
        }
    });
}

fn each_member(group: BorrowedFd<'_>, act: impl FnMut(i32)) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::openat(group, c"cgroup.procs", flags, Mode::empty()) {
        each_number(file.as_fd(), b'\n', act);
    }
}

/// Calls `act` with every number except 0 and 1 of a list that the kernel wrote.
fn each_number(file: BorrowedFd<'_>, separator: u8, mut act: impl FnMut(i32)) {
    let mut buffer = [0u8; 4096];
    let mut number = 0i32;
    while let Ok(length @ 1..) = rustix::io::read(file, &mut buffer) {
        for byte in buffer.iter().take(length) {
            if byte.is_ascii_digit() {
                number = number.saturating_mul(10).saturating_add(i32::from(byte - b'0'));
            } else if *byte == separator && number > 1 {
                act(number);
                number = 0;
            }
        }
    }
}

fn remove_cgroup(group: &CgroupPlan) -> Result<(), Errno> {
    let mut last = Errno::BUSY;
    for _ in 0..MAX_CLEAN_ATTEMPTS {
        match rustix::fs::rmdir(group.dir.as_c_str()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) => kill_cgroup(group),
            Err(errno) => last = errno,
        }
        pause();
    }
    Err(last)
}

fn pause() {
    let one_millisecond = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let _ = rustix::event::poll(&mut [], Some(&one_millisecond));
}
