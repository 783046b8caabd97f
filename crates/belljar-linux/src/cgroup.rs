//! Finds out where control groups can be made, and plans a sandbox's limits there, on v2 and on v1.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plan::{CgroupJoin, CgroupPlan, CgroupSetting};

/// The limits of one sandbox, as control groups take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes, swap included.
    pub memory_bytes: u64,
    /// Thousandths of a processor.
    pub cpu_millis: u32,
    /// Processes and threads, the guest's own included.
    pub pids: u32,
}

/// The hierarchies of this machine in which this process may make groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupLayout {
    /// The v2 directory to make groups in, if there is a writable v2 hierarchy.
    pub v2: Option<PathBuf>,
    /// True if the v2 hierarchy limits memory, processors and processes on this machine.
    pub v2_limits: bool,
    /// v1 directories to make groups in, by controller: memory, cpu, pids.
    pub v1: Vec<(String, PathBuf)>,
    /// The v1 freezer's directory to make groups in, if there is no v2 hierarchy, which needs no separate freezer.
    pub freezer: Option<PathBuf>,
    /// Controllers that neither version can provide, with the reason.
    pub missing: Vec<(String, String)>,
}

/// The controllers that the limits of a sandbox need.
pub const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// The period of the processor quota, in microseconds: the kernel's default.
pub(crate) const CPU_PERIOD_US: u64 = 100_000;

/// Divisor of the memory limit that gives the v1 limit on buffers of IP sockets, which count on top of it.
pub(crate) const SOCKET_SHARE: u64 = 4;

/// The setting of v1 with the limit on buffers of TCP sockets.
const SOCKET_LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";

impl CgroupLayout {
    /// Detects the layout from this process's groups and the mounted, writable hierarchies. `base` names a delegated v2
    /// directory to use instead of the process's own (`BELLJAR_CGROUP`).
    #[must_use]
    pub fn detect(base: Option<&Path>) -> Self {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let privileged = rustix::process::geteuid().is_root();
        Self::from_tables(&mountinfo, &own, base, privileged, &System)
    }

