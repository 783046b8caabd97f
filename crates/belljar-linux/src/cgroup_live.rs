//! Control groups of a running sandbox: usage, changing limits, freezing.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::cgroup::{CPU_PERIOD_US, CgroupLayout, SOCKET_SHARE, gateway_group_name};

/// Resource usage of a sandbox, as far as its groups report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Memory in use now, in bytes, including files in memory and the page cache.
    pub memory: Option<u64>,
    /// Memory of its gateways in use now, in bytes, with the kernel's buffers of their connections.
    pub gateway_memory: Option<u64>,
    /// Peak memory, in bytes, including files in memory.
    pub peak_memory: Option<u64>,
    /// Processor time in microseconds.
    pub cpu_us: Option<u64>,
    /// Processes and threads now.
    pub pids: Option<u64>,
    /// Processes that the OOM killer ended.
    pub oom_kills: Option<u64>,
    /// Forks refused by the process limit.
    pub pids_denied: Option<u64>,
}

/// A change of limits. `None` leaves a limit as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupChange {
    /// Bytes, swap included.
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    /// Processes and threads, the guest's own included.
    pub pids: Option<u32>,
    /// Number of groups, including this one, that share the weight of one group. The weight never falls below the kernel's
    /// minimum.
    pub shared_by: Option<u16>,
}

/// Default and minimum of `cpu.shares` of v1 (sched/sched.h, MIN_SHARES).
const V1_WEIGHT: (u16, u16) = (1024, 2);

/// Default and minimum of `cpu.weight` of v2 (cgroup-v2.rst).
const V2_WEIGHT: (u16, u16) = (100, 1);

