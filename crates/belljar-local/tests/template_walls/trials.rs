//! Expected results of each attack, with its protection and without.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Variable with the attack that this process is to run.
pub(crate) const ATTACK: &str = "BELLJAR_TEST_ATTACK";

/// Attack with the expected results of its probes.
struct Case {
    name: &'static str,
    attack: &'static str,
    /// Name of the protection in `belljar_linux::Wall`; empty if this is none of one alone.
    wall: &'static str,
    /// Other protections that stop the same attack, comma-separated.
    others: &'static str,
    /// Each probe with its result with the protection and without it.
    probes: &'static [(&'static str, &'static str, &'static str)],
}

const CASES: &[Case] = &[
    Case {
        name: "layer_devices_are_unusable",
        attack: "device",
        wall: "layer-nodev",
        others: "",
        probes: &[("read", "EACCES", "ok")],
    },
    Case {
        name: "layer_programs_gain_no_capabilities",
        attack: "capabilities",
        wall: "layer-nosuid",
        // Each of them alone would also stop the file's capabilities; the first two need the third.
        others: "seccomp,landlock,no-new-privileges,capabilities",
        probes: &[("of a plain program", "none", "none"), ("of a program with capabilities", "none", "some")],
    },
    Case {
        name: "devices_of_a_volume_do_not_work",
        attack: "device of a volume",
        wall: "layer-nodev",
        others: "",
        probes: &[("read", "EACCES", "ok")],
    },
    Case {
        name: "programs_of_a_volume_gain_no_privileges",
        attack: "capabilities of a volume",
        wall: "layer-nosuid",
        // As for a layer. Without the id map, the host's root owns the file system.
        others: "volume-ids,seccomp,landlock,no-new-privileges,capabilities",
        probes: &[("of a plain program", "none", "none"), ("of a program with capabilities", "none", "some")],
    },
    Case {
        name: "root_owns_nothing_on_a_volume",
        attack: "capabilities of a volume",
        wall: "volume-ids",
        others: "layer-nosuid,seccomp,landlock,no-new-privileges,capabilities",
        probes: &[("of a plain program", "none", "none"), ("of a program with capabilities", "none", "some")],
    },
    Case {
        name: "all_mounts_of_a_volume_share_one_file_system",
        attack: "volume",
        wall: "volume-lock",
        others: "",
        probes: &[("file systems", "one", "two"), ("what the first wrote", "seen", "lost")],
    },
    Case {
        name: "tenants_share_no_superblock",
        attack: "superblock",
        wall: "superblock",
        others: "",
        probes: &[
            ("of one tenant", "same", "same"),
            ("of two tenants", "other", "same"),
            ("what a neighbour has read", "unseen", "seen"),
        ],
    },
    Case {
        name: "builds_are_filtered",
        attack: "build",
        wall: "seccomp",
        others: "",
        probes: &[
            ("unshare user", "EPERM", "ok"),
            ("clone3", "ENOSYS", "EINVAL"),
            ("personality", "EPERM", "ok"),
            ("TCP_ULP", "EPERM", "ENOENT"),
            ("chown", "pretended", "EINVAL"),
            ("set-user-ID", "ok", "ok"),
        ],
    },
    Case {
        name: "machines_have_a_root_that_owns_the_tree",
        attack: "machine",
        wall: "",
        others: "",
        probes: &[
            ("user", "1000 [1000] user /home/user", ""),
            ("user writes its home", "ok", ""),
            ("user writes the system", "EACCES", ""),
            ("user binds port 80", "ok", ""),
            ("user's own capabilities", "none", ""),
            ("user becomes root", "EPERM", ""),
            ("set-user-ID program", "0", ""),
            ("root", "0 [0] root /root", ""),
            ("root writes the system", "ok", ""),
            ("file of the user belongs to", "1000", ""),
            ("root gives a file away", "ok", ""),
            ("root sets a bit", "ok", ""),
            ("root changes its root", "ok", ""),
            ("root ends a user's process", "SIGTERM", ""),
            ("root's capabilities", "800400fb", ""),
            ("an id of nobody", "EINVAL", ""),
            ("device", "EPERM", ""),
            ("guest's memory", "EACCES", ""),
            ("guest's environment", "EACCES", ""),
            ("kernel's settings", "EROFS", ""),
            ("host name", "EPERM", ""),
            ("raw socket", "EPERM", ""),
            ("another user", "1234 [77, 1234] / /", ""),
            ("another user's path", "/usr/local/sbin", ""),
            ("another user reads the home", "ok", ""),
            ("another user writes it", "EACCES", ""),
        ],
    },
    Case {
        name: "machines_make_no_namespaces",
        attack: "namespaces of a machine",
        wall: "seccomp",
        others: "",
        probes: &[("unshare", "EPERM", "ok")],
    },
    Case {
        name: "root_of_a_machine_mounts_nothing_by_its_capabilities",
        attack: "mount in a machine",
        wall: "capabilities",
        others: "seccomp,machine-domain",
        probes: &[("mount", "EPERM", "ok")],
    },
    Case {
        name: "root_of_a_machine_mounts_nothing_by_its_domain",
        attack: "mount in a machine",
        wall: "machine-domain",
        others: "seccomp,capabilities",
        probes: &[("mount", "EPERM", "ok")],
    },
    Case {
        name: "code_cannot_forge_a_later_result",
        attack: "executions",
        wall: "execution-ids",
        others: "",
        probes: &[("own execution", "ok", "ok"), ("later execution", "error ValueError: true", "ok: forged")],
    },
    Case {
        name: "forged_calls_count",
        attack: "calls",
        wall: "code-calls",
        others: "",
        probes: &[
            ("of a function that was not allowed", "refused", "passed on"),
            ("within the budget", "passed on", "passed on"),
            ("beyond the budget", "refused", "passed on"),
        ],
    },
    Case {
        name: "earlier_code_makes_no_calls_of_a_later_execution",
        attack: "calls of a later execution",
        wall: "execution-ids",
        others: "",
        probes: &[("by a process that was left behind", "refused", "passed on")],
    },
];

