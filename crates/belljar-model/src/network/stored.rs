//! Secrets stored on a server, where values of a policy name them: `${secrets.NAME}`.

use std::collections::BTreeMap;

const OPEN: &str = "${secrets.";
const MAX_NAME_BYTES: usize = 128;

/// Maximum number of secrets that one value names.
const MAX_REFERENCES: usize = 8;

/// Replacement for the literal parts of a value.
const LITERAL: &str = "…";

/// Reports whether a text is a valid name of a stored secret: 1 to 128 of `a-z`, `0-9`, `-`, `_` and `.`, of which the first is
/// a letter or a digit.
pub fn is_secret_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.starts_with(|first: char| u8::try_from(first).is_ok_and(plain))
        && name.bytes().all(|byte| plain(byte) || b"-_.".contains(&byte))
}

/// Returns a value that consists of a reference to a stored secret.
pub(super) fn reference(name: &str) -> String {
    format!("{OPEN}{name}}}")
}

/// A part of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'a> {
    Literal(&'a str),
    Secret(&'a str),
}

/// Splits a value into references and non-empty literals. An incomplete reference is a literal.
fn parts(value: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once(OPEN) {
        let Some((name, after)) = after.split_once('}') else { break };
        parts.extend((!before.is_empty()).then_some(Part::Literal(before)));
        parts.push(Part::Secret(name));
        rest = after;
    }
    parts.extend((!rest.is_empty()).then_some(Part::Literal(rest)));
    parts
}

/// Checks the references of a value; the error is what to give instead.
pub(super) fn check(value: &str) -> Result<(), &'static str> {
    let parts = parts(value);
    let is_wrong = |part: &Part<'_>| match part {
        Part::Literal(text) => text.contains(OPEN),
        Part::Secret(name) => !is_secret_name(name),
    };
    if parts.iter().any(is_wrong) {
        return Err("a value in which ${secrets.NAME} has the name of a secret stored on the server");
    }
    match names(value).count() > MAX_REFERENCES {
        true => Err("a value that names at most 8 secrets"),
        false => Ok(()),
    }
}

/// Returns the names of the stored secrets in a value.
pub(super) fn names(value: &str) -> impl Iterator<Item = &str> {
    parts(value).into_iter().filter_map(|part| match part {
        Part::Secret(name) => Some(name),
        Part::Literal(_) => None,
    })
}

/// Replaces references by the values of stored secrets; `None` if one is missing.
pub(super) fn fill(value: &str, secrets: &BTreeMap<String, String>) -> Option<String> {
    let filled = parts(value).into_iter().map(|part| match part {
        Part::Literal(text) => Some(text),
        Part::Secret(name) => secrets.get(name).map(String::as_str),
    });
    filled.collect()
}

/// Returns the value with its literal parts hidden; `None` if it has no references.
pub(super) fn show(value: &str) -> Option<String> {
    let shown = parts(value).into_iter().map(|part| match part {
        Part::Literal(_) => LITERAL.to_owned(),
        Part::Secret(name) => reference(name),
    });
    names(value).next().map(|_| shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_filled_and_shown() {
        let values =
            BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b.c".to_owned(), "${secrets.a}".to_owned())]);
        for (value, filled, shown) in [
            ("plain", Some("plain"), None),
            ("${secrets.a}", Some("1"), Some("${secrets.a}")),
            ("Bearer ${secrets.a}", Some("Bearer 1"), Some("…${secrets.a}")),
            // Values are not expanded again.
            ("${secrets.b.c}:${secrets.a}", Some("${secrets.a}:1"), Some("${secrets.b.c}…${secrets.a}")),
            ("${secrets.none}", None, Some("${secrets.none}")),
            ("$ {} ${HOME} $${secrets.a}", Some("$ {} ${HOME} $1"), Some("…${secrets.a}")),
        ] {
            assert_eq!(check(value), Ok(()), "{value}");
            assert_eq!(fill(value, &values).as_deref(), filled, "{value}");
            assert_eq!(show(value).as_deref(), shown, "{value}");
        }
        for wrong in
            ["${secrets.}", "${secrets.A}", "${secrets.a b}", "${secrets.a", "${secrets.${secrets.a}}"]
        {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        assert!(check(&"${secrets.a}".repeat(9)).is_err());
        assert_eq!(names("${secrets.a}-${secrets.b}").collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn names_of_secrets_are_plain() {
        for name in ["a", "0", "openai-api_key.2", &"a".repeat(128)] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["", "A", "-a", ".", "a}", "a b", "ä", &"a".repeat(129)] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
