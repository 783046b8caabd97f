//! Compares a case's answers and result with the allowed ones.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::case::Case;

/// A deviation from a case's expectations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A line that is not `name: answer`.
    #[error("the line {0:?} is not a probe")]
    NotAProbe(String),
    /// A probe that is not expected.
    #[error("the probe {0:?} is not named in [expect]")]
    UnknownProbe(String),
    /// A probe that answered more than once.
    #[error("the probe {0:?} answered twice")]
    Duplicate(String),
    /// A probe that did not answer.
    #[error("the probe {0:?} did not answer")]
    Missing(String),
    /// A probe whose answer is not allowed.
    #[error("the probe {probe:?} answered {answer:?}, allowed is {allowed}")]
    UnexpectedAnswer {
        /// The probe.
        probe: String,
        /// Its answer.
        answer: String,
        /// The allowed answers.
        allowed: String,
    },
    /// A field of the result that has another value than expected.
    #[error("the result's {field} is {found}, allowed is {allowed}")]
    Result {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// The allowed values.
        allowed: String,
    },
    /// A broken invariant, which no case may break.
    #[error("invariant {invariant}: {what}")]
    Invariant {
        /// The invariant's name.
        invariant: &'static str,
        /// A description of the violation.
        what: String,
    },
    /// The case exceeded its budget, in milliseconds.
    #[error("killed after its budget of {0} ms")]
    Budget(u128),
}

impl Fault {
    /// Reports whether the attack succeeded, rather than the case only failing to run as intended.
    pub(crate) fn is_breach(&self) -> bool {
        matches!(
            self,
            Self::UnexpectedAnswer { .. } | Self::Result { .. } | Self::Invariant { .. } | Self::Budget(_)
        )
    }

    /// Reports whether the fault is an unexpected answer of this probe.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        matches!(self, Self::UnexpectedAnswer { probe, .. } if probe == name)
    }
}

/// The probes' answers, in the order they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// Name and answer of each probe.
    pub probes: Vec<(String, String)>,
    /// Lines that are not `name: answer`.
    pub other: Vec<String>,
    /// The reason, if the case reports that it was skipped.
    pub skipped: Option<String>,
}

impl Answers {
    /// Parses the lines that a case printed.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut answers = Self::default();
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            match line.split_once(": ") {
                Some(("SKIPPED", reason)) => answers.skipped = Some(reason.to_owned()),
                Some((name, answer)) => answers.probes.push((name.to_owned(), answer.trim().to_owned())),
                None => answers.other.push(line.to_owned()),
            }
        }
        answers
    }

    /// Compares the answers with those that the case allows.
    #[must_use]
    pub fn judge(&self, case: &Case) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, answer) in &self.probes {
            let Some(allowed) = case.expect.get(name) else {
                if !case.noise {
                    faults.push(Fault::UnknownProbe(name.clone()));
                }
                continue;
            };
            let times = seen.entry(name).or_default();
            *times += 1;
            if *times == 2 {
                faults.push(Fault::Duplicate(name.clone()));
            }
            if !allowed.contains(answer) {
                let allowed = allowed.join(" or ");
                faults.push(Fault::UnexpectedAnswer { probe: name.clone(), answer: answer.clone(), allowed });
            }
        }
        if !case.noise {
            faults.extend(self.other.iter().cloned().map(Fault::NotAProbe));
        }
        let missing = case.expect.keys().filter(|name| !seen.contains_key(name.as_str()));
        faults.extend(missing.cloned().map(Fault::Missing));
        faults
    }

    /// Returns the distinct answers with their counts, the most frequent first: `EPERM ×12, ENOSYS`.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, answer) in &self.probes {
            *counts.entry(answer).or_default() += 1;
        }
        let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let words: Vec<String> = counts
            .into_iter()
            .map(|(answer, count)| if count == 1 { answer.to_owned() } else { format!("{answer} ×{count}") })
            .collect();
        words.join(", ")
    }
}

/// Compares a result with the case's `[result]`; without one, the program must have exited with 0.
pub(crate) fn judge_result(case: &Case, result: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    match &case.result {
        Some(expected) => {
            for (key, value) in expected {
                compare(key, value, result.get(key).unwrap_or(&Value::Null), &mut faults);
            }
        }
        None => {
            let outcome = result.get("outcome").unwrap_or(&Value::Null);
            if *outcome != serde_json::json!({"kind": "exited", "code": 0}) {
                faults.push(Fault::Result {
                    field: "outcome".to_owned(),
                    found: outcome.to_string(),
                    allowed: "exited with 0, as there is no [result]".to_owned(),
                });
            }
        }
    }
    faults
}

