//! Headroom: free resources of the machine, a minimum of which the service leaves unused.

use std::path::Path;
use std::time::Duration;

use belljar_model::{ByteSize, Memory};

use crate::config::HeadRoom;
use crate::error::KeeperError;

/// Suggested delay before a retry.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Free resources of the machine; `None` if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Headroom {
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    /// In percent.
    inodes_percent: Option<u8>,
    pids: Option<u64>,
}

impl Headroom {
    /// Measures the machine and the disk that holds `dir`.
    pub(crate) fn measure(dir: &Path) -> Self {
        let disk = rustix::fs::statvfs(dir).ok();
        Self {
            memory_bytes: read("/proc/meminfo").and_then(|text| available_memory(&text)),
            disk_bytes: disk.as_ref().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
            // A file system without an inode count reports 0.
            inodes_percent: disk.as_ref().filter(|disk| disk.f_files > 0).and_then(|disk| {
                u8::try_from(u128::from(disk.f_favail) * 100 / u128::from(disk.f_files)).ok()
            }),
            pids: available_pids(),
        }
    }

    /// Checks that the headroom is still free, so that a sandbox may start.
    ///
    /// # Errors
    /// Returns [`KeeperError::Full`] with the resource that is short.
    pub(crate) fn check(&self, room: &HeadRoom) -> Result<(), KeeperError> {
        if belljar_store::ServiceWall::HeadRoom.is_down() {
            return Ok(());
        }
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

    /// Checks that the disk has space for a file of `bytes` besides the headroom.
    ///
    /// # Errors
    /// Returns [`KeeperError::Full`] if there is not.
    pub(crate) fn check_file(&self, room: &HeadRoom, bytes: u64) -> Result<(), KeeperError> {
        self.check(room)?;
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
        let here = Headroom::measure(Path::new("/"));
        assert!(
            here.memory_bytes.unwrap() > 0 && here.disk_bytes.is_some() && here.pids.unwrap() > 0,
            "{here:?}"
        );
    }

    #[test]
    fn each_resource_has_headroom() {
        let enough = Headroom {
            memory_bytes: Some(512 << 20),
            disk_bytes: Some(1 << 30),
            inodes_percent: Some(5),
            pids: Some(1000),
        };
        assert!(enough.check(&ROOM).is_ok());
        assert!(Headroom::default().check(&ROOM).is_ok());
        let cases = [
            (Headroom { memory_bytes: Some((512 << 20) - 1), ..enough }, "memory"),
            (Headroom { disk_bytes: Some((1 << 30) - 1), ..enough }, "disk"),
            (Headroom { inodes_percent: Some(4), ..enough }, "inodes"),
            (Headroom { pids: Some(999), ..enough }, "processes"),
        ];
        assert!(enough.check_file(&ROOM, 0).is_ok());
        let large = enough.check_file(&ROOM, 1).unwrap_err();
        assert!(large.code() == "machine_full" && large.to_string().contains("not enough disk"), "{large}");
        for (left, word) in cases {
            let error = left.check(&ROOM).unwrap_err();
            assert_eq!(error.code(), "machine_full");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
