//! The bundle of a sandbox: its directory, the tree in it, and what `runsc` is told (OCI runtime specification, config.md).
//!
//! ```text
//!  config.json   the specification         log     what runsc says
//!  root/         the tree, read-only       state/  runsc's own
//!  run/s         the guest's socket
//! ```

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_engine::Environment;
use belljar_engine::backend::guest_config;
use belljar_guest_config::{
    GUEST_ARGUMENT, GUEST_PROGRAM, GuestConfig, LISTEN_ARGUMENT, MachineUser, WatchedLimits,
};
use belljar_linux::{CgroupLimits, MountSource, Node};
use belljar_local::{HOST_HOME, HOST_PATH, HOST_USER, TRUST_DIR, Trust, host_tree};
use belljar_model::{GvisorPlatform, NetworkMode, SandboxId, SandboxSpec};
use serde_json::{Value, json};

/// The guest's program inside.
const PROGRAM: &str = "/.belljar/guest";

/// Directory of the guest's socket inside. It belongs to root, and nobody else may enter it.
const SOCKET_DIR: &str = "/.belljar/run";

/// Name of the guest's socket in it.
pub(crate) const SOCKET: &str = "s";

/// Directory of the guest's socket in the bundle.
pub(crate) const RUN_DIR: &str = "run";

/// File in the bundle for what `runsc` says.
pub(crate) const LOG: &str = "log";

/// Capabilities of the guest, which is root: it takes on the ids of the sandbox's user, and ends that user's processes.
const CAPABILITIES: [&str; 3] = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"];

/// CAP_KILL (capabilities(7)), as a bit.
const CAP_KILL: u64 = 1 << 5;

/// Memory of the sentry's and the gofer's own for which the limit of a sandbox's control group has room, in bytes. A sentry that runs
/// Python takes 27 MiB, and one with 100 processes 20 MiB more; what user code allocates while the guest does not look comes on top: a
/// program can fill 100 MiB in the 20 ms between two looks, and on a busy machine the next look is late.
pub(crate) const SENTRY_BYTES: u64 = 256 << 20;

/// Threads of the sentry's and the gofer's own.
const SENTRY_PIDS: u32 = 256;

/// Threads of this machine for each process inside. A sentry that cannot make one more ends. With the platform systrap a process takes 2;
/// with ptrace it takes one for each thread of the sentry that has run it: 6 at rest, and up to 40 among processes that all fork.
const fn pids_of_process(platform: GvisorPlatform) -> u32 {
    match platform {
        GvisorPlatform::Systrap => 8,
        GvisorPlatform::Ptrace => 64,
    }
}

/// Processes and threads above the limit at which the guest ends all: those that the host may start besides those of user code. Also, the
/// sentry shows a new process before it refuses it.
const WATCH_SLACK: u32 = 16;

/// Options of what is mounted from the machine.
const READ_ONLY: [&str; 4] = ["rbind", "ro", "nosuid", "nodev"];

/// What a bundle is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bundle<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) spec: &'a SandboxSpec,
    /// Its directory, which does not exist yet.
    pub(crate) dir: &'a Path,
    /// The guest's program on this machine.
    pub(crate) guest: &'a Path,
    /// Whether the sandbox outlives its first connection.
    pub(crate) is_long: bool,
    /// What its programs trust in addition.
    pub(crate) trust: Option<&'a Trust>,
}

