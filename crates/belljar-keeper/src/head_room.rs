//! Capacity: free resources of the machine, a minimum of which the service leaves unused, its headroom.

use std::time::Duration;

use belljar_model::{ByteSize, Memory};

use crate::config::{HeadRoom, KeeperConfig};
use crate::error::KeeperError;

/// Suggested delay before a retry.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What resources are taken for, which decides how much must stay free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A sandbox of an administrator, who can still start one when the machine is full for others.
    Administration,
    /// A sandbox.
    Start,
    /// Data that stays until its owner removes it, and sandboxes that nobody waits for: they never take the last that starts need.
    Lasting,
}

impl Purpose {
    /// Returns the part of the headroom that must stay free, in percent.
    /// Source: docs/spec.md; held by `tests::purposes_have_thresholds_of_their_own`.
    const fn percent(self) -> u64 {
        match self {
            Self::Administration => 50,
            Self::Start => 100,
            Self::Lasting => 200,
        }
    }
}

impl HeadRoom {
    /// Returns the disk space that data which is kept must leave free, in bytes.
    pub(crate) fn disk_for_lasting_data(&self) -> u64 {
        if belljar_store::ServiceWall::HeadRoom.is_down() {
            return 0;
        }
        self.scaled(Purpose::Lasting).disk_bytes
    }

    /// Returns what must stay free for a purpose.
    fn scaled(&self, purpose: Purpose) -> Self {
        let scaled = |whole: u64| whole.saturating_mul(purpose.percent()) / 100;
        Self {
            memory_bytes: scaled(self.memory_bytes),
            disk_bytes: scaled(self.disk_bytes),
            inodes_percent: u8::try_from(scaled(self.inodes_percent.into())).unwrap_or(100).min(100),
            pids: scaled(self.pids),
        }
    }
}

/// Free resources of the machine of the server; `None` if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// What must stay free.
    room: HeadRoom,
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    /// In percent.
    inodes_percent: Option<u8>,
    pids: Option<u64>,
}

impl KeeperConfig {
    /// Measures the machine, and the disk of the state directory.
    pub(crate) fn capacity(&self) -> Capacity {
        let (disk, room) = (rustix::fs::statvfs(&self.state_dir).ok(), self.head_room);
        let mut memory_bytes = read("/proc/meminfo").and_then(|text| available_memory(&text));
        // Reading these takes longer than all else here, and matters only if memory is short.
        if let Some(bytes) = &mut memory_bytes
            && *bytes < room.scaled(Purpose::Lasting).memory_bytes
        {
            let lists = read("/proc/zoneinfo").map_or(0, |text| bytes_in_lists(&text));
            *bytes = bytes.saturating_add(lists);
        }
        Capacity {
            room,
            memory_bytes,
            disk_bytes: disk.as_ref().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
            // A file system without an inode count reports 0.
            inodes_percent: disk.as_ref().filter(|disk| disk.f_files > 0).and_then(|disk| {
                u8::try_from(u128::from(disk.f_favail) * 100 / u128::from(disk.f_files)).ok()
            }),
            pids: available_pids(),
        }
    }
}

impl Capacity {
    /// Checks that the part of the headroom that a purpose leaves alone is still free.
    ///
    /// # Errors
    /// Returns [`KeeperError::Full`] with the resource that is short.
    pub(crate) fn check(&self, purpose: Purpose) -> Result<(), KeeperError> {
        if belljar_store::ServiceWall::HeadRoom.is_down() {
            return Ok(());
        }
        let room = self.room.scaled(purpose);
        let mib = |bytes: u64| bytes >> 20;
        let what = if let Some(left) = self.memory_bytes.filter(|left| *left < room.memory_bytes) {
            format!(
                "{} MiB of memory are available, and {} MiB must stay available",
                mib(left),
                mib(room.memory_bytes)
            )
        } else if let Some(left) = self.disk_bytes.filter(|left| *left < room.disk_bytes) {
            format!("{} MiB of disk are free, and {} MiB must stay free", mib(left), mib(room.disk_bytes))
        } else if let Some(left) = self.inodes_percent.filter(|left| *left < room.inodes_percent) {
            format!("{left} % of the inodes are free, and {} % must stay free", room.inodes_percent)
        } else if let Some(left) = self.pids.filter(|left| *left < room.pids) {
            format!("{left} more processes are possible, and {} must stay possible", room.pids)
        } else {
            return Ok(());
        };
        Err(KeeperError::Full { what, retry_after: RETRY_AFTER })
    }

    /// Returns the available memory and the free disk space, in bytes; `None` if unknown.
    pub(crate) fn free_bytes(&self) -> (Option<u64>, Option<u64>) {
        (self.memory_bytes, self.disk_bytes)
    }

    /// Returns the memory that is missing for a purpose, in bytes; `None` if there is enough or it is unknown.
    pub(crate) fn missing_memory(&self, purpose: Purpose) -> Option<u64> {
        let missing = self.room.scaled(purpose).memory_bytes.checked_sub(self.memory_bytes?)?;
        (missing > 0).then_some(missing)
    }

    /// Returns the disk space for lasting data, in bytes; `None` if unknown.
    pub(crate) fn disk_for_lasting(&self) -> Option<u64> {
        Some(self.disk_bytes?.saturating_sub(self.room.scaled(Purpose::Lasting).disk_bytes))
    }

