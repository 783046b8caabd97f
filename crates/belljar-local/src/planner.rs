//! Planning of one launch: turns a specification into a launch plan.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_engine::{DEADLINE_SLACK, EngineError, Environment};
use belljar_guest_config::{
    Domain, GUEST_ARGUMENT, GuestConfig, MachineUser, WARM_PARENT_ARGUMENT, WarmParentConfig, WatchedLimits,
    guest_threads,
};
use belljar_linux::{
    CStringArray, CgroupLayout, CgroupLimits, GuestProgram, Identity, LandlockAttr, LaunchPlan,
    MACHINE_CAPABILITIES, MACHINE_IDS, MachinePlan, NAMESPACES, NamespacePlan, Scratch, Wall, Without,
    rlimit, seccomp,
};
use belljar_model::{
    LimitsGrade, Mount, MountMode, MountPolicy, MountRefusal, SandboxId, SandboxSpec, TEMPLATE_DIR, Tree,
    TreeBase, TreeBuild,
};
use rustix::fs::{Mode, OFlags};

use crate::engine::LocalConfig;
use crate::guest_program::{GuestChoice, RunFrom};
use crate::host_tree::{self, HostTree, c_string};
use crate::images;
use crate::kind::LocalKind;
use crate::lease::Lease;
use crate::limits_view;
use crate::mounts::CheckedMount;
use crate::template_tree::template_tree;
use crate::trust::Trust;
use crate::volumes;

/// Returns the directory for scratch directories of sandboxes without a tree of their own.
fn scratch_parent() -> PathBuf {
    std::env::temp_dir()
}

fn scratch_name(id: &SandboxId) -> String {
    format!("belljar-{id}")
}

/// Returns the path of the home directory inside the sandbox.
pub(crate) fn home(kind: LocalKind, id: &SandboxId) -> PathBuf {
    match kind {
        LocalKind::Local => PathBuf::from(host_tree::HOME),
        _ => scratch_parent().join(scratch_name(id)),
    }
}

/// Planner of one launch.
pub(crate) struct Planner<'a> {
    pub(crate) config: &'a LocalConfig,
    pub(crate) layout: &'a CgroupLayout,
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) id: &'a SandboxId,
    /// Whether the sandbox outlives its runs: its holder enforces the deadline, and its guest accepts several connections.
    pub(crate) is_long: bool,
    /// Whether the first call to its guest is the start of its only program.
    pub(crate) starts: bool,
    pub(crate) without: Without,
    /// Whether limits are watched instead of enforced.
    pub(crate) watched: bool,
    /// Whether there are control groups.
    pub(crate) cgroups: bool,
    /// The template's layers, which must stay mounted as long as the sandbox lives.
    pub(crate) images: Vec<std::sync::Arc<belljar_linux::ImageMount>>,
    /// The imports of the parent of warm interpreters, if this is one.
    pub(crate) warm: Option<&'a [String]>,
    /// Additional certificate authorities that programs trust, if the gateway terminates TLS to some hosts.
    pub(crate) trust: Option<Trust>,
}

