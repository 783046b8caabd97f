//! What a launch will do, worked out completely beforehand: the processes between clone and exec only carry
//! it out, because there they may neither allocate nor fail in ways that need words.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use crate::kernel::CStringArray;
use crate::network::GatewayPlan;
use crate::seccomp::Instruction;

/// Everything that one launch needs.
#[derive(Debug)]
pub struct LaunchPlan {
    /// The guest's program, and its arguments and environment.
    pub guest: GuestProgram,
    /// The guest's end of its connection. It becomes descriptor [`GUEST_SOCKET_FD`].
    pub guest_socket: OwnedFd,
    /// The guest's configuration, in a file without a name. It becomes descriptor [`GUEST_CONFIG_FD`]: arguments can be
    /// read by every user of the machine, and the configuration holds the environment of user code.
    pub guest_config: OwnedFd,
    /// Opened `/dev/null`, for the guest's standard streams.
    pub dev_null: OwnedFd,
    /// Control groups to make, fill, join and remove.
    pub cgroups: Vec<CgroupPlan>,
    /// A lock that is held for as long as the sandbox's outside user id is in use.
    pub uid_lease: Option<OwnedFd>,
    /// Who the sandbox runs as.
    pub identity: Identity,
    /// New namespaces and what is built in them; `None` runs the guest in the caller's.
    pub namespaces: Option<NamespacePlan>,
    /// The way to the gateway, in a network namespace of the sandbox's own. Without it nothing leaves that.
    pub gateway: Option<GatewayPlan>,
    /// The filter that the guest and all its children run under.
    pub seccomp: Option<&'static [Instruction]>,
    /// Whether capabilities and the ability to gain privileges are given up.
    pub drop_privileges: bool,
    /// Capabilities that are kept all the same, as bits: none but for the parent of warm interpreters.
    pub keep_capabilities: u64,
    /// `(resource, value)` for soft and hard limits of the guest and all its children.
    pub rlimits: Vec<(u32, u64)>,
    /// Directory outside that is the sandbox's home, removed with everything in it at the end: parent and name.
    pub scratch: Option<Scratch>,
    /// Walls that a test takes away; always empty in a release.
    pub without: Without,
}

/// The number under which the guest finds its connection.
pub const GUEST_SOCKET_FD: i32 = 3;
/// The number under which the guest finds a writable view of `/proc`, where it has one of its own.
pub const GUEST_PROC_FD: i32 = 4;

/// The number under which the guest finds its configuration.
pub const GUEST_CONFIG_FD: i32 = 5;

/// The guest's program.
#[derive(Debug)]
pub struct GuestProgram {
    /// The program, best on a read-only mount of its own.
    pub exe: GuestExe,
    /// Arguments, the program's name first.
    pub argv: CStringArray,
    /// The environment.
    pub envp: CStringArray,
}

/// Where the guest's program comes from. A process inside must never get a writable descriptor of it
/// (CVE-2019-5736), so it is run from a read-only mount that nothing else uses.
#[derive(Debug)]
pub enum GuestExe {
    /// A descriptor that is safe as it is.
    Fd(OwnedFd),
    /// A file that the sandbox's first process clones into a read-only mount itself. The launch fails if another file lies there by
    /// then.
    Checked {
        /// Its path, without links.
        path: CString,
        /// The device that it is on.
        device: u64,
        /// Its number there.
        inode: u64,
    },
}

/// A user id and a group id, and how they look from inside.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The ids inside.
    pub inside: u32,
    /// The user id outside.
    pub outside_uid: u32,
    /// The group id outside.
    pub outside_gid: u32,
    /// Whether the caller may map and take on ids that are not its own.
    pub privileged: bool,
}

