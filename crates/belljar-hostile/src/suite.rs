//! Runs a case: first with all walls and with checks of all invariants around it, then without single walls.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::attempt::{Attempt, Binary, attempt, end_of};
use crate::canary::Canaries;
use crate::case::{Case, Grade, Mutation};
use crate::disable_walls::disable_walls;
use crate::error::HarnessError;
use crate::judge::Fault;
use crate::machine::Usage;
use crate::neighbour::Neighbour;
use crate::report::{MutationReport, Report, Verdict};
use crate::traces::Traces;

/// Extent of the checks around a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The whole machine, which should be otherwise idle.
    Machine,
    /// Only what belongs to this process: for machines in use.
    Own,
}

/// Configuration for running cases.
#[derive(Debug)]
pub struct Suite {
    /// The directory with `probe.py` and `host.py`.
    pub lib: PathBuf,
    /// The binary for runs with all walls.
    pub intact: Binary,
    /// The binary for runs with disabled walls: a build with the feature `mutation`. Without it mutations are not checked.
    pub mutated: Option<Binary>,
    /// Extent of the checks around a run.
    pub scope: Scope,
    /// True if limits are only watched here, and not enforced by control groups.
    pub is_watched: bool,
}

impl Suite {
    /// Runs a case with all walls and with each of its mutations.
    #[must_use]
    pub fn check(&self, case: &Case) -> Report {
        let begin = Instant::now();
        let mut report = Report::new(case);
        if self.is_watched && case.grade == Some(Grade::Cgroup) {
            report.verdict =
                Verdict::Skipped("needs control groups, and limits are only watched here".to_owned());
            return report;
        }
        match self.run_intact(case) {
            Ok(done) => {
                report.answers = done.answers.summary();
                report.verdict = match done.skipped {
                    Some(reason) => Verdict::Skipped(reason),
                    None if done.faults.is_empty() => Verdict::Contained,
                    None => Verdict::Failed(describe(&done.faults, &done.output)),
                };
            }
            Err(error) => report.verdict = Verdict::Failed(vec![chain(&error)]),
        }
        report.held_ms = milliseconds(begin.elapsed());
        report.ms = report.held_ms;
        let Some(mutated) = self.mutated.as_ref().filter(|_| report.verdict == Verdict::Contained) else {
            return report;
        };
        for mutation in &case.mutations {
            let reason = self.mutate(case, mutated, mutation).err();
            report.mutations.push(MutationReport {
                without: mutation.without.clone(),
                none: mutation.none.clone(),
                problem: reason,
            });
        }
        report.ms = milliseconds(begin.elapsed());
        report
    }

    /// Runs a case with all walls, and checks the invariants around it.
    fn run_intact(&self, case: &Case) -> Result<Attempt, HarnessError> {
        let is_whole = self.scope == Scope::Machine;
        let (before, used) = (Traces::now(is_whole), Usage::now());
        let canaries = Canaries::plant()?;
        let mut neighbour = Neighbour::start(&self.intact)?;
        let mut done = attempt(case, &self.intact, &self.lib, &canaries, &[])?;
        done.faults.extend(canaries.faults(&done.output));
        done.faults.extend(neighbour.faults(&done.output));
        neighbour.stop()?;
        let left = Traces::left_since(&before, is_whole);
        let left = left.into_iter().map(|what| Fault::Invariant { invariant: "nothing left behind", what });
        done.faults.extend(left);
        for path in canaries.scratch_files() {
            let what = format!("scratch file {}", path.display());
            done.faults.push(Fault::Invariant { invariant: "nothing left behind", what });
        }
        drop(canaries);
        if is_whole {
            let grown = Usage::grown_since(&used).into_iter();
            done.faults
                .extend(grown.map(|what| Fault::Invariant { invariant: "host at its baseline", what }));
        }
        Ok(done)
    }