    /// Checks that the disk has space for a lasting file of `bytes`.
    ///
    /// # Errors
    /// Returns [`KeeperError::Full`] if there is not.
    pub(crate) fn check_file(&self, bytes: u64) -> Result<(), KeeperError> {
        self.check(Purpose::Lasting)?;
        let room = self.room.scaled(Purpose::Lasting);
        let lacks = |left: &u64| left.saturating_sub(room.disk_bytes) < bytes;
        let Some(left) = self.disk_bytes.filter(lacks) else { return Ok(()) };
        if belljar_store::ServiceWall::HeadRoom.is_down() {
            return Ok(());
        }
        let [left, room, bytes] = [left, room.disk_bytes, bytes].map(|bytes| bytes >> 20);
        let what =
            format!("not enough disk for {bytes} MiB: {left} MiB are free, and {room} MiB must stay free");
        Err(KeeperError::Full { what, retry_after: RETRY_AFTER })
    }
}

/// Checks that a memory limit does not exceed the machine's memory.
///
/// # Errors
/// Returns [`KeeperError::Field`] if it does.
pub(crate) fn check_memory(limit: Memory) -> Result<(), KeeperError> {
    let info = rustix::system::sysinfo();
    let machine = ByteSize::mib(info.totalram.saturating_mul(u64::from(info.mem_unit)) >> 20);
    if ByteSize::new(limit.bytes()) <= machine {
        return Ok(());
    }
    let reason = format!("\"{limit}\" is not allowed; give at most the {machine} of the server's machine");
    Err(KeeperError::field("limits.memory", reason))
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Parses `MemAvailable` of /proc/meminfo (proc_meminfo(5)), in bytes.
fn available_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the free memory in the lists of the processors, in bytes: the sum of `count` in /proc/zoneinfo. `MemAvailable` lacks it, and
/// since Linux 6.7 ("mm: PCP high auto-tuning") these lists take up gigabytes when much memory is freed at once, and shrink slowly.
fn bytes_in_lists(text: &str) -> u64 {
    let counts = text.lines().filter_map(|line| line.trim_start().strip_prefix("count:"));
    let pages: u64 = counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum();
    pages.saturating_mul(u64::try_from(rustix::param::page_size()).unwrap_or(0))
}

/// Returns how many more threads the kernel allows: the lesser of `threads-max` and `pid_max`, minus the existing threads,
/// whose number follows the slash in the fourth field of /proc/loadavg (proc_loadavg(5)).
fn available_pids() -> Option<u64> {
    let max = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"]
        .into_iter()
        .filter_map(|path| read(path)?.trim().parse::<u64>().ok())
        .min()?;
    Some(max.saturating_sub(running_threads(&read("/proc/loadavg")?)?))
}

fn running_threads(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: HeadRoom =
        HeadRoom { memory_bytes: 512 << 20, disk_bytes: 1 << 30, inodes_percent: 5, pids: 1000 };

    #[test]
    fn parses_kernel_files() {
        assert_eq!(
            available_memory("MemTotal: 1 kB\nMemAvailable:   2048 kB\nBuffers: 0 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(available_memory("MemTotal: 1 kB\n"), None);
        assert_eq!(running_threads("0.20 0.18 0.12 1/80 11206\n"), Some(80));
        let zone = "Node 0, zone Normal\n  pages free 9\n  pagesets\n    cpu: 0\n              count:    7\n\
                    \x20             high:     42\n    cpu: 1\n              count:    3\n";
        assert_eq!(bytes_in_lists(zone), 10 * u64::try_from(rustix::param::page_size()).unwrap());
        let here = KeeperConfig::new("/".into()).capacity();
        assert!(
            here.memory_bytes.unwrap() > 0 && here.disk_bytes.is_some() && here.pids.unwrap() > 0,
            "{here:?}"
        );
    }

    #[test]
    fn each_resource_has_headroom() {
        let enough = Capacity {
            room: ROOM,
            memory_bytes: Some(512 << 20),
            disk_bytes: Some(1 << 30),
            inodes_percent: Some(5),
            pids: Some(1000),
        };
        let check = |left: &Capacity| left.check(Purpose::Start);
        assert!(check(&enough).is_ok());
        assert!(check(&Capacity::default()).is_ok());
        let cases = [
            (Capacity { memory_bytes: Some((512 << 20) - 1), ..enough }, "memory"),
            (Capacity { disk_bytes: Some((1 << 30) - 1), ..enough }, "disk"),
            (Capacity { inodes_percent: Some(4), ..enough }, "inodes"),
            (Capacity { pids: Some(999), ..enough }, "processes"),
        ];
        for (left, word) in cases {
            let error = check(&left).unwrap_err();
            assert_eq!(error.code(), "machine_full");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn purposes_have_thresholds_of_their_own() {
        let left = |part: fn(u64) -> u64| Capacity {
            room: ROOM,
            memory_bytes: Some(part(512 << 20)),
            disk_bytes: Some(part(1 << 30)),
            inodes_percent: Some(10),
            pids: Some(part(1000)),
        };
        let allowed = |left: &Capacity| {
            [Purpose::Administration, Purpose::Start, Purpose::Lasting]
                .map(|purpose| left.check(purpose).is_ok())
        };
        assert_eq!(allowed(&left(|whole| whole / 2 - 1)), [false, false, false]);
        assert_eq!(allowed(&left(|whole| whole / 2)), [true, false, false]);
        assert_eq!(allowed(&left(|whole| whole)), [true, true, false]);
        let enough = left(|whole| whole * 2);
        assert_eq!(allowed(&enough), [true, true, true]);
        assert!(enough.check_file(0).is_ok());
        let large = enough.check_file(1).unwrap_err();
        assert!(large.code() == "machine_full" && large.to_string().contains("not enough disk"), "{large}");
        assert_eq!(enough.missing_memory(Purpose::Lasting), None);
        assert_eq!(left(|whole| whole - 1).missing_memory(Purpose::Start), Some(1));
    }
}
