//! The posture of one thread from `/proc`, in lines that are the same on every machine and kernel. What depends on the machine
//! is compared with the caller, a process that was started like `belljar` itself: only whether it differs is shown.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::sandbox::{Sandbox, threads};

/// Kind of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A process on the host: everything that it has in common with the caller is only named.
    Outside,
    /// A process in the sandbox: everything is shown except what depends on the machine.
    Inside,
}

/// Fields of `status` that are shown. New kernels add more; those without meaning for rights are left out.
const FIELDS: &[&str] = &[
    "Name",
    "Umask",
    "TracerPid",
    "Uid",
    "Gid",
    "Groups",
    "Kthread",
    "VmLck",
    "VmPin",
    "CoreDumping",
    "SigIgn",
    "SigCgt",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Speculation_Store_Bypass",
    "SpeculationIndirectBranch",
    "Cpus_allowed_list",
    "Mems_allowed_list",
];

/// Fields that depend on the kernel's version or the machine's processor.
const MACHINE_FIELDS: &[&str] = &[
    "Kthread",
    "Speculation_Store_Bypass",
    "SpeculationIndirectBranch",
    "Cpus_allowed_list",
    "Mems_allowed_list",
];

/// Limits that Belljar sets; the others must equal the caller's.
const LIMITS: &[&str] = &[
    "Max core file size",
    "Max open files",
    "Max locked memory",
    "Max pending signals",
    "Max msgqueue size",
];

const NAMESPACES: &[&str] =
    &["user", "mnt", "pid", "pid_for_children", "net", "ipc", "uts", "cgroup", "time", "time_for_children"];

/// Covered parts of `/proc` that every kernel has; the others depend on its configuration.
const COVERED: &[&str] =
    &["cmdline", "bus", "driver", "fs", "irq", "tty", "interrupts", "iomem", "ioports", "locks"];

/// Inspection of one thread.
pub(crate) struct Inspection<'a> {
    sandbox: &'a Sandbox,
    place: Place,
    dir: PathBuf,
    caller: PathBuf,
    lines: Vec<String>,
    /// Names of what equals the caller's.
    same: Vec<String>,
}

/// Returns the lines about one thread.
pub(crate) fn inspect(sandbox: &Sandbox, place: Place, tid: i32) -> Vec<String> {
    let mut inspection = Inspection {
        sandbox,
        place,
        dir: PathBuf::from(format!("/proc/{tid}")),
        caller: PathBuf::from(format!("/proc/{}", sandbox.caller.id())),
        lines: Vec::new(),
        same: Vec::new(),
    };
    let at_first = descriptors(&inspection.dir);
    inspection.status();
    inspection.simple();
    inspection.stat();
    inspection.namespaces();
    inspection.links();
    inspection.descriptors(&at_first);
    inspection.limits();
    inspection.cgroup();
    inspection.mounts();
    let same = inspection.same.join(", ");
    inspection.lines.push(format!("as with the caller: {same}"));
    inspection.lines
}

