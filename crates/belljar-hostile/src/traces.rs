//! Traces that sandboxes could leave behind on this machine: processes, namespaces, mounts, control groups, user id leases, loop
//! devices, scratch files.
//!
//! Other users may run sandboxes here at the same time. So processes count if they descend from this one, which adopts orphans;
//! control groups and leases do not count while foreign processes hold them; and only traces that persist are leftovers.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_model::SandboxId;
use rustix::process::{getpid, set_child_subreaper};

use crate::error::HarnessError;

/// Maximum time that the kernel and the supervisors may take to clean up.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval between scans.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum depth of a sandbox's group below the top of a hierarchy.
const MAX_CGROUP_DEPTH: u32 = 8;

/// Directory of the files in which user ids are locked, and the beginning of their names.
const LEASES: (&str, &str) = ("/run/belljar", "uids-");

/// Makes orphaned descendants children of this process, so that they can be distinguished from foreign processes. Must be
/// called before anything is started.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn adopt_orphans() -> Result<(), HarnessError> {
    set_child_subreaper(Some(getpid())).map_err(|errno| HarnessError::step("adopt orphans")(errno.into()))
}

/// The traces that exist at one moment, each by a descriptive name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traces(BTreeSet<String>);

impl Traces {
    /// Scans for current traces. `whole_machine` includes mounts, loop devices and temporary files.
    #[must_use]
    pub fn now(whole_machine: bool) -> Self {
        let mut found = BTreeSet::new();
        let processes = Processes::now();
        // The namespaces of this process itself are not new.
        let own = (std::process::id(), None);
        for (pid, process) in processes.ours().map(|(pid, process)| (pid, Some(process))).chain([own]) {
            if let Some(process) = process {
                found.insert(format!("process {pid} {}", process.name));
            }
            for kind in ["net", "mnt", "pid", "user", "ipc", "uts", "cgroup"] {
                if let Ok(namespace) = std::fs::read_link(format!("/proc/{pid}/ns/{kind}")) {
                    found.insert(format!("namespace {}", namespace.display()));
                }
            }
        }
        let mut groups = Groups::default();
        groups.scan(Path::new("/sys/fs/cgroup"), MAX_CGROUP_DEPTH, &processes);
        found.extend(groups.ours.iter().map(|path| format!("control group {path}")));
        scan_leases(&processes, &mut found);
        if whole_machine {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            found.extend(mounts.lines().map(|line| format!("mount {line}")));
            for (dir, what, prefix) in [
                ("/sys/block", "loop device", "loop"),
                ("/run/netns", "network namespace", ""),
                ("/sys/class/net", "network device", ""),
            ] {
                for name in names(Path::new(dir)).filter(|name| name.starts_with(prefix)) {
                    // A loop device is in use if it has a backing file.
                    if prefix.is_empty() || Path::new(dir).join(&name).join("loop/backing_file").exists() {
                        found.insert(format!("{what} {name}"));
                    }
                }
            }
            // A sandbox's scratch directory and its groups have the same name.
            let scratch = names(&std::env::temp_dir())
                .filter(|name| {
                    name.strip_prefix("belljar-").is_some_and(|id| id.parse::<SandboxId>().is_ok())
                })
                .filter(|name| !groups.foreign.contains(name));
            found.extend(scratch.map(|name| format!("scratch {name}")));
        }
        Self(found)
    }