/// Error from changing a limit. All limits are as they were before.
#[derive(Debug, thiserror::Error)]
pub enum CgroupChangeError {
    /// More than the new limit is in use.
    #[error("{field}: {in_use} are in use")]
    InUse {
        /// `memory` or `pids`.
        field: &'static str,
        /// The amount in use, in bytes or as a count.
        in_use: u64,
    },
    /// The kernel refused.
    #[error("cannot write {field}")]
    Write {
        /// `memory`, `cpus` or `pids`.
        field: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

impl CgroupChangeError {
    fn write(field: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Write { field, source }
    }
}

impl CgroupLayout {
    /// Returns the directory of the sandbox `id` in the hierarchy that limits with `controller`, and whether that is v2.
    pub(crate) fn group(&self, id: &str, controller: &str) -> Option<(PathBuf, bool)> {
        let name = format!("belljar-{id}");
        match (&self.v2, self.v2_limits) {
            (Some(dir), true) => Some((dir.join(name), true)),
            _ => {
                let (_, dir) = self.v1.iter().find(|(known, _)| known == controller)?;
                Some((dir.join(name), false))
            }
        }
    }

    /// Reads the usage of the groups of the sandbox `id`.
    #[must_use]
    pub fn usage(&self, id: &str) -> CgroupUsage {
        let mut usage = self.counters(id);
        if let Some((dir, is_v2)) = self.group(id, "memory") {
            let (now, peak) = if is_v2 {
                ("memory.current", "memory.peak")
            } else {
                ("memory.usage_in_bytes", "memory.max_usage_in_bytes")
            };
            usage.memory = read_number(&dir, now);
            usage.peak_memory = read_number(&dir, peak);
            let gateway = dir.with_file_name(gateway_group_name(id));
            usage.gateway_memory = read_number(&gateway, now).map(|bytes| {
                // On v1 the buffers of connections are counted separately.
                bytes.saturating_add(read_number(&gateway, "memory.kmem.tcp.usage_in_bytes").unwrap_or(0))
            });
        }
        if let Some((dir, _)) = self.group(id, "pids") {
            usage.pids = read_number(&dir, "pids.current");
        }
        usage
    }

    /// Reads what only grows of the usage: processor time, and the numbers of kills and refused forks.
    #[must_use]
    pub fn counters(&self, id: &str) -> CgroupUsage {
        self.counter_files(id).read()
    }

    /// Opens the files of [`CgroupLayout::counters`], as far as they exist.
    #[must_use]
    pub fn counter_files(&self, id: &str) -> CounterFiles {
        let open = |dir: PathBuf, file| std::fs::File::open(dir.join(file)).map(OwnedFd::from).ok();
        CounterFiles {
            oom_kills: self.group(id, "memory").and_then(|(dir, is_v2)| {
                open(dir, if is_v2 { "memory.events" } else { "memory.oom_control" })
            }),
            cpu: match (&self.v2, self.group(id, "cpu")) {
                // The kernel counts processor time in each v2 group, even if v1 does the limiting (cgroup-v2.rst, cpu.stat).
                (Some(dir), _) => {
                    open(dir.join(format!("belljar-{id}")), "cpu.stat").map(CpuFile::Statistics)
                }
                // Present if cpuacct is mounted together with cpu, as on most systems.
                (None, Some((dir, _))) => open(dir, "cpuacct.usage").map(CpuFile::Nanoseconds),
                (None, None) => None,
            },
            pids: self.group(id, "pids").and_then(|(dir, _)| open(dir, "pids.events")),
        }
    }

    /// Changes limits of the sandbox `id`: all that are given, or none.
    ///
    /// # Errors
    /// Fails if a limit is below what is in use, or with the kernel's reason.
    pub fn change(&self, id: &str, change: &CgroupChange) -> Result<(), CgroupChangeError> {
        let mut done = Undo::default();
        let changed = self.try_change(id, change, &mut done);
        if changed.is_err() {
            done.undo();
        }
        changed
    }

    fn try_change(&self, id: &str, change: &CgroupChange, done: &mut Undo) -> Result<(), CgroupChangeError> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        if let Some(pids) = change.pids {
            let write = CgroupChangeError::write("pids");
            let (dir, _) = self.group(id, "pids").ok_or_else(|| write(missing()))?;
            done.write(&dir, "pids.max", pids).map_err(write)?;
            // Read after the limit is set, so that no fork can come in between.
            let in_use = read_number(&dir, "pids.current").unwrap_or(0);
            if in_use > u64::from(pids) {
                return Err(CgroupChangeError::InUse { field: "pids", in_use });
            }
        }
        if let Some(millis) = change.cpu_millis {
            let write = CgroupChangeError::write("cpus");
            let (dir, is_v2) = self.group(id, "cpu").ok_or_else(|| write(missing()))?;
            let quota = CPU_PERIOD_US * u64::from(millis) / 1000;
            if is_v2 {
                done.write(&dir, "cpu.max", format!("{quota} {CPU_PERIOD_US}")).map_err(write)?;
            } else {
                done.write(&dir, "cpu.cfs_quota_us", quota).map_err(write)?;
            }
        }
        if let Some(sharers) = change.shared_by {
            let write = CgroupChangeError::write("cpus");
            let (dir, is_v2) = self.group(id, "cpu").ok_or_else(|| write(missing()))?;
            let ((whole, min), file) =
                if is_v2 { (V2_WEIGHT, "cpu.weight") } else { (V1_WEIGHT, "cpu.shares") };
            done.write(&dir, file, (whole / sharers.max(1)).max(min)).map_err(write)?;
        }
        if let Some(bytes) = change.memory_bytes {
            let (dir, is_v2) =
                self.group(id, "memory").ok_or_else(|| CgroupChangeError::write("memory")(missing()))?;
            if is_v2 { memory_v2(&dir, bytes, done)? } else { memory_v1(&dir, bytes, done)? }
        }
        Ok(())
    }
}

/// Returns the part of a group's memory that the kernel can reclaim, from its `memory.stat`.
fn reclaimable(stat: &str) -> u64 {
    ["inactive_file", "active_file", "slab_reclaimable"].iter().filter_map(|name| field(stat, name)).sum()
}

/// Returns the part of a sandbox's memory that files written for the API leave to its processes, in bytes: a sixteenth, and at least
/// 8 MiB. The default sizes of file systems leave the same (`Memory::for_files` of belljar-model).
fn process_share(memory_limit: u64) -> u64 {
    const MIN: u64 = 8 << 20;
    (memory_limit / 16).max(MIN)
}

/// Files of a sandbox's control group, open for reading, from which the guest sees how much memory is left. A file leads to no other
/// part of the hierarchy, unlike a directory.
#[derive(Debug)]
pub struct MemoryFiles {
    limit: OwnedFd,
    usage: OwnedFd,
    stat: OwnedFd,
}

impl MemoryFiles {
    /// Number of descriptors.
    pub const COUNT: usize = 3;