    /// Detects the layout as on a machine without v2, for tests of v1 alone.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn detect_v1() -> Self {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let without = mountinfo.lines().filter(|line| !line.contains(" - cgroup2 "));
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::from_tables(&without.collect::<Vec<_>>().join("\n"), &own, None, true, &System)
    }

    /// Reports whether control groups can enforce every limit of a sandbox.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Returns `v1`, `v2`, `v1 with v2 for kill`, or `none`.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match (self.v2.is_some(), self.v2_limits, self.v1.is_empty()) {
            (true, true, _) => "v2",
            (true, false, false) => "v1 with v2 for kill",
            (_, _, false) => "v1",
            _ => "none",
        }
    }

    fn from_tables(
        mountinfo: &str,
        own: &str,
        base: Option<&Path>,
        privileged: bool,
        system: &dyn Probe,
    ) -> Self {
        let mounts: Vec<CgroupMount> = mountinfo.lines().filter_map(CgroupMount::parse).collect();
        let mut layout = Self::default();
        let v2_mount = mounts.iter().find(|mount| mount.controllers.is_none());
        layout.v2 = v2_mount.and_then(|mount| v2_directory(mount, own, base, privileged, system));
        if let Some(dir) = &layout.v2 {
            let available = system.read(&dir.join("cgroup.controllers"));
            layout.v2_limits = CONTROLLERS
                .iter()
                .all(|controller| available.split_whitespace().any(|name| name == *controller))
                && system.enable_controllers(dir);
        }
        if layout.v2.is_none() {
            layout.freezer = v1_directory(&mounts, own, "freezer", system).ok();
        }
        if layout.v2_limits {
            return layout;
        }
        for controller in CONTROLLERS {
            match v1_directory(&mounts, own, controller, system) {
                Ok(dir) => layout.v1.push((controller.to_owned(), dir)),
                Err(reason) => layout.missing.push((controller.to_owned(), reason)),
            }
        }
        layout
    }

    /// Plans the groups of one sandbox. The v2 group comes first: the first process is cloned into it.
    #[must_use]
    pub fn plan(&self, id: &str, limits: &CgroupLimits) -> Vec<CgroupPlan> {
        let name = format!("belljar-{id}");
        let mut groups = Vec::new();
        if let Some(dir) = &self.v2 {
            groups.push(CgroupPlan {
                dir: c_path(&dir.join(&name)),
                settings: if self.v2_limits { v2_settings(limits) } else { Vec::new() },
                join: CgroupJoin::AtClone,
                can_kill: true,
                is_freezer: false,
            });
        }
        let limited = self.v1.iter().map(|(controller, dir)| (dir, v1_settings(controller, limits), false));
        let freezer = self.freezer.iter().map(|dir| (dir, Vec::new(), true));
        for (dir, settings, is_freezer) in limited.chain(freezer) {
            groups.push(CgroupPlan {
                dir: c_path(&dir.join(&name)),
                settings,
                join: CgroupJoin::Tasks,
                can_kill: false,
                is_freezer,
            });
        }
        groups
    }

    /// Makes the groups of the sandbox `id`, for a program of the engine's own: when `command` is started, it joins them before it runs,
    /// and leads a session of its own. [`CgroupLayout::remove`] removes them.
    ///
    /// # Errors
    /// The kernel's reason; no group is left.
    pub fn make_for(&self, id: &str, limits: &CgroupLimits, command: &mut Command) -> io::Result<()> {
        let made = self.plan(id, limits).iter().map(make_group).collect::<io::Result<Vec<_>>>();
        match made {
            Ok(groups) => crate::program_unsafe::join_groups(command, groups),
            Err(error) => {
                let _ = self.remove(id);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes the group of the gateways of the sandbox `id`, unless an earlier server has left it, which may take this much memory, with the kernel's buffers of their
    /// connections; v1 counts those separately, with a limit of a share of it. Returns `None` where no group limits memory.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn make_gateway_group(&self, id: &str, memory_bytes: u64) -> io::Result<Option<GatewayGroup>> {
        let Some((sandbox, is_v2)) = self.group(id, "memory") else { return Ok(None) };
        let limits = CgroupLimits { memory_bytes, cpu_millis: 0, pids: 0 };
        let settings = if is_v2 { v2_settings(&limits) } else { v1_settings("memory", &limits) };
        let mut group = GatewayGroup {
            dir: sandbox.with_file_name(gateway_group_name(id)),
            list: if is_v2 { CgroupJoin::AtClone } else { CgroupJoin::Tasks }.list(),
            counts_sockets: true,
        };
        match std::fs::create_dir(&group.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for CgroupSetting { file, value, optional } in settings {
            let file = file.to_string_lossy();
            if !file.starts_with("memory.") {
                continue;
            }
            match std::fs::write(group.dir.join(&*file), value.as_bytes()) {
                Err(_) if optional => group.counts_sockets &= file != SOCKET_LIMIT,
                written => written?,
            }
        }
        Ok(Some(group))
    }

    /// Returns the directories in which groups are made.
    fn bases(&self) -> impl Iterator<Item = &Path> {
        let v1 = self.v1.iter().map(|(_, dir)| dir);
        self.v2.iter().chain(v1).chain(&self.freezer).map(PathBuf::as_path)
    }

    /// Kills and removes the groups of the sandbox `id`, in case its supervisor was killed and could not.
    /// Returns how many are left.
    #[must_use]
    pub fn remove(&self, id: &str) -> u32 {
        let names = [format!("belljar-{id}"), gateway_group_name(id)];
        let mut left = 0;
        for (dir, name) in self.bases().flat_map(|dir| names.iter().map(move |name| (dir, name))) {
            let group = dir.join(name);
            let removed = (0..MAX_REMOVE_ATTEMPTS).any(|_| {
                let result = std::fs::remove_dir(&group);
                let is_removed =
                    !matches!(result, Err(ref error) if error.kind() != std::io::ErrorKind::NotFound);
                if !is_removed {
                    if self.freezer.as_deref() == Some(dir) {
                        // Frozen processes do not die.
                        let _ = std::fs::write(group.join("freezer.state"), "THAWED");
                    }
                    kill_group(&group);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                is_removed
            });
            left += u32::from(!removed);
        }
        left
    }

    /// Removes leftover groups of sandboxes whose supervisors were killed: those that are empty and older than a minute. A
    /// group with a process in it cannot be removed, so no running sandbox is affected.
    pub fn sweep(&self) {
        for dir in self.bases() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with("belljar-"));
                let made = entry.metadata().and_then(|metadata| metadata.modified());
                let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MIN_SWEEP_AGE));
                // That of gateways is empty while the next one is started.
                let is_of_running = |name: &str| {
                    name.strip_suffix(GATEWAY_SUFFIX).is_some_and(|sandbox| dir.join(sandbox).exists())
                };
                let is_kept = entry.file_name().to_str().is_none_or(is_of_running);
                if is_ours && is_old && !is_kept && entry.file_name() != "belljar-host" {
                    // Fails as not empty if the sandbox still runs.
                    let _ = std::fs::remove_dir(entry.path());
                }
            }
        }
    }
}

