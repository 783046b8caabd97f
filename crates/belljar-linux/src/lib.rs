//! Safe wrappers around the kernel features that isolate a sandbox: namespaces, mounts, control groups, seccomp,
//! Landlock, capabilities. This is the only crate with `unsafe` code, and there only in files named `*_unsafe.rs`.

mod cgroup;
mod cgroup_live;
mod channel;
mod container_groups;
mod descriptors_unsafe;
mod entry_unsafe;
#[cfg(feature = "mutation")]
#[path = "fork_guard_unsafe.rs"]
mod fork_guard;
mod fork_server;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[path = "image_unsafe.rs"]
mod image;
mod init;
mod jail;
#[path = "kernel_unsafe.rs"]
mod kernel;
mod landlock_rules;
mod launch_unsafe;
mod line;
#[path = "memory_unsafe.rs"]
mod memory;
mod network;
mod network_unsafe;
mod oom_mark;
mod passing;
mod plan;
mod program_unsafe;
mod remove;
mod report;
pub mod seccomp;
mod spawn;
mod spawn_unsafe;
mod supervise;
mod userns_unsafe;

pub use cgroup::{CONTROLLERS, CgroupLayout, CgroupLimits, GatewayGroup};
pub use cgroup_live::{CgroupChange, CgroupChangeError, CgroupUsage, CounterFiles, Freezer, MemoryFiles};
pub use container_groups::ContainerGroups;
pub use entry_unsafe::entry_code;
#[cfg(feature = "mutation")]
pub use fork_guard::{ALLOCATED, ForkGuard};
pub use fork_server::{ForkError, ForkServer, serve_forks};
pub use image::{ImageError, ImageMount, open_written_device};
pub use jail::{JailError, MAX_DATA_BYTES, Reach, enter_jail};
pub use kernel::{
    CStringArray, ChildSignal, LandlockAttr, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_NOSYMFOLLOW, MOUNT_ATTR_RDONLY, PROPAGATION_PRIVATE, Reaped, become_subreaper,
    block_child_signal, children_cpu_us, cloexec_from, close_from, exec_path, fork_alone, inherited_fd,
    install_seccomp, kill, kill_all, landlock_abi, lock_byte, mount_setattr, moving_calls, pidfd_kill,
    reap_one, reset_fault_handlers, reset_signals, restrict_landlock, serve_as, set_dumpable,
};
/// Maximum number of mounts in one tree, including the system's own.
pub const MAX_MOUNTS: usize = init::MAX_MOUNTS;

pub use landlock_rules::{LandlockError, LandlockRules};
pub use launch_unsafe::{Supervisor, start};
#[cfg(feature = "mutation")]
pub use network::enter_test_network;
pub use network::{GATEWAY_SOCKETS, GatewayPlan, NETWORK_ADDRESS, unaccepted_bytes};
pub use oom_mark::{OomMark, mark_for_oom};
pub use passing::{MAX_DESCRIPTORS, MEMORY_FILES, Received, SPARE, peek_with, receive_with, send_with};
pub use plan::{
    CgroupJoin, CgroupPlan, CgroupSetting, GUEST_CONFIG_FD, GUEST_PROC_FD, GUEST_SOCKET_FD, GuestExe,
    GuestProgram, Identity, LaunchPlan, MACHINE_CAPABILITIES, MACHINE_IDS, MachinePlan, MountSource,
    MountStep, NamespacePlan, Node, ProcFile, Scratch, Wall, Without,
};
pub use remove::remove_tree;
pub use report::{LaunchPhase, REPORT_LEN, Report, Step};
pub use spawn::{CONTROL_FD, SpawnError, SpawnPlan, Spawned, User, spawn};
pub use supervise::{CLEAN, KILL};
pub use userns_unsafe::{
    CGROUP_NAMESPACE, NAMESPACES, PID_NAMESPACE, USER_NAMESPACE, try_network, try_user_namespace,
    user_namespace_with_map,
};

/// Resource limits by name, for plans.
pub mod rlimit {
    pub use libc::{
        RLIMIT_CORE, RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_NOFILE,
        RLIMIT_NPROC, RLIMIT_RTPRIO, RLIMIT_SIGPENDING, RLIMIT_STACK,
    };
}
