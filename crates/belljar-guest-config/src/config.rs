//! The guest's configuration, which the host sends once at its start: nothing inside the sandbox can change it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The guest's configuration. It is passed as JSON in an anonymous file, because it holds the environment of user code, and
/// arguments are readable by all users of the machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// The home directory, in which processes start and relative paths are resolved.
    pub home: PathBuf,
    /// The environment of every process.
    pub env: Vec<(String, String)>,
    /// The Landlock domain of user code.
    pub landlock: Option<Domain>,
    /// The umask of every process: 077 where other users of the machine could see its files.
    pub umask: u32,
    /// True if the guest enters the same domain, where the mounts do not confine it.
    pub confine_guest: bool,
    /// Deadline after the start at which everything ends, even if the host is gone, in milliseconds. 0 is none.
    pub deadline_ms: u64,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// Behaviour when the host's end of the connection closes.
    pub when_alone: OnHostLoss,
    /// True if the inherited socket is not the connection itself but delivers connections, one descriptor per message, for as
    /// long as the host keeps it open.
    #[serde(default)]
    pub many_connections: bool,
    /// True if the first that the host asks for is the start of the one program that runs here. It is started without a runtime, without
    /// HTTP/2 and without the thread that starts others; see `direct.rs` of belljar-guest.
    #[serde(default)]
    pub direct: bool,
    /// True if the guest is pid 1 of a pid namespace, so that all other visible processes are its own.
    pub first_process: bool,
    /// True if the guest got its own writable `/proc`.
    pub own_proc: bool,
    /// True if the guest is the first program of the engine's own in a container: it installs the filter of system calls, gives up new
    /// privileges, and takes processes that enter the container for its host's.
    #[serde(default)]
    pub own_filter: bool,
    /// The user as whom the guest serves, and whose programs it starts, if it is started as root: in a machine, and where nothing but their
    /// ids protects the guest from user code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineUser>,
    /// The user of [`GuestConfig::machine`] as whom programs run that name none, by name or number; its own if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Maximum heap of a JavaScript interpreter, in MiB; 0 is the interpreter's default.
    #[serde(default)]
    pub heap_mib: u64,
    /// Maximum number of open descriptors of a process.
    pub open_files: Option<u64>,
    /// Maximum number of processes and threads of [`GuestConfig::machine`], where the kernel counts them for the sandbox alone
    /// (`RLIMIT_NPROC`, setrlimit(2)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_processes: Option<u32>,
    /// Limits that the guest must watch, because no control group enforces them.
    pub watched: Option<WatchedLimits>,
    /// Names of the walls that a test disables.
    #[cfg(feature = "mutation")]
    #[serde(default)]
    pub without: Vec<String>,
}

/// The user as whom files are written and programs run, unless another is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of ids, from 0 on, that may be asked for; 0 if there is no other user.
    pub ids: u32,
    /// Capabilities that root has in the sandbox, as bits.
    pub capabilities: u64,
}

/// The trees of a Landlock domain.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Trees that may be read and executed.
    pub read: Vec<PathBuf>,
    /// Trees in which everything is allowed.
    pub write: Vec<PathBuf>,
    /// True if TCP is allowed; with a network namespace, that decides instead.
    pub tcp: bool,
    /// Minimum Landlock ABI that the kernel must have.
    pub least_abi: u32,
}

/// Behaviour when the host's end of the connection closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnHostLoss {
    /// Everything ends at once.
    End,
    /// Everything keeps running until the deadline.
    Stay,
}

/// Limits that the guest watches instead of the kernel enforcing them, which is weaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchedLimits {
    /// Resident bytes over all processes, and files in memory.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// True if the kernel is the sandbox's own, as gVisor's: it counts the sandbox's memory, pages that processes share once, and this
    /// machine's kernel limits what is not resident, so that calls which make such memory are allowed.
    #[serde(default)]
    pub own_kernel: bool,
}

impl GuestConfig {
    /// Returns the time between SIGTERM and SIGKILL.
    #[must_use]
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    /// Reports whether a test has disabled this wall; never in a release.
    #[must_use]
    pub fn is_without(&self, wall: &str) -> bool {
        #[cfg(feature = "mutation")]
        return self.without.iter().any(|name| name == wall);
        #[cfg(not(feature = "mutation"))]
        {
            let _ = wall;
            false
        }
    }
}

/// The configuration of the parent of warm interpreters, passed like [`GuestConfig`] in an anonymous file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmParentConfig {
    /// The parent's environment. Its children get that of their sandboxes.
    pub env: Vec<(String, String)>,
    /// Modules to import in advance.
    pub imports: Vec<String>,
    /// True if children are forked by machine code, where the interpreter can use it, and not by the interpreter itself.
    pub native_entry: bool,
}
