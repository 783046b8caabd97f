//! What each engine has of the suite's capabilities, and why not the others. The engines' own tests run the suite by it, and the table of
//! docs/engines.md is made of it.

use std::fmt::Write as _;

use super::case::{Capability, Case};
use Capability::{
    BoundedTerminals, Confined, CountedFilePages, DiskQuota, EnforcedCpu, EnforcedMemory, EnforcedPids,
    HiddenHost, Loopback, MemoryLimit, Mounts, OpenFilesLimit, OwnNetwork, OwnPids, OwnTree, PidsLimit,
    ProtectedGuest, ShownLimits, Siblings, VisibleContexts,
};

/// An engine as the suite sees it, where control groups can be created and its program is root.
#[derive(Debug, Clone, Copy)]
pub struct Conforming {
    /// Its name.
    pub name: &'static str,
    /// Its capabilities.
    pub capabilities: &'static [Capability],
    /// The capabilities that it lacks, each with the reason.
    lacks: &'static [(&'static [Capability], &'static str)],
    /// Cases that do not hold although it has what they need, each with the reason.
    pub exceptions: &'static [(&'static str, &'static str)],
}

impl Conforming {
    /// Returns its capabilities in a set-up that lacks some of them.
    #[must_use]
    pub fn without(&self, lacking: &[Capability]) -> Vec<Capability> {
        self.capabilities.iter().copied().filter(|one| !lacking.contains(one)).collect()
    }

    /// Reports whether a case does not hold although the engine has what it needs.
    #[must_use]
    pub fn is_exception(&self, case: &Case) -> bool {
        self.exceptions.iter().any(|(name, _)| *name == case.name)
    }
}

/// The engine `local`, as root.
pub const LOCAL: Conforming = Conforming {
    name: "local",
    capabilities: &[
        OwnTree,
        OwnPids,
        OwnNetwork,
        Loopback,
        HiddenHost,
        ProtectedGuest,
        Siblings,
        VisibleContexts,
        Confined,
        MemoryLimit,
        CountedFilePages,
        EnforcedMemory,
        PidsLimit,
        EnforcedPids,
        EnforcedCpu,
        OpenFilesLimit,
        ShownLimits,
        BoundedTerminals,
        DiskQuota,
        Mounts,
    ],
    lacks: &[],
    exceptions: &[],
};

/// The engine `process`, as root.
pub const PROCESS: Conforming = Conforming {
    name: "process",
    capabilities: &[
        HiddenHost,
        ProtectedGuest,
        VisibleContexts,
        Confined,
        MemoryLimit,
        CountedFilePages,
        EnforcedMemory,
        PidsLimit,
        EnforcedPids,
        EnforcedCpu,
        OpenFilesLimit,
    ],
    lacks: &[
        (
            &[OwnTree, OwnPids, ShownLimits, BoundedTerminals, DiskQuota, Mounts],
            "there are no namespaces: the tree, the processes in `/proc` and the terminals are the machine's",
        ),
        (&[OwnNetwork, Loopback], "there are no sockets but connected pairs"),
        (&[Siblings], "each program has a Landlock domain of its own, and signals no other"),
    ],
    exceptions: &[],
};

/// The engine `none`.
pub const NONE: Conforming = Conforming {
    name: "none",
    capabilities: &[Loopback, Siblings, VisibleContexts, CountedFilePages],
    lacks: &[(
        &[
            OwnTree,
            OwnPids,
            OwnNetwork,
            HiddenHost,
            ProtectedGuest,
            Confined,
            MemoryLimit,
            EnforcedMemory,
            PidsLimit,
            EnforcedPids,
            EnforcedCpu,
            OpenFilesLimit,
            ShownLimits,
            BoundedTerminals,
            DiskQuota,
            Mounts,
        ],
        "there are no walls",
    )],
    exceptions: &[],
};

/// The engine `docker`, with a daemon of the machine.
pub const DOCKER: Conforming = Conforming {
    name: "docker",
    capabilities: &[
        OwnTree,
        OwnPids,
        OwnNetwork,
        Loopback,
        HiddenHost,
        ProtectedGuest,
        Siblings,
        VisibleContexts,
        Confined,
        MemoryLimit,
        CountedFilePages,
        EnforcedMemory,
        PidsLimit,
        EnforcedPids,
        EnforcedCpu,
        OpenFilesLimit,
        DiskQuota,
    ],
    lacks: &[
        (&[ShownLimits], "`/proc` and `/sys` are the daemon's, and state what the machine has"),
        (&[BoundedTerminals], "the daemon mounts `/dev/pts` without a limit"),
        (&[Mounts], "directories of the host are refused: the daemon may be on another machine"),
    ],
    exceptions: &[],
};