pub(crate) fn main() -> ExitCode {
    let trials = CASES.iter().map(|case| Trial::ignorable_test(case.name, move || run(case)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn run(case: &Case) -> Result<Completion, Failed> {
    if !rustix::process::geteuid().is_root() {
        return skipped(case, "needs root, for mounted layers and user ids of their own");
    }
    let all = [case.others, case.wall].join(",");
    for (walls, is_held) in [(case.others, true), (all.trim_start_matches(','), false)] {
        if case.wall.is_empty() && !is_held {
            break;
        }
        let answers = match answers(case.attack, walls)? {
            Ok(answers) => answers,
            Err(reason) => return skipped(case, &reason),
        };
        for (probe, held, open) in case.probes {
            let expected = if is_held { held } else { open };
            let answer = answers.get(*probe).ok_or_else(|| format!("no result of {probe}: {answers:?}"))?;
            if answer != expected {
                let without = if walls.is_empty() { "nothing" } else { walls };
                return Err(
                    format!("{probe}: {answer} and not {expected}, without {without}: {answers:?}").into()
                );
            }
        }
        if answers.len() != case.probes.len() {
            return Err(format!("unexpected results: {answers:?}").into());
        }
    }
    Ok(Completion::Completed)
}

fn skipped(case: &Case, reason: &str) -> Result<Completion, Failed> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "SKIPPED {}: {reason}", case.name)?;
    Ok(Completion::ignored_with(reason))
}

/// Returns the results of an attack with some protections disabled, or why it cannot be run here.
fn answers(attack: &str, without: &str) -> Result<Result<BTreeMap<String, String>, String>, Failed> {
    let output = Command::new(std::env::current_exe()?)
        .env(ATTACK, attack)
        .env("BELLJAR_TEST_WITHOUT", without)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(reason) = text.lines().find_map(|line| line.strip_prefix("SKIPPED: ")) {
        return Ok(Err(reason.to_owned()));
    }
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{attack} without {without:?}: {}\n{text}{errors}", output.status).into());
    }
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    Ok(Ok(lines.map(|(probe, answer)| (probe.to_owned(), answer.to_owned())).collect()))
}
