//! The complete plan of a launch, built beforehand: the processes between clone and exec only execute it, because there
//! they may neither allocate nor format an error.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use crate::kernel::{CStringArray, LandlockAttr};
use crate::network::GatewayPlan;
use crate::seccomp::Profile;

pub(crate) mod wire;

/// Everything that one launch needs.
#[derive(Debug)]
pub struct LaunchPlan {
    /// The guest's program, with its arguments and environment.
    pub guest: GuestProgram,
    /// The guest's end of its connection. It becomes descriptor [`GUEST_SOCKET_FD`].
    pub guest_socket: OwnedFd,
    /// The guest's configuration, in an anonymous file. It becomes descriptor [`GUEST_CONFIG_FD`]: arguments are readable
    /// by every user of the machine, and the configuration holds the environment of user code.
    pub guest_config: OwnedFd,
    /// An open `/dev/null`, for the guest's standard streams.
    pub dev_null: OwnedFd,
    /// Control groups to make, configure, join and remove.
    pub cgroups: Vec<CgroupPlan>,
    /// A lock held for as long as the sandbox's outside user id is in use.
    pub uid_lease: Option<OwnedFd>,
    /// User and group that the sandbox runs as.
    pub identity: Identity,
    /// New namespaces and the tree in them; `None` runs the guest in the caller's namespaces.
    pub namespaces: Option<NamespacePlan>,
    /// The route to the gateway, in the sandbox's own network namespace. Without it nothing leaves that namespace.
    pub gateway: Option<GatewayPlan>,
    /// The filter that the guest and all its children run under.
    pub seccomp: Option<Profile>,
    /// True if capabilities and the ability to gain privileges are dropped.
    pub drop_privileges: bool,
    /// Capabilities that are kept nevertheless, as bits: zero except for the parent of warm interpreters.
    pub keep_capabilities: u64,
    /// Set if root inside is root of the sandbox's user namespace, with some capabilities.
    pub machine: Option<MachinePlan>,
    /// `(resource, value)` for soft and hard limits of the guest and all its children.
    pub rlimits: Vec<(u32, u64)>,
    /// The sandbox's home directory on the host, removed with everything in it at the end.
    pub scratch: Option<Scratch>,
    /// Walls that a test disables; always empty in a release.
    pub without: Without,
}

/// Privileges of a machine: programs may gain those of its root by set-user-ID files, so no-new-privileges is off, and the filter and the
/// Landlock domain are installed while the first process may administer its namespace.
#[derive(Debug, Clone, Copy)]
pub struct MachinePlan {
    /// Capabilities of root, as bits: the bounding set.
    pub capabilities: u64,
    /// What the Landlock domain of everything inside handles.
    pub domain: LandlockAttr,
}

/// Capabilities of root in a machine: each is needed by a program that people expect to work, as named. Those that
/// administer the kernel, its network, its clock or its log are not among them, nor are CAP_NET_BIND_SERVICE (all ports may be bound,
/// `ip_unprivileged_port_start`) and CAP_MKNOD (capabilities(7)).
pub const MACHINE_CAPABILITIES: u64 = 1 // CAP_CHOWN: package managers
    | 1 << 1 // CAP_DAC_OVERRIDE: package managers
    | 1 << 3 // CAP_FOWNER: dpkg
    | 1 << 4 // CAP_FSETID: directories with a set-group-ID bit
    | 1 << 5 // CAP_KILL: root ends processes of other users
    | 1 << 6 // CAP_SETGID: su, sudo, servers
    | 1 << 7 // CAP_SETUID: su, sudo, servers
    | 1 << 18 // CAP_SYS_CHROOT: sshd
    | 1 << 31; // CAP_SETFCAP: setcap

/// Number of user and group ids of a machine.
pub const MACHINE_IDS: u32 = 65_536;

/// Descriptor number of the guest's connection.
pub const GUEST_SOCKET_FD: i32 = 3;
/// Descriptor number of the guest's writable view of `/proc`, if it has its own `/proc`.
pub const GUEST_PROC_FD: i32 = 4;

/// Descriptor number of the guest's configuration.
pub const GUEST_CONFIG_FD: i32 = 5;

/// The guest's program.
#[derive(Debug)]
pub struct GuestProgram {
    /// The program, preferably on a read-only mount of its own.
    pub exe: GuestExe,
    /// Arguments, the program's name first.
    pub argv: CStringArray,
    /// The environment.
    pub envp: CStringArray,
}