/// One control group.
#[derive(Debug)]
pub struct CgroupPlan {
    /// The group's directory; its parent exists.
    pub dir: CString,
    /// Files to write once it is made.
    pub settings: Vec<CgroupSetting>,
    /// How the sandbox's first process joins.
    pub join: CgroupJoin,
    /// Whether the group can end everything in it at once (`cgroup.kill`).
    pub can_kill: bool,
    /// Whether it is one of the v1 freezer. What stands still there does not die.
    pub is_freezer: bool,
}

/// One file of a control group and what is written to it.
#[derive(Debug)]
pub struct CgroupSetting {
    /// The file's name.
    pub file: CString,
    /// What is written.
    pub value: CString,
    /// Whether a kernel without this file is fine, such as one without swap accounting.
    pub optional: bool,
}

/// How a control group is joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupJoin {
    /// By being cloned into it (v2).
    AtClone,
    /// By writing `0` to `tasks` (v1). Moving oneself, and one thread only, skips the grace period that moving
    /// another process waits for: 0.1 ms instead of 7 ms.
    Tasks,
}

/// Namespaces and the tree in them.
#[derive(Debug)]
pub struct NamespacePlan {
    /// `CLONE_NEW*` bits.
    pub flags: u64,
    /// The host name inside.
    pub hostname: CString,
    /// An existing directory that the new root is put on until it takes over; nothing below it can be used as the
    /// source of a mount by path.
    pub staging: CString,
    /// The new root's size in bytes; it holds only names.
    pub root_options: Vec<(CString, CString)>,
    /// Files and directories of the new root, in order.
    pub nodes: Vec<Node>,
    /// Mounts into the new root, in order, after the root has become read-only.
    pub mounts: Vec<MountStep>,
    /// Where the fresh `/proc` goes, relative to the root.
    pub proc_target: CString,
    /// Names below `/proc` that are covered; missing ones are passed over.
    pub proc_masks: Vec<CString>,
    /// The mount that becomes the root in the end, relative to the tmpfs that is the root until then. `None` is that tmpfs.
    pub enter: Option<CString>,
}

/// Something made in the new root. Paths are relative to it.
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
        /// Where the link is.
        path: CString,
        /// What it says.
        target: CString,
    },
    /// A file; empty ones serve as places to mount on.
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
    /// What is mounted.
    pub source: MountSource,
    /// Where.
    pub target: CString,
    /// `MOUNT_ATTR_*` bits.
    pub attributes: u64,
    /// Nodes to make first, on the file systems that were mounted before; those that are there already are fine.
    pub make: Vec<Node>,
}

/// What is mounted.
#[derive(Debug)]
pub enum MountSource {
    /// A path of the host, with all that is mounted below it.
    Path(CString),
    /// A path of the host that must still be this very file: device and inode.
    Checked {
        /// The path, without any symbolic link in it.
        path: CString,
        /// Device number of the file that was checked.
        device: u64,
        /// Inode number of the file that was checked.
        inode: u64,
    },
    /// What stands at a place of the new root already, with all that is mounted below it.
    Own(CString),
    /// A mount that the caller has detached already.
    Detached(OwnedFd),
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

/// Walls that are left out, for tests which show that an attack succeeds without its wall.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Without {
    bits: u64,
}

/// One wall that [`Without`] can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Wall {
    /// The system call filter.
    Seccomp,
    /// The Landlock domain of user code.
    Landlock,
    /// Giving up capabilities.
    Capabilities,
    /// No new privileges.
    NoNewPrivileges,
    /// The new root.
    Pivot,
    /// The pid namespace's own `/proc` and its masks.
    ProcMasks,
    /// The network namespace.
    Network,
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
    /// The guest not being open to inspection.
    Dumpable,
    /// The supervisor allocating nothing.
    ForkSafeSupervisor,
    /// The maker of the network namespace allocating nothing.
    ForkSafeHelper,
    /// The first process allocating nothing.
    ForkSafeFirst,
    /// The child that becomes user code allocating nothing.
    ForkSafeSpawn,
    /// The time limit of a run as the guest keeps it. The host keeps it as well, a little later.
    Timeout,
    /// The sandbox's own user as the owner of its user namespace.
    Owner,
    /// No program of a template's layer gaining anything.
    LayerNosuid,
    /// No device of a template's layer being one.
    LayerNodev,
    /// A superblock for each owner of a template's layer.
    Superblock,
    /// Names of executions between guest and kernel that nobody can guess.
    ExecutionIds,
    /// The gateway's look at whom TLS and HTTP ask for.
    GatewayNames,
    /// The ranges that the gateway denies in every mode.
    GatewayRanges,
    /// The gateway's look for addresses of its own machine.
    GatewayOwn,
    /// The gateway's secrets being for one host each.
    GatewaySecretHost,
    /// The gateway's check of who a host is that gets a secret.
    GatewayVerify,
    /// The gateway's look for secrets in what comes back.
    GatewayRedact,
    /// The gateway's look at methods and paths.
    GatewayRequests,
}

