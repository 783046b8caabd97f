//! Calls that wait only if screening finds a risk in them.
//!
//! Whatever cannot be read counts as the gravest risk, whether its language is unknown or no screening is to be had.

use std::cmp::Reverse;
use std::path::Path;

use belljar_model::{Approval, Encoding, Languages};
use belljar_screen::{Language, MAX_FINDINGS, Modules, Report, Request, Severity};
use tokio::time::Instant;

use super::calls::Attempt;
use crate::approval::{ApprovalContent, ApprovalFinding, ApprovalRequest, ApprovalScreening};
use crate::keeper::Keeper;
use crate::program::{SHELL, quote};

/// Maximum number of findings that a summary names.
const MAX_NAMED: usize = 3;

/// Reports whether a call waits for approval under a rule. `screening` is absent if the rule does not ask for it.
pub(crate) fn waits(rule: Approval, screening: Option<&ApprovalScreening>) -> bool {
    match screening {
        Some(screening) => screening.risk >= screening.threshold,
        None => rule != Approval::Never,
    }
}

/// Returns the risk from which on calls wait under a rule, if that depends on their risk.
fn threshold(rule: Approval) -> Option<Severity> {
    match rule {
        Approval::OnRisk => Some(Severity::High),
        Approval::OnMediumRisk => Some(Severity::Medium),
        Approval::Never | Approval::Always => None,
    }
}

/// Reports whether calls wait by their risk under a rule.
pub(crate) fn is_by_risk(rule: Approval) -> bool {
    threshold(rule).is_some()
}

/// A part of a call that is read, by its name; or the reason why it cannot be read.
type CallPart = (String, Result<Request, String>);

impl Keeper {
    /// Screens a call whose rule asks for that, within the time that a person would have to decide.
    pub(crate) async fn screen_call(&self, attempt: &Attempt<'_>) -> Option<ApprovalScreening> {
        let Attempt { caller, rule, shown: call, language, has_env } = attempt;
        let threshold = threshold(*rule)?;
        let deadline = Instant::now() + self.inner.config.now().approvals.timeout;
        let mut screening = ApprovalScreening {
            risk: Severity::Low,
            threshold,
            findings: Vec::new(),
            left_out: 0,
            unread: Vec::new(),
        };
        if *has_env {
            screening.unread.push("environment: programs may run what it has".to_owned());
        }
        if call.stdin.is_some() {
            screening.unread.push("input: programs may run what they read".to_owned());
        }
        for (part, request) in parts(call, language) {
            let report = match request {
                Ok(request) => {
                    let screening = self.screen_in_turn(&caller.key, request);
                    match tokio::time::timeout_at(deadline, screening).await {
                        Ok(report) => report.map_err(|error| error.to_string()),
                        Err(_) => Err("it was not screened in time".to_owned()),
                    }
                }
                Err(reason) => Err(reason),
            };
            screening.add(&part, report);
        }
        Some(screening.finish())
    }
}

impl ApprovalScreening {
    fn add(&mut self, part: &str, report: Result<Report, String>) {
        match report {
            Ok(report) => {
                if !report.complete {
                    self.unread.push(format!("{part}: not all of it could be read"));
                }
                self.left_out += report.left_out;
                let own = |finding| ApprovalFinding { part: part.to_owned(), finding };
                self.findings.extend(report.findings.into_iter().map(own));
            }
            Err(reason) => self.unread.push(format!("{part}: {reason}")),
        }
    }

    fn finish(mut self) -> Self {
        let gravest = self.findings.iter().map(|one| one.finding.severity).max().unwrap_or_default();
        self.risk = if self.unread.is_empty() { gravest } else { Severity::High };
        let surplus = self.findings.len().saturating_sub(MAX_FINDINGS);
        if surplus > 0 {
            self.left_out += surplus;
            self.findings.sort_by_key(|one| Reverse(one.finding.severity));
            self.findings.truncate(MAX_FINDINGS);
        }
        self
    }

    /// Returns the details for audit records.
    pub(crate) fn details(&self) -> Vec<(&'static str, String)> {
        let count = self.findings.len() + self.left_out;
        vec![("risk", self.risk.as_str().to_owned()), ("findings", count.to_string())]
    }