/// Source of the guest's program. A process inside must never get a writable descriptor of it (CVE-2019-5736), so it runs
/// from a read-only mount that nothing else uses.
#[derive(Debug)]
pub enum GuestExe {
    /// A descriptor that is already safe.
    Fd(OwnedFd),
    /// A file that the sandbox's first process clones into a read-only mount itself. The launch fails if the path is another
    /// file by then.
    Checked {
        /// The path, without any symbolic link in it.
        path: CString,
        /// Device number of the file that was checked.
        device: u64,
        /// Inode number of the file that was checked.
        inode: u64,
    },
}

/// The user id and group id of a sandbox, outside and inside.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The user id and group id inside.
    pub inside: u32,
    /// The user id outside.
    pub outside_uid: u32,
    /// The group id outside.
    pub outside_gid: u32,
    /// Number of ids from these on that the sandbox has.
    pub count: u32,
    /// True if the caller may map and switch to ids that are not its own.
    pub privileged: bool,
}

/// One control group.
#[derive(Debug)]
pub struct CgroupPlan {
    /// The group's directory; its parent exists.
    pub dir: CString,
    /// Files to write after it has been made.
    pub settings: Vec<CgroupSetting>,
    /// Way in which the sandbox's first process joins it.
    pub join: CgroupJoin,
    /// True if the group can kill all its processes at once (`cgroup.kill`).
    pub can_kill: bool,
    /// True if it is a group of the v1 freezer, in which frozen processes do not die.
    pub is_freezer: bool,
}

/// One file of a control group and the value to write to it.
#[derive(Debug)]
pub struct CgroupSetting {
    /// The file's name.
    pub file: CString,
    /// The value to write.
    pub value: CString,
    /// True if the kernel may lack this file, for example without swap accounting.
    pub optional: bool,
}

/// Way of joining a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupJoin {
    /// By being cloned into it (v2).
    AtClone,
    /// By writing `0` to `tasks` (v1). Moving only the calling thread skips the grace period that moving another process
    /// waits for: 0.1 ms instead of 7 ms.
    Tasks,
}

impl CgroupJoin {
    /// Returns the file of a group to which a process writes `0` to join it.
    pub(crate) const fn list(self) -> &'static str {
        match self {
            Self::AtClone => "cgroup.procs",
            Self::Tasks => "tasks",
        }
    }
}

/// Namespaces and the tree in them.
#[derive(Debug)]
pub struct NamespacePlan {
    /// `CLONE_NEW*` bits.
    pub flags: u64,
    /// The host name inside.
    pub hostname: CString,
    /// An existing directory on which the new root is mounted until the pivot; nothing below it can be used as the source
    /// of a mount by path.
    pub staging: CString,
    /// Options of the new root's tmpfs, such as its size in bytes; it holds only names.
    pub root_options: Vec<(CString, CString)>,
    /// Files and directories of the new root, in order.
    pub nodes: Vec<Node>,
    /// Mounts into the new root, in order, after the root has become read-only.
    pub mounts: Vec<MountStep>,
    /// Mount point of the fresh `/proc`, relative to the root.
    pub proc_target: CString,
    /// Names below `/proc` that are covered; missing ones are skipped.
    pub proc_masks: Vec<CString>,
    /// Files that cover those of the machine of the same name directly below `/proc`.
    pub proc_files: Vec<ProcFile>,
    /// The mount that becomes the root in the end, relative to the tmpfs that is the root until then. `None` is that tmpfs.
    pub enter: Option<CString>,
}

/// A file of the sandbox's own that covers one of `/proc`.
#[derive(Debug)]
pub struct ProcFile {
    /// Name below `/proc`. The root has no entry of this name.
    pub name: CString,
    /// Content.
    pub content: Vec<u8>,
}

/// A file, directory or link to make in the new root. Paths are relative to it.
#[derive(Debug)]
pub enum Node {
    /// A directory.
    Dir {
        /// Path.
        path: CString,
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Symlink {
        /// Path of the link.
        path: CString,
        /// Target of the link.
        target: CString,
    },
    /// A file; empty ones serve as mount points.
    File {
        /// Path.
        path: CString,
        /// Content.
        content: Vec<u8>,
    },
}

/// One mount into the new root. Targets are relative to it.
#[derive(Debug)]
pub struct MountStep {
    /// Source of the mount.
    pub source: MountSource,
    /// Mount point.
    pub target: CString,
    /// `MOUNT_ATTR_*` bits.
    pub attributes: u64,
    /// Nodes to make first, on the file systems that were mounted before; existing ones are kept.
    pub make: Vec<Node>,
}

/// Source of a mount.
#[derive(Debug)]
pub enum MountSource {
    /// A path of the host, with all that is mounted below it.
    Path(CString),
    /// A path of the host that must still be the file with this device and inode.
    Checked {
        /// The path, without any symbolic link in it.
        path: CString,
        /// Device number of the file that was checked.
        device: u64,
        /// Inode number of the file that was checked.
        inode: u64,
    },
    /// A path that already exists in the new root, with all that is mounted below it.
    Own(CString),
    /// A mount that the caller has detached already.
    Detached(OwnedFd),
    /// A volume. The supervisor mounts it, which may take as long as other mounts write to it.
    Volume {
        /// Its file, opened for reading and writing by this launch alone.
        image: OwnedFd,
        /// A user namespace that maps the owner of its files.
        ids: OwnedFd,
    },
    /// A new filesystem and its options. An option without a value is a flag.
    New {
        /// Type, such as `tmpfs`.
        kind: CString,
        /// Options with their values.
        options: Vec<(CString, CString)>,
    },
}

/// A directory to remove at the end.
#[derive(Debug)]
pub struct Scratch {
    /// The directory it is in.
    pub parent: OwnedFd,
    /// Its name there.
    pub name: CString,
}

/// The set of disabled walls, for tests which show that an attack succeeds without its wall.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Without {
    bits: u64,
}