fn fields(dir: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(dir.join("status")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

impl Inspection<'_> {
    fn line(&mut self, name: &str, value: &str) {
        self.lines.push(format!("{name}: {value}"));
    }

    /// Shows `value` unless it equals the caller's.
    fn compare(&mut self, name: &str, value: &str, callers: &str) {
        if value == callers {
            self.same.push(name.to_owned());
        } else {
            self.line(name, &self.sandbox.normal(value));
        }
    }

    fn read(&self, dir: &Path, name: &str) -> String {
        match fs::read(dir.join(name)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => format!("({})", error.kind()),
        }
    }

    fn status(&mut self) {
        let (own, callers) = (fields(&self.dir), fields(&self.caller));
        for field in FIELDS {
            let (value, callers) = (own.get(*field), callers.get(*field));
            // The kernel does not have the field.
            let (Some(value), Some(callers)) = (value, callers) else {
                self.same.push((*field).to_owned());
                continue;
            };
            match *field {
                // A container around everything may have filters of its own.
                "Seccomp_filters" if self.place == Place::Inside => {
                    let number = |text: &str| text.parse::<u32>().unwrap();
                    self.line(field, &format!("the caller's and {} more", number(value) - number(callers)));
                }
                // The C library keeps signals 32 and 33 for itself, and which of them it uses depends on its version.
                "SigIgn" | "SigCgt" => {
                    let signals = |text: &str| u64::from_str_radix(text, 16).unwrap() & !(0b11 << 31);
                    if self.place == Place::Inside || signals(value) != signals(callers) {
                        self.line(field, &signal_names(signals(value)));
                    } else {
                        self.same.push((*field).to_owned());
                    }
                }
                _ if self.place == Place::Outside || MACHINE_FIELDS.contains(field) => {
                    self.compare(field, value, callers)
                }
                _ => self.line(field, &self.sandbox.normal(value)),
            }
        }
        let levels = |fields: &BTreeMap<String, String>| fields["NSpid"].split(' ').count();
        match levels(&own) - levels(&callers) {
            0 => self.same.push("pid namespaces".to_owned()),
            more => self.line("pid namespaces", &format!("{more} below the caller's")),
        }
    }

    /// Shows files with a single value.
    fn simple(&mut self) {
        for name in [
            "uid_map",
            "gid_map",
            "projid_map",
            "setgroups",
            "attr/current",
            "oom_score_adj",
            "personality",
            "timerslack_ns",
            "coredump_filter",
        ] {
            let spaced = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
            let (value, callers) =
                (spaced(self.read(&self.dir, name)), spaced(self.read(&self.caller, name)));
            let maps = self.place == Place::Inside && (name.ends_with("_map") || name == "setgroups");
            if maps {
                self.line(name, &self.sandbox.normal(&value));
            } else {
                self.compare(name, &value, &callers);
            }
        }
        let names = |text: String| {
            let mut names: Vec<_> = text
                .split('\0')
                .filter_map(|entry| entry.split_once('='))
                .map(|(name, _)| name.to_owned())
                .collect();
            names.sort();
            names.join(" ")
        };
        let (value, callers) =
            (names(self.read(&self.dir, "environ")), names(self.read(&self.caller, "environ")));
        self.compare("environment", if value.is_empty() { "none" } else { &value }, &callers);
        let words = self.read(&self.dir, "cmdline").trim_end_matches('\0').replace('\0', " ");
        self.line("command", &self.sandbox.normal(&words));
        let thread = fields(&self.dir)["Uid"].split(' ').next().unwrap().parse::<u32>().unwrap();
        if thread != 0 {
            // Files of a process that is closed to inspection belong to root; the directory itself does not.
            let open = fs::metadata(self.dir.join("environ")).unwrap().uid() == thread;
            self.line("inspection by its own user", if open { "open" } else { "closed" });
        }
    }

    /// Shows session, process group, terminal and scheduling.
    fn stat(&mut self) {
        let values = |dir: &Path| -> Vec<i64> {
            let text = fs::read_to_string(dir.join("stat")).unwrap();
            let (_, rest) = text.rsplit_once(") ").unwrap();
            rest.split(' ').map(|word| word.trim().parse().unwrap_or(0)).collect()
        };
        let (own, callers) = (values(&self.dir), values(&self.caller));
        // proc_pid_stat(5) numbers fields from 1; the third is the first here.
        let field = |number: usize| own[number - 3];
        let process = fields(&self.dir)["Tgid"].parse::<i64>().unwrap();
        let whose = |number: i64| self.sandbox.whose(number, process).to_owned();
        let (group, session) = (whose(field(5)), whose(field(6)));
        self.line("process group", &group);
        self.line("session", &session);
        let terminal = if field(7) == 0 { "none" } else { "one" };
        self.line("controlling terminal", terminal);
        let scheduling = |values: &[i64]| {
            format!("policy {}, nice {}, real-time priority {}", values[38], values[16], values[37])
        };
        self.compare("scheduling", &scheduling(&own), &scheduling(&callers));
    }

    fn namespaces(&mut self) {
        let guest = PathBuf::from(format!("/proc/{}", self.sandbox.guest));
        let mut relations: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for name in NAMESPACES {
            let link = |dir: &Path| fs::read_link(dir.join("ns").join(name)).ok();
            let own = link(&self.dir);
            let relation = if own.is_none() {
                "none"
            } else if own == link(&self.caller) {
                "the caller's"
            } else if own == link(&guest) {
                "the sandbox's"
            } else {
                "of its own"
            };
            relations.entry(relation).or_default().push(name);
        }
        for (relation, names) in relations {
            self.line(&format!("namespaces, {relation}"), &names.join(" "));
        }
    }

    fn links(&mut self) {
        for name in ["cwd", "root", "exe"] {
            let link = |dir: &Path| fs::read_link(dir.join(name)).unwrap_or_default().display().to_string();
            let (value, callers) = (link(&self.dir), link(&self.caller));
            if self.place == Place::Outside {
                self.compare(name, &value, &callers);
            } else {
                // The version of Python does not matter here.
                let value = if value.contains("/python3") { "/usr/bin/python3".to_owned() } else { value };
                self.line(name, &self.sandbox.normal(&value));
            }
        }
    }

    /// Shows the descriptors that are open now and were `at_first`: a thread that polls has others for an instant.
    fn descriptors(&mut self, at_first: &[(i32, String)]) {
        let inherited: Vec<_> =
            descriptors(&self.caller).into_iter().filter(|(number, _)| *number > 2).collect();
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        let mut directories = 0;
        for (number, link) in descriptors(&self.dir) {
            let is_inherited = inherited.iter().any(|(_, callers)| *callers == link);
            if self.place == Place::Outside && is_inherited && !link.starts_with("anon_inode") {
                continue;
            }
            if !at_first.contains(&(number, link.clone())) {
                continue;
            }
            let path = self.dir.join("fd").join(number.to_string());
            let Ok(metadata) = fs::metadata(&path) else { continue };
            directories += usize::from(metadata.is_dir());
            let kind = self.kind(&link, &metadata);
            // Outside, the numbers are arbitrary.
            let place = match self.place {
                Place::Outside => String::new(),
                Place::Inside if number < 6 => format!("{number}: "),
                Place::Inside => "later: ".to_owned(),
            };
            *kinds.entry(format!("{place}{kind}, {}", self.flags(number, &link))).or_default() += 1;
        }
        for (kind, count) in kinds {
            let times = if count > 1 { format!(" ({count} of them)") } else { String::new() };
            self.lines.push(format!("descriptor {kind}{times}"));
        }
        self.line("directories among the descriptors", &directories.to_string());
    }

    fn kind(&self, link: &str, metadata: &fs::Metadata) -> String {
        use std::os::unix::fs::FileTypeExt as _;
        if let Some(inode) = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
            return self.socket(inode);
        }
        if link.starts_with("pipe:") {
            return "pipe".to_owned();
        }
        if link.contains("pidfd") {
            return "pidfd".to_owned();
        }
        if let Some(kind) = link.strip_prefix("anon_inode:") {
            return kind.trim_matches(['[', ']']).to_owned();
        }
        let kind = match metadata.file_type() {
            kind if kind.is_dir() => "directory",
            kind if kind.is_char_device() => "device",
            kind if kind.is_file() => "file",
            _ => "other",
        };
        let link = if link.starts_with("/dev/pts/") { "/dev/pts/N" } else { link };
        format!("{kind} {}", self.sandbox.normal(link))
    }

    /// Describes a socket. A Unix socket is listed in the network namespace that it was created in.
    fn socket(&self, inode: &str) -> String {
        for dir in [&self.dir, &self.caller] {
            let table = fs::read_to_string(dir.join("net/unix")).unwrap_or_default();
            for line in table.lines() {
                let columns: Vec<_> = line.split_whitespace().collect();
                if columns.get(6) == Some(&inode) {
                    let name = columns.get(7).map_or("without a name", |_| "with a name");
                    let kind = match columns[4] {
                        "0001" => "stream",
                        "0002" => "datagram",
                        _ => "seqpacket",
                    };
                    return format!("unix {kind} socket {name}");
                }
            }
        }
        "socket of another family".to_owned()
    }

    fn flags(&self, number: i32, link: &str) -> String {
        let info = self.read(&self.dir, &format!("fdinfo/{number}"));
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let flags = u32::from_str_radix(flags, 8).unwrap();
        let mut words = vec![match flags & 0o3 {
            _ if flags & 0o10_000_000 != 0 => "only a path",
            0 => "read",
            1 => "write",
            _ => "read and write",
        }];
        for (bit, word) in [(0o4000, "non-blocking"), (0o2000, "append"), (0o2_000_000, "close-on-exec")] {
            // A terminal opened with TIOCGPTPEER shows its initial flags, also in copies that an exec keeps.
            let is_flag = !(word == "close-on-exec" && link.starts_with("/dev/pts/"));
            if flags & bit != 0 && is_flag {
                words.push(word);
            }
        }
        if info.lines().any(|line| line.starts_with("lock:")) {
            words.push("locked");
        }
        words.join(", ")
    }

    fn limits(&mut self) {
        let table = |dir: &Path| -> BTreeMap<String, String> {
            let text = fs::read_to_string(dir.join("limits")).unwrap();
            let lines = text.lines().skip(1);
            lines
                .map(|line| {
                    let (name, rest) = line.split_at(26);
                    let values: Vec<_> = rest.split_whitespace().take(2).collect();
                    (name.trim().to_owned(), values.join(" and "))
                })
                .collect()
        };
        let (own, callers) = (table(&self.dir), table(&self.caller));
        for (name, value) in &own {
            // The guest sets the number of open files for user code only.
            let set = LIMITS.contains(&name.as_str()) && !(self.is_guest() && name == "Max open files");
            if self.place == Place::Inside && set {
                self.line(name, value);
            } else {
                self.compare(name, value, &callers[name]);
            }
        }
    }

    fn is_guest(&self) -> bool {
        threads(self.sandbox.guest).iter().any(|thread| self.dir == Path::new(&format!("/proc/{thread}")))
    }

    /// Shows the controllers with a group of the sandbox's own that contains the process, for v1 or v2.
    fn cgroup(&mut self) {
        let mut held = std::collections::BTreeSet::new();
        for line in self.read(&self.dir, "cgroup").lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
            if !path.rsplit('/').next().unwrap().starts_with("belljar-") {
                continue;
            }
            if controllers.is_empty() {
                for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                    let file = format!("{root}{path}/cgroup.controllers");
                    let text = fs::read_to_string(file).unwrap_or_default();
                    held.extend(text.split_whitespace().map(str::to_owned));
                }
            } else {
                held.extend(controllers.split(',').map(str::to_owned));
            }
        }
        held.retain(|controller| ["cpu", "memory", "pids"].contains(&controller.as_str()));
        let held: Vec<_> = held.into_iter().collect();
        let text = if held.is_empty() { "none".to_owned() } else { held.join(" ") };
        self.line("held by control groups of the sandbox's own", &text);
    }

    fn mounts(&mut self) {
        let table = |dir: &Path| fs::read_to_string(dir.join("mountinfo")).unwrap();
        if table(&self.dir) == table(&self.caller) {
            self.same.push("mounts".to_owned());
            return;
        }
        let (mut covered, mut own) = (Vec::new(), Vec::new());
        for line in table(&self.dir).lines() {
            let (left, right) = line.split_once(" - ").unwrap();
            let left: Vec<_> = left.split(' ').collect();
            let right: Vec<_> = right.split(' ').collect();
            let (root, target, options, shared) = (left[3], left[4], left[5], &left[6..]);
            let shared = if shared.is_empty() { String::new() } else { format!(" {}", shared.join(" ")) };
            if let Some(name) = target.strip_prefix("/proc/") {
                let is_own = root.strip_prefix('/').is_some_and(|root| root.starts_with(name));
                assert!(is_own || root.starts_with("/.hidden-"), "{line}");
                if is_own {
                    own.push(name.to_owned());
                }
                assert_eq!(options, "ro,nosuid,nodev,relatime", "{line}");
                if COVERED.contains(&name) {
                    covered.push(name.to_owned());
                }
                continue;
            }
            // Which of the host's directories exist, and on what file systems, depends on the machine; their mount options do not.
            let is_hosts = root != "/" || !["tmpfs", "proc", "devpts"].contains(&right[0]);
            if is_hosts {
                let options: Vec<_> =
                    options.split(',').filter(|option| !option.ends_with("atime")).collect();
                let options = options.join(",");
                if target.starts_with("/etc/")
                    || ["/usr", "/bin", "/sbin"].iter().any(|dir| *dir != target && target.starts_with(dir))
                    || target.starts_with("/lib")
                {
                    assert_eq!(options, "ro,nosuid,nodev", "{line}");
                } else {
                    self.line(&format!("mount {target}"), &format!("the host's, {options}{shared}"));
                }
                continue;
            }
            // Some kernels show default options.
            let own: Vec<_> = right[2].split(',').filter(|option| *option != "inode64").collect();
            let own = self.sandbox.normal(&own.join(","));
            self.line(
                &format!("mount {target}"),
                &format!("{} of its own, {options}, {own}{shared}", right[0]),
            );
        }
        own.sort();
        self.line("of its own below /proc", &own.join(" "));
        covered.sort();
        self.line("covered below /proc, among others", &covered.join(" "));
    }
}

fn descriptors(dir: &Path) -> Vec<(i32, String)> {
    let mut all: Vec<_> = fs::read_dir(dir.join("fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?.display().to_string()))
        })
        .collect();
    all.sort();
    all
}

/// Returns the names of the signals in a set, in order.
fn signal_names(set: u64) -> String {
    const NAMES: &[&str] = &[
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let names: Vec<_> = (0..64)
        .filter(|bit| set >> bit & 1 == 1)
        .map(|bit| NAMES.get(bit).map_or_else(|| format!("{}", bit + 1), |name| (*name).to_owned()))
        .collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
