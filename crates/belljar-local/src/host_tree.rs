//! The `host` tree: the machine's own read-only `/usr` and the few files of `/etc` that programs need, with a writable home and
//! `/tmp`. It shares the page cache with the host and with every other sandbox on it, so it is for one user on their own
//! machine (docs/threat-model.md).

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_linux::{
    MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountSource, MountStep, Node,
    Wall, Without,
};
use belljar_model::{Limits, NetworkMode, SandboxSpec};
use parking_lot::Mutex;

/// Home directory inside the sandbox.
pub const HOME: &str = "/home/user";

/// Search path for programs inside the sandbox.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// User and group id inside the sandbox.
pub const USER_ID: u32 = 1000;

/// Maximum number of pseudo-terminals in a sandbox. The machine has 3,072 for all (`kernel.pty.max` less its reserve, see
/// `Documentation/admin-guide/sysctl/kernel.rst`), which a few sandboxes must not use up.
const MAX_TERMINALS: &str = "16";

/// Directory where the new root is assembled before it takes over. Every system has it, and nothing is mounted from below it by
/// path.
pub(crate) const STAGING: &str = "/tmp";

/// Directories of the root that are links into `/usr` on current systems, and separate trees on older ones.
const ROOT_LINKS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Directories of `/etc` that programs need: link targets, certificates, interpreters' settings. No names, no keys, no
/// addresses of the host.
const ETC_DIRS: &[&str] = &["alternatives", "fonts", "ssl/certs", "R", "php", "mono", "nim"];
/// Small files of `/etc` that are copied, which costs less than a mount.
const ETC_FILES: &[&str] = &["ld.so.cache", "localtime", "matplotlibrc", "protocols", "services"];
/// Files of `/etc` for machines that lack them, as minimal ones do: what programs look up by name. Source: IANA's registries of
/// protocol numbers, and of service names and ports.
const ETC_DEFAULTS: &[(&str, &str)] = &[
    ("protocols", "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6 41 IPv6\nipv6-icmp 58 IPv6-ICMP\n"),
    (
        "services",
        "echo 7/tcp\ndiscard 9/tcp\nftp-data 20/tcp\nftp 21/tcp\nssh 22/tcp\ntelnet 23/tcp\nsmtp 25/tcp mail\n\
         domain 53/tcp\ndomain 53/udp\nhttp 80/tcp www\npop3 110/tcp\nntp 123/udp\nimap2 143/tcp imap\nldap 389/tcp\n\
         https 443/tcp\nhttps 443/udp\nsubmissions 465/tcp\nsubmission 587/tcp\nldaps 636/tcp\nimaps 993/tcp\n\
         pop3s 995/tcp\nms-sql-s 1433/tcp\nmysql 3306/tcp\npostgresql 5432/tcp\namqp 5672/tcp\nredis 6379/tcp\n\
         http-alt 8080/tcp\n",
    ),
];
/// Maximum size in bytes of a file that is copied; larger ones are mounted.
const COPY_LIMIT: u64 = 16 * 1024;

/// Harmless device files that programs expect.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

/// Parts of `/proc` that reveal or affect the machine and are readable by everybody. Those that only the host's root may open
/// need no mask, as no id inside is the host's root.
const PROC_MASKS: &[&str] = &[
    "cmdline",
    "acpi",
    "asound",
    "bus",
    "driver",
    "fs",
    "irq",
    "scsi",
    "tty",
    "kcore",
    "keys",
    "key-users",
    "kallsyms",
    "interrupts",
    "iomem",
    "ioports",
    "modules",
    "sched_debug",
    "latency_stats",
    "locks",
    "timer_stats",
    "mtrr",
];

/// Time for which launches use what the machine's own tree had. It takes 20 look-ups.
const MACHINE_TREE_AGE: Duration = Duration::from_secs(1);

const SYSTEM: u64 = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
const WRITABLE: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
const DEVICE: u64 = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;