    /// Takes the descriptors that [`MemoryFiles::descriptors`] returned, in the same order.
    #[must_use]
    pub fn from_descriptors([limit, usage, stat]: [OwnedFd; Self::COUNT]) -> Self {
        Self { limit, usage, stat }
    }

    /// Returns the descriptors.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; Self::COUNT] {
        [self.limit.as_fd(), self.usage.as_fd(), self.stat.as_fd()]
    }

    /// Reports whether files of `bytes` more leave the processes their share. What cannot be read counts as enough.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        let mut text = [0u8; 4096];
        let (Some(limit), Some(usage)) = (
            read_open(&self.limit, &mut text).and_then(number),
            read_open(&self.usage, &mut text).and_then(number),
        ) else {
            return true;
        };
        let max = limit.saturating_sub(process_share(limit)).saturating_sub(bytes);
        // The statistics cost the kernel more, so they are read only if the page cache may decide.
        usage <= max
            || read_open(&self.stat, &mut text)
                .is_none_or(|stat| usage.saturating_sub(reclaimable(stat)) <= max)
    }
}

/// Files of a sandbox's control groups from which [`CgroupLayout::counters`] are read, kept open for readers that do so again and
/// again. Once the groups are removed, all counters are unknown.
#[derive(Debug)]
pub struct CounterFiles {
    oom_kills: Option<OwnedFd>,
    cpu: Option<CpuFile>,
    pids: Option<OwnedFd>,
}

#[derive(Debug)]
enum CpuFile {
    /// `cpu.stat` of v2.
    Statistics(OwnedFd),
    /// `cpuacct.usage` of v1.
    Nanoseconds(OwnedFd),
}

impl CounterFiles {
    /// Returns the highest number of its descriptors. As each gets the lowest free one, it shows how many are in use.
    #[must_use]
    pub fn highest_descriptor(&self) -> i32 {
        let cpu = self.cpu.as_ref().map(|(CpuFile::Statistics(file) | CpuFile::Nanoseconds(file))| file);
        let all = [self.oom_kills.as_ref(), cpu, self.pids.as_ref()];
        all.into_iter().flatten().map(AsRawFd::as_raw_fd).max().unwrap_or(-1)
    }

    /// Reads the counters.
    #[must_use]
    pub fn read(&self) -> CgroupUsage {
        let read_field = |file: &OwnedFd, name| field(read_open(file, &mut [0; 4096])?, name);
        CgroupUsage {
            oom_kills: self.oom_kills.as_ref().and_then(|file| read_field(file, "oom_kill")),
            cpu_us: self.cpu.as_ref().and_then(|file| match file {
                CpuFile::Statistics(file) => read_field(file, "usage_usec"),
                CpuFile::Nanoseconds(file) => {
                    number(read_open(file, &mut [0; 4096])?).map(|nanoseconds| nanoseconds / 1000)
                }
            }),
            pids_denied: self.pids.as_ref().and_then(|file| read_field(file, "max")),
            ..CgroupUsage::default()
        }
    }
}

/// Reads a control file from its start, in one call, because the kernel generates its text on the first read. All of them fit.
fn read_open<'a>(file: &OwnedFd, text: &'a mut [u8; 4096]) -> Option<&'a str> {
    let count = rustix::io::pread(file, &mut *text, 0).ok()?;
    std::str::from_utf8(text.get(..count)?).ok()
}

impl CgroupLayout {
    /// Opens the files of the sandbox `id` that tell how much memory is left; `None` without a memory controller.
    #[must_use]
    pub fn memory_files(&self, id: &str) -> Option<MemoryFiles> {
        let (dir, is_v2) = self.group(id, "memory")?;
        let (limit, usage) = if is_v2 {
            ("memory.max", "memory.current")
        } else {
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
        };
        let open = |name| std::fs::File::open(dir.join(name)).map(OwnedFd::from).ok();
        Some(MemoryFiles { limit: open(limit)?, usage: open(usage)?, stat: open("memory.stat")? })
    }
}