/// Compares a field with its expected value: tables key by key; a string may contain alternatives.
fn compare(field: &str, expected: &toml::Value, found: &Value, faults: &mut Vec<Fault>) {
    let matches = match expected {
        toml::Value::Table(table) => {
            for (key, value) in table {
                compare(&format!("{field}.{key}"), value, found.get(key).unwrap_or(&Value::Null), faults);
            }
            return;
        }
        toml::Value::String(text) => text
            .split('|')
            .map(str::trim)
            .any(|text| found.as_str() == Some(text) || (text == "null" && found.is_null())),
        toml::Value::Integer(number) => found.as_i64() == Some(*number),
        toml::Value::Boolean(flag) => found.as_bool() == Some(*flag),
        _ => false,
    };
    if !matches {
        let allowed = match expected {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            other => format!("a {}, which nothing equals", other.type_str()),
        };
        let found = found.to_string();
        faults.push(Fault::Result { field: field.to_owned(), found, allowed });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Class;

    fn case(expect: &[(&str, &[&str])], result: Option<&str>) -> Case {
        Case {
            dir: std::path::PathBuf::new(),
            id: "K01".to_owned(),
            name: "x".to_owned(),
            tries: "x".to_owned(),
            class: Class::Escape,
            engines: Vec::new(),
            walls: Vec::new(),
            budget: std::time::Duration::from_secs(1),
            self_test: false,
            grade: None,
            language: None,
            program: None,
            args: Vec::new(),
            flags: Vec::new(),
            files: Vec::new(),
            noise: false,
            clock: false,
            expect: expect
                .iter()
                .map(|(name, allowed)| {
                    ((*name).to_owned(), allowed.iter().map(|answer| (*answer).to_owned()).collect())
                })
                .collect(),
            result: result.map(|text| toml::from_str(text).unwrap()),
            mutations: Vec::new(),
        }
    }

    #[test]
    fn answers_are_judged() {
        let case = case(&[("one", &["EPERM"]), ("two", &["EPERM", "ENOSYS"])], None);
        let wrong = |probe: &str, answer: &str, allowed: &str| Fault::UnexpectedAnswer {
            probe: probe.to_owned(),
            answer: answer.to_owned(),
            allowed: allowed.to_owned(),
        };
        for (text, expected) in [
            ("one: EPERM\ntwo: EPERM\n", vec![]),
            ("two: ENOSYS\n\none: EPERM\n", vec![]),
            ("one: ok\ntwo: EPERM\n", vec![wrong("one", "ok", "EPERM")]),
            ("one: EPERM\ntwo: ok\n", vec![wrong("two", "ok", "EPERM or ENOSYS")]),
            ("one: EPERM\n", vec![Fault::Missing("two".to_owned())]),
            ("one: EPERM\ntwo: EPERM\nthree: ok\n", vec![Fault::UnknownProbe("three".to_owned())]),
            ("one: EPERM\none: EPERM\ntwo: EPERM\n", vec![Fault::Duplicate("one".to_owned())]),
            ("one: EPERM\ntwo: EPERM\nhello\n", vec![Fault::NotAProbe("hello".to_owned())]),
            ("", vec![Fault::Missing("one".to_owned()), Fault::Missing("two".to_owned())]),
        ] {
            assert_eq!(Answers::read(text).judge(&case), expected, "{text:?}");
        }
    }

    #[test]
    fn noise_is_ignored_only_if_allowed() {
        let mut case = case(&[("one", &["EPERM"])], None);
        case.noise = true;
        assert_eq!(Answers::read("hello\nx: y\none: EPERM\n").judge(&case), []);
        assert_eq!(Answers::read("hello\n").judge(&case), [Fault::Missing("one".to_owned())]);
    }

    #[test]
    fn results_are_judged() {
        let result = serde_json::json!({
            "outcome": {"kind": "signalled", "signal": 9}, "exit_status": 137, "signal": null,
            "stdout": {"truncated": true},
        });
        for (wanted, faults) in [
            (
                "exit_status = 137\noutcome.kind = 'limit|signalled'\nstdout.truncated = true\nsignal = 'null'",
                0,
            ),
            ("exit_status = 0", 1),
            ("outcome.kind = 'exited'\nstdout.truncated = false", 2),
            ("what = 1", 1),
        ] {
            assert_eq!(judge_result(&case(&[], Some(wanted)), &result).len(), faults, "{wanted}");
        }
        assert_eq!(judge_result(&case(&[], None), &result).len(), 1);
        let good = serde_json::json!({"outcome": {"kind": "exited", "code": 0}});
        assert_eq!(judge_result(&case(&[], None), &good), []);
    }

    #[test]
    fn answers_are_summarised() {
        assert_eq!(Answers::read("a: EPERM\nb: ENOSYS\nc: EPERM\n").summary(), "EPERM ×2, ENOSYS");
        assert_eq!(Answers::read("SKIPPED: no tools\n").skipped.as_deref(), Some("no tools"));
    }
}