/// Tree of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct HostTree {
    pub(crate) nodes: Vec<Node>,
    pub(crate) mounts: Vec<MountStep>,
    /// Directory below the first root where the tree is assembled, if not in the root itself.
    pub(crate) prefix: &'static str,
    /// The layers that are the root, the lowest first, if not the machine's tree.
    pub(crate) layers: Vec<OwnedFd>,
    /// Directories added so far, so that parents are added once.
    added_dirs: std::collections::BTreeSet<String>,
}

impl HostTree {
    /// Plans the tree for a specification.
    pub(crate) fn new(spec: &SandboxSpec, without: Without) -> Self {
        let mut tree = Self::system(spec);
        let limits = &spec.limits;
        tree.limits(limits);
        tree.devices(spec, without);
        tree.memory_disk("tmp", limits.tmp.bytes(), "1777", limits, without);
        tree.memory_disk("home/user", limits.disk.bytes(), "0755", limits, without);
        tree
    }

    /// Plans what of the tree is read-only, for engines whose walls are others as well. Missing parts of the host's `/etc` are missing inside as well.
    pub(crate) fn system(spec: &SandboxSpec) -> Self {
        let mut tree = Self::default();
        tree.dir("usr", 0o755);
        tree.bind("/usr", "usr", SYSTEM);
        let machine = MachineTree::recent();
        for node in &machine.root {
            match node {
                RootEntry::Link(name, target) => {
                    tree.nodes.push(Node::Symlink { path: c_string(name), target: target.clone() });
                }
                RootEntry::Dir(name) => {
                    tree.dir(name, 0o755);
                    tree.bind(&format!("/{name}"), name, SYSTEM);
                }
            }
        }
        tree.etc(spec, &machine);
        tree.dir("run", 0o755);
        tree.dir("var/lib", 0o755);
        tree.link("var/tmp", "/tmp");
        tree.link("var/run", "/run");
        tree
    }

    /// Returns a tree in which only the home is writable.
    pub(crate) fn bare(spec: &SandboxSpec, without: Without) -> Self {
        let mut tree = Self::default();
        tree.device_files();
        tree.memory_disk("home/user", spec.limits.disk.bytes(), "0755", &spec.limits, without);
        tree
    }

    /// Adds `/proc` and `/dev`.
    pub(crate) fn devices(&mut self, spec: &SandboxSpec, without: Without) {
        self.device_files();
        self.memory_disk("dev/shm", spec.limits.tmp.bytes(), "1777", &spec.limits, without);
    }