/// Sets the memory limit on v2. The kernel accepts any limit there and kills processes until usage is below it, so memory that
/// cannot be reclaimed is checked first.
fn memory_v2(dir: &Path, bytes: u64, done: &mut Undo) -> Result<(), CgroupChangeError> {
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let in_use = read_number(dir, "memory.current").unwrap_or(0).saturating_sub(reclaimable(&stat));
    if in_use > bytes {
        return Err(CgroupChangeError::InUse { field: "memory", in_use });
    }
    done.write(dir, "memory.max", bytes).map_err(CgroupChangeError::write("memory"))
}

/// Sets the memory limit on v1, where the kernel refuses a limit that cannot be met with `EBUSY`. The limit with swap must
/// never be below the one without, so their order depends on the direction; without swap accounting there is only one.
fn memory_v1(dir: &Path, bytes: u64, done: &mut Undo) -> Result<(), CgroupChangeError> {
    const PLAIN: &str = "memory.limit_in_bytes";
    const WITH_SWAP: &str = "memory.memsw.limit_in_bytes";
    let refused = |source: io::Error| match source.kind() {
        io::ErrorKind::ResourceBusy => {
            let in_use = read_number(dir, "memory.usage_in_bytes").unwrap_or(0);
            CgroupChangeError::InUse { field: "memory", in_use }
        }
        _ => CgroupChangeError::Write { field: "memory", source },
    };
    let grows = read_number(dir, PLAIN).is_none_or(|now| now <= bytes);
    let has_swap = dir.join(WITH_SWAP).exists();
    let files: &[&str] = match (has_swap, grows) {
        (true, true) => &[WITH_SWAP, PLAIN],
        (true, false) => &[PLAIN, WITH_SWAP],
        (false, _) => &[PLAIN],
    };
    for file in files {
        done.write(dir, file, bytes).map_err(refused)?;
    }
    // The share of socket buffers, if they are counted separately.
    let _ = done.write(dir, "memory.kmem.tcp.limit_in_bytes", bytes / SOCKET_SHARE);
    Ok(())
}

/// The previous values, in the order in which they were changed.
#[derive(Default)]
struct Undo {
    before: Vec<(PathBuf, String)>,
}

impl Undo {
    fn write(&mut self, dir: &Path, file: &str, value: impl ToString) -> io::Result<()> {
        let (path, value) = (dir.join(file), value.to_string());
        let before = std::fs::read_to_string(&path)?;
        // The kernel compares a processor limit with those of all groups, also if it stays the same (`tg_set_bandwidth`).
        if before.trim() != value {
            std::fs::write(&path, value)?;
            self.before.push((path, before.trim().to_owned()));
        }
        Ok(())
    }

    fn undo(self) {
        for (path, before) in self.before.iter().rev() {
            let _ = std::fs::write(path, before);
        }
    }
}

/// Number of retries after which v1 is thawed and frozen from the beginning.
const V1_RESTART_ROUNDS: u32 = 50;

/// Freezes and thaws one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freezer {
    dir: PathBuf,
    is_v2: bool,
}

impl CgroupLayout {
    /// Returns the freezer of the sandbox `id`, or `None` without a hierarchy that can freeze.
    #[must_use]
    pub fn freezer_of(&self, id: &str) -> Option<Freezer> {
        let is_v2 = self.v2.is_some();
        let dir = self.v2.as_ref().or(self.freezer.as_ref())?;
        Some(Freezer { dir: dir.join(format!("belljar-{id}")), is_v2 })
    }
}

impl Freezer {
    /// Tells the kernel to freeze or thaw everything in the group. Freezing is asynchronous: [`Freezer::is_frozen`] reports
    /// when it is complete.
    ///
    /// # Errors
    /// The kernel's reason; `NotFound` if the sandbox has ended.
    pub fn set(&self, frozen: bool) -> io::Result<()> {
        let (file, value) = match (self.is_v2, frozen) {
            (true, true) => ("cgroup.freeze", "1"),
            (true, false) => ("cgroup.freeze", "0"),
            (false, true) => ("freezer.state", "FROZEN"),
            (false, false) => ("freezer.state", "THAWED"),
        };
        let path = self.dir.join(file);
        // Opened without `create`: without the group there is no such file.
        std::io::Write::write_all(&mut std::fs::OpenOptions::new().write(true).open(path)?, value.as_bytes())
    }

