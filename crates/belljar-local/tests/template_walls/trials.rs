//! What each attack must come to, with its wall and without.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Names the attack that this process is to carry out.
pub(crate) const ATTACK: &str = "BELLJAR_TEST_ATTACK";

/// An attack, and what its probes answer.
struct Case {
    name: &'static str,
    attack: &'static str,
    /// The wall, by the name in `belljar_linux::Wall`.
    wall: &'static str,
    /// Walls that stop the same attack, comma-separated.
    others: &'static str,
    /// Each probe with its answer with the wall and without it.
    probes: &'static [(&'static str, &'static str, &'static str)],
}

const CASES: &[Case] = &[
    Case {
        name: "devices_of_a_layer_are_none",
        attack: "device",
        wall: "layer-nodev",
        others: "",
        probes: &[("read", "EACCES", "ok")],
    },
    Case {
        name: "programs_of_a_layer_gain_nothing",
        attack: "capabilities",
        wall: "layer-nosuid",
        // Each of them alone would keep the capabilities of a file out as well; the first two need the third.
        others: "seccomp,landlock,no-new-privileges,capabilities",
        probes: &[("of a plain program", "none", "none"), ("of a program with capabilities", "none", "some")],
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
        name: "code_cannot_answer_for_a_later_execution",
        attack: "executions",
        wall: "execution-ids",
        others: "",
        probes: &[("own execution", "ok", "ok"), ("later execution", "error ValueError: true", "ok: forged")],
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
        let answers = match answers(case.attack, walls)? {
            Ok(answers) => answers,
            Err(reason) => return skipped(case, &reason),
        };
        for (probe, held, open) in case.probes {
            let expected = if is_held { held } else { open };
            let answer = answers.get(*probe).ok_or_else(|| format!("{probe} is silent: {answers:?}"))?;
            if answer != expected {
                let without = if walls.is_empty() { "nothing" } else { walls };
                return Err(
                    format!("{probe}: {answer} and not {expected}, without {without}: {answers:?}").into()
                );
            }
        }
        if answers.len() != case.probes.len() {
            return Err(format!("there are more answers than probes: {answers:?}").into());
        }
    }
    Ok(Completion::Completed)
}

fn skipped(case: &Case, reason: &str) -> Result<Completion, Failed> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "SKIPPED {}: {reason}", case.name)?;
    Ok(Completion::ignored_with(reason))
}

/// The answers of an attack without some walls, or why it cannot be tried here.
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