impl Bundle<'_> {
    /// Writes the bundle.
    pub(crate) fn write(&self) -> io::Result<()> {
        let dir = |path: &Path, mode| std::fs::DirBuilder::new().mode(mode).create(path);
        dir(self.dir, 0o700)?;
        dir(&self.dir.join(RUN_DIR), 0o700)?;
        let root = self.dir.join("root");
        make_dir(&root)?;
        let (nodes, binds) = host_tree(self.spec, self.trust);
        for node in &nodes {
            write_node(&root, node)?;
        }
        let mut mounts = self.own_mounts();
        let own = |path: &str| root.join(path.trim_start_matches('/'));
        let bind = |target: &str, source: &Path| json!({ "destination": target, "type": "bind", "source": source, "options": READ_ONLY });
        for step in &binds {
            let source = match &step.source {
                MountSource::Path(source) => source.to_string_lossy().into_owned().into(),
                MountSource::Own(source) => own(&source.to_string_lossy()),
                _ => continue,
            };
            mounts.push(bind(&format!("/{}", step.target.to_string_lossy()), &source));
        }
        if self.trust.is_some() {
            // The sentry has a `/dev` of its own.
            mounts.push(bind(TRUST_DIR, &own(TRUST_DIR)));
        }
        for mount in &mounts {
            make_target(&root, mount)?;
        }
        std::fs::write(self.dir.join("config.json"), self.config(&mounts).to_string())
    }

    /// Returns the mounts besides the machine's tree.
    fn own_mounts(&self) -> Vec<Value> {
        let limits = &self.spec.limits;
        let disk = |target: &str, bytes: u64, mode: &str, user: u32| {
            let options = [
                "nosuid".to_owned(),
                "nodev".to_owned(),
                format!("size={bytes}"),
                format!("mode={mode}"),
                format!("uid={user}"),
                format!("gid={user}"),
            ];
            json!({ "destination": target, "type": "tmpfs", "source": "tmpfs", "options": options })
        };
        vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            disk(HOST_HOME, limits.disk.bytes(), "0755", HOST_USER),
            disk("/tmp", limits.tmp.bytes(), "1777", 0),
            disk("/dev/shm", limits.tmp.bytes(), "1777", 0),
            json!({ "destination": PROGRAM, "type": "bind", "source": self.guest.to_string_lossy(), "options": READ_ONLY }),
            json!({
                "destination": SOCKET_DIR,
                "type": "bind",
                "source": self.dir.join(RUN_DIR).to_string_lossy(),
                "options": ["bind", "rw", "nosuid", "nodev", "noexec"],
            }),
        ]
    }

    fn config(&self, mounts: &[Value]) -> Value {
        // A network is that of the namespace that it is started in.
        let network = (self.spec.network.mode() == NetworkMode::Disabled).then_some("network");
        let namespaces = ["pid", "ipc", "uts", "mount"].into_iter().chain(network);
        let namespaces: Vec<Value> = namespaces.map(|kind| json!({ "type": kind })).collect();
        json!({
            "ociVersion": "1.0.2",
            "hostname": self.spec.hostname.to_string(),
            "root": { "path": "root", "readonly": true },
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "args": [PROGRAM, GUEST_ARGUMENT, LISTEN_ARGUMENT, format!("{SOCKET_DIR}/{SOCKET}")],
                "cwd": "/",
                "noNewPrivileges": true,
                "capabilities": { "bounding": [], "effective": CAPABILITIES, "permitted": CAPABILITIES },
                // A core would be a file of the sandbox's own.
                "rlimits": [{ "type": "RLIMIT_CORE", "hard": 0, "soft": 0 }],
            },
            "mounts": mounts,
            "linux": { "namespaces": namespaces },
        })
    }

    /// Returns the configuration of the guest. `deadline` is that of a long-lived sandbox.
    pub(crate) fn guest_config(&self, deadline: Option<Duration>) -> GuestConfig {
        let limits = &self.spec.limits;
        let mut env = Environment::new(self.id, HOST_HOME.as_ref(), HOST_PATH);
        if self.trust.is_some() {
            env.extend(Trust::environment());
        }
        GuestConfig {
            // The sentry has no Landlock. What it stands in for: the guest is another user, and its files are another user's.
            machine: Some(MachineUser { uid: HOST_USER, gid: HOST_USER, ids: 0, capabilities: CAP_KILL }),
            // The sentry counts only processes that others of the user have made, and not the first one. Where the host starts several,
            // the guest watches their sum.
            user_processes: Some(limits.pids.get().saturating_sub(1)),
            // The kernel that limits memory, this machine's, sees only the sentry, and would end it.
            watched: Some(WatchedLimits {
                memory_bytes: limits.memory.bytes(),
                pids: limits.pids.get().saturating_add(WATCH_SLACK),
                own_kernel: true,
            }),
            ..guest_config(self.spec, HOST_HOME.as_ref(), env, self.is_long, deadline)
        }
    }
}