    /// Retries the freeze for the `round`th time, while [`Freezer::is_frozen`] is false. v1 can hang on processes that are
    /// forked in the meantime, and gets past them on a retry, sometimes only from the beginning. v2 needs no retry.
    ///
    /// # Errors
    /// As [`Freezer::set`].
    pub fn retry(&self, round: u32) -> io::Result<()> {
        if self.is_v2 {
            return Ok(());
        }
        if round % V1_RESTART_ROUNDS == V1_RESTART_ROUNDS - 1 {
            self.set(false)?;
        }
        self.set(true)
    }

    /// Reports whether everything in the group is frozen.
    ///
    /// # Errors
    /// As [`Freezer::set`].
    pub fn is_frozen(&self) -> io::Result<bool> {
        if self.is_v2 {
            let events = std::fs::read_to_string(self.dir.join("cgroup.events"))?;
            return Ok(field(&events, "frozen") == Some(1));
        }
        // Reading the state makes v1 continue to freeze processes that were added in the meantime (freezer-subsystem.rst).
        Ok(std::fs::read_to_string(self.dir.join("freezer.state"))?.trim() == "FROZEN")
    }
}

pub(crate) fn read_number(dir: &Path, file: &str) -> Option<u64> {
    number(read_open(&std::fs::File::open(dir.join(file)).ok()?.into(), &mut [0; 4096])?)
}

