//! The fixed-size records by which the processes of a launch report to the host.

use rustix::io::Errno;

/// Length of a record on the wire, in bytes.
pub const REPORT_LEN: usize = 16;

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// A step failed; nothing of the sandbox remains.
    Failed {
        /// The step that failed.
        step: Step,
        /// Index of the item in the step's list, from 0.
        item: u32,
        /// The kernel's reason.
        errno: i32,
    },
    /// A phase of the launch is over.
    Reached {
        /// The phase.
        phase: LaunchPhase,
        /// CLOCK_MONOTONIC at that moment, in nanoseconds.
        at_ns: u64,
    },
    /// The sandbox's first process has been started, with this pid outside.
    Started {
        /// The pid.
        pid: i32,
    },
    /// The sandbox's first process has ended: a `waitid` code and status.
    Ended {
        /// The exit code, or minus the signal's number.
        status: i32,
        /// Number of its control groups' processes that the OOM killer ended.
        oom_kills: u32,
    },
    /// Everything that the sandbox held has been removed, except `left` leftovers.
    Cleaned {
        /// Number of resources that could not be removed.
        left: u32,
        /// The reason for the last of them.
        errno: i32,
    },
}

/// A phase of a launch, for `--timings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum LaunchPhase {
    /// The supervisor runs.
    Supervisor = 1,
    /// The first process is cloned into its namespaces.
    Namespaces,
    /// The first process has its ids and is in its v2 control group, if there is one.
    Identity,
    /// The new root and its nodes are made.
    Root,
    /// Everything is mounted but `/proc`.
    Mounts,
    /// `/proc` is mounted and covered.
    Proc,
    /// The new root has taken over.
    Pivot,
    /// The control groups and the network namespace are joined.
    Equipment,
    /// Privileges are dropped and the filter is installed.
    Privileges,
}

impl LaunchPhase {
    /// Every phase, in order, with its name.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Supervisor, "supervisor"),
        (Self::Namespaces, "namespaces"),
        (Self::Identity, "identity"),
        (Self::Root, "root"),
        (Self::Mounts, "mounts"),
        (Self::Proc, "proc"),
        (Self::Pivot, "pivot"),
        (Self::Equipment, "equipment"),
        (Self::Privileges, "privileges"),
    ];

    /// Returns the report that this phase is over now. Fork-safe.
    #[must_use]
    pub(crate) fn reached(self) -> Report {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
        Report::Reached {
            phase: self,
            at_ns: seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds),
        }
    }
}

/// The phases that a process of a launch has reached, sent in one message: each message wakes the host, which then takes the
/// processor from the processes that it waits for. Fork-safe.
pub(crate) struct Phases {
    bytes: [u8; REPORT_LEN * LaunchPhase::ALL.len()],
    length: usize,
}

impl Phases {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; REPORT_LEN * LaunchPhase::ALL.len()], length: 0 }
    }

    /// Records that a phase is over.
    pub(crate) fn reached(&mut self, phase: LaunchPhase) {
        self.push(phase.reached());
    }

    /// Appends a record.
    pub(crate) fn push(&mut self, report: Report) {
        if let Some(place) = self.bytes.get_mut(self.length..self.length + REPORT_LEN) {
            place.copy_from_slice(&report.encode());
            self.length += REPORT_LEN;
        }
    }

    /// Sends all records. Errors are ignored: the host is gone then.
    pub(crate) fn send(&self, control: std::os::fd::BorrowedFd<'_>) {
        let _ = rustix::io::write(control, self.bytes.get(..self.length).unwrap_or_default());
    }
}

/// A step of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// Making a control group.
    CgroupMake = 1,
    /// Writing a limit to a control group.
    CgroupSet,
    /// Joining a control group.
    CgroupJoin,
    /// Cloning the first process into new namespaces.
    Clone,
    /// Mapping user and group ids.
    IdMap,
    /// Taking on the sandbox's ids.
    SetIds,
    /// Requesting to be killed when the supervisor ends.
    ParentDeath,
    /// Leaving the session keyring.
    Keyring,
    /// Setting the host name.
    Hostname,
    /// Bringing loopback up.
    Loopback,
    /// Setting the sizes of receive buffers.
    ReceiveBuffers,
    /// Making mounts private.
    Propagation,
    /// Making the new root.
    Root,
    /// Making a node in the new root.
    Node,
    /// Making a mount.
    Mount,
    /// Mounting the fresh `/proc`.
    Proc,
    /// Covering a part of `/proc`.
    ProcMask,
    /// Changing the root.
    Pivot,
    /// Finding the guest's program.
    GuestExe,
    /// Setting a resource limit.
    Rlimit,
    /// Dropping capabilities.
    Capabilities,
    /// Setting no-new-privileges.
    NoNewPrivileges,
    /// Installing the system call filter.
    Seccomp,
    /// Entering the Landlock domain of a machine.
    MachineDomain,
    /// Arranging descriptors.
    Descriptors,
    /// Starting the guest.
    Exec,
    /// Making the scratch directory and handing it to the sandbox's user.
    Scratch,
    /// Redirecting the sandbox's connections to its gateway.
    Gateway,
    /// Mounting a volume.
    Volume,
}

