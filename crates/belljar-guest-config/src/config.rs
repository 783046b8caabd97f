//! What the host tells the guest at its start, once and for all: nothing that runs inside can change it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The guest's configuration. It travels as JSON in a file without a name, because it holds the environment of user code,
/// and arguments can be read by everybody.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// The home directory: where relative paths and processes start.
    pub home: PathBuf,
    /// The environment of every process.
    pub env: Vec<(String, String)>,
    /// The Landlock domain of user code.
    pub landlock: Option<Domain>,
    /// The umask of every process: 077 where other users of the machine could see its files.
    pub umask: u32,
    /// Whether the guest keeps itself in the same domain: where the mounts do not keep it in.
    pub confine_guest: bool,
    /// Everything ends this long after the start, whether the host is there or not, in milliseconds. 0 is never.
    pub deadline_ms: u64,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// What happens when the host's end of the connection closes.
    pub when_alone: WhenAlone,
    /// Whether the inherited socket is not the connection itself but brings connections, one descriptor a message, for as
    /// long as the host holds it.
    #[serde(default)]
    pub many_connections: bool,
    /// Whether the guest is pid 1 of a pid namespace, so that all other processes in sight are its own.
    pub first_process: bool,
    /// Whether the guest got a `/proc` of its own that it may write.
    pub own_proc: bool,
    /// How large an interpreter of JavaScript lets its heap become, in MiB; 0 is its own default.
    #[serde(default)]
    pub heap_mib: u64,
    /// The most descriptors that a process may have open.
    pub open_files: Option<u64>,
    /// Limits that the guest must watch over, because no control group does.
    pub watched: Option<WatchedLimits>,
    /// Numbers of walls that a test takes away.
    #[cfg(feature = "mutation")]
    #[serde(default)]
    pub without: Vec<String>,
}

/// The trees of a Landlock domain.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// May be read and executed.
    pub read: Vec<PathBuf>,
    /// Everything is allowed.
    pub write: Vec<PathBuf>,
    /// Whether TCP is allowed; the network namespace decides where there is one.
    pub tcp: bool,
    /// The least Landlock ABI that will do.
    pub least_abi: u32,
}

/// What happens when the host's end of the connection closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenAlone {
    /// Everything ends at once.
    End,
    /// Everything goes on until the deadline.
    Stay,
}

/// Limits that are watched instead of enforced by the kernel: a weaker grade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchedLimits {
    /// Resident bytes over all processes, and files in memory.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
}

impl GuestConfig {
    /// Time between SIGTERM and SIGKILL.
    #[must_use]
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    /// Whether a test has taken this wall away; never in a release.
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

/// What the parent of warm interpreters is told: as [`GuestConfig`], in a file without a name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmParentConfig {
    /// Its environment. Its children get that of their sandboxes.
    pub env: Vec<(String, String)>,
    /// Modules that are imported ahead.
    pub imports: Vec<String>,
}