    /// Returns the risk and its reasons in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut gravest: Vec<_> = self.findings.iter().collect();
        gravest.sort_by_key(|one| Reverse(one.finding.severity));
        let named = gravest.iter().take(MAX_NAMED).map(|ApprovalFinding { part, finding }| {
            format!("{} ({part}, line {})", finding.rule, finding.line)
        });
        let reasons: Vec<_> = self.unread.iter().cloned().chain(named).collect();
        let more = (self.findings.len() + self.left_out).saturating_sub(MAX_NAMED);
        let mut summary = format!("risk {}", self.risk.as_str());
        if !reasons.is_empty() {
            summary = format!("{summary}: {}", reasons.join(", "));
        }
        if more > 0 {
            summary = format!("{summary} and {more} more");
        }
        summary
    }
}

/// Returns what is read of a call: its code, its command, and its files whose language is known.
fn parts(call: &ApprovalRequest, language: &str) -> Vec<CallPart> {
    let mut parts = Vec::new();
    if let Some(code) = &call.code {
        parts.push(("code".to_owned(), part(language, code)));
    }
    if let Some(line) = &call.command {
        parts.push(("command".to_owned(), part(SHELL, line)));
    }
    if let Some(argv) = &call.argv {
        parts.push(("arguments".to_owned(), line_of(argv).map(|code| request(Language::Bash, code))));
    }
    for (path, content) in &call.files {
        match file_language(path, content) {
            FileLanguage::Known(language) => parts.push((format!("file {path}"), part(&language, content))),
            FileLanguage::Unknown(reason) => parts.push((format!("file {path}"), Err(reason.to_owned()))),
            FileLanguage::Data => {}
        }
    }
    parts
}

fn request(language: Language, code: String) -> Request {
    Request { language, code, modules: Modules::default() }
}

fn part(language: &str, content: &ApprovalContent) -> Result<Request, String> {
    let code = text(content)?;
    let name = Languages::builtin().by_name(language).map_or(language, |known| known.name.as_str());
    match Language::by_name(name) {
        Some(language) => Ok(request(language, code.to_owned())),
        None if name.is_empty() => Err("its language is not known".to_owned()),
        None => Err(format!("{name} cannot be screened")),
    }
}

fn text(content: &ApprovalContent) -> Result<&str, String> {
    match content.encoding {
        Encoding::Utf8 => Ok(&content.data),
        Encoding::Base64 => Err("it is not UTF-8".to_owned()),
    }
}

/// Returns a program and its arguments as a line of the shell. Words are only quoted if they need that.
fn line_of(argv: &[ApprovalContent]) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    let word = |content| {
        let word = text(content)?;
        let plain = !word.is_empty() && word.bytes().all(is_plain);
        Ok(if plain { word.to_owned() } else { quote(word) })
    };
    Ok(argv.iter().map(word).collect::<Result<Vec<_>, String>>()?.join(" "))
}