/// The engine `gvisor`.
pub const GVISOR: Conforming = Conforming {
    name: "gvisor",
    capabilities: &[
        OwnTree,
        OwnPids,
        OwnNetwork,
        Loopback,
        HiddenHost,
        ProtectedGuest,
        Siblings,
        VisibleContexts,
        Confined,
        MemoryLimit,
        PidsLimit,
        EnforcedCpu,
        OpenFilesLimit,
    ],
    lacks: &[
        (
            &[EnforcedMemory],
            "the guest watches memory: the machine's kernel sees only the sentry, and would end it",
        ),
        (&[CountedFilePages], "the sentry does not count pages of files"),
        (&[EnforcedPids], "the sentry does not count what it refuses (`RLIMIT_NPROC`)"),
        (&[ShownLimits], "`/proc` and `/sys` are the sentry's, and state what the machine has"),
        (&[BoundedTerminals], "the sentry mounts `/dev/pts` without a limit"),
        (&[DiskQuota], "the sentry limits bytes of a file system, and not the number of files"),
        (&[Mounts], "directories of the host are refused"),
    ],
    exceptions: &[
        (
            "code_cannot_read_the_host",
            "everybody reads `/proc/1/environ`, which has the guest's: `HOME=/nonexistent`",
        ),
        (
            "guest_cannot_be_written_in_proc",
            "everybody reads `environ`, `maps`, `auxv` and the numbers of descriptors in `/proc/PID`",
        ),
        ("programs_start_with_clean_state", "`/proc/self/status` has no signal masks"),
        ("terminal_is_a_terminal", "`/dev/tty` cannot be opened"),
        ("terminal_has_its_size_and_is_resized", "programs get no `SIGWINCH`"),
        (
            "files_changing_while_packed_are_counted",
            "a directory that changes while it is read may show names again, without end",
        ),
        (
            "cpu_limit_is_enforced",
            "the time for which a program is throttled counts as its own: `own::processor_time_is_limited`",
        ),
        ("packed_trees_are_read_by_others", "holes of files are not told from their data"),
        ("wide_directories_are_packed", "the limit `inodes` is refused"),
        ("freezing_needs_control_groups", "limits of a running sandbox do not change"),
        ("rename_race_does_not_leave_the_sandbox", "it takes longer than a case may"),
    ],
};

/// All of them, in the order of the table.
const ALL: [Conforming; 5] = [LOCAL, PROCESS, NONE, DOCKER, GVISOR];

/// Returns the generated part of docs/engines.md: the cases that do not hold everywhere, and why.
#[must_use]
pub fn cases_by_engine() -> String {
    let cases = super::cases();
    let mut rows = String::new();
    let mut everywhere = 0;
    for case in &cases {
        let cell = |engine: &Conforming| match case.missing_capability(engine.capabilities) {
            Some(lacking) => format!("`{}`", lacking.as_str()),
            None if engine.is_exception(case) => "no".to_owned(),
            None => "yes".to_owned(),
        };
        let cells = ALL.each_ref().map(cell);
        match cells.iter().all(|cell| cell == "yes") {
            true => everywhere += 1,
            false => {
                let _ = writeln!(rows, "| `{}` | {} |", case.name, cells.join(" | "));
            }
        }
    }
    let mut text = format!("{everywhere} of the {} cases hold on every engine. The others:\n\n", cases.len());
    let names = ALL.map(|engine| format!("`{}`", engine.name)).join(" | ");
    let _ = write!(text, "| case | {names} |\n|---|{}\n{rows}\n", "---|".repeat(ALL.len()));
    text.push_str("| lacking, or a case that does not hold | engine | reason |\n|---|---|---|\n");
    for engine in ALL {
        let lacks = engine.lacks.iter().map(|(lacks, reason)| {
            let names: Vec<String> = lacks.iter().map(|lacking| format!("`{}`", lacking.as_str())).collect();
            (names.join(", "), reason)
        });
        let exceptions = engine.exceptions.iter().map(|(name, reason)| (format!("`{name}`"), reason));
        for (what, reason) in lacks.chain(exceptions) {
            let _ = writeln!(text, "| {what} | `{}` | {reason} |", engine.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lack_has_one_reason_and_each_exception_a_case() {
        let cases = super::super::cases();
        for engine in ALL {
            let needed = cases.iter().flat_map(|case| case.needs.iter());
            for capability in needed {
                let reasons = engine.lacks.iter().filter(|(lacks, _)| lacks.contains(capability)).count();
                let has = engine.capabilities.contains(capability);
                assert_eq!(reasons, usize::from(!has), "{} and {}", engine.name, capability.as_str());
            }
            for (name, _) in engine.exceptions {
                let case = cases.iter().find(|case| case.name == *name).unwrap();
                assert_eq!(case.missing_capability(engine.capabilities), None, "{name} of {}", engine.name);
            }
        }
    }

    /// `BELLJAR_BLESS=1` rewrites it.
    #[test]
    fn documentation_lists_cases_by_engine() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/engines.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once("<!-- cases -->\n").unwrap();
        let (kept, after) = rest.split_once("<!-- end of cases -->\n").unwrap();
        let now = cases_by_engine();
        if std::env::var_os("BELLJAR_BLESS").is_some() {
            std::fs::write(path, format!("{before}<!-- cases -->\n{now}<!-- end of cases -->\n{after}"))
                .unwrap();
        } else {
            assert!(kept == now, "docs/engines.md differs; look at it, then set BELLJAR_BLESS=1");
        }
    }
}
