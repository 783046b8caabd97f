//! A screening from its code to its report.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use tree_sitter::{Node, ParseOptions, Parser, Tree};

use super::reader::Reader;
use super::request::{Modules, Request};
use super::tree::{MAX_DEPTH, first_error, walk};
use crate::budget::Budget;
use crate::cells::{Cell, cells, may_be_other};
use crate::language::Language;
use crate::reading::{Reading, declared_encoding};
use crate::report::{Finding, MAX_NAME, Report, Severity};
use crate::rules::{Rule, RuleError, RuleSet, Rules};
use crate::syntax::Facts;
use crate::values::{UNKNOWN, Values};

/// Longest time of a screening, of a processor. Source: docs/screening.md.
pub const MAX_TIME: Duration = Duration::from_millis(200);

/// Most findings that are kept until the gravest are chosen.
const MAX_KEPT: usize = 5_000;

/// How deep code may be inside of code to be read: a literal that a call runs is one level.
const MAX_INSIDE: usize = 3;

/// Largest code inside of code that is read, in bytes.
const MAX_INSIDE_BYTES: usize = 64 << 10;

/// Screens code in this process. Parsers are written in C: what others wrote is screened by `screen_in_jail`.
///
/// # Errors
/// Never fails in a build whose tests pass, as the rules are part of it.
pub fn screen(request: &Request, time: Duration) -> Result<Report, RuleError> {
    screen_by(&RuleSet::builtin()?, request, time)
}

/// Screens code by these rules.
pub(crate) fn screen_by(set: &RuleSet, request: &Request, time: Duration) -> Result<Report, RuleError> {
    let mut screening = Screening {
        set,
        rules: HashMap::new(),
        modules: &request.modules,
        budget: Budget::new(time),
        findings: Vec::new(),
        reasons: Vec::new(),
        seen: HashSet::new(),
        gravest: Severity::Low,
        is_complete: true,
        reading: None,
    };
    screening.read(request.language, &request.code, None)?;
    let Screening { findings, reasons, is_complete, .. } = screening;
    Ok(Report::new(request.language.as_str(), findings, reasons, is_complete))
}

/// Returns the report of code that was not read, for the reason that this rule has.
pub(crate) fn unread_report(set: &RuleSet, language: Language, id: &str) -> Report {
    let reasons = set.rules.iter().filter(|rule| rule.id == id).map(whole).collect();
    Report::new(language.as_str(), Vec::new(), reasons, false)
}

/// Returns a finding about all of the code.
fn whole(rule: &Rule) -> Finding {
    Finding {
        rule: rule.id.clone(),
        severity: rule.severity,
        line: 1,
        column: 1,
        end_line: 1,
        end_column: 1,
        name: String::new(),
        inside: None,
        meaning: rule.meaning.clone(),
        walls: rule.walls.clone(),
    }
}

/// State of a screening.
pub(super) struct Screening<'a> {
    set: &'a RuleSet,
    rules: HashMap<Language, Rc<Rules>>,
    pub(super) modules: &'a Modules,
    pub(super) budget: Budget,
    findings: Vec<Finding>,
    /// Findings about all of the code: why it was not read.
    reasons: Vec<Finding>,
    /// Rules and places of findings.
    seen: HashSet<(usize, Place, Option<Language>)>,
    gravest: Severity,
    is_complete: bool,
    /// The reading of the outermost code that is being read, if that is not what was written.
    reading: Option<Rc<Reading>>,
}

/// Place of a finding: lines and columns from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
}

impl Place {
    fn between(start: (usize, usize), end: (usize, usize)) -> Self {
        Self { line: start.0 + 1, column: start.1 + 1, end_line: end.0 + 1, end_column: end.1 + 1 }
    }
}

/// Counts lines up to offsets that grow.
#[derive(Default)]
struct Lines {
    line: usize,
    start: usize,
    done: usize,
}

impl Lines {
    fn position(&mut self, source: &str, offset: usize) -> (usize, usize) {
        for (at, _) in source.get(self.done..offset).unwrap_or_default().match_indices('\n') {
            (self.line, self.start) = (self.line + 1, self.done + at + 1);
        }
        self.done = offset.max(self.done);
        (self.line, offset.saturating_sub(self.start))
    }
}

/// Where code is inside of other code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outer {
    pub(super) place: Place,
    pub(super) depth: usize,
    /// Whether it may be no code of its language.
    pub(super) is_guess: bool,
}

