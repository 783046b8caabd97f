//! A case from beginning to end: with all walls and everything that must stay true around it, then without single walls.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::attempt::{Attempt, Bell, attempt, end_of};
use crate::canary::Canaries;
use crate::case::{Case, Grade, Mutation};
use crate::error::HarnessError;
use crate::judge::Fault;
use crate::machine::Usage;
use crate::neighbour::Neighbour;
use crate::report::{MutationReport, Report, Verdict};
use crate::traces::Traces;
use crate::without::leave_out;

/// How much is looked at around a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The whole machine, on which little else happens.
    Machine,
    /// What belongs to this process: for machines where people work.
    Own,
}

/// How cases are run.
#[derive(Debug)]
pub struct Suite {
    /// The directory with `probe.py` and `host.py`.
    pub lib: PathBuf,
    /// Runs the cases with all walls.
    pub held: Bell,
    /// Runs them with walls taken away: a build with the feature `mutation`. Without it that is not checked.
    pub mutated: Option<Bell>,
    /// How much is looked at.
    pub scope: Scope,
    /// How limits are held here, if not by control groups.
    pub is_watched: bool,
}

impl Suite {
    /// Runs a case, and says what came of it.
    #[must_use]
    pub fn check(&self, case: &Case) -> Report {
        let begin = Instant::now();
        let mut report = Report::new(case);
        if self.is_watched && case.grade == Some(Grade::Cgroup) {
            report.verdict =
                Verdict::Skipped("needs control groups, and limits are only watched here".to_owned());
            return report;
        }
        match self.held(case) {
            Ok(done) => {
                report.answers = done.answers.in_short();
                report.verdict = match done.skipped {
                    Some(reason) => Verdict::Skipped(reason),
                    None if done.faults.is_empty() => Verdict::Contained,
                    None => Verdict::Failed(in_words(&done.faults, &done.said)),
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

    /// The run with all walls, and what must stay true around it.
    fn held(&self, case: &Case) -> Result<Attempt, HarnessError> {
        let is_whole = self.scope == Scope::Machine;
        let (before, used) = (Traces::now(is_whole), Usage::now());
        let canaries = Canaries::plant()?;
        let mut neighbour = Neighbour::start(&self.held)?;
        let mut done = attempt(case, &self.held, &self.lib, &canaries, &[])?;
        done.faults.extend(canaries.faults(&done.said));
        done.faults.extend(neighbour.faults(&done.said));
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

    /// The case without single walls must show that they matter; else it says why it does not.
    fn mutate(&self, case: &Case, bell: &Bell, mutation: &Mutation) -> Result<(), String> {
        if mutation.none.is_some() {
            return Ok(());
        }
        if !has_hook(bell).map_err(|error| chain(&error))? {
            return Err(HarnessError::NoMutation { program: bell.program.clone() }.to_string());
        }
        let run = |without: &[String]| {
            let canaries = Canaries::plant().map_err(|error| chain(&error))?;
            let mut done =
                attempt(case, bell, &self.lib, &canaries, without).map_err(|error| chain(&error))?;
            done.faults.extend(canaries.faults(&done.said));
            Ok::<_, String>(done)
        };
        if !mutation.also.is_empty() {
            let done = run(&mutation.also)?;
            if !done.faults.is_empty() {
                let words = in_words(&done.faults, &done.said).join("; ");
                return Err(format!(
                    "without {} alone it is not contained any more: {words}",
                    mutation.also.join(", ")
                ));
            }
        }
        let without: Vec<String> = mutation.also.iter().chain(&mutation.without).cloned().collect();
        let done = run(&without)?;
        shows(mutation, &done.faults).map_err(|reason| {
            let words = in_words(&done.faults, &done.said);
            let words = if words.is_empty() { "everything held".to_owned() } else { words.join("; ") };
            format!("without {}: {reason} ({words})", without.join(", "))
        })
    }
}

/// Whether these faults show that the walls of the mutation matter.
fn shows(mutation: &Mutation, faults: &[Fault]) -> Result<(), String> {
    if mutation.breaks.is_empty() && !faults.iter().any(Fault::is_breach) {
        return Err("the attack still does not get through, so the case proves nothing".to_owned());
    }
    match mutation.breaks.iter().find(|name| !faults.iter().any(|fault| fault.is_about(name))) {
        Some(name) => Err(format!("the probe {name:?} still answers as it should, so it proves nothing")),
        None => Ok(()),
    }
}

/// Whether the binary knows how to leave walls out.
fn has_hook(bell: &Bell) -> Result<bool, HarnessError> {
    // Asked by what it does: a wall that does not exist is refused by a binary that looks.
    let mut command = Command::new(&bell.program);
    command
        .args(["run", "--quiet"])
        .args(&bell.flags)
        .args(["-l", "sh", "-c", "exit 0"])
        .stdin(Stdio::null());
    leave_out(&mut command, &["no-such-wall".to_owned()]);
    let output = command.output().map_err(HarnessError::step(format!("start {}", bell.program.display())))?;
    Ok(String::from_utf8_lossy(&output.stderr).contains("no-such-wall"))
}

fn in_words(faults: &[Fault], said: &str) -> Vec<String> {
    let mut words: Vec<String> = faults.iter().map(ToString::to_string).collect();
    if faults.iter().any(|fault| matches!(fault, Fault::Missing(_) | Fault::Result { .. })) {
        words.push(format!("it said: {}", end_of(said)));
    }
    words
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// An error with its causes.
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

    fn wrong(probe: &str) -> Fault {
        let (answer, allowed) = ("ok".to_owned(), "EPERM".to_owned());
        Fault::Wrong { probe: probe.to_owned(), answer, allowed }
    }

    #[test]
    fn a_mutation_that_still_holds_is_a_failure() {
        let any = Mutation { without: vec!["seccomp".to_owned()], ..Mutation::default() };
        let named = Mutation { breaks: vec!["one".to_owned()], ..any.clone() };
        let missing = Fault::Missing("one".to_owned());
        for (mutation, faults, shown) in [
            (&any, vec![], false),
            // A program that broke down shows nothing.
            (&any, vec![missing.clone()], false),
            (&any, vec![wrong("two")], true),
            (&any, vec![Fault::Invariant { invariant: "host canaries", what: String::new() }], true),
            (&named, vec![], false),
            (&named, vec![wrong("two")], false),
            (&named, vec![missing], false),
            (&named, vec![wrong("one"), wrong("two")], true),
        ] {
            assert_eq!(shows(mutation, &faults).is_ok(), shown, "{mutation:?} {faults:?}");
        }
    }
}