/// Returns the limits of the control groups around a sentry.
pub(crate) fn group_limits(spec: &SandboxSpec, platform: GvisorPlatform) -> CgroupLimits {
    CgroupLimits {
        memory_bytes: spec.limits.memory.bytes().saturating_add(SENTRY_BYTES),
        cpu_millis: spec.limits.cpus.millis(),
        pids: spec.limits.pids.get().saturating_mul(pids_of_process(platform)).saturating_add(SENTRY_PIDS),
    }
}

/// Returns the guest's program: the one at this path; by default the one beside this program, or this program itself.
pub(crate) fn guest_program(path: Option<&Path>) -> io::Result<PathBuf> {
    if let Some(path) = path {
        return path.canonicalize();
    }
    let own = std::fs::read_link("/proc/self/exe")?;
    let beside = own.with_file_name(GUEST_PROGRAM);
    if beside.is_file() { beside.canonicalize() } else { own.canonicalize() }
}

fn write_node(root: &Path, node: &Node) -> io::Result<()> {
    use std::ffi::{CStr, OsStr};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;
    let name = |name: &CStr| PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    let at = |path: &CStr| root.join(name(path));
    match node {
        Node::Dir { path, mode } => {
            let dir = at(path);
            make_dir(&dir)?;
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(*mode))
        }
        Node::File { path, content } => {
            let file = at(path);
            std::fs::write(&file, content)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))
        }
        Node::Symlink { path, target } => std::os::unix::fs::symlink(name(target), at(path)),
    }
}

/// Makes a directory and its parents, which all may enter whatever this process's umask is.
fn make_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    if path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), make_dir)?;
    std::fs::create_dir(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// Makes what a mount covers.
fn make_target(root: &Path, mount: &Value) -> io::Result<()> {
    let text = |key: &str| mount.get(key).and_then(Value::as_str).unwrap_or_default();
    let target = root.join(text("destination").trim_start_matches('/'));
    let is_file = text("type") == "bind" && Path::new(text("source")).is_file();
    match target.parent().filter(|_| is_file) {
        Some(parent) => {
            make_dir(parent)?;
            std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&target).map(drop)
        }
        None => make_dir(&target),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The whole specification, so that each change of the walls shows in review.
    #[test]
    fn specification_has_every_wall() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("bundle");
        let id = SandboxId::from_entropy([7; SandboxId::LEN]);
        let mut spec = SandboxSpec::default();
        spec.limits.disk = "8m".parse().unwrap();
        spec.limits.pids = "10".parse().unwrap();
        let guest = Path::new("/bin/true");
        let bundle = Bundle { id: &id, spec: &spec, dir: &dir, guest, is_long: false, trust: None };
        bundle.write().unwrap();
        let config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["root"], json!({ "path": "root", "readonly": true }));
        assert_eq!(config["process"]["noNewPrivileges"], true);
        assert_eq!(config["process"]["capabilities"]["bounding"], json!([]));
        let mounts = config["mounts"].as_array().unwrap();
        let mount = |target: &str| mounts.iter().find(|mount| mount["destination"] == target).unwrap();
        let options =
            |target: &str| serde_json::from_value::<Vec<String>>(mount(target)["options"].clone()).unwrap();
        assert!(options(HOST_HOME).contains(&"size=8388608".to_owned()), "{mounts:?}");
        for mount in mounts.iter().filter(|mount| mount["type"] == "bind") {
            let target = mount["destination"].as_str().unwrap();
            let options = options(target);
            for option in ["nosuid", "nodev", if target == SOCKET_DIR { "noexec" } else { "ro" }] {
                assert!(options.contains(&option.to_owned()), "{target}: {options:?}");
            }
            assert!(dir.join("root").join(&target[1..]).exists(), "{target} has no mount point");
        }
        assert_eq!(std::fs::metadata(dir.join(RUN_DIR)).unwrap().permissions().mode() & 0o777, 0o700);
        let passwd = std::fs::read_to_string(dir.join("root/etc/passwd")).unwrap();
        assert!(passwd.contains(&format!("user:x:{HOST_USER}:")), "{passwd}");
        let guest = bundle.guest_config(None);
        assert!(guest.own_filter && guest.first_process && guest.landlock.is_none());
        assert_eq!((guest.user_processes, guest.machine.unwrap().uid), (Some(9), HOST_USER));
    }
}