    /// Waits until all traces that are new since `before` are gone. Returns those that remain.
    #[must_use]
    pub fn left_since(before: &Self, whole_machine: bool) -> Vec<String> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let mut left: Option<BTreeSet<String>> = None;
        loop {
            let new: BTreeSet<String> = Self::now(whole_machine).0.difference(&before.0).cloned().collect();
            // Traces that appear later do not belong to sandboxes that had already ended.
            let remaining: BTreeSet<String> = match left {
                Some(left) => left.intersection(&new).cloned().collect(),
                None => new,
            };
            if remaining.is_empty() || Instant::now() > deadline {
                return remaining.into_iter().collect();
            }
            left = Some(remaining);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A process, from proc_pid_stat(5).
#[derive(Debug)]
struct Process {
    name: String,
    state: String,
    parent: u32,
}

#[derive(Debug)]
struct Processes(BTreeMap<u32, Process>);

impl Processes {
    fn now() -> Self {
        let mut all = BTreeMap::new();
        for pid in names(Path::new("/proc")).filter_map(|name| name.parse::<u32>().ok()) {
            let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
            let stat = String::from_utf8_lossy(&stat).into_owned();
            let Some((head, tail)) = stat.rsplit_once(") ") else { continue };
            let mut fields = tail.split(' ');
            let (Some(state), Some(parent)) =
                (fields.next(), fields.next().and_then(|field| field.parse().ok()))
            else {
                continue;
            };
            let name = head.split_once(" (").map(|(_, name)| name.to_owned()).unwrap_or_default();
            all.insert(pid, Process { name, state: state.to_owned(), parent });
        }
        Self(all)
    }

    /// Reports whether the process `pid` descends from this one.
    fn is_ours(&self, pid: u32) -> bool {
        let own = std::process::id();
        let mut at = pid;
        // Bounded, because the table may change while it is read.
        for _ in 0..self.0.len() {
            match self.0.get(&at) {
                Some(process) if process.parent == own => return true,
                Some(process) => at = process.parent,
                None => return false,
            }
        }
        false
    }

    /// Returns the running descendants of this process. Adopted zombies are skipped, as nothing reaps them.
    fn ours(&self) -> impl Iterator<Item = (u32, &Process)> {
        let own = std::process::id();
        self.0.iter().map(|(pid, process)| (*pid, process)).filter(move |(pid, process)| {
            !(process.state == "Z" && process.parent == own) && self.is_ours(*pid)
        })
    }

    fn others(&self) -> impl Iterator<Item = (u32, &Process)> {
        let own = std::process::id();
        self.0
            .iter()
            .map(|(pid, process)| (*pid, process))
            .filter(move |(pid, _)| *pid != own && !self.is_ours(*pid))
    }
}

/// Control groups of sandboxes, named `belljar-<id>`.
#[derive(Debug, Default)]
struct Groups {
    /// Paths of the groups that no foreign process holds.
    ours: BTreeSet<String>,
    /// Names of the groups with only foreign members.
    foreign: BTreeSet<String>,
}

impl Groups {
    fn scan(&mut self, dir: &Path, depth: u32, processes: &Processes) {
        for name in names(dir) {
            let path = dir.join(&name);
            if depth == 0 || !path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
                continue;
            }
            if name.starts_with("belljar-") {
                let members = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                let mut members = members.lines().filter_map(|line| line.parse().ok()).peekable();
                if members.peek().is_some() && members.all(|pid| !processes.is_ours(pid)) {
                    self.foreign.insert(name);
                } else {
                    self.ours.insert(path.display().to_string());
                }
            }
            self.scan(&path, depth - 1, processes);
        }
    }
}

/// Adds the locks on the files of user ids, from the kernel's table, except those that foreign processes hold.
fn scan_leases(processes: &Processes, found: &mut BTreeSet<String>) {
    let dir = Path::new(LEASES.0);
    let inodes: BTreeSet<u64> = names(dir)
        .filter(|name| name.starts_with(LEASES.1))
        .filter_map(|name| Some(std::fs::metadata(dir.join(name)).ok()?.ino()))
        .collect();
    // "1: OFDLCK ADVISORY  WRITE -1 fe:00:811011 63668 63668"
    let range = |line: &str| {
        let (inode, range) = line.rsplit_once(':')?.1.split_once(' ')?;
        inodes.contains(&inode.parse().ok()?).then(|| range.trim().to_owned())
    };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let all: BTreeSet<String> = locks.lines().filter_map(range).collect();
    if all.is_empty() {
        return;
    }
    let mut foreign = BTreeSet::new();
    for (pid, _) in processes.others().filter(|(_, process)| process.name.starts_with("belljar")) {
        let dir = format!("/proc/{pid}/fdinfo");
        for name in names(Path::new(&dir)) {
            let text = std::fs::read_to_string(format!("{dir}/{name}")).unwrap_or_default();
            foreign.extend(text.lines().filter(|line| line.starts_with("lock:")).filter_map(range));
        }
    }
    found.extend(all.difference(&foreign).map(|range| format!("user id lease {range}")));
}

fn names(dir: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn leftover_process_is_found_by_name() {
        adopt_orphans().unwrap();
        let before = Traces::now(false);
        // The shell exits and leaves `sleep` behind.
        let output = Command::new("/bin/sh")
            .args(["-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
            .stderr(Stdio::null())
            .output()
            .unwrap();
        let pid = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let new: Vec<String> = Traces::now(false).0.difference(&before.0).cloned().collect();
        assert!(new.contains(&format!("process {pid} sleep")), "{new:?}");
        Command::new("/bin/kill").args(["-9", &pid]).status().unwrap();
        assert_eq!(Traces::left_since(&before, false), Vec::<String>::new());
    }
}