/// One wall that [`Without`] can disable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Wall {
    /// The system call filter.
    Seccomp,
    /// The Landlock domain of user code.
    Landlock,
    /// Dropping capabilities.
    Capabilities,
    /// No new privileges.
    NoNewPrivileges,
    /// The new root.
    Pivot,
    /// The pid namespace's own `/proc` and its masks.
    ProcMasks,
    /// The network namespace.
    Network,
    /// The sizes of the receive buffers of TCP.
    ReceiveBuffers,
    /// The count of connections that no program has accepted.
    Unaccepted,
    /// The IPC namespace.
    Ipc,
    /// The UTS namespace.
    Uts,
    /// The cgroup namespace.
    CgroupNamespace,
    /// The memory limit.
    Memory,
    /// The process limit.
    Pids,
    /// The processor limit.
    Cpu,
    /// Sizes and inode counts of the writable file systems.
    Quota,
    /// Read-only mounts.
    ReadOnly,
    /// Resource limits such as open files.
    Rlimits,
    /// The fresh session keyring.
    Keyring,
    /// Closing inherited descriptors.
    Descriptors,
    /// The guest's deadline.
    Deadline,
    /// The guest being non-dumpable, so that it cannot be inspected.
    Dumpable,
    /// No allocation in the supervisor.
    ForkSafeSupervisor,
    /// No allocation in the maker of the network namespace.
    ForkSafeHelper,
    /// No allocation in the first process.
    ForkSafeFirst,
    /// No allocation in the child that becomes user code.
    ForkSafeSpawn,
    /// The time limit of a run as the guest enforces it. The host enforces it too, slightly later.
    Timeout,
    /// The sandbox's own user as the owner of its user namespace.
    Owner,
    /// The Landlock domain of a machine.
    MachineDomain,
    /// `nosuid` on a template's layer or a volume: no program in it gains privileges.
    LayerNosuid,
    /// `nodev` on a template's layer or a volume: no device file in it works.
    LayerNodev,
    /// A separate superblock for each owner of a template's layer.
    Superblock,
    /// One device and one superblock for each volume, shared by all its mounts.
    VolumeLock,
    /// The id map of a volume's mount, which maps only the owner to an id outside.
    VolumeIds,
    /// Unguessable ids of executions between guest and language kernel.
    ExecutionIds,
    /// The guest's count of the calls that code makes, and its list of what it may call.
    CodeCalls,
    /// The gateway's check of the host name in TLS and HTTP.
    GatewayNames,
    /// The ranges that the gateway denies in every mode.
    GatewayRanges,
    /// The gateway's check for addresses of its own machine.
    GatewayOwn,
    /// The binding of each of the gateway's secrets to one host.
    GatewaySecretHost,
    /// The gateway's verification of a host's identity before it gets a secret.
    GatewayVerify,
    /// The gateway's redaction of secrets in responses.
    GatewayRedact,
    /// The gateway's check of methods and paths.
    GatewayRequests,
    /// The gateway's rewriting of messages for the next hop: methods, framing, hop-by-hop headers, spellings of names.
    GatewayHop,
    /// The gateway's check of names in connections that code opens to addresses, and of the names behind a name (CNAME).
    GatewayDeniedNames,
    /// The gateway's termination of TLS, within which it reads requests.
    GatewayTerminate,
    /// The gateway's decision about requests in flight and used secrets when its policy changes.
    GatewayRecheck,
    /// The fixed sizes of the buffers of the gateway's sockets.
    GatewayBuffers,
    /// The control group of the gateway, with a limit of memory.
    GatewayGroup,
    /// The gateway's bounds on the memory of connections of HTTP/2.
    GatewayHttp2,
}

