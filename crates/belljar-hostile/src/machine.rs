//! Resource usage of the machine: resources that a sandbox could keep without leaving a visible trace.

use std::time::{Duration, Instant};

/// Number of files that other processes of the machine may open in the meantime.
const FILES_SLACK: u64 = 1024;

/// Memory that other processes may take in the meantime, in bytes. Only files in memory and kernel memory count, of which
/// ordinary programs use little.
const MEMORY_SLACK: u64 = 128 << 20;

/// Maximum time until resources are released.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval between measurements.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Resource usage of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Open files of the whole machine.
    pub files: u64,
    /// Files in memory, shared memory and unreclaimable kernel memory, in bytes.
    pub memory_bytes: u64,
}

impl Usage {
    /// Measures the current usage; 0 where the kernel does not report it.
    #[must_use]
    pub fn now() -> Self {
        let file_nr = std::fs::read_to_string("/proc/sys/fs/file-nr").unwrap_or_default();
        let files = file_nr.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = |key: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        let memory = kib("Shmem:") + kib("SUnreclaim:") + kib("KernelStack:") + kib("Percpu:");
        Self { files, memory_bytes: memory << 10 }
    }

    /// Waits until usage is about as before. Returns a description of each resource that still exceeds it.
    #[must_use]
    pub fn grown_since(before: &Self) -> Vec<String> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let now = Self::now();
            let mut grown = Vec::new();
            if now.files > before.files + FILES_SLACK {
                grown.push(format!(
                    "{} files are open on the host, before {} (slack {FILES_SLACK})",
                    now.files, before.files
                ));
            }
            if now.memory_bytes > before.memory_bytes + MEMORY_SLACK {
                grown.push(format!(
                    "{} MiB of shared and kernel memory are in use on the host, before {} (slack {})",
                    now.memory_bytes >> 20,
                    before.memory_bytes >> 20,
                    MEMORY_SLACK >> 20
                ));
            }
            if grown.is_empty() || Instant::now() > deadline {
                return grown;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
