//! Code to screen, and queries of rules.

use std::time::{Duration, Instant};

use belljar_screen::{Language, MAX_FINDINGS, Modules, Request, fuzzing};

use crate::data::{Input, check_text, text};

/// Much more than a screening may take, as a checked build is slow.
const TIME: Duration = Duration::from_secs(10);

pub(crate) fn screening(data: &[u8]) {
    let mut input = Input(data);
    let language = Language::ALL[usize::from(input.byte()) % Language::ALL.len()];
    let code = text(input.0);
    let (lines, bytes) = (code.split('\n').count(), code.len());
    let modules = Modules { allow: None, deny: vec!["os".to_owned()] };
    let begin = Instant::now();
    let report =
        belljar_screen::screen(&Request { language, code, modules }, TIME).expect("the rules are valid");
    assert!(begin.elapsed() < TIME * 10, "{bytes} bytes");
    assert!(report.findings.len() <= MAX_FINDINGS);
    assert_eq!(report.risk, report.findings.iter().map(|finding| finding.severity).max().unwrap_or_default());
    for finding in &report.findings {
        assert!((1..=lines).contains(&finding.line) && finding.line <= finding.end_line, "{finding:?}");
        assert!(finding.end_line <= lines + 1 && finding.column >= 1, "{finding:?}");
        assert!(finding.name.chars().count() <= 100, "{finding:?}");
        check_text(&finding.name);
    }
    let json = serde_json::to_string(&report).expect("a report can be written");
    assert_eq!(
        serde_json::from_str::<belljar_screen::Report>(&json).expect("a written report can be read"),
        report
    );
}

/// The first line is a query, the rest Python.
pub(crate) fn screening_query(data: &[u8]) {
    let text = text(data);
    let (query, code) = text.split_once('\n').unwrap_or((&text, "import os\nos.system('ls')\n"));
    if let Err(error) = fuzzing::query(query, code) {
        assert!(!error.is_empty() && error.len() <= query.len() * 4 + 400, "{error}");
    }
}
