//! What a screening finds.

use serde::{Deserialize, Serialize};

/// Sentence that every report has.
pub const ADVICE: &str = "Advice, not a wall: code can do what its text does not show, and the walls of the sandbox hold whatever is found here.";

/// Largest number of findings of a report. Source: docs/screening.md.
pub const MAX_FINDINGS: usize = 100;

/// Longest `name` of a finding, in characters.
pub(crate) const MAX_NAME: usize = 100;

/// How much a finding says, and the risk of code, which is that of its gravest finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Severity))]
pub enum Severity {
    /// Usual in honest programs.
    #[default]
    Low,
    /// Honest programs do it, and it is worth a look.
    Medium,
    /// Rare in honest programs.
    High,
}

impl Severity {
    /// Returns the name: `low`, `medium` or `high`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Finding))]
pub struct Finding {
    /// The rule's id.
    pub rule: String,
    /// The rule's severity.
    pub severity: Severity,
    /// First line, from 1. In code inside of code, that of the outermost literal.
    pub line: usize,
    /// First column, from 1, in bytes of UTF-8.
    pub column: usize,
    /// Last line, from 1.
    pub end_line: usize,
    /// Column after the last one, from 1, in bytes of UTF-8.
    pub end_column: usize,
    /// What the rule has matched, with aliases resolved and constants folded: at most 100 characters. A credential is not shown.
    pub name: String,
    /// Language of the code inside of which it is, if that is inside other code: `bash` in the argument of Python's `os.system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<String>,
    /// What it means.
    pub meaning: String,
    /// What the walls of a sandbox do about it, whether or not it is found.
    pub walls: String,
}

/// The result of a screening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ScreenReport))]
pub struct Report {
    /// The language as which the code was read.
    pub language: String,
    /// The gravest severity of a finding; low if there is none.
    pub risk: Severity,
    /// Whether all of the code was read. If not, a finding says why.
    pub complete: bool,
    /// The findings, by their places, at most 100, the gravest ones if there are more.
    pub findings: Vec<Finding>,
    /// Number of findings that were left out.
    pub left_out: usize,
    /// That this is advice, and no wall.
    pub advice: String,
}

impl Report {
    /// Makes a report. The reasons why not all was read, a few, are never left out.
    pub(crate) fn new(
        language: &str,
        mut findings: Vec<Finding>,
        reasons: Vec<Finding>,
        complete: bool,
    ) -> Self {
        let risk = findings.iter().chain(&reasons).map(|finding| finding.severity).max().unwrap_or_default();
        let room = MAX_FINDINGS.saturating_sub(reasons.len());
        let left_out = findings.len().saturating_sub(room);
        if left_out > 0 {
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
            findings.truncate(room);
        }
        findings.extend(reasons);
        findings.sort_by(|a, b| (a.line, a.column, &a.rule).cmp(&(b.line, b.column, &b.rule)));
        Self { language: language.to_owned(), risk, complete, findings, left_out, advice: ADVICE.to_owned() }
    }
}