pub(crate) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        assert_eq!(field("oom 3\noom_kill 2\n", "oom_kill"), Some(2));
        assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 7", "oom_kill"), Some(7));
        assert_eq!(field("max 12\n", "max"), Some(12));
        assert_eq!(field("", "max"), None);
    }

    /// Returns a layout over a plain directory that looks like the groups of a sandbox; `belljar-local` tests the kernel.
    fn layout(dir: &Path, v2: bool, files: &[(&str, &str)]) -> CgroupLayout {
        let group = dir.join("belljar-x");
        std::fs::create_dir_all(&group).unwrap();
        for (name, content) in files {
            std::fs::write(group.join(name), content).unwrap();
        }
        let v1 = ["memory", "cpu", "pids"].map(|name| (name.to_owned(), dir.to_owned())).to_vec();
        if v2 {
            CgroupLayout { v2: Some(dir.to_owned()), v2_limits: true, ..CgroupLayout::default() }
        } else {
            CgroupLayout { v1, ..CgroupLayout::default() }
        }
    }

    #[test]
    fn room_is_what_page_cache_and_processes_leave() {
        let dir = tempfile::tempdir().unwrap();
        let stat = "anon 1\ninactive_file 52428800\nactive_file 0\nslab_reclaimable 0\n";
        for (v2, limit, usage) in [
            (true, "memory.max", "memory.current"),
            (false, "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ] {
            let files = [(limit, "268435456\n"), (usage, "104857600\n"), ("memory.stat", stat)];
            let files = layout(dir.path(), v2, &files).memory_files("x").unwrap();
            let files =
                MemoryFiles::from_descriptors(files.descriptors().map(|fd| fd.try_clone_to_owned().unwrap()));
            // 256 MiB, of which 100 MiB are in use, 50 MiB of that is page cache, and 16 MiB are kept for processes.
            assert!(files.has_room(140 << 20) && files.has_room(190 << 20) && !files.has_room(191 << 20));
        }
        assert_eq!([process_share(16 << 20), process_share(512 << 20)], [8 << 20, 32 << 20]);
        assert!(CgroupLayout::default().memory_files("x").is_none());
    }

    #[test]
    fn kept_files_show_later_counts() {
        let dir = tempfile::tempdir().unwrap();
        for (v2, oom, cpu) in
            [(true, "memory.events", "cpu.stat"), (false, "memory.oom_control", "cpuacct.usage")]
        {
            let cpu_text = |us: u64| match v2 {
                true => format!("usage_usec {us}\nuser_usec 1\n"),
                false => format!("{}\n", us * 1000),
            };
            let files = [(oom, "oom_kill 0\n"), (cpu, &cpu_text(7)), ("pids.events", "max 2\n")];
            let layout = layout(dir.path(), v2, &files);
            let kept = layout.counter_files("x");
            let expected = CgroupUsage {
                oom_kills: Some(0),
                cpu_us: Some(7),
                pids_denied: Some(2),
                ..CgroupUsage::default()
            };
            assert_eq!((kept.read(), layout.counters("x")), (expected, expected));
            std::fs::write(dir.path().join("belljar-x").join(oom), "oom_kill 3\n").unwrap();
            std::fs::write(dir.path().join("belljar-x").join(cpu), cpu_text(12)).unwrap();
            let expected = CgroupUsage { oom_kills: Some(3), cpu_us: Some(12), ..expected };
            assert_eq!(kept.read(), expected);
            assert_eq!(layout.counter_files("y").read(), CgroupUsage::default());
        }
    }

    #[test]
    fn change_on_v2_is_atomic() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("pids.max", "129\n"),
            ("pids.current", "5\n"),
            ("cpu.max", "100000 100000\n"),
            ("cpu.weight", "100\n"),
            ("memory.max", "536870912\n"),
            ("memory.current", "104857600\n"),
            ("memory.stat", "anon 1\ninactive_file 52428800\nactive_file 0\nslab_reclaimable 0\n"),
        ];
        let layout = layout(dir.path(), true, &files);
        let read = |name: &str| std::fs::read_to_string(dir.path().join("belljar-x").join(name)).unwrap();
        // What is the same is not written.
        let same = CgroupChange {
            memory_bytes: Some(512 << 20),
            cpu_millis: Some(1000),
            pids: Some(129),
            ..CgroupChange::default()
        };
        layout.change("x", &same).unwrap();
        for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".max")) {
            assert_eq!(read(name), *text);
        }
        // 100 MiB are in use, of which 50 MiB are reclaimable.
        let change = CgroupChange {
            memory_bytes: Some(64 << 20),
            cpu_millis: Some(500),
            pids: Some(10),
            shared_by: Some(8),
        };
        layout.change("x", &change).unwrap();
        assert_eq!(read("pids.max"), "10");
        assert_eq!((read("cpu.max"), read("cpu.weight")), ("50000 100000".to_owned(), "12".to_owned()));
        assert_eq!(read("memory.max"), (64u64 << 20).to_string());
        let change = CgroupChange {
            memory_bytes: Some(32 << 20),
            cpu_millis: Some(100),
            pids: Some(20),
            shared_by: Some(1),
        };
        let error = layout.change("x", &change).unwrap_err();
        assert!(matches!(error, CgroupChangeError::InUse { field: "memory", .. }), "{error}");
        assert_eq!((read("pids.max"), read("cpu.max")), ("10".to_owned(), "50000 100000".to_owned()));
        assert_eq!(read("cpu.weight"), "12\n".trim());
        let error = layout.change("x", &CgroupChange { pids: Some(4), ..change }).unwrap_err();
        assert!(matches!(error, CgroupChangeError::InUse { field: "pids", in_use: 5 }), "{error}");
        assert_eq!(read("pids.max"), "10");
    }

    #[test]
    fn change_on_v1_is_atomic() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("pids.max", "129\n"),
            ("pids.current", "5\n"),
            ("cpu.cfs_quota_us", "100000\n"),
            ("cpu.shares", "1024\n"),
            ("memory.limit_in_bytes", "536870912\n"),
        ];
        let layout = layout(dir.path(), false, &files);
        let read = |name: &str| std::fs::read_to_string(dir.path().join("belljar-x").join(name)).unwrap();
        let change = CgroupChange {
            memory_bytes: Some(64 << 20),
            cpu_millis: Some(1500),
            pids: Some(10),
            shared_by: Some(1000),
        };
        layout.change("x", &change).unwrap();
        assert_eq!((read("cpu.cfs_quota_us"), read("cpu.shares")), ("150000".to_owned(), "2".to_owned()));
        assert_eq!(read("memory.limit_in_bytes"), (64u64 << 20).to_string());
        std::fs::remove_file(dir.path().join("belljar-x/memory.limit_in_bytes")).unwrap();
        let error = layout.change("x", &CgroupChange { pids: Some(99), ..change }).unwrap_err();
        assert!(matches!(error, CgroupChangeError::Write { field: "memory", .. }), "{error}");
        assert_eq!(read("pids.max"), "10");
        let error = CgroupLayout::default().change("x", &change).unwrap_err();
        assert!(matches!(error, CgroupChangeError::Write { field: "pids", .. }), "{error}");
    }
}