const STEPS: &[Step] = &[
    Step::CgroupMake,
    Step::CgroupSet,
    Step::CgroupJoin,
    Step::Clone,
    Step::IdMap,
    Step::SetIds,
    Step::ParentDeath,
    Step::Keyring,
    Step::Hostname,
    Step::Loopback,
    Step::ReceiveBuffers,
    Step::Propagation,
    Step::Root,
    Step::Node,
    Step::Mount,
    Step::Proc,
    Step::ProcMask,
    Step::Pivot,
    Step::GuestExe,
    Step::Rlimit,
    Step::Capabilities,
    Step::NoNewPrivileges,
    Step::Seccomp,
    Step::MachineDomain,
    Step::Descriptors,
    Step::Exec,
    Step::Scratch,
    Step::Gateway,
    Step::Volume,
];

impl Report {
    /// Returns the record's bytes. Fork-safe.
    #[must_use]
    pub fn encode(self) -> [u8; REPORT_LEN] {
        let words: [u32; 4] = match self {
            Self::Failed { step, item, errno } => [1, step as u32, item, errno.cast_unsigned()],
            Self::Reached { phase, at_ns } => {
                let [a, b, c, d, e, f, g, h] = at_ns.to_ne_bytes();
                [5, phase as u32, u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
            }
            Self::Started { pid } => [2, pid.cast_unsigned(), 0, 0],
            Self::Ended { status, oom_kills } => [3, status.cast_unsigned(), oom_kills, 0],
            Self::Cleaned { left, errno } => [4, left, 0, errno.cast_unsigned()],
        };
        let mut bytes = [0; REPORT_LEN];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Decodes a record. Returns `None` for one that no launch writes.
    #[must_use]
    pub fn decode(bytes: &[u8; REPORT_LEN]) -> Option<Self> {
        let mut words = [0u32; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(chunk.try_into().ok()?);
        }
        match words {
            [1, step, item, errno] => {
                let step = *STEPS.iter().find(|known| **known as u32 == step)?;
                Some(Self::Failed { step, item, errno: errno.cast_signed() })
            }
            [5, phase, first, second] => {
                let (phase, _) = *LaunchPhase::ALL.iter().find(|(known, _)| *known as u32 == phase)?;
                let mut at = [0; 8];
                at[..4].copy_from_slice(&first.to_ne_bytes());
                at[4..].copy_from_slice(&second.to_ne_bytes());
                Some(Self::Reached { phase, at_ns: u64::from_ne_bytes(at) })
            }
            [2, pid, 0, 0] => Some(Self::Started { pid: pid.cast_signed() }),
            [3, status, oom_kills, 0] => Some(Self::Ended { status: status.cast_signed(), oom_kills }),
            [4, left, 0, errno] => Some(Self::Cleaned { left, errno: errno.cast_signed() }),
            _ => None,
        }
    }
}

/// A failed step: the step, its item, the reason. Fork-safe.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) item: u32,
    pub(crate) errno: Errno,
}

impl Failure {
    pub(crate) fn at(step: Step) -> impl Fn(Errno) -> Self {
        Self::item(step, 0)
    }

    pub(crate) fn item(step: Step, item: usize) -> impl Fn(Errno) -> Self {
        move |errno| Self { step, item: u32::try_from(item).unwrap_or(u32::MAX), errno }
    }

    pub(crate) fn report(self) -> Report {
        Report::Failed { step: self.step, item: self.item, errno: self.errno.raw_os_error() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trip() {
        for step in STEPS {
            let report = Report::Failed { step: *step, item: 7, errno: 13 };
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        for report in [
            Report::Started { pid: 4_194_304 },
            Report::Reached { phase: LaunchPhase::Pivot, at_ns: 0x0123_4567_89ab_cdef },
            Report::Ended { status: -9, oom_kills: 1 },
            Report::Cleaned { left: 2, errno: 16 },
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        assert_eq!(Report::decode(&[0xff; REPORT_LEN]), None);
        assert_eq!(Report::decode(&Report::Started { pid: 1 }.encode().map(|byte| byte | 0x40)), None);
    }
}
