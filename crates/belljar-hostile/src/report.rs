//! Results of cases, as a table and as data.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::case::{Case, Class};

/// Outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
pub enum Verdict {
    /// The attack was contained and all invariants held.
    Contained,
    /// The attack was not contained, or the run failed, with the reasons.
    Failed(Vec<String>),
    /// The case was not run, with the reason.
    Skipped(String),
}

/// Result of a mutation.
#[derive(Debug, Clone, Serialize)]
pub struct MutationReport {
    /// The disabled walls.
    pub without: Vec<String>,
    /// The reason why no wall can be disabled.
    pub none: Option<String>,
    /// The reason why it does not show that the walls matter.
    pub problem: Option<String>,
}

/// Result of a case.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The case's id.
    pub id: String,
    /// The case's name.
    pub name: String,
    /// The attack, in one sentence.
    pub tries: String,
    /// Worst possible outcome of the attack.
    pub class: Class,
    /// The walls that contain it.
    pub walls: Vec<String>,
    /// Summary of its probes' answers.
    pub answers: String,
    /// Outcome with all walls.
    pub verdict: Verdict,
    /// Results without single walls.
    pub mutations: Vec<MutationReport>,
    /// Duration of the run with all walls, including the checks around it, in milliseconds.
    pub held_ms: u64,
    /// Duration of all runs, in milliseconds.
    pub ms: u64,
}

impl Report {
    pub(crate) fn new(case: &Case) -> Self {
        Self {
            id: case.id.clone(),
            name: case.name.clone(),
            tries: case.tries.clone(),
            class: case.class,
            walls: case.walls.clone(),
            answers: String::new(),
            verdict: Verdict::Contained,
            mutations: Vec::new(),
            held_ms: 0,
            ms: 0,
        }
    }

    /// Returns a description of each failure; empty if the case passed or was skipped.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = match &self.verdict {
            Verdict::Failed(reasons) => reasons.clone(),
            Verdict::Contained | Verdict::Skipped(_) => Vec::new(),
        };
        problems.extend(self.mutations.iter().filter_map(|mutation| mutation.problem.clone()));
        problems
    }
}

/// Widths of the columns with free text, in characters.
const TRIES_WIDTH: usize = 58;
const ANSWERS_WIDTH: usize = 30;
const WALLS_WIDTH: usize = 24;

/// Formats the reports as a table, with the failures of each case below its line.
#[must_use]
pub fn table(reports: &[Report]) -> String {
    let walls = |report: &Report| report.walls.join(", ");
    let row = |cells: [&str; 6]| {
        let [id, tries, answers, state, walls, time] = cells;
        let (tries, answers, walls) =
            (truncate(tries, TRIES_WIDTH), truncate(answers, ANSWERS_WIDTH), truncate(walls, WALLS_WIDTH));
        let line = format!(
            "{id:<5} {tries:<TRIES_WIDTH$}  {answers:<ANSWERS_WIDTH$}  {state:<13}  {walls:<WALLS_WIDTH$}  {time:>7}"
        );
        line.trim_end().to_owned() + "\n"
    };
    let mut text = row(["case", "attack", "answers", "", "wall", "time"]);
    for report in reports {
        let (state, answers) = match &report.verdict {
            Verdict::Contained => ("contained", report.answers.as_str()),
            Verdict::Failed(_) => ("NOT CONTAINED", report.answers.as_str()),
            Verdict::Skipped(reason) => ("skipped", reason.as_str()),
        };
        let time = format!("{}.{:02} s", report.held_ms / 1000, report.held_ms % 1000 / 10);
        text.push_str(&row([&report.id, &report.tries, answers, state, &walls(report), &time]));
        for problem in report.problems() {
            let _ = writeln!(text, "      - {}", problem.trim_end().replace('\n', "\n        "));
        }
    }
    text
}

/// Formats the counts of all outcomes in one sentence.
#[must_use]
pub fn summary(reports: &[Report]) -> String {
    let count =
        |matches: fn(&Verdict) -> bool| reports.iter().filter(|report| matches(&report.verdict)).count();
    let contained = count(|verdict| *verdict == Verdict::Contained);
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let mutations = || reports.iter().flat_map(|report| &report.mutations);
    let mutated = mutations().filter(|mutation| mutation.none.is_none()).count();
    let failed_mutations = mutations().filter(|mutation| mutation.problem.is_some()).count();
    let mut text = format!("{contained} of {} contained", contained + failed);
    if skipped > 0 {
        let _ = write!(text, ", {skipped} skipped");
    }
    if mutated > 0 {
        let _ =
            write!(text, "; {} of {mutated} attacks succeed without their wall", mutated - failed_mutations);
    }
    text
}

/// Groups contained cases by the wall that contained them.
#[must_use]
pub fn by_wall(reports: &[Report]) -> BTreeMap<&str, Vec<&str>> {
    let mut walls: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for report in reports.iter().filter(|report| report.verdict == Verdict::Contained) {
        for wall in &report.walls {
            walls.entry(wall).or_default().push(&report.id);
        }
    }
    walls
}

fn truncate(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}