impl Planner<'_> {
    pub(crate) fn plan(&mut self, random: u32, guest_socket: OwnedFd) -> Result<LaunchPlan, EngineError> {
        let kind = self.config.kind;
        let privileged = rustix::process::geteuid().is_root();
        let machine = self.machine(privileged)?;
        let lease = match (privileged && kind != LocalKind::None, machine) {
            (false, _) => None,
            (true, None) => Some(Lease::take(random)?),
            (true, Some(_)) => Some(Lease::take_range(random)?),
        };
        let identity = Identity {
            count: if machine.is_some() { MACHINE_IDS } else { 1 },
            // Packages are unpacked by a user named root, which has no more rights than any other.
            inside: match (&lease, self.warm) {
                // A parent of warm interpreters has no separate ids inside.
                (Some(lease), Some(_)) => lease.uid,
                _ if self.build().is_some() || machine.is_some() => 0,
                _ => host_tree::USER_ID,
            },
            outside_uid: lease
                .as_ref()
                .map_or_else(|| rustix::process::geteuid().as_raw(), |lease| lease.uid),
            outside_gid: lease
                .as_ref()
                .map_or_else(|| rustix::process::getegid().as_raw(), |lease| lease.uid),
            privileged,
        };
        let cgroups = self.cgroup_plan()?;
        self.cgroups = !cgroups.is_empty();
        kind.capabilities(self.cgroups, None).require(kind.name(), self.spec)?;
        let checked = self
            .spec
            .mounts
            .iter()
            .map(|mount| CheckedMount::new(mount, &self.config.mount_policy))
            .collect::<Result<Vec<_>, _>>()?;
        let volumes = self.spec.volumes.iter().map(|volume| volumes::Opened::new(volume, kind));
        let volumes = volumes.collect::<Result<Vec<_>, _>>()?;
        // The sandbox's user, to whom what is mounted belongs inside.
        let user = match machine {
            Some(_) => host_tree::USER_ID,
            None => 0,
        };
        let owner = (identity.outside_uid + user, identity.outside_gid + user);
        let namespaces = match kind {
            LocalKind::Local => {
                let outside = privileged.then_some((identity.outside_uid, identity.outside_gid));
                let mut tree = self.tree(outside, identity.count)?;
                let outside = outside.map(|_| owner);
                if let Some(trust) = &self.trust {
                    trust.add_to(&mut tree);
                    // Packages that are installed write the stores.
                    if self.build().is_none() && machine.is_none() {
                        trust.cover_stores(&mut tree);
                    }
                }
                for mount in checked {
                    mount.add_to(&mut tree, outside)?;
                }
                for volume in volumes {
                    volume.add_to(&mut tree, owner)?;
                }
                if tree.mounts.len() > belljar_linux::MAX_MOUNTS {
                    return Err(EngineError::Layer {
                        layer: "mounts".into(),
                        reason: format!(
                            "too many: {} mounts do not fit into one sandbox",
                            self.spec.mounts.len() + self.spec.volumes.len()
                        ),
                        fix: "mount directories above several of them instead".to_owned(),
                    });
                }
                Some(self.namespaces(tree))
            }
            _ => None,
        };
        let scratch = match kind {
            LocalKind::Local => None,
            _ => Some(self.scratch()?),
        };
        let dev_null =
            rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(
                |errno| EngineError::Launch { step: "open /dev/null".to_owned(), source: errno.into() },
            )?;
        let profile = match kind {
            LocalKind::Process => seccomp::Profile::NoNetwork,
            // The watcher would not see memory that is not resident.
            _ if self.watched => seccomp::Profile::Watched,
            _ if self.warm.is_some() => seccomp::Profile::Warm,
            _ if machine.is_some() => seccomp::Profile::Machine,
            _ if self.build().is_some() => seccomp::Profile::Build,
            _ => seccomp::Profile::Default,
        };
        Ok(LaunchPlan {
            guest: self.guest_program(privileged)?,
            guest_socket,
            guest_config: self
                .guest_config_file()
                .map_err(EngineError::launch("write the guest's configuration"))?,
            dev_null,
            cgroups,
            uid_lease: lease.map(|lease| lease.lock),
            identity,
            namespaces,
            gateway: None,
            seccomp: (kind != LocalKind::None).then_some(profile),
            drop_privileges: kind != LocalKind::None,
            machine,
            keep_capabilities: if self.warm.is_some() { WARM_CAPABILITIES } else { 0 },
            rlimits: self.rlimits(),
            scratch,
            without: self.without,
        })
    }

    /// Plans the control groups: required for `local` unless the weaker grade was requested by name, and used by the other
    /// engines if available.
    fn cgroup_plan(&mut self) -> Result<Vec<belljar_linux::CgroupPlan>, EngineError> {
        let layout = self.layout;
        let kind = self.config.kind;
        let required = kind != LocalKind::None && self.spec.grade != LimitsGrade::Watched;
        if required && layout.is_complete() {
            let limits = CgroupLimits {
                memory_bytes: self.spec.limits.memory.bytes(),
                cpu_millis: self.spec.limits.cpus.millis(),
                // The guest's own threads do not count towards the limit of the code.
                pids: self
                    .spec
                    .limits
                    .pids
                    .get()
                    .saturating_add(guest_threads(kind == LocalKind::Local, self.is_direct())),
            };
            return Ok(layout.plan(self.id.as_str(), &limits));
        }
        if kind == LocalKind::Local && required {
            let reasons: Vec<String> =
                layout.missing.iter().map(|(controller, reason)| format!("{controller}: {reason}")).collect();
            return Err(EngineError::Layer {
                layer: "the limits of memory, processors and processes by control groups".into(),
                reason: reasons.join("; "),
                fix: crate::doctor::cgroup_fix(self.is_long),
            });
        }
        self.watched = kind != LocalKind::None;
        Ok(Vec::new())
    }

    /// Returns the privileges of a machine, if the sandbox is one.
    fn machine(&self, privileged: bool) -> Result<Option<MachinePlan>, EngineError> {
        if !self.is_machine() {
            return Ok(None);
        }
        let refused = |reason: &str, fix: &str| EngineError::Layer {
            layer: "a machine".into(),
            reason: reason.to_owned(),
            fix: fix.to_owned(),
        };
        if !privileged {
            return Err(refused(
                "it takes a range of user ids",
                "run the server as root, or create the sandbox without \"machine\"",
            ));
        }
        if self.spec.grade == LimitsGrade::Watched {
            return Err(refused(
                "its root can exceed limits that are only watched",
                "use the grade cgroup, or create the sandbox without \"machine\"",
            ));
        }
        let domain = LandlockAttr::whole(belljar_linux::landlock_abi());
        let domain = domain.ok_or_else(|| {
            refused(
                "the kernel has no Landlock",
                "use a kernel with Landlock, and \"landlock\" in its lsm= list",
            )
        })?;
        Ok(Some(MachinePlan { capabilities: MACHINE_CAPABILITIES, domain }))
    }

    fn is_machine(&self) -> bool {
        self.warm.is_none() && self.spec.machine
    }

    /// Returns the build of the tree, if it is being built.
    fn build(&self) -> Option<&TreeBuild> {
        self.spec.tree.build()
    }

    /// Returns the tree, without the mounts of the specification.
    fn tree(&mut self, outside: Option<(u32, u32)>, ids: u32) -> Result<HostTree, EngineError> {
        let template = match &self.spec.tree {
            Tree::Template(template) => template,
            // The capabilities have no images.
            Tree::Host | Tree::Image(_) => return Ok(HostTree::new(self.spec, self.without)),
            Tree::Bare => return Ok(HostTree::bare(self.spec, self.without)),
        };
        let shown = outside.filter(|_| template.build.is_some() || self.is_machine());
        let mut layers = Vec::new();
        for layer in &template.layers {
            let image = images::get_or_mount(&template.owner, layer, self.without)?;
            layers.push(images::detach(&image, shown, ids)?);
            self.images.push(image);
        }
        let disk = self.spec.disk.as_deref().filter(|_| self.is_machine()).zip(outside);
        let disk = disk.map(|(image, outside)| volumes::disk(image, outside, ids)).transpose()?;
        let mut tree = template_tree(self.spec, template, layers, disk, self.without);
        let refused = |error: belljar_model::ModelError| EngineError::Layer {
            layer: "directories of the machine shown to a build".into(),
            reason: error.to_string(),
            fix: "name another directory".to_owned(),
        };
        for dir in template.build.iter().flat_map(|build| &build.shown) {
            // An administrator has named the directory; what the operator lets no sandbox see stays forbidden.
            let mut policy = MountPolicy::new(&[]);
            for path in self.config.mount_policy.forbidden().iter().filter(|_| !dir.own) {
                policy.forbid(path.clone()).map_err(refused)?;
            }
            // Other paths have been checked with the specification.
            let root = |_| MountRefusal::Root { source_path: dir.source.clone() };
            policy.allow_read(dir.source.clone()).map_err(root)?;
            let target = Path::new(host_tree::HOME).join(&dir.name);
            let mount = Mount::new(dir.source.clone(), target, MountMode::ReadOnly).map_err(refused)?;
            CheckedMount::new(&mount, &policy)?.add_to(&mut tree, outside)?;
        }
        Ok(tree)
    }

    fn namespaces(&self, tree: HostTree) -> NamespacePlan {
        let mut flags = match self.warm {
            None => NAMESPACES,
            // Its children join control groups that are not below its own, and PID namespaces that are below its own.
            Some(_) => {
                use belljar_linux::{CGROUP_NAMESPACE, PID_NAMESPACE, USER_NAMESPACE};
                NAMESPACES & !(USER_NAMESPACE | PID_NAMESPACE | CGROUP_NAMESPACE)
            }
        };
        for (wall, bit) in crate::layers::NAMESPACE_WALLS {
            if self.without.has(*wall) {
                flags &= !bit;
            }
        }
        NamespacePlan {
            flags,
            hostname: c_string(self.spec.hostname.as_str()),
            staging: c_string(host_tree::STAGING),
            root_options: host_tree::options(&[("mode", "0755"), ("size", "4m"), ("nr_inodes", "4096")]),
            nodes: tree.nodes,
            mounts: tree.mounts,
            proc_target: c_string(Path::new(tree.prefix).join("proc")),
            enter: (!tree.prefix.is_empty()).then(|| c_string(tree.prefix)),
            proc_masks: HostTree::proc_masks(),
            proc_files: limits_view::proc_files(&self.spec.limits),
        }
    }

    fn scratch(&self) -> Result<Scratch, EngineError> {
        let parent = scratch_parent();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&parent, flags, Mode::empty()).map_err(|errno| EngineError::HostFile {
            action: "open".into(),
            path: parent,
            source: errno.into(),
        })?;
        Ok(Scratch { parent: dir, name: c_string(scratch_name(self.id)) })
    }

    fn rlimits(&self) -> Vec<(u32, u64)> {
        if self.config.kind == LocalKind::None {
            return Vec::new();
        }
        let mut limits = vec![
            // A limit of 1 also keeps a core dump from being piped to a helper on the host, which 0 does not (core(5)).
            (rlimit::RLIMIT_CORE, 1),
            (rlimit::RLIMIT_MEMLOCK, 64 << 10),
            (rlimit::RLIMIT_MSGQUEUE, 819_200),
            (rlimit::RLIMIT_SIGPENDING, 1024),
            // Real-time scheduling bypasses the processor limit, and the user that started Belljar may be allowed it.
            (rlimit::RLIMIT_RTPRIO, 0),
            (rlimit::RLIMIT_NICE, 0),
        ];
        if self.config.kind == LocalKind::Process {
            limits.push((rlimit::RLIMIT_FSIZE, self.spec.limits.disk.bytes()));
        }
        if self.watched && self.config.kind == LocalKind::Local {
            // Counted per user namespace since Linux 5.14, so only the sandbox's processes count.
            limits.push((
                rlimit::RLIMIT_NPROC,
                u64::from(self.spec.limits.pids.get()) + u64::from(guest_threads(true, self.is_direct())),
            ));
        }
        limits
    }

    fn guest_program(&self, privileged: bool) -> Result<GuestProgram, EngineError> {
        let from = match (self.config.kind, privileged) {
            (LocalKind::Local, true) => RunFrom::Mount,
            (LocalKind::Local, false) => RunFrom::OwnMount,
            _ => RunFrom::File,
        };
        let exe = match &self.config.guest {
            Some(path) => GuestChoice::at(path).exe(from)?,
            None => GuestChoice::beside().exe(from)?,
        };
        let role = if self.warm.is_some() { WARM_PARENT_ARGUMENT } else { GUEST_ARGUMENT };
        let argv = vec![c"belljar".to_owned(), c_string(role)];
        Ok(GuestProgram { exe, argv: CStringArray::new(argv), envp: CStringArray::new(Vec::new()) })
    }

    fn guest_config_file(&self) -> std::io::Result<OwnedFd> {
        match self.warm {
            None => memory_file(c"belljar-guest", &self.guest_config()),
            Some(imports) => memory_file(c"belljar-guest", &self.warm_parent_config(imports)),
        }
    }

    fn warm_parent_config(&self, imports: &[String]) -> WarmParentConfig {
        let mut env = self.environment(Path::new(host_tree::HOME));
        env.retain(|(name, _)| name != "BELLJAR_SANDBOX");
        // A forked child has only the forking thread, so libraries must not start threads before the fork.
        let threads = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"];
        env.extend(threads.map(|name| (name.to_owned(), "1".to_owned())));
        env.extend(
            [("PYTHONDONTWRITEBYTECODE", "1"), ("MPLCONFIGDIR", "/tmp")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        // Where the code does not work, the interpreter forks by itself; on a machine where it does, only tests see that.
        let native_entry =
            !(cfg!(feature = "mutation") && std::env::var_os("BELLJAR_TEST_WITHOUT_NATIVE_ENTRY").is_some());
        WarmParentConfig { env, imports: imports.to_vec(), native_entry }
    }

    /// Reports whether the guest starts the only program by itself. One that watches limits has a runtime for that.
    pub(crate) fn is_direct(&self) -> bool {
        self.starts && self.config.kind == LocalKind::Local && !self.is_machine() && !self.watched
    }

    fn guest_config(&self) -> GuestConfig {
        let kind = self.config.kind;
        let home = home(self.config.kind, self.id);
        // For a single run the guest enforces the deadline, even if the host side fails.
        let deadline_ms = match self.is_long {
            true => 0,
            false => millis(self.spec.limits.timeout.duration() + DEADLINE_SLACK),
        };
        GuestConfig {
            env: self.environment(&home),
            landlock: self.domain(&home),
            umask: if kind == LocalKind::Process { 0o077 } else { 0o022 },
            confine_guest: kind == LocalKind::Process,
            deadline_ms,
            grace_ms: millis(belljar_engine::STOP_GRACE),
            when_alone: self.config.on_host_loss,
            many_connections: self.is_long,
            direct: self.is_direct(),
            first_process: kind == LocalKind::Local,
            own_proc: kind == LocalKind::Local,
            own_filter: false,
            machine: self.is_machine().then_some(MachineUser {
                uid: host_tree::USER_ID,
                gid: host_tree::USER_ID,
                ids: MACHINE_IDS,
                capabilities: MACHINE_CAPABILITIES,
            }),
            user: self.spec.user.clone().filter(|_| self.is_machine()),
            // Same as `{heap}` of a language: node cannot see the limit.
            heap_mib: self.spec.limits.memory.bytes() / 4 * 3 / (1 << 20),
            open_files: (kind != LocalKind::None && !self.without.has(Wall::Rlimits))
                .then(|| self.spec.limits.open_files.get()),
            user_processes: None,
            watched: self.watched.then(|| WatchedLimits {
                memory_bytes: self.spec.limits.memory.bytes(),
                pids: self.spec.limits.pids.get(),
                own_kernel: false,
            }),
            home,
            #[cfg(feature = "mutation")]
            without: self.without.names(),
        }
    }

    fn path(&self) -> &'static str {
        match self.spec.tree.template().map(|tree| tree.base) {
            None => host_tree::PATH,
            Some(TreeBase::Host) => TEMPLATE_PATH,
            // Installing packages needs administrative programs of other packages.
            Some(TreeBase::Own) => "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
    }

    fn environment(&self, home: &Path) -> Vec<(String, String)> {
        let mut env = Environment::new(self.id, home, self.path());
        // A build installs for all users of its tree.
        if self.build().is_none() {
            // In a machine, root's npm installs for all.
            env.add_installers(Some(home).filter(|_| !self.is_machine()));
        }
        if self.config.kind != LocalKind::None {
            env.add_limits(&self.spec.limits);
        }
        if self.config.kind != LocalKind::Local {
            env.set("TMPDIR", home.to_string_lossy());
        }
        env.add_placeholders(self.spec);
        if self.trust.is_some() {
            env.extend(Trust::environment());
        }
        env.add_requested(self.spec);
        env.into_variables()
    }

    fn domain(&self, home: &Path) -> Option<Domain> {
        match self.config.kind {
            // The first process has entered a domain of all of it.
            LocalKind::Local if self.is_machine() => None,
            LocalKind::Local => {
                let mut write: Vec<PathBuf> =
                    [host_tree::HOME, "/tmp", "/dev", "/var/tmp"].map(PathBuf::from).into();
                let writable = self.spec.mounts.iter().filter(|mount| mount.mode == MountMode::ReadWrite);
                write.extend(writable.map(|mount| mount.target.clone()));
                let writable = self.spec.volumes.iter().filter(|volume| volume.mode == MountMode::ReadWrite);
                write.extend(writable.map(|volume| volume.path.clone()));
                if self.build().is_some() {
                    write.push(if self.spec.tree.is_own() { "/" } else { TEMPLATE_DIR }.into());
                }
                Some(Domain { read: vec![PathBuf::from("/")], write, tcp: true, least_abi: 1 })
            }
            LocalKind::Process => Some(Domain {
                read: PROCESS_READS
                    .iter()
                    .map(PathBuf::from)
                    .chain(host_tree::etc_dirs().iter().map(|name| PathBuf::from("/etc").join(name)))
                    .collect(),
                write: PROCESS_DEVICES.iter().map(PathBuf::from).chain([home.to_owned()]).collect(),
                tcp: false,
                // Since ABI 6, code cannot signal processes outside; sandboxes started by root have their own ids.
                least_abi: if rustix::process::geteuid().is_root() { 1 } else { 6 },
            }),
            _ => None,
        }
    }
}

/// CAP_DAC_OVERRIDE, for cloning into a control group, CAP_SETGID and CAP_SETUID (capabilities(7)).
const WARM_CAPABILITIES: u64 = 1 << 1 | 1 << 6 | 1 << 7;

/// Host paths that code may read with the engine `process`: programs, libraries and what they need of `/etc`.
const PROCESS_READS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ssl/openssl.cnf",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/matplotlibrc",
    "/etc/protocols",
    "/etc/services",
    "/proc",
];

const PROCESS_DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// `PATH` in the machine's own tree with a template's layer.
const TEMPLATE_PATH: &str = "/opt/template/bin:/usr/local/bin:/usr/bin:/bin";

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Creates an anonymous file with `content` as JSON.
pub(crate) fn memory_file(name: &CStr, content: &impl serde::Serialize) -> std::io::Result<OwnedFd> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all_at(&serde_json::to_vec(content)?, 0)?;
    Ok(file.into())
}