/// Returns the commands in code of a shell by its separators alone.
fn pieces(source: &str) -> Vec<Cell> {
    let (mut found, mut at) = (Vec::new(), 0);
    for piece in source.split_inclusive([';', '\n', '|', '&', '(', ')', '{', '}', '`']) {
        let end = at + piece.len();
        let code = piece.trim_matches(|char: char| char.is_whitespace() || ";|&(){}`".contains(char));
        if code.len() < source.trim().len() && code.contains(char::is_whitespace) {
            found.push(Cell {
                language: Language::Bash,
                code: code.to_owned(),
                range: at..end,
                python: String::new(),
            });
        }
        at = end;
    }
    found
}

impl Screening<'_> {
    fn rules(&mut self, language: Language) -> Result<Rc<Rules>, RuleError> {
        if let Some(rules) = self.rules.get(&language) {
            return Ok(Rc::clone(rules));
        }
        let rules = Rc::new(self.set.of(language)?);
        self.rules.insert(language, Rc::clone(&rules));
        Ok(rules)
    }

    /// Returns where a node of the outermost code was written.
    pub(super) fn place(&self, node: Node<'_>) -> Place {
        let (start, end) = (node.start_position(), node.end_position());
        match &self.reading {
            None => Place::between((start.row, start.column), (end.row, end.column)),
            Some(reading) => {
                Place::between(reading.written_at(node.start_byte()), reading.written_at(node.end_byte()))
            }
        }
    }

    pub(super) fn rule(&self, id: &str) -> Option<usize> {
        self.set.rules.iter().position(|rule| rule.id == id)
    }

    /// Adds a finding, once for each rule and beginning.
    pub(super) fn find(
        &mut self,
        rule: usize,
        node: Node<'_>,
        name: &str,
        language: Language,
        outer: Option<Outer>,
    ) {
        let place = outer.map_or_else(|| self.place(node), |outer| outer.place);
        self.find_at(rule, place, name, outer.map(|_| language));
    }

    fn find_at(&mut self, rule: usize, place: Place, name: &str, inside: Option<Language>) {
        let start = Place { end_line: 0, end_column: 0, ..place };
        let Some(Rule { id, severity, meaning, walls, is_secret, .. }) = self.set.rules.get(rule) else {
            return;
        };
        // A graver one than all before is kept in any case.
        if (self.findings.len() >= MAX_KEPT && *severity <= self.gravest)
            || !self.seen.insert((rule, start, inside))
        {
            return;
        }
        self.gravest = self.gravest.max(*severity);
        let mut shown: String = name
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .map(|char| if char == UNKNOWN { '…' } else { char })
            .take(if *is_secret { 4 } else { MAX_NAME })
            .collect();
        if shown.len() < name.len() && *is_secret {
            shown.push('…');
        }
        let Place { line, column, end_line, end_column } = place;
        self.findings.push(Finding {
            rule: id.clone(),
            severity: *severity,
            line,
            column,
            end_line,
            end_column,
            name: shown,
            inside: inside.map(|language| language.as_str().to_owned()),
            meaning: meaning.clone(),
            walls: walls.clone(),
        });
    }

    /// Adds a finding about the reading itself, after which the report is not complete.
    pub(super) fn unread(
        &mut self,
        id: &str,
        node: Option<Node<'_>>,
        language: Language,
        outer: Option<Outer>,
    ) {
        let is_partial = id != "does-not-parse";
        self.is_complete &= !is_partial;
        let Some(rule) = self.rule(id) else { return };
        if let Some(node) = node {
            self.find(rule, node, "", language, outer);
        } else if let Some(rule) = self.set.rules.get(rule)
            && !self.reasons.iter().any(|one| one.rule == rule.id)
        {
            self.reasons.push(whole(rule));
        }
    }

    /// Reads code as it is written and, if that is another text, as its language reads it.
    pub(super) fn read(
        &mut self,
        language: Language,
        source: &str,
        outer: Option<Outer>,
    ) -> Result<(), RuleError> {
        let found = self.findings.len();
        let mut error = self.read_text(language, source, outer)?;
        if self.budget.is_over() {
            self.unread("not-read-in-time", None, language, outer);
            return Ok(());
        }
        if outer.is_none() && language == Language::Python && declared_encoding(source).is_some() {
            self.unread("other-encoding", None, language, outer);
        }
        let cells = match language {
            // In code that is all Python a line that begins like a command is part of an expression or a text.
            Language::Python if error.is_some() || may_be_other(source) => cells(source),
            Language::Bash if error.is_some() => pieces(source),
            _ => Vec::new(),
        };
        self.cells(source, &cells, language, outer)?;
        if let Some(reading) = Reading::of(language, source) {
            let reading = Rc::new(reading);
            if outer.is_none() {
                self.reading = Some(Rc::clone(&reading));
            }
            if reading.is_cut {
                self.unread("too-many-values", None, language, outer);
            }
            let other = self.read_text(language, reading.code(), outer)?;
            // What is left without its magics may be Python.
            if language == Language::Python && !cells.is_empty() {
                error = error.and(other);
            }
        }
        if let (Some(place), Some(rule)) = (error, self.rule("does-not-parse"))
            && outer.is_none_or(|outer| !outer.is_guess && self.findings.len() == found)
        {
            self.find_at(rule, place, "", outer.map(|_| language));
        }
        Ok(())
    }

    /// Reads parts of code for themselves: what a context does not run as Python, and pieces of what does not parse.
    fn cells(
        &mut self,
        source: &str,
        cells: &[Cell],
        language: Language,
        outer: Option<Outer>,
    ) -> Result<(), RuleError> {
        let mut lines = Lines::default();
        for cell in cells {
            if self.budget.is_over() {
                break;
            }
            let place = outer.map_or_else(
                || {
                    Place::between(
                        lines.position(source, cell.range.start),
                        lines.position(source, cell.range.end),
                    )
                },
                |outer| outer.place,
            );
            // A piece is not deeper than the whole, and has no pieces.
            let deeper = usize::from(language != Language::Bash);
            let depth = outer.map_or(1, |outer| outer.depth + deeper);
            self.read_inside(cell.language, &cell.code, Outer { place, depth, is_guess: true })?;
        }
        Ok(())
    }

    /// Reads code that is inside of other code, unless it is too deep or too long.
    pub(super) fn read_inside(
        &mut self,
        language: Language,
        code: &str,
        outer: Outer,
    ) -> Result<(), RuleError> {
        let too_much = if outer.depth > MAX_INSIDE {
            "too-deep"
        } else if code.len() > MAX_INSIDE_BYTES {
            "too-many-values"
        } else {
            return self.read(language, code, Some(outer));
        };
        self.is_complete = false;
        if let Some(rule) = self.rule(too_much) {
            self.find_at(rule, outer.place, "", Some(language));
        }
        Ok(())
    }

    /// Reads a text, and returns where it is first not of its language.
    fn read_text(
        &mut self,
        language: Language,
        source: &str,
        outer: Option<Outer>,
    ) -> Result<Option<Place>, RuleError> {
        let rules = self.rules(language)?;
        let Some(tree) = self.parse(language, source) else {
            self.unread("not-read-in-time", None, language, outer);
            return Ok(None);
        };
        let root = tree.root_node();
        let error = first_error(root).filter(|_| root.has_error());
        let error = error.map(|node| outer.map_or_else(|| self.place(node), |outer| outer.place));
        let mut facts = Facts::default();
        let mut is_deep = false;
        walk(root, self.budget, |node, depth| {
            is_deep |= depth >= MAX_DEPTH;
            language.bind(node, source, &mut facts);
        });
        if is_deep {
            self.unread("too-deep", Some(root), language, outer);
        }
        let values = Values::new(language, source, Rc::clone(&rules), facts, self.budget);
        values.settle();
        let mut reader = Reader { screening: self, values, outer };
        reader.imports();
        reader.aliases();
        let mut failed = None;
        walk(root, reader.screening.budget, |node, _| {
            if failed.is_none() {
                failed = reader.node(node).err();
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if self.budget.is_over() {
            self.unread("not-read-in-time", None, language, outer);
        }
        Ok(error)
    }

    /// Parses the code; `None` if there was not enough time.
    fn parse(&self, language: Language, source: &str) -> Option<Tree> {
        let mut first = None;
        for grammar in language.parsers(source) {
            let mut parser = Parser::new();
            parser.set_language(&grammar).ok()?;
            let budget = self.budget;
            let mut stop = |_: &tree_sitter::ParseState| {
                if budget.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let options = ParseOptions::new().progress_callback(&mut stop);
            let mut read = |at: usize, _| source.as_bytes().get(at..).unwrap_or_default();
            let tree = parser.parse_with_options(&mut read, None, Some(options))?;
            if !tree.root_node().has_error() {
                return Some(tree);
            }
            first.get_or_insert(tree);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many graver findings there are, one says why the code was not read to its end.
    #[test]
    fn the_reason_of_an_incomplete_report_is_in_it() {
        let set = RuleSet::builtin().unwrap();
        let [late] =
            <[Finding; 1]>::try_from(unread_report(&set, Language::Bash, "not-read-in-time").findings)
                .unwrap();
        let other = Finding { rule: "other".to_owned(), severity: Severity::High, ..late.clone() };
        let report = Report::new("bash", vec![other; crate::MAX_FINDINGS + 3], vec![late], false);
        assert_eq!((report.findings.len(), report.left_out), (crate::MAX_FINDINGS, 4));
        assert_eq!(report.findings.iter().filter(|one| one.rule == "not-read-in-time").count(), 1);
    }

    /// Each of these took time that grows with the square of its length: seconds.
    #[test]
    fn readings_end_with_their_time() {
        let many = |unit: &str, count: usize| unit.repeat(count);
        let numbered = |start: &str, end: &str, count: usize| {
            (0..count).map(|at| format!("{start}{at}{end}")).collect::<String>()
        };
        let list = || format!("[{}]", many("'a', ", 50_000));
        for (language, code) in [
            (Language::Bash, vec!["a"; 60_000].join(" | ")),
            (Language::Bash, numbered("a", " | ", 20_000) + "sh"),
            (Language::Bash, many("curl x | ", 10_000) + &vec!["bash"; 10_000].join(" | ")),
            (Language::Bash, format!("bash {}", many("$(a) ", 60_000))),
            (Language::Bash, format!("sudo env bash {}", many("$(echo x) ", 40_000))),
            (Language::Bash, format!("x=a; x=b; rm {}", many("$x ", 100_000))),
            (Language::Bash, format!("y=a; y=b; {} rm $x", many("x+=$y; ", 50_000))),
            (Language::Bash, format!("x={}; {}", many("a", 60_000), many("rm $x$x $x; ", 5_000))),
            (
                Language::Bash,
                format!("{}a {}{}", many("{ ", 200), many("x ", 100_000), many("; } | cat", 200)),
            ),
            (Language::Bash, format!("{}{}{}", many("\"$(", 150), many("a ", 300_000), many(")\"", 150))),
            (Language::Bash, format!("{}{}{}", many("${a:-", 150), many("`", 300_000), many("}", 150))),
            (Language::Bash, format!("sh {}\n{}", many("<<A ", 2_000), many("a\nA\n", 2_000))),
            (Language::Python, format!("a = {}\n{}", list(), many("f(a)\n", 20_000))),
            (Language::Python, format!("a = {}\n{}", list(), many("a[0]\n", 20_000))),
            (Language::Python, format!("a = {}\n{}", list(), many("subprocess.run(a)\n", 20_000))),
            (Language::Python, many("def f(): pass\n", 50_000)),
            (Language::Python, format!("x = {}\n", many("'a' + ", 150_000) + "'b'")),
            (Language::Python, format!("y = 'a'\ny = 'b'\n{}os.system(x)\n", many("x += y\n", 100_000))),
            (Language::JavaScript, format!("const a = {};\n{}", list(), many("a[0]; f(a);\n", 20_000))),
            (Language::JavaScript, many("function f() {}\n", 50_000)),
            (Language::Ruby, many("def f; end\n", 50_000)),
            (Language::Php, many("function f() {}\n", 50_000)),
            (Language::Go, format!("package main\n{}", many("func f() {}\n", 50_000))),
            (Language::Rust, many("fn f() {}\n", 50_000)),
        ] {
            let shown: String = code.chars().take(24).collect();
            let request = Request { language, code, modules: Modules::default() };
            let took = |time| {
                let begin = Budget::new(Duration::ZERO);
                let report = screen(&request, time).unwrap();
                (begin.over(), report)
            };
            // What is done in any case grows with the code, and with how slow the machine is.
            let (least, _) = took(Duration::ZERO);
            let (most, report) = took(MAX_TIME);
            assert!(most <= 5 * (MAX_TIME + least), "{}: {most:?}, {least:?}: {shown}", language.as_str());
            let is_late = report.findings.iter().any(|one| one.rule == "not-read-in-time");
            assert!(
                is_late != report.complete || report.findings.iter().any(|one| one.rule == "too-many-values"),
                "{shown}"
            );
        }
    }
}