    /// Adds `/proc` and `/dev` without `/dev/shm`.
    fn device_files(&mut self) {
        self.dir("proc", 0o555);
        self.dir("dev", 0o755);
        for name in DEVICES {
            self.file(&format!("dev/{name}"), Vec::new());
            self.bind(&format!("/dev/{name}"), &format!("dev/{name}"), DEVICE);
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ] {
            self.link(&format!("dev/{name}"), target);
        }
        self.dir("dev/pts", 0o755);
        self.mounts.push(MountStep {
            source: MountSource::New {
                kind: c"devpts".to_owned(),
                options: options(&[("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)]),
            },
            target: c"dev/pts".to_owned(),
            attributes: MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
            make: Vec::new(),
        });
    }

    fn etc(&mut self, spec: &SandboxSpec, machine: &MachineTree) {
        self.dir("etc", 0o755);
        let hostname = spec.hostname.as_str();
        let user = format!(
            "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nuser:x:{USER_ID}:{USER_ID}:user:{HOME}:/bin/bash\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        let group = format!("root:x:0:\ntty:x:5:\nuser:x:{USER_ID}:\nnogroup:x:65534:\n");
        for (name, content) in [
            ("passwd", user),
            ("group", group),
            ("hosts", hosts(spec)),
            ("hostname", format!("{hostname}\n")),
            ("resolv.conf", resolv_conf(spec)),
            (
                "nsswitch.conf",
                "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"
                    .to_owned(),
            ),
        ] {
            self.file(&format!("etc/{name}"), content.into_bytes());
        }
        for (name, content) in &machine.etc_files {
            let target = format!("etc/{name}");
            match content {
                EtcFile::Copied(content) => self.file(&target, content.clone()),
                EtcFile::Mounted => {
                    self.file(&target, Vec::new());
                    self.bind(&format!("/etc/{name}"), &target, SYSTEM);
                }
            }
        }
        for name in &machine.etc_dirs {
            self.dir(&format!("etc/{name}"), 0o755);
            self.bind(&format!("/etc/{name}"), &format!("etc/{name}"), SYSTEM);
        }
    }

    /// Adds the files below `/sys` in which programs look for their limits.
    pub(crate) fn limits(&mut self, limits: &Limits) {
        for (path, content) in crate::limits_view::sys_files(limits) {
            if let Some((dir, _)) = path.rsplit_once('/') {
                self.dir(dir, 0o755);
            }
            self.file(path, content.into_bytes());
        }
    }

    pub(crate) fn memory_disk(
        &mut self,
        target: &str,
        bytes: u64,
        mode: &str,
        limits: &Limits,
        without: Without,
    ) {
        self.dir(target, 0o755);
        self.memory_mount(target, bytes, mode, limits, without);
    }

    /// Mounts a file system in memory on an existing directory.
    pub(crate) fn memory_mount(
        &mut self,
        target: &str,
        bytes: u64,
        mode: &str,
        limits: &Limits,
        without: Without,
    ) {
        let (size, inodes) = (bytes.to_string(), limits.inodes.get().to_string());
        let mut list = vec![("mode", mode)];
        if !without.has(Wall::Quota) {
            list.extend([("size", size.as_str()), ("nr_inodes", inodes.as_str())]);
        }
        self.mounts.push(MountStep {
            source: MountSource::New { kind: c"tmpfs".to_owned(), options: options(&list) },
            target: c_string(target),
            attributes: WRITABLE,
            make: Vec::new(),
        });
    }

    /// Adds a directory and its parents.
    pub(crate) fn dir(&mut self, path: &str, mode: u32) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.dir(parent, 0o755);
        }
        if self.added_dirs.insert(path.to_owned()) {
            self.nodes.push(Node::Dir { path: c_string(path), mode });
        }
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, path: &str, content: Vec<u8>) {
        self.nodes.push(Node::File { path: c_string(path), content });
    }

    fn link(&mut self, path: &str, target: &str) {
        self.nodes.push(Node::Symlink { path: c_string(path), target: c_string(target) });
    }

    fn bind(&mut self, source: &str, target: &str, attributes: u64) {
        self.mounts.push(MountStep {
            source: MountSource::Path(c_string(source)),
            target: c_string(target),
            attributes,
            make: Vec::new(),
        });
    }

    /// Returns the masked parts of `/proc`.
    pub(crate) fn proc_masks() -> Vec<CString> {
        PROC_MASKS.iter().map(c_string).collect()
    }
}

/// Parts of the machine's own tree that a sandbox sees, as far as they exist.
struct MachineTree {
    root: Vec<RootEntry>,
    etc_files: Vec<(&'static str, EtcFile)>,
    etc_dirs: Vec<String>,
}

/// One of [`ROOT_LINKS`].
enum RootEntry {
    Link(&'static str, CString),
    Dir(&'static str),
}

/// One of [`ETC_FILES`].
enum EtcFile {
    Copied(Vec<u8>),
    /// Too large to be copied.
    Mounted,
}

impl MachineTree {
    /// Looks, unless that was done a moment ago.
    fn recent() -> Arc<Self> {
        static LAST: Mutex<Option<(Instant, Arc<MachineTree>)>> = Mutex::new(None);
        let mut last = LAST.lock();
        if let Some((at, tree)) = &*last
            && at.elapsed() < MACHINE_TREE_AGE
        {
            return Arc::clone(tree);
        }
        let tree = Arc::new(Self::look());
        *last = Some((Instant::now(), Arc::clone(&tree)));
        tree
    }

    fn look() -> Self {
        let etc_files = ETC_FILES.iter().filter_map(|name| {
            let default = || {
                let (_, content) = ETC_DEFAULTS.iter().find(|(other, _)| other == name)?;
                Some(EtcFile::Copied(content.as_bytes().to_vec()))
            };
            Some((*name, etc_file(name).or_else(default)?))
        });
        Self {
            root: ROOT_LINKS.iter().filter_map(|name| root_entry(name)).collect(),
            etc_files: etc_files.collect(),
            etc_dirs: etc_dirs().into_iter().filter(|name| Path::new("/etc").join(name).is_dir()).collect(),
        }
    }
}

/// Returns a file of `/etc`, if there is one.
fn etc_file(name: &str) -> Option<EtcFile> {
    let path = Path::new("/etc").join(name);
    let metadata = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    if metadata.len() > COPY_LIMIT {
        return Some(EtcFile::Mounted);
    }
    std::fs::read(&path).ok().map(EtcFile::Copied)
}

fn root_entry(name: &'static str) -> Option<RootEntry> {
    let path = Path::new("/").join(name);
    match std::fs::read_link(&path) {
        Ok(target) => Some(RootEntry::Link(name, c_string(target.as_os_str()))),
        Err(_) => path.is_dir().then_some(RootEntry::Dir(name)),
    }
}

/// Returns directories of `/etc` that programs need, as names below it. Some may be missing.
pub(crate) fn etc_dirs() -> Vec<String> {
    let mut names: Vec<String> = ETC_DIRS.iter().map(|name| (*name).to_owned()).collect();
    // Java's settings have the version in their name, like the installations: java-17-openjdk-amd64. Listing those is much
    // cheaper than listing /etc.
    let entries = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let installed = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let found: std::collections::BTreeSet<String> = installed
        .filter(|name| name.starts_with("java-"))
        .filter_map(|name| name.rsplit_once('-').map(|(settings, _)| settings.to_owned()))
        .collect();
    names.extend(found);
    names
}

/// Returns the content of `/etc/hosts`. The sandbox's own name has an IPv4 address alone, as programs that look it up expect.
pub(crate) fn hosts(spec: &SandboxSpec) -> String {
    format!("127.0.0.1 localhost {}\n::1 localhost ip6-localhost ip6-loopback\n", spec.hostname.as_str())
}

/// Options of `/etc/resolv.conf` (resolv.conf(5)): the gateway answers at once or not at all.
pub const RESOLVER_OPTIONS: [&str; 2] = ["timeout:2", "attempts:3"];

/// Returns the content of `/etc/resolv.conf`.
pub(crate) fn resolv_conf(spec: &SandboxSpec) -> String {
    match spec.network.mode() {
        NetworkMode::Disabled => "# The network of this sandbox is disabled.\n".to_owned(),
        _ => {
            let options = RESOLVER_OPTIONS.join(" ");
            format!("nameserver {}\noptions {options}\n", belljar_linux::NETWORK_ADDRESS)
        }
    }
}

/// Converts the options of a new file system.
pub(crate) fn options(list: &[(&str, &str)]) -> Vec<(CString, CString)> {
    list.iter().map(|(key, value)| (c_string(key), c_string(value))).collect()
}

/// Converts text without NUL into a C string; callers pass only validated input.
pub(crate) fn c_string(text: impl AsRef<std::ffi::OsStr>) -> CString {
    CString::new(text.as_ref().as_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_created_first_and_once() {
        let tree = HostTree::new(&SandboxSpec::default(), Without::default());
        let mut seen = std::collections::BTreeSet::new();
        for node in &tree.nodes {
            let (Node::Dir { path, .. } | Node::Symlink { path, .. } | Node::File { path, .. }) = node;
            let path = path.to_str().unwrap();
            if let Some((parent, _)) = path.rsplit_once('/') {
                assert!(seen.contains(parent), "{parent} is missing for {path}");
            }
            assert!(seen.insert(path.to_owned()), "{path} is created twice");
        }
        for step in &tree.mounts {
            assert!(seen.contains(step.target.to_str().unwrap()), "{:?} has no mount point", step.target);
        }
    }

    #[test]
    fn host_mounts_are_read_only() {
        let tree = HostTree::new(&SandboxSpec::default(), Without::default());
        for step in &tree.mounts {
            assert_ne!(step.attributes & MOUNT_ATTR_NOSUID, 0, "{:?}", step.target);
            if matches!(step.source, MountSource::Path(_)) {
                assert_ne!(step.attributes & MOUNT_ATTR_RDONLY, 0, "{:?}", step.target);
            }
        }
    }
}