    /// Runs a case without single walls. Fails with the reason if that does not show that they matter.
    fn mutate(&self, case: &Case, binary: &Binary, mutation: &Mutation) -> Result<(), String> {
        if mutation.none.is_some() {
            return Ok(());
        }
        if !has_hook(binary).map_err(|error| chain(&error))? {
            return Err(HarnessError::NoMutation { program: binary.program.clone() }.to_string());
        }
        let run = |without: &[String]| {
            let canaries = Canaries::plant().map_err(|error| chain(&error))?;
            let mut done =
                attempt(case, binary, &self.lib, &canaries, without).map_err(|error| chain(&error))?;
            done.faults.extend(canaries.faults(&done.output));
            Ok::<_, String>(done)
        };
        if !mutation.also.is_empty() {
            let done = run(&mutation.also)?;
            if !done.faults.is_empty() {
                let words = describe(&done.faults, &done.output).join("; ");
                return Err(format!(
                    "without {} alone it is no longer contained: {words}",
                    mutation.also.join(", ")
                ));
            }
        }
        let without: Vec<String> = mutation.also.iter().chain(&mutation.without).cloned().collect();
        let done = run(&without)?;
        check_breach(mutation, &done.faults).map_err(|reason| {
            let words = describe(&done.faults, &done.output);
            let words = if words.is_empty() { "everything held".to_owned() } else { words.join("; ") };
            format!("without {}: {reason} ({words})", without.join(", "))
        })
    }
}

/// Checks that these faults show that the walls of the mutation matter.
fn check_breach(mutation: &Mutation, faults: &[Fault]) -> Result<(), String> {
    if mutation.breaks.is_empty() && !faults.iter().any(Fault::is_breach) {
        return Err("the attack still fails, so the case proves nothing".to_owned());
    }
    match mutation.breaks.iter().find(|name| !faults.iter().any(|fault| fault.is_about(name))) {
        Some(name) => Err(format!("the probe {name:?} still gives an allowed answer, so it proves nothing")),
        None => Ok(()),
    }
}

/// Reports whether the binary can disable walls.
fn has_hook(binary: &Binary) -> Result<bool, HarnessError> {
    // Probed by behaviour: a binary that reads the list refuses the name of an unknown wall.
    let mut command = Command::new(&binary.program);
    command
        .args(["run", "--quiet"])
        .args(&binary.flags)
        .args(["-l", "sh", "-c", "exit 0"])
        .stdin(Stdio::null());
    disable_walls(&mut command, &["no-such-wall".to_owned()]);
    let output =
        command.output().map_err(HarnessError::step(format!("start {}", binary.program.display())))?;
    Ok(String::from_utf8_lossy(&output.stderr).contains("no-such-wall"))
}

fn describe(faults: &[Fault], output: &str) -> Vec<String> {
    let mut words: Vec<String> = faults.iter().map(ToString::to_string).collect();
    if faults.iter().any(|fault| matches!(fault, Fault::Missing(_) | Fault::Result { .. })) {
        words.push(format!("output: {}", end_of(output)));
    }
    words
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Formats an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unexpected(probe: &str) -> Fault {
        let (answer, allowed) = ("ok".to_owned(), "EPERM".to_owned());
        Fault::UnexpectedAnswer { probe: probe.to_owned(), answer, allowed }
    }

    #[test]
    fn mutation_without_a_breach_is_a_failure() {
        let any = Mutation { without: vec!["seccomp".to_owned()], ..Mutation::default() };
        let named = Mutation { breaks: vec!["one".to_owned()], ..any.clone() };
        let missing = Fault::Missing("one".to_owned());
        for (mutation, faults, shown) in [
            (&any, vec![], false),
            // A program that crashed shows nothing.
            (&any, vec![missing.clone()], false),
            (&any, vec![unexpected("two")], true),
            (&any, vec![Fault::Invariant { invariant: "host canaries", what: String::new() }], true),
            (&named, vec![], false),
            (&named, vec![unexpected("two")], false),
            (&named, vec![missing], false),
            (&named, vec![unexpected("one"), unexpected("two")], true),
        ] {
            assert_eq!(check_breach(mutation, &faults).is_ok(), shown, "{mutation:?} {faults:?}");
        }
    }
}
