//! What sandboxes could leave behind on this machine: processes, namespaces, mounts, control groups, user id leases, loop
//! devices, scratch files.
//!
//! Others may run sandboxes here at the same time. So processes count if they descend from this one, which adopts orphans;
//! control groups and leases do not count while processes of others hold them; and what is left is only what stays.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_model::SandboxId;
use rustix::process::{getpid, set_child_subreaper};

use crate::error::HarnessError;

/// How long the kernel and the supervisors may take to put everything away.
const SETTLE: Duration = Duration::from_secs(20);

/// How often is looked meanwhile.
const INTERVAL: Duration = Duration::from_millis(10);

/// How deep below the top of a hierarchy a group of ours can be.
const CGROUP_DEPTH: u32 = 8;

/// Where the user ids are locked.
const LEASES: &str = "/run/belljar/uids";

/// Makes processes whose parent has died children of this one, so that they can be told from those of others. It is to be
/// called before anything is started.
///
/// # Errors
/// The kernel refuses.
pub fn adopt_orphans() -> Result<(), HarnessError> {
    set_child_subreaper(Some(getpid())).map_err(|errno| HarnessError::step("adopt orphans")(errno.into()))
}

/// What could be left behind, each thing by a name that tells what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traces(BTreeSet<String>);

impl Traces {
    /// What is there now. `whole_machine` looks at mounts, loop devices and temporary files as well.
    #[must_use]
    pub fn now(whole_machine: bool) -> Self {
        let mut found = BTreeSet::new();
        let processes = Processes::now();
        // Namespaces that this process is in itself are not new, whoever else is in them.
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
        groups.find(Path::new("/sys/fs/cgroup"), CGROUP_DEPTH, &processes);
        found.extend(groups.ours.iter().map(|path| format!("control group {path}")));
        leases(&processes, &mut found);
        if whole_machine {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            found.extend(mounts.lines().map(|line| format!("mount {line}")));
            for (dir, what, prefix) in [
                ("/sys/block", "loop device", "loop"),
                ("/run/netns", "network namespace", ""),
                ("/sys/class/net", "network device", ""),
            ] {
                for name in names(Path::new(dir)).filter(|name| name.starts_with(prefix)) {
                    // A loop device is in use when it has a file.
                    if prefix.is_empty() || Path::new(dir).join(&name).join("loop/backing_file").exists() {
                        found.insert(format!("{what} {name}"));
                    }
                }
            }
            // A sandbox's scratch directory and its groups have one name.
            let scratch = names(&std::env::temp_dir())
                .filter(|name| {
                    name.strip_prefix("belljar-").is_some_and(|id| id.parse::<SandboxId>().is_ok())
                })
                .filter(|name| !groups.of_others.contains(name));
            found.extend(scratch.map(|name| format!("scratch {name}")));
        }
        Self(found)
    }

    /// Waits until nothing is there that was not there before, and says what stays all the same.
    #[must_use]
    pub fn left_since(before: &Self, whole_machine: bool) -> Vec<String> {
        let deadline = Instant::now() + SETTLE;
        let mut left: Option<BTreeSet<String>> = None;
        loop {
            let new: BTreeSet<String> = Self::now(whole_machine).0.difference(&before.0).cloned().collect();
            // What comes later is not of what has ended before.
            let still: BTreeSet<String> = match left {
                Some(left) => left.intersection(&new).cloned().collect(),
                None => new,
            };
            if still.is_empty() || Instant::now() > deadline {
                return still.into_iter().collect();
            }
            left = Some(still);
            std::thread::sleep(INTERVAL);
        }
    }
}

/// A process, by stat(5) of proc.
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

    /// Whether it descends from this process.
    fn is_ours(&self, pid: u32) -> bool {
        let own = std::process::id();
        let mut at = pid;
        // Bounded, as the table may change while it is read.
        for _ in 0..self.0.len() {
            match self.0.get(&at) {
                Some(process) if process.parent == own => return true,
                Some(process) => at = process.parent,
                None => return false,
            }
        }
        false
    }

    /// Those that descend from this process and run. Adopted ones that have ended have nobody to wait for them.
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

/// Control groups of sandboxes, which are called belljar- and an id.
#[derive(Debug, Default)]
struct Groups {
    /// Paths of those that nobody else holds.
    ours: BTreeSet<String>,
    /// Names of those with members that do not descend from this process.
    of_others: BTreeSet<String>,
}

impl Groups {
    fn find(&mut self, dir: &Path, depth: u32, processes: &Processes) {
        for name in names(dir) {
            let path = dir.join(&name);
            if depth == 0 || !path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
                continue;
            }
            if name.starts_with("belljar-") {
                let members = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                let mut members = members.lines().filter_map(|line| line.parse().ok()).peekable();
                if members.peek().is_some() && members.all(|pid| !processes.is_ours(pid)) {
                    self.of_others.insert(name);
                } else {
                    self.ours.insert(path.display().to_string());
                }
            }
            self.find(&path, depth - 1, processes);
        }
    }
}

/// Locks on the file of user ids, by the kernel's own table, but those that processes of others hold.
fn leases(processes: &Processes, found: &mut BTreeSet<String>) {
    let Ok(metadata) = std::fs::metadata(LEASES) else { return };
    let inode = format!(":{} ", metadata.ino());
    // "1: OFDLCK ADVISORY  WRITE -1 fe:00:811011 63668 63668"
    let range = |line: &str| line.split_once(&inode).map(|(_, range)| range.trim().to_owned());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let all: BTreeSet<String> = locks.lines().filter_map(range).collect();
    if all.is_empty() {
        return;
    }
    let mut of_others = BTreeSet::new();
    for (pid, _) in processes.others().filter(|(_, process)| process.name.starts_with("belljar")) {
        let dir = format!("/proc/{pid}/fdinfo");
        for name in names(Path::new(&dir)) {
            let text = std::fs::read_to_string(format!("{dir}/{name}")).unwrap_or_default();
            of_others.extend(text.lines().filter(|line| line.starts_with("lock:")).filter_map(range));
        }
    }
    found.extend(all.difference(&of_others).map(|range| format!("user id lease {range}")));
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
    fn a_process_that_stays_is_found_and_named() {
        adopt_orphans().unwrap();
        let before = Traces::now(false);
        // The shell ends and leaves the other one behind.
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