impl Wall {
    /// Every wall with the name that tests use.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Seccomp, "seccomp"),
        (Self::Landlock, "landlock"),
        (Self::Capabilities, "capabilities"),
        (Self::NoNewPrivileges, "no-new-privileges"),
        (Self::Pivot, "pivot"),
        (Self::ProcMasks, "proc-masks"),
        (Self::Network, "network"),
        (Self::ReceiveBuffers, "receive-buffers"),
        (Self::Unaccepted, "unaccepted"),
        (Self::Ipc, "ipc"),
        (Self::Uts, "uts"),
        (Self::CgroupNamespace, "cgroup-namespace"),
        (Self::Memory, "memory"),
        (Self::Pids, "pids"),
        (Self::Cpu, "cpu"),
        (Self::Quota, "quota"),
        (Self::ReadOnly, "read-only"),
        (Self::Rlimits, "rlimits"),
        (Self::Keyring, "keyring"),
        (Self::Descriptors, "descriptors"),
        (Self::Deadline, "deadline"),
        (Self::Dumpable, "dumpable"),
        (Self::ForkSafeSupervisor, "fork-safe-supervisor"),
        (Self::ForkSafeHelper, "fork-safe-helper"),
        (Self::ForkSafeFirst, "fork-safe-first"),
        (Self::ForkSafeSpawn, "fork-safe-spawn"),
        (Self::Timeout, "timeout"),
        (Self::Owner, "owner"),
        (Self::MachineDomain, "machine-domain"),
        (Self::LayerNosuid, "layer-nosuid"),
        (Self::LayerNodev, "layer-nodev"),
        (Self::Superblock, "superblock"),
        (Self::VolumeLock, "volume-lock"),
        (Self::VolumeIds, "volume-ids"),
        (Self::ExecutionIds, "execution-ids"),
        (Self::CodeCalls, "code-calls"),
        (Self::GatewayNames, "gateway-names"),
        (Self::GatewayRanges, "gateway-ranges"),
        (Self::GatewayOwn, "gateway-own"),
        (Self::GatewaySecretHost, "gateway-secret-host"),
        (Self::GatewayVerify, "gateway-verify"),
        (Self::GatewayRedact, "gateway-redact"),
        (Self::GatewayRequests, "gateway-requests"),
        (Self::GatewayHop, "gateway-hop"),
        (Self::GatewayDeniedNames, "gateway-denied-names"),
        (Self::GatewayTerminate, "gateway-terminate"),
        (Self::GatewayRecheck, "gateway-recheck"),
        (Self::GatewayBuffers, "gateway-buffers"),
        (Self::GatewayGroup, "gateway-group"),
        (Self::GatewayHttp2, "gateway-http2"),
    ];

    const fn bit(self) -> u64 {
        1 << self as u32
    }
}

impl Without {
    /// Reports whether `wall` is disabled. Without the `mutation` feature this is the constant `false`, so nothing can
    /// disable a wall in a release.
    #[must_use]
    pub const fn has(self, wall: Wall) -> bool {
        cfg!(feature = "mutation") && self.bits & wall.bit() != 0
    }

    /// Returns the names of all disabled walls, for a process that sets up its walls itself.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn names(self) -> Vec<String> {
        let left = Wall::ALL.iter().filter(|(wall, _)| self.has(*wall));
        left.map(|(_, name)| (*name).to_owned()).collect()
    }

    /// Allocates if a test has disabled `wall`, one of the `ForkSafe…` walls.
    pub(crate) fn allocate(self, wall: Wall) {
        #[cfg(feature = "mutation")]
        if self.has(wall) {
            crate::fork_guard::allocate();
        }
        #[cfg(not(feature = "mutation"))]
        let _ = (self, wall);
    }

    /// Reads a comma-separated list of walls to disable from `BELLJAR_TEST_WITHOUT`; only in builds for tests.
    ///
    /// # Errors
    /// Fails on the first name that is not a wall.
    #[cfg(feature = "mutation")]
    pub fn from_environment() -> Result<Self, String> {
        let mut without = Self::default();
        if let Ok(text) = std::env::var("BELLJAR_TEST_WITHOUT") {
            // Walls of the service belong to another crate.
            let names = text.split(',').filter(|name| !name.is_empty() && !name.starts_with("service:"));
            for name in names {
                let found = Wall::ALL.iter().find(|(_, known)| *known == name);
                let (wall, _) = found.ok_or_else(|| format!("no wall is called {name}"))?;
                without.bits |= wall.bit();
            }
        }
        Ok(without)
    }

    /// Returns the empty set: a release disables no walls.
    ///
    /// # Errors
    /// Never fails.
    #[cfg(not(feature = "mutation"))]
    pub const fn from_environment() -> Result<Self, String> {
        Ok(Self { bits: 0 })
    }
}
