//! The sandbox's limits as programs look for them: files over those of `/proc`, and files below `/sys`. They state the limits that the
//! sandbox was made with (docs/decisions/0042-limits-as-programs-see-them.md).

use std::fmt::Write as _;

use belljar_engine::visible_processors;
use belljar_linux::ProcFile;
use belljar_model::Limits;

use crate::host_tree::c_string;

/// Microseconds of the period to which a processor quota refers.
const PERIOD_US: u64 = 100_000;

/// Returns the files that cover those of `/proc`, which describe the machine.
pub(crate) fn proc_files(limits: &Limits) -> Vec<ProcFile> {
    let processors = visible_processors(limits);
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    [
        ("meminfo", meminfo(limits)),
        ("cpuinfo", first_processors(&all, processors)),
        ("stat", stat(processors)),
    ]
    .map(|(name, content)| ProcFile { name: c_string(name), content: content.into_bytes() })
    .into()
}

/// Returns the content of `/proc/meminfo` (proc_meminfo(5)). All memory is available: the file does not change.
fn meminfo(limits: &Limits) -> String {
    let total = limits.memory.bytes() >> 10;
    let rows = [
        ("MemTotal", total),
        ("MemFree", total),
        ("MemAvailable", total),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", 0),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("CommitLimit", total),
        ("Committed_AS", 0),
        ("VmallocTotal", 34_359_738_367),
        ("VmallocUsed", 0),
    ];
    rows.iter().fold(String::new(), |mut text, (name, kib)| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<15} {kib:>8} kB", format!("{name}:"));
        text
    })
}

/// Returns the first processors of a `/proc/cpuinfo`, in which an empty line follows each.
fn first_processors(all: &str, processors: usize) -> String {
    all.split_inclusive("\n\n").take(processors).collect()
}

/// Returns the content of `/proc/stat` (proc_stat(5)): processors that have done nothing yet, and the time of the machine's boot.
fn stat(processors: usize) -> String {
    const IDLE: &str = "0 0 0 0 0 0 0 0 0 0";
    let machine = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = machine.lines().find(|line| line.starts_with("btime ")).unwrap_or("btime 0");
    let rows = (0..processors).map(|number| format!("cpu{number} {IDLE}\n")).collect::<String>();
    format!(
        "cpu  {IDLE}\n{rows}intr 0\nctxt 0\n{boot}\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n"
    )
}

/// Returns the files below `/sys`, as paths from the root: the processors, and the limits of a control group in the forms of both
/// versions.
pub(crate) fn sys_files(limits: &Limits) -> Vec<(&'static str, String)> {
    let last = visible_processors(limits) - 1;
    let range = if last == 0 { "0\n".to_owned() } else { format!("0-{last}\n") };
    let memory = format!("{}\n", limits.memory.bytes());
    let pids = format!("{}\n", limits.pids);
    let quota = PERIOD_US * u64::from(limits.cpus.millis()) / 1000;
    vec![
        ("sys/devices/system/cpu/online", range.clone()),
        ("sys/devices/system/cpu/possible", range.clone()),
        ("sys/devices/system/cpu/present", range),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n".to_owned()),
        ("sys/fs/cgroup/cpu.max", format!("{quota} {PERIOD_US}\n")),
        ("sys/fs/cgroup/memory.max", memory.clone()),
        ("sys/fs/cgroup/memory.high", "max\n".to_owned()),
        ("sys/fs/cgroup/memory.swap.max", "0\n".to_owned()),
        ("sys/fs/cgroup/pids.max", pids.clone()),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", format!("{quota}\n")),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", format!("{PERIOD_US}\n")),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", memory.clone()),
        ("sys/fs/cgroup/memory/memory.soft_limit_in_bytes", memory),
        ("sys/fs/cgroup/pids/pids.max", pids),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(cpus: &str) -> Limits {
        Limits { memory: "256m".parse().unwrap(), cpus: cpus.parse().unwrap(), ..Limits::default() }
    }

    #[test]
    fn files_state_the_limits() {
        let memory = meminfo(&limits("1"));
        assert!(memory.starts_with("MemTotal:         262144 kB\nMemFree:"), "{memory}");
        assert_eq!(first_processors("a: 1\nb: 2\n\na: 3\n\na: 4\n\n", 2), "a: 1\nb: 2\n\na: 3\n\n");
        let lines = stat(2);
        assert_eq!(lines.lines().filter(|line| line.starts_with("cpu")).count(), 3);
        let files: std::collections::BTreeMap<_, _> = sys_files(&limits("0.5")).into_iter().collect();
        assert_eq!(files["sys/devices/system/cpu/online"], "0\n");
        assert_eq!(files["sys/fs/cgroup/cpu.max"], "50000 100000\n");
        assert_eq!(files["sys/fs/cgroup/memory.max"], "268435456\n");
    }
}
