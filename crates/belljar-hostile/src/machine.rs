//! How much of the machine is in use: what a sandbox could keep although nothing of it is to be seen.

use std::time::{Duration, Instant};

/// Open files on the whole machine that others may open meanwhile.
const FILES_SLACK: u64 = 1024;

/// Memory that others may take meanwhile, in bytes. It is that of files in memory and of the kernel, which ordinary
/// programs hardly take.
const MEMORY_SLACK: u64 = 128 << 20;

/// How long it may take until it is given back.
const SETTLE: Duration = Duration::from_secs(20);

/// How often is looked meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// What is in use.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Open files of the whole machine.
    pub files: u64,
    /// Memory of files in memory, of shared memory and of the kernel that cannot be taken back, in bytes.
    pub memory_bytes: u64,
}

impl Usage {
    /// What is in use now; nothing where the kernel does not tell.
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

    /// Waits until about as much is in use as before, and says what is not.
    #[must_use]
    pub fn grown_since(before: &Self) -> Vec<String> {
        let deadline = Instant::now() + SETTLE;
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
            std::thread::sleep(INTERVAL);
        }
    }
}