/// Makes a group with its settings, and returns the list by which a process joins it, open for writing.
fn make_group(plan: &CgroupPlan) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt;
    let dir = Path::new(std::ffi::OsStr::from_bytes(plan.dir.to_bytes()));
    std::fs::create_dir(dir)?;
    for CgroupSetting { file, value, optional } in &plan.settings {
        match std::fs::write(dir.join(&*file.to_string_lossy()), value.as_bytes()) {
            Err(error) if !optional => return Err(error),
            _ => {}
        }
    }
    open_list(&dir.join(plan.join.list()))
}

fn open_list(path: &Path) -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().write(true).open(path)?.into())
}

/// The control group of a sandbox's gateways. It is removed when this is dropped, unless a process is left in it.
#[derive(Debug)]
pub struct GatewayGroup {
    dir: PathBuf,
    /// The file that a process joins it by.
    list: &'static str,
    counts_sockets: bool,
}

impl GatewayGroup {
    /// Reports whether the group's limit includes the kernel's buffers of connections, which it does not on v1 without
    /// `memory.kmem.tcp`.
    #[must_use]
    pub const fn counts_sockets(&self) -> bool {
        self.counts_sockets
    }

    /// Returns a file to which a process with one thread writes `0` to join the group. What it allocates from then on counts there.
    /// Moving another process waits for a grace period ([`CgroupJoin::Tasks`]).
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn list(&self) -> io::Result<OwnedFd> {
        open_list(&self.dir.join(self.list))
    }

    /// Removes the group, in which no process may be left.
    pub fn remove(&self) {
        // A process that is ending is still in it for a moment. Where one stays longer, a later sweep removes the group.
        for _ in 0..MAX_GATEWAY_REMOVE_ATTEMPTS {
            match std::fs::remove_dir(&self.dir) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                _ => return,
            }
        }
    }
}

impl Drop for GatewayGroup {
    fn drop(&mut self) {
        self.remove();
    }
}

/// As [`MAX_REMOVE_ATTEMPTS`], for the group of gateways that have been killed.
const MAX_GATEWAY_REMOVE_ATTEMPTS: u32 = 20;

/// What the name of a group of gateways has in addition to that of their sandbox.
const GATEWAY_SUFFIX: &str = "-gateway";

pub(crate) fn gateway_group_name(id: &str) -> String {
    format!("belljar-{id}{GATEWAY_SUFFIX}")
}