/// The language of a file.
#[derive(Debug, PartialEq, Eq)]
enum FileLanguage {
    Known(String),
    /// Programs may run it, and in which language is not known.
    Unknown(&'static str),
    /// It is data.
    Data,
}

/// Finds the language of a file by its name and its first line.
fn file_language(path: &str, content: &ApprovalContent) -> FileLanguage {
    let languages = Languages::builtin();
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    if let Some(language) = extension.and_then(|extension| languages.by_extension(extension)) {
        return FileLanguage::Known(language.name.clone());
    }
    // Programs read such files at their start, as a shell does .bashrc.
    if path.split('/').any(|part| part.starts_with('.')) {
        return FileLanguage::Unknown("hidden files may be run");
    }
    if !content.data.starts_with("#!") || content.encoding != Encoding::Utf8 {
        return FileLanguage::Data;
    }
    match languages.by_shebang(content.data.lines().next().unwrap_or_default()) {
        Some(language) => FileLanguage::Known(language.name.clone()),
        None => FileLanguage::Unknown("its interpreter is not known"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn content(bytes: &[u8]) -> ApprovalContent {
        ApprovalContent::new(bytes)
    }

    #[test]
    fn files_are_read_by_their_names() {
        let known = |name: &str| FileLanguage::Known(name.to_owned());
        for (path, bytes, expected) in [
            ("a.py", "x", known("python")),
            ("a/b.sh", "x", known("bash")),
            ("a.lua", "x", known("lua")),
            ("in.csv", "1,2", FileLanguage::Data),
            ("tool", "#!/usr/bin/env python3\n", known("python")),
            ("tool", "#!/opt/nosuch\n", FileLanguage::Unknown("its interpreter is not known")),
            (".bashrc", "x", FileLanguage::Unknown("hidden files may be run")),
            (".config/x", "x", FileLanguage::Unknown("hidden files may be run")),
        ] {
            assert_eq!(file_language(path, &content(bytes.as_bytes())), expected, "{path}");
        }
    }

    #[test]
    fn all_of_a_call_is_read() {
        let names = |call: &ApprovalRequest, language: &str| -> Vec<String> {
            let name = |(name, request): CallPart| match request {
                Ok(request) => format!("{name} {}: {}", request.language.as_str(), request.code),
                Err(reason) => format!("{name}, {reason}"),
            };
            parts(call, language).into_iter().map(name).collect()
        };
        let code =
            |bytes: &[u8]| ApprovalRequest { code: Some(content(bytes)), ..ApprovalRequest::default() };
        let files = |path: &str, bytes: &[u8]| ApprovalRequest {
            files: BTreeMap::from([(path.to_owned(), content(bytes))]),
            ..code(b"1")
        };
        let argv = |words: &[&[u8]]| ApprovalRequest {
            argv: Some(words.iter().map(|word| content(word)).collect()),
            ..ApprovalRequest::default()
        };
        assert_eq!(names(&code(b"1"), "py"), ["code python: 1"]);
        assert_eq!(names(&code(b"1"), "r"), ["code, r cannot be screened"]);
        assert_eq!(names(&code(b"1"), ""), ["code, its language is not known"]);
        assert_eq!(names(&files("x.js", b"2"), "sh"), ["code bash: 1", "file x.js javascript: 2"]);
        assert_eq!(names(&files("x.js", b"\xff"), "sh"), ["code bash: 1", "file x.js, it is not UTF-8"]);
        assert_eq!(names(&files("x.r", b"2"), "sh"), ["code bash: 1", "file x.r, r cannot be screened"]);
        assert_eq!(names(&argv(&[b"rm", b"-rf", b"/a b", b""]), ""), ["arguments bash: rm -rf '/a b' ''"]);
        assert_eq!(names(&argv(&[b"a", b"\xff"]), ""), ["arguments, it is not UTF-8"]);
    }

    #[test]
    fn unread_parts_are_the_gravest_risk() {
        let screening = |threshold| ApprovalScreening {
            risk: Severity::Low,
            threshold,
            findings: Vec::new(),
            left_out: 0,
            unread: Vec::new(),
        };
        let report = |severity: Severity, complete| Report {
            language: "python".to_owned(),
            risk: severity,
            complete,
            findings: vec![belljar_screen::Finding {
                rule: "eval".to_owned(),
                severity,
                line: 2,
                column: 1,
                end_line: 2,
                end_column: 2,
                name: String::new(),
                inside: None,
                meaning: String::new(),
                walls: String::new(),
            }],
            left_out: 0,
            advice: String::new(),
        };
        let high = |report| {
            let mut one = screening(Severity::High);
            one.add("code", report);
            let one = one.finish();
            (waits(Approval::OnRisk, Some(&one)), one.summary())
        };
        assert_eq!(
            high(Ok(report(Severity::High, true))),
            (true, "risk high: eval (code, line 2)".to_owned())
        );
        assert_eq!(
            high(Ok(report(Severity::Medium, true))),
            (false, "risk medium: eval (code, line 2)".to_owned())
        );
        let cut = "risk high: code: not all of it could be read, eval (code, line 2)";
        assert_eq!(high(Ok(report(Severity::Low, false))), (true, cut.to_owned()));
        assert_eq!(high(Err("busy".to_owned())), (true, "risk high: code: busy".to_owned()));
        let mut many = screening(Severity::Medium);
        for _ in 0..=MAX_FINDINGS {
            many.add("code", Ok(report(Severity::Low, true)));
        }
        many.add("code", Ok(report(Severity::Medium, true)));
        let many = many.finish();
        assert_eq!((many.findings.len(), many.left_out, many.risk), (MAX_FINDINGS, 2, Severity::Medium));
        assert!(waits(Approval::OnMediumRisk, Some(&many)));
        assert!(waits(Approval::Always, None) && !waits(Approval::Never, None));
    }
}
