//! Control groups of a container that somebody else has made on this machine, such as a daemon: usage only.

use std::path::{Path, PathBuf};

use crate::cgroup_live::{CgroupUsage, field, read_number};

/// Where the hierarchies are mounted.
const HIERARCHIES: &str = "/sys/fs/cgroup";

/// The groups of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerGroups {
    memory: Group,
    pids: Group,
    /// The group that counts processor time: in each v2 hierarchy, even if v1 does the limiting (cgroup-v2.rst, cpu.stat).
    cpu: Group,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    is_v2: bool,
}

impl ContainerGroups {
    /// Returns the groups of a process, if it is on this machine and in a container with this id: the id is a part of the name of each
    /// group.
    #[must_use]
    pub fn find(pid: i32, id: &str) -> Option<Self> {
        let table = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Self::from_table(&table, id, Path::new(HIERARCHIES))
    }

    fn from_table(table: &str, id: &str, hierarchies: &Path) -> Option<Self> {
        let group = |controller: &str| {
            // Each line is `number:controllers:path`; v2 has no controllers (cgroups(7)).
            let (_, path) = table.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                controllers.split(',').any(|name| name == controller).then_some((controllers, path))
            })?;
            let path = path.split('/').any(|name| name.contains(id)).then(|| path.trim_start_matches('/'))?;
            let is_v2 = controller.is_empty();
            let dir = match is_v2 {
                true if hierarchies.join("cgroup.controllers").exists() => hierarchies.join(path),
                true => hierarchies.join("unified").join(path),
                false => hierarchies.join(controller).join(path),
            };
            dir.is_dir().then_some(Group { dir, is_v2 })
        };
        let v2 = group("");
        Some(Self {
            memory: group("memory").or_else(|| v2.clone())?,
            pids: group("pids").or_else(|| v2.clone())?,
            cpu: v2.clone().or_else(|| group("cpuacct"))?,
        })
    }

    /// Reads the memory in use that the kernel cannot reclaim, in bytes.
    #[must_use]
    pub fn held_memory(&self) -> Option<u64> {
        let now = self.usage().memory?;
        let stat = std::fs::read_to_string(self.memory.dir.join("memory.stat")).ok()?;
        let names: &[&str] = match self.memory.is_v2 {
            true => &["inactive_file", "active_file", "slab_reclaimable"],
            false => &["total_inactive_file", "total_active_file"],
        };
        Some(now.saturating_sub(names.iter().filter_map(|name| field(&stat, name)).sum()))
    }

    /// Reads the usage. All of it is unknown once the container has ended.
    #[must_use]
    pub fn usage(&self) -> CgroupUsage {
        let Self { memory, pids, cpu } = self;
        let text = |group: &Group, file| std::fs::read_to_string(group.dir.join(file)).ok();
        let (now, peak, events) = match memory.is_v2 {
            true => ("memory.current", "memory.peak", "memory.events"),
            false => ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
        };
        CgroupUsage {
            memory: read_number(&memory.dir, now),
            gateway_memory: None,
            peak_memory: read_number(&memory.dir, peak),
            cpu_us: match cpu.is_v2 {
                true => text(cpu, "cpu.stat").and_then(|text| field(&text, "usage_usec")),
                false => read_number(&cpu.dir, "cpuacct.usage").map(|nanoseconds| nanoseconds / 1000),
            },
            pids: read_number(&pids.dir, "pids.current"),
            oom_kills: text(memory, events).and_then(|text| field(&text, "oom_kill")),
            pids_denied: text(pids, "pids.events").and_then(|text| field(&text, "max")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "9dcc054a8664";

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn usage_is_that_of_the_container() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = format!("8:pids:/docker/{ID}\n4:memory:/docker/{ID}\n1:cpu,cpuacct:/docker/{ID}\n");
        let group = |hierarchy: &str, file: &str| format!("{hierarchy}/docker/{ID}/{file}");
        let files = [
            (group("memory", "memory.usage_in_bytes"), "7\n"),
            (group("memory", "memory.max_usage_in_bytes"), "9\n"),
            (group("memory", "memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            (group("memory", "memory.stat"), "inactive_file 9\ntotal_inactive_file 1\ntotal_active_file 2\n"),
            (group("pids", "pids.current"), "3\n"),
            (group("pids", "pids.events"), "max 4\n"),
            (group("cpuacct", "cpuacct.usage"), "5000\n"),
        ];
        write(dir.path(), &files.each_ref().map(|(name, content)| (name.as_str(), *content)));
        let groups = ContainerGroups::from_table(&v1, ID, dir.path()).unwrap();
        assert_eq!(groups.held_memory(), Some(4));
        let usage = groups.usage();
        let expected = CgroupUsage {
            memory: Some(7),
            gateway_memory: None,
            peak_memory: Some(9),
            cpu_us: Some(5),
            pids: Some(3),
            oom_kills: Some(2),
            pids_denied: Some(4),
        };
        assert_eq!(usage, expected);
        // With systemd's names, and all in v2.
        let v2 = format!("0::/system.slice/docker-{ID}.scope\n");
        let group = |file: &str| format!("system.slice/docker-{ID}.scope/{file}");
        let files = [
            ("cgroup.controllers".to_owned(), ""),
            (group("memory.current"), "7\n"),
            (group("memory.peak"), "9\n"),
            (group("memory.events"), "oom 3\noom_kill 2\n"),
            (group("pids.current"), "3\n"),
            (group("pids.events"), "max 4\n"),
            (group("cpu.stat"), "usage_usec 5\n"),
        ];
        write(dir.path(), &files.each_ref().map(|(name, content)| (name.as_str(), *content)));
        assert_eq!(ContainerGroups::from_table(&v2, ID, dir.path()).unwrap().usage(), expected);
    }

    #[test]
    fn processes_of_others_are_not_taken_for_the_container() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("memory/user/x", ""), ("pids/user/x", ""), ("cpuacct/user/x", "")]);
        let table = "3:cpuacct:/user\n2:pids:/user\n1:memory:/user\n";
        assert_eq!(ContainerGroups::from_table(table, ID, dir.path()), None);
        assert!(ContainerGroups::from_table(table, "user", dir.path()).is_some());
        assert_eq!(ContainerGroups::from_table("0::/\n", ID, dir.path()), None);
    }
}