/// Attempts, one millisecond apart, to remove a group whose processes are being killed.
const MAX_REMOVE_ATTEMPTS: u32 = 1_000;

/// Minimum age of a group that [`CgroupLayout::sweep`] removes. A launch joins its groups within seconds.
const MIN_SWEEP_AGE: std::time::Duration = std::time::Duration::from_secs(60);

fn kill_group(group: &Path) {
    if std::fs::write(group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let members = || std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in members().lines() {
        let process = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
        let flags = rustix::process::PidfdFlags::empty();
        let Some(Ok(process)) = process.map(|process| rustix::process::pidfd_open(process, flags)) else {
            continue;
        };
        // The pid may have been reused before it was opened; from then on it cannot be.
        if members().lines().any(|member| member == pid) {
            let _ = crate::kernel::pidfd_kill(std::os::fd::AsFd::as_fd(&process), libc::SIGKILL);
        }
    }
}

fn v2_settings(limits: &CgroupLimits) -> Vec<CgroupSetting> {
    let quota = CPU_PERIOD_US * u64::from(limits.cpu_millis) / 1000;
    vec![
        setting("memory.max", limits.memory_bytes, false),
        // The file is missing without swap accounting, and without swap there is nothing to limit.
        setting("memory.swap.max", 0, true),
        setting("pids.max", limits.pids, false),
        setting("cpu.max", format!("{quota} {CPU_PERIOD_US}"), false),
    ]
}

fn v1_settings(controller: &str, limits: &CgroupLimits) -> Vec<CgroupSetting> {
    match controller {
        "memory" => vec![
            setting("memory.limit_in_bytes", limits.memory_bytes, false),
            setting("memory.memsw.limit_in_bytes", limits.memory_bytes, true),
            setting("memory.swappiness", 0, true),
            // v1 counts the buffers of IP sockets separately from other memory, and only once they have a limit. Without
            // one a sandbox could fill the pool that all TCP of the machine shares.
            setting(SOCKET_LIMIT, limits.memory_bytes / SOCKET_SHARE, true),
        ],
        "cpu" => vec![
            // The period is that of a new group, and each setting is checked against all groups of the machine.
            setting("cpu.cfs_quota_us", CPU_PERIOD_US * u64::from(limits.cpu_millis) / 1000, false),
        ],
        _ => vec![setting("pids.max", limits.pids, false)],
    }
}

fn setting(file: &str, value: impl ToString, optional: bool) -> CgroupSetting {
    CgroupSetting { file: c_string(file), value: c_string(&value.to_string()), optional }
}

fn c_string(text: &str) -> CString {
    // No string here contains a NUL; the kernel would refuse an empty one rather than misread it.
    CString::new(text).unwrap_or_default()
}

fn c_path(path: &Path) -> CString {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// A mounted hierarchy.
struct CgroupMount {
    /// The v1 options that name its controllers; `None` is v2.
    controllers: Option<String>,
    /// The part of the hierarchy that is mounted.
    root: PathBuf,
    /// The mount point.
    target: PathBuf,
}

impl CgroupMount {
    /// Parses one line of mountinfo (proc_pid_mountinfo(5)).
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let root = PathBuf::from(before.nth(3)?);
        let target = PathBuf::from(before.next()?);
        if !root.is_absolute() || !target.is_absolute() {
            return None;
        }
        let mut after = after.split(' ');
        let controllers = match after.next()? {
            "cgroup2" => None,
            "cgroup" => Some(after.nth(1)?.to_owned()),
            _ => return None,
        };
        Some(Self { controllers, root, target })
    }

    /// Returns the directory of the group `path`, as /proc/self/cgroup names it. Returns `None` for a group outside of this
    /// process's cgroup namespace, which begins with `/..` there.
    fn directory(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        if path.components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        let below = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        Some(if below.as_os_str().is_empty() { self.target.clone() } else { self.target.join(below) })
    }
}

/// Returns the group of this process in the hierarchy of `controller`, or in v2 for an empty name.
fn own_group<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let controllers = parts.nth(1)?;
        let path = parts.next()?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

fn v1_directory(
    mounts: &[CgroupMount],
    own: &str,
    controller: &str,
    system: &dyn Probe,
) -> Result<PathBuf, String> {
    let mount = mounts
        .iter()
        .find(|mount| {
            mount.controllers.as_ref().is_some_and(|names| names.split(',').any(|name| name == controller))
        })
        .ok_or_else(|| format!("no cgroup hierarchy with the {controller} controller can be written"))?;
    let outside = || format!("this process's {controller} group is outside of its cgroup namespace");
    let dir = mount.directory(own_group(own, controller).unwrap_or("/")).ok_or_else(outside)?;
    if system.writable(&dir) { Ok(dir) } else { Err(format!("{} is not writable", dir.display())) }
}

/// Returns the directory for v2 groups. A group with processes of its own cannot enable controllers for its children (the
/// "no internal process" rule, cgroups(7)), except the root; so root gets a group `belljar` below the root, and any other
/// user the delegated group that they name or in which this process is alone.
fn v2_directory(
    mount: &CgroupMount,
    own: &str,
    base: Option<&Path>,
    privileged: bool,
    system: &dyn Probe,
) -> Option<PathBuf> {
    if let Some(base) = base {
        return system.writable(base).then(|| base.to_owned());
    }
    if privileged {
        let dir = mount.target.join("belljar");
        return system.make_group(&mount.target, &dir).then_some(dir);
    }
    let dir = mount.directory(own_group(own, "")?)?;
    (dir != mount.target && system.writable(&dir) && system.move_to_child_group(&dir)).then_some(dir)
}

/// The file system operations of detection, so that tests can replace them.
trait Probe {
    fn writable(&self, dir: &Path) -> bool;
    fn read(&self, file: &Path) -> String;
    fn make_group(&self, root: &Path, dir: &Path) -> bool;
    fn enable_controllers(&self, dir: &Path) -> bool;
    /// Moves this process into a child group, so that its former group may enable controllers for its children.
    fn move_to_child_group(&self, dir: &Path) -> bool;
}

struct System;

impl Probe for System {
    fn writable(&self, dir: &Path) -> bool {
        rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
    }

    fn read(&self, file: &Path) -> String {
        std::fs::read_to_string(file).unwrap_or_default()
    }

    fn make_group(&self, root: &Path, dir: &Path) -> bool {
        if dir.is_dir() {
            return true;
        }
        // Controllers that v1 holds cannot be enabled here; the limits then come from v1.
        let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory +cpu +pids");
        match std::fs::create_dir(dir) {
            Err(error) => error.kind() == std::io::ErrorKind::AlreadyExists,
            Ok(()) => true,
        }
    }

    fn enable_controllers(&self, dir: &Path) -> bool {
        let file = dir.join("cgroup.subtree_control");
        let enabled = self.read(&file);
        CONTROLLERS.iter().all(|controller| enabled.split_whitespace().any(|name| name == *controller))
            || std::fs::write(file, "+memory +cpu +pids").is_ok()
    }

    fn move_to_child_group(&self, dir: &Path) -> bool {
        if self.read(&dir.join("cgroup.procs")).trim().is_empty() {
            return true;
        }
        let child = dir.join("belljar-host");
        let made = std::fs::create_dir(&child);
        if made.is_err() && !child.is_dir() {
            return false;
        }
        std::fs::write(child.join("cgroup.procs"), "0").is_ok()
    }
}

/// See [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// A machine on which every directory is writable, or none is.
    struct Everywhere(bool);

    impl Probe for Everywhere {
        fn writable(&self, _: &Path) -> bool {
            self.0
        }

        fn read(&self, _: &Path) -> String {
            CONTROLLERS.join(" ")
        }

        fn make_group(&self, _: &Path, _: &Path) -> bool {
            self.0
        }

        fn enable_controllers(&self, _: &Path) -> bool {
            self.0
        }

        fn move_to_child_group(&self, _: &Path) -> bool {
            self.0
        }
    }

    pub(crate) fn layout(
        mountinfo: &str,
        own: &str,
        base: Option<&Path>,
        privileged: bool,
        writable: bool,
    ) -> CgroupLayout {
        CgroupLayout::from_tables(mountinfo, own, base, privileged, &Everywhere(writable))
    }

    pub(crate) fn mount(line: &str) -> Option<(PathBuf, PathBuf)> {
        CgroupMount::parse(line).map(|mount| (mount.root, mount.target))
    }

    pub(crate) fn number_in(text: &str, name: Option<&str>) -> Option<u64> {
        match name {
            Some(name) => crate::cgroup_live::field(text, name),
            None => crate::cgroup_live::number(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake {
        writable: &'static [&'static str],
        controllers: &'static str,
    }

    impl Probe for Fake {
        fn writable(&self, dir: &Path) -> bool {
            self.writable.iter().any(|known| Path::new(known) == dir)
        }
        fn read(&self, file: &Path) -> String {
            if file.ends_with("cgroup.controllers") { self.controllers.to_owned() } else { String::new() }
        }
        fn make_group(&self, root: &Path, _: &Path) -> bool {
            self.writable(root)
        }
        fn enable_controllers(&self, _: &Path) -> bool {
            true
        }
        fn move_to_child_group(&self, _: &Path) -> bool {
            true
        }
    }

    #[test]
    fn gateway_group_limits_memory_alone() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = CONTROLLERS.map(|name| (name.to_owned(), dir.path().join(name))).to_vec();
        std::fs::create_dir(dir.path().join("memory")).unwrap();
        let v2 = Some(dir.path().join("v2"));
        std::fs::create_dir(dir.path().join("v2")).unwrap();
        let v2 = CgroupLayout { v2, v2_limits: true, ..CgroupLayout::default() };
        let v1 = CgroupLayout { v1, ..CgroupLayout::default() };
        for (layout, place, limit, others, list) in [
            (v2, "v2", "memory.max", "cpu.max", "cgroup.procs"),
            (v1, "memory", "memory.limit_in_bytes", "memory.max", "tasks"),
        ] {
            let group = layout.make_gateway_group("x", 1 << 30).unwrap().unwrap();
            assert!(group.counts_sockets());
            let made = dir.path().join(place).join("belljar-x-gateway");
            std::fs::write(made.join(list), "").unwrap();
            rustix::io::write(group.list().unwrap(), b"0").unwrap();
            let read = |file| std::fs::read_to_string(made.join(file)).ok();
            assert_eq!(read(limit), Some((1 << 30).to_string()));
            assert_eq!((read(list), read(others)), (Some("0".to_owned()), None));
        }
        assert!(CgroupLayout::default().make_gateway_group("x", 1).unwrap().is_none());
    }

    const PURE_V2: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
    const HYBRID: &str = "41 40 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
42 40 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
43 40 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
44 40 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

    #[test]
    fn root_on_v2_gets_a_group_below_the_root() {
        let fake = Fake { writable: &["/sys/fs/cgroup"], controllers: "cpuset cpu io memory pids" };
        let layout = CgroupLayout::from_tables(PURE_V2, "0::/user.slice/a.scope", None, true, &fake);
        assert_eq!(layout.v2.as_deref(), Some(Path::new("/sys/fs/cgroup/belljar")));
        assert!(layout.v2_limits && layout.is_complete() && layout.v1.is_empty());
        assert_eq!(layout.describe(), "v2");
    }

    #[test]
    fn an_ordinary_user_on_v2_needs_a_delegated_group() {
        let own = "0::/user.slice/user-1000.slice/user@1000.service/run.scope";
        let dir = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/run.scope";
        let fake = Fake { writable: &[], controllers: "cpu memory pids" };
        let layout = CgroupLayout::from_tables(PURE_V2, own, None, false, &fake);
        assert_eq!(layout.v2, None);
        assert_eq!(layout.missing.len(), 3);
        let fake = Fake {
            writable: &["/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/run.scope"],
            controllers: "cpu memory pids",
        };
        let layout = CgroupLayout::from_tables(PURE_V2, own, None, false, &fake);
        assert_eq!(layout.v2.as_deref(), Some(Path::new(dir)));
        assert!(layout.v2_limits);
        let named = Path::new("/sys/fs/cgroup/mine");
        let fake = Fake { writable: &["/sys/fs/cgroup/mine"], controllers: "cpu memory" };
        let layout = CgroupLayout::from_tables(PURE_V2, own, Some(named), false, &fake);
        assert_eq!(layout.v2.as_deref(), Some(named));
        assert!(!layout.v2_limits, "the pids controller is not available");
        assert!(!layout.is_complete());
    }

    #[test]
    fn hybrid_layout_limits_on_v1_and_kills_on_v2() {
        let own = "9:pids:/\n5:memory:/outer/inner\n1:cpu,cpuacct:/\n0::/";
        let fake = Fake {
            writable: &[
                "/sys/fs/cgroup/unified",
                "/sys/fs/cgroup/memory/outer/inner",
                "/sys/fs/cgroup/cpu,cpuacct",
                "/sys/fs/cgroup/pids",
            ],
            controllers: "",
        };
        let layout = CgroupLayout::from_tables(HYBRID, own, None, true, &fake);
        assert_eq!(layout.describe(), "v1 with v2 for kill");
        assert!(layout.is_complete());
        assert_eq!(layout.v1[0].1, Path::new("/sys/fs/cgroup/memory/outer/inner"));
        let limits = CgroupLimits { memory_bytes: 1 << 28, cpu_millis: 500, pids: 65 };
        let groups = layout.plan("abc", &limits);
        assert_eq!(groups.len(), 4);
        assert!(groups[0].can_kill && groups[0].settings.is_empty());
        let written: Vec<String> = groups
            .iter()
            .flat_map(|group| &group.settings)
            .map(|setting| format!("{}={}", setting.file.to_str().unwrap(), setting.value.to_str().unwrap()))
            .collect();
        assert_eq!(
            written,
            [
                "memory.limit_in_bytes=268435456",
                "memory.memsw.limit_in_bytes=268435456",
                "memory.swappiness=0",
                "memory.kmem.tcp.limit_in_bytes=67108864",
                "cpu.cfs_quota_us=50000",
                "pids.max=65",
            ]
        );
    }

    #[test]
    fn unwritable_v1_hierarchies_are_reported_as_missing() {
        let fake = Fake { writable: &[], controllers: "" };
        let layout = CgroupLayout::from_tables(HYBRID, "5:memory:/\n9:pids:/", None, false, &fake);
        assert_eq!(layout.describe(), "none");
        assert_eq!(
            layout.missing[0],
            ("memory".to_owned(), "/sys/fs/cgroup/memory is not writable".to_owned())
        );
    }

    #[test]
    fn v2_limits_have_the_kernels_format() {
        let limits = CgroupLimits { memory_bytes: 512 << 20, cpu_millis: 1500, pids: 129 };
        let texts: Vec<String> = v2_settings(&limits)
            .iter()
            .map(|setting| format!("{}={}", setting.file.to_str().unwrap(), setting.value.to_str().unwrap()))
            .collect();
        assert_eq!(
            texts,
            ["memory.max=536870912", "memory.swap.max=0", "pids.max=129", "cpu.max=150000 100000"]
        );
    }
}