impl Wall {
    /// Every wall with the name that tests give.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Seccomp, "seccomp"),
        (Self::Landlock, "landlock"),
        (Self::Capabilities, "capabilities"),
        (Self::NoNewPrivileges, "no-new-privileges"),
        (Self::Pivot, "pivot"),
        (Self::ProcMasks, "proc-masks"),
        (Self::Network, "network"),
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
        (Self::LayerNosuid, "layer-nosuid"),
        (Self::LayerNodev, "layer-nodev"),
        (Self::Superblock, "superblock"),
        (Self::ExecutionIds, "execution-ids"),
        (Self::GatewayNames, "gateway-names"),
        (Self::GatewayRanges, "gateway-ranges"),
        (Self::GatewayOwn, "gateway-own"),
        (Self::GatewaySecretHost, "gateway-secret-host"),
        (Self::GatewayVerify, "gateway-verify"),
        (Self::GatewayRedact, "gateway-redact"),
        (Self::GatewayRequests, "gateway-requests"),
    ];

    const fn bit(self) -> u64 {
        1 << self as u32
    }
}

impl Without {
    /// Whether `wall` is left out. Without the `mutation` feature the answer is a constant no, so a release cannot
    /// be talked into it.
    #[must_use]
    pub const fn has(self, wall: Wall) -> bool {
        cfg!(feature = "mutation") && self.bits & wall.bit() != 0
    }

    /// The names of all that are left out, for a process that builds its walls itself.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn names(self) -> Vec<String> {
        let left = Wall::ALL.iter().filter(|(wall, _)| self.has(*wall));
        left.map(|(_, name)| (*name).to_owned()).collect()
    }

    /// Allocates if a test has taken `wall` away, which is one of those that keep this from happening.
    pub(crate) fn allocate(self, wall: Wall) {
        #[cfg(feature = "mutation")]
        if self.has(wall) {
            crate::fork_guard::break_it();
        }
        #[cfg(not(feature = "mutation"))]
        let _ = (self, wall);
    }

    /// Reads a comma-separated list of walls to leave out from `BELLJAR_TEST_WITHOUT`; only in builds for tests.
    ///
    /// # Errors
    /// The first name that is no wall.
    #[cfg(feature = "mutation")]
    pub fn from_environment() -> Result<Self, String> {
        let mut without = Self::default();
        if let Ok(text) = std::env::var("BELLJAR_TEST_WITHOUT") {
            // Walls of the service are not this crate's.
            let names = text.split(',').filter(|name| !name.is_empty() && !name.starts_with("service:"));
            for name in names {
                let found = Wall::ALL.iter().find(|(_, known)| *known == name);
                let (wall, _) = found.ok_or_else(|| format!("no wall is called {name}"))?;
                without.bits |= wall.bit();
            }
        }
        Ok(without)
    }

    /// Nothing is left out of a release.
    ///
    /// # Errors
    /// None.
    #[cfg(not(feature = "mutation"))]
    pub const fn from_environment() -> Result<Self, String> {
        Ok(Self { bits: 0 })
    }
}
