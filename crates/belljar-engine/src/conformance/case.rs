//! Cases of the suite and their outcomes.

use std::borrow::Cow;
use std::time::Duration;

use futures::future::LocalBoxFuture;

use super::context::Context;

/// Timeout of one case.
const CASE_TIMEOUT: Duration = Duration::from_secs(100);

/// Capability that not every engine has. A case lists the capabilities that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Code sees a root directory of its own, without the host's files.
    OwnTree,
    /// Code sees only the sandbox's processes.
    OwnPids,
    /// Code has network interfaces of its own: only loopback.
    OwnNetwork,
    /// Code can listen on a TCP port of 127.0.0.1.
    Loopback,
    /// Code cannot read or write files of the host's users, nor those of other sandboxes.
    HiddenHost,
    /// Code cannot signal, trace or change the guest.
    ProtectedGuest,
    /// Programs started separately in one sandbox see and can signal each other.
    Siblings,
    /// Processes of commands see the processes of contexts.
    VisibleContexts,
    /// Code has no privileges and runs behind a system call filter.
    Confined,
    /// Memory is limited, by the kernel or by a watcher.
    MemoryLimit,
    /// Pages of files that a program maps count as its memory.
    CountedFilePages,
    /// The kernel limits memory, so only the offending process is killed.
    EnforcedMemory,
    /// Processes and threads are limited, by the kernel or by a watcher.
    PidsLimit,
    /// The kernel limits processes and threads, and counts refused forks.
    EnforcedPids,
    /// The kernel limits processor time.
    EnforcedCpu,
    /// Descriptors of a process are limited.
    OpenFilesLimit,
    /// Files of `/proc` and `/sys` state the sandbox's limits in place of the machine.
    ShownLimits,
    /// Terminals of a sandbox are limited.
    BoundedTerminals,
    /// Bytes and inodes of the home directory and of `/tmp` are limited.
    DiskQuota,
    /// Directories of the host can be mounted.
    Mounts,
}

impl Capability {
    /// Returns the name in a report, such as `own_tree`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OwnTree => "own_tree",
            Self::OwnPids => "own_pids",
            Self::OwnNetwork => "own_network",
            Self::Loopback => "loopback",
            Self::HiddenHost => "hidden_host",
            Self::Siblings => "siblings",
            Self::VisibleContexts => "visible contexts",
            Self::ProtectedGuest => "protected_guest",
            Self::Confined => "confined",
            Self::MemoryLimit => "memory_limit",
            Self::CountedFilePages => "counted_file_pages",
            Self::EnforcedMemory => "enforced_memory",
            Self::PidsLimit => "pids_limit",
            Self::EnforcedPids => "enforced_pids",
            Self::EnforcedCpu => "enforced_cpu",
            Self::OpenFilesLimit => "open_files_limit",
            Self::ShownLimits => "shown_limits",
            Self::BoundedTerminals => "bounded_terminals",
            Self::DiskQuota => "disk_quota",
            Self::Mounts => "mounts",
        }
    }
}

/// Outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The engine behaves as required.
    Passed,
    /// The case could not run, for this reason.
    Skipped(String),
    /// The engine does not behave as required, in this way.
    Failed(String),
}

/// Reason why a case stopped early.
#[derive(Debug)]
pub enum Stop {
    /// A requirement of the case is missing.
    Skipped(String),
    /// A check failed.
    Failed(String),
}

/// Result of a case.
pub type Checked<T = ()> = Result<T, Stop>;

/// An unexpected error is a failure, reported with all its causes.
impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::Failed(text)
    }
}

/// Implementation of a case.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// A function.
    Fixed(for<'a> fn(&'a Context) -> LocalBoxFuture<'a, Checked>),
    /// The `hello` program of a built-in language, by the language's name.
    Language(&'static str),
}

/// A required behaviour of engines.
#[derive(Clone)]
pub struct Case {
    /// Name, which is stable.
    pub name: Cow<'static, str>,
    /// Capabilities that the engine needs.
    pub needs: &'static [Capability],
    pub(super) body: Body,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Case {
    /// Returns the first needed capability that is not in `has`.
    #[must_use]
    pub fn missing_capability(&self, has: &[Capability]) -> Option<Capability> {
        self.needs.iter().copied().find(|need| !has.contains(need))
    }

    /// Runs the case with a timeout. The future is not `Send`.
    pub async fn run(&self, context: &Context) -> Outcome {
        if let Some(lacking) = self.missing_capability(context.capabilities()) {
            return Outcome::Skipped(format!("the engine lacks {}", lacking.as_str()));
        }
        let body = match self.body {
            Body::Fixed(body) => body(context),
            Body::Language(name) => Box::pin(super::languages::run_hello(context, name)),
        };
        match tokio::time::timeout(CASE_TIMEOUT, body).await {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Stop::Skipped(reason))) => Outcome::Skipped(reason),
            Ok(Err(Stop::Failed(text))) => Outcome::Failed(text),
            Err(_) => Outcome::Failed(format!("timed out after {} s", CASE_TIMEOUT.as_secs())),
        }
    }
}

/// Builds cases from functions of the same names: `cases![argv_is_exact [], disk_full [DiskQuota]]`.
macro_rules! cases {
    ($($name:ident [$($need:ident),*]),* $(,)?) => {
        &[$($crate::conformance::Case {
            name: std::borrow::Cow::Borrowed(stringify!($name)),
            needs: &[$($crate::conformance::Capability::$need),*],
            body: $crate::conformance::case::Body::Fixed(|context| Box::pin($name(context))),
        }),*]
    };
}

/// Fails the case with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Stop::Failed(format!($($text)+)));
        }
    };
}

/// Fails the case unless both values are equal.
macro_rules! equal {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) => {
                if *left != *right {
                    return Err($crate::conformance::case::unequal(
                        stringify!($left),
                        &format!("{left:?}"),
                        &format!("{right:?}"),
                    ));
                }
            }
        }
    };
}

pub(super) use {cases, ensure, equal};

/// Creates the failure of two values that should be equal; truncates long ones.
pub(super) fn unequal(what: &str, left: &str, right: &str) -> Stop {
    let cut = |text: &str| text.chars().take(600).collect::<String>();
    Stop::Failed(format!("{what} is {}\n  expected {}", cut(left), cut(right)))
}

/// Factor for the limits that cases give. A limit is what an idle machine may need; a busy machine is slower, which is
/// not the engine's fault.
const NET: u32 = 5;

/// Waits until `check` returns true.
pub(super) async fn eventually(
    what: &str,
    limit: Duration,
    mut check: impl AsyncFnMut() -> Checked<bool>,
) -> Checked {
    let limit = limit * NET;
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        if check().await? {
            return Ok(());
        }
        ensure!(tokio::time::Instant::now() < deadline, "timed out after {limit:?} waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Fails if `future` takes far longer than `limit`.
pub(super) async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> Checked<T> {
    let limit = limit * NET;
    match tokio::time::timeout(limit, future).await {
        Ok(value) => Ok(value),
        Err(_) => Err(Stop::Failed(format!("{what} took longer than {limit:?}"))),
    }
}
