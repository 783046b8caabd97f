//! Leftovers of a sandbox on the host.

use std::path::Path;

use belljar_model::SandboxId;

/// Maximum depth below a hierarchy's root of our control groups.
const CGROUP_DEPTH: u32 = 8;

/// Returns the processes, control groups, mounts and files that carry a sandbox's id.
pub(crate) fn of(id: &SandboxId) -> Vec<String> {
    let mut left = Vec::new();
    let holds = |path: &Path| {
        let content = std::fs::read(path).unwrap_or_default();
        content.windows(id.as_str().len()).any(|window| window == id.as_str().as_bytes())
    };
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        if holds(&path.join("cmdline")) || holds(&path.join("environ")) {
            left.push(format!("the process {}", path.display()));
        }
    }
    if holds(Path::new("/proc/self/mountinfo")) {
        left.push("a mount".to_owned());
    }
    cgroups(Path::new("/sys/fs/cgroup"), id, CGROUP_DEPTH, &mut left);
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains(id.as_str()) {
            left.push(format!("the file {}", entry.path().display()));
        }
    }
    left
}

fn cgroups(dir: &Path, id: &SandboxId, depth: u32, left: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.file_name().to_string_lossy().contains(id.as_str()) {
            left.push(format!("the control group {}", entry.path().display()));
        } else if depth > 0 {
            cgroups(&entry.path(), id, depth - 1, left);
        }
    }
}

/// Returns the number of running children of this process.
pub(crate) fn running_children() -> usize {
    let own = std::process::id().to_string();
    let is_running_child = |stat: &str| {
        let mut fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ')).into_iter().flatten();
        fields.next().is_some_and(|state| state != "Z" && state != "X") && fields.next() == Some(&own)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter(|stat| is_running_child(stat)).count()
}

/// Returns a process that runs the program at `path`.
pub(crate) fn find_process_running(path: &Path) -> Option<String> {
    std::fs::read_dir("/proc").into_iter().flatten().flatten().find_map(|entry| {
        let program = std::fs::read_link(entry.path().join("exe")).ok()?;
        (program == path).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}
