//! What came of cases, as a table and as data.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::case::{Case, Class};

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
pub enum Verdict {
    /// Everything held.
    Contained,
    /// Something did not hold; what, in words.
    Failed(Vec<String>),
    /// It was not run, and why.
    Skipped(String),
}

/// What came of taking walls away.
#[derive(Debug, Clone, Serialize)]
pub struct MutationReport {
    /// The walls.
    pub without: Vec<String>,
    /// Why there is nothing to take away.
    pub none: Option<String>,
    /// Why it does not show that the walls matter.
    pub problem: Option<String>,
}

/// What came of a case.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The case's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it tries.
    pub tries: String,
    /// The worst that could come of it.
    pub class: Class,
    /// What contains it.
    pub walls: Vec<String>,
    /// What its probes answered, in short.
    pub answers: String,
    /// How it ended with all walls.
    pub verdict: Verdict,
    /// What came of taking walls away.
    pub mutations: Vec<MutationReport>,
    /// How long the run with all walls took with everything around it, in milliseconds.
    pub held_ms: u64,
    /// How long all of it took, in milliseconds.
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

    /// Everything that is wrong with it, in words; nothing if it is as it should be.
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

/// Width of the columns that may hold anything, in characters.
const TRIES_WIDTH: usize = 58;
const ANSWERS_WIDTH: usize = 30;
const WALLS_WIDTH: usize = 24;

/// The reports as a table, with what is wrong below each line that has something.
#[must_use]
pub fn table(reports: &[Report]) -> String {
    let walls = |report: &Report| report.walls.join(", ");
    let row = |cells: [&str; 6]| {
        let [id, tries, answers, state, walls, time] = cells;
        let (tries, answers, walls) =
            (short(tries, TRIES_WIDTH), short(answers, ANSWERS_WIDTH), short(walls, WALLS_WIDTH));
        let line = format!(
            "{id:<5} {tries:<TRIES_WIDTH$}  {answers:<ANSWERS_WIDTH$}  {state:<13}  {walls:<WALLS_WIDTH$}  {time:>7}"
        );
        line.trim_end().to_owned() + "\n"
    };
    let mut text = row(["case", "what it tries", "what came of it", "", "wall", "time"]);
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

/// How many of what, in one sentence each.
#[must_use]
pub fn summary(reports: &[Report]) -> String {
    let count =
        |wanted: fn(&Verdict) -> bool| reports.iter().filter(|report| wanted(&report.verdict)).count();
    let contained = count(|verdict| *verdict == Verdict::Contained);
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let mutations = || reports.iter().flat_map(|report| &report.mutations);
    let taken = mutations().filter(|mutation| mutation.none.is_none()).count();
    let useless = mutations().filter(|mutation| mutation.problem.is_some()).count();
    let mut text = format!("{contained} of {} contained", contained + failed);
    if skipped > 0 {
        let _ = write!(text, ", {skipped} skipped");
    }
    if taken > 0 {
        let _ = write!(
            text,
            "; {} of {taken} attacks get through once their wall is taken away",
            taken - useless
        );
    }
    text
}

/// The walls, each with the cases that it contained.
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

fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}
