//! From values as they were written to values that are allowed.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use belljar_model::{ByteSize, LimitsFile, ModelError};

use crate::error::{ConfigError, shown};
use crate::origin::Origin;
use crate::said::{Said, Value};

/// Stands for the service's home at the beginning of a path.
const HOME: &str = "$BELLJAR_HOME";

/// Takes values out of what was said, and gathers what is wrong with them.
pub(crate) struct Reader<'a> {
    said: &'a Said,
    home: &'a Path,
    pub(crate) errors: Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(said: &'a Said, home: &'a Path) -> Self {
        Self { said, home, errors: Vec::new() }
    }

    /// The text of a setting, if it was said.
    pub(crate) fn said(&self, key: &str) -> Option<&'a str> {
        match self.said.get(key)? {
            (Value::Scalar(text), _) => Some(text),
            _ => None,
        }
    }

    /// A value that `parse` understands, or else says what is allowed.
    pub(crate) fn value<T>(&mut self, key: &str, default: T, parse: impl Fn(&str) -> Result<T, String>) -> T {
        let Some(text) = self.said(key) else { return default };
        match parse(text) {
            Ok(value) => value,
            Err(allowed) => {
                self.refuse(key, shown(text), allowed);
                default
            }
        }
    }

    /// One of a few words.
    pub(crate) fn word<T: Copy>(&mut self, key: &str, default: T, words: &[(&str, T)]) -> T {
        self.value(key, default, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|(_, value)| *value).ok_or_else(|| one_of(words.iter().map(|(word, _)| *word)))
        })
    }

    pub(crate) fn flag(&mut self, key: &str, default: bool) -> bool {
        self.word(key, default, &[("true", true), ("false", false)])
    }

    /// A whole number within a range.
    pub(crate) fn count<T>(&mut self, key: &str, default: T, least: T, most: T) -> T
    where
        T: FromStr + PartialOrd + std::fmt::Display + Copy,
    {
        self.value(key, default, |text| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|number| is_number && *number >= least && *number <= most);
            number.ok_or_else(|| format!("a whole number from {least} to {most}"))
        })
    }

    /// A size in bytes within a range.
    pub(crate) fn size(&mut self, key: &str, default: ByteSize, least: ByteSize, most: ByteSize) -> u64 {
        let size = self.value(key, default, |text| {
            let size = text.parse().ok().filter(|size| (least..=most).contains(size));
            size.ok_or_else(|| format!("a size from {least} to {most}, such as 256m"))
        });
        size.bytes()
    }

    /// A time span within a range.
    pub(crate) fn span(&mut self, key: &str, default: Duration, least: Duration, most: Duration) -> Duration {
        self.value(key, default, |text| {
            let span = belljar_model::parse_span(text).filter(|span| (least..=most).contains(span));
            span.ok_or_else(|| {
                format!("a time from {} to {}, such as 30s, 10m, 2h or 7d", words(least), words(most))
            })
        })
    }

    /// A quota: a value, or `none`.
    pub(crate) fn quota<T>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Option<T>,
        allowed: &str,
    ) -> Option<T> {
        self.value(key, None, |text| match text {
            "none" => Ok(None),
            text => parse(text).map(Some).ok_or_else(|| format!("{allowed}, or none")),
        })
    }

    /// A text that may be empty, which is none.
    pub(crate) fn optional(&mut self, key: &str) -> Option<String> {
        self.said(key).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// A path, with the home filled in. An empty one is none.
    pub(crate) fn path(&mut self, key: &str, default: Option<&str>) -> Option<PathBuf> {
        let default = default.map(|name| self.home.join(name));
        let home = self.home;
        self.value(key, default, |text| match absolute(text, home) {
            _ if text.is_empty() => Ok(None),
            Some(path) => Ok(Some(path)),
            None => Err(format!("an absolute path, or one that begins with {HOME}/")),
        })
    }

    /// A list whose items `parse` understands, or else says what is allowed.
    pub(crate) fn list<T>(
        &mut self,
        key: &str,
        default: Vec<T>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let Some((Value::List(items), _)) = self.said.get(key) else { return default };
        let mut values = Vec::new();
        for (text, origin) in items {
            match parse(text) {
                Ok(value) => values.push(value),
                Err(allowed) => {
                    let value = shown(text);
                    self.errors.push(ConfigError::NotAllowed {
                        origin: origin.clone(),
                        key: key.to_owned(),
                        value,
                        allowed,
                    });
                }
            }
        }
        values
    }

    /// A list of absolute paths.
    pub(crate) fn paths(&mut self, key: &str) -> Vec<PathBuf> {
        let home = self.home;
        self.list(key, Vec::new(), |text| absolute(text, home).ok_or_else(|| "an absolute path".to_owned()))
    }

    /// The entries of a table, in the order of their names. `check` says what is allowed; values are not shown.
    pub(crate) fn table(
        &mut self,
        key: &str,
        check: impl Fn(&str, &str) -> Result<(), String>,
    ) -> Vec<(String, String)> {
        let Some((Value::Table(entries), _)) = self.said.get(key) else { return Vec::new() };
        let mut values = Vec::new();
        for (name, text, origin) in entries {
            match check(name, text) {
                Ok(()) => values.push((name.clone(), text.clone())),
                Err(allowed) => self.errors.push(ConfigError::NotAllowed {
                    origin: origin.clone(),
                    key: key.to_owned(),
                    value: shown(name),
                    allowed,
                }),
            }
        }
        values.sort();
        values
    }

    /// A value of the model, kept as it was written once it is known to be allowed.
    pub(crate) fn model<T: FromStr<Err = ModelError>>(&mut self, key: &str) -> Option<String> {
        self.checked(key, |text| text.parse::<T>().map(drop))
    }

    /// The text of the limit `name`, if it was said and is one that the model allows.
    pub(crate) fn limit(&mut self, key: &str, name: &str) -> Option<String> {
        self.checked(key, |text| {
            let mut alone = LimitsFile::default();
            if let Some(place) = alone.get_mut(name) {
                *place = Some(text.to_owned());
            }
            alone.resolve().map(drop)
        })
    }

    fn checked(&mut self, key: &str, check: impl FnOnce(&str) -> Result<(), ModelError>) -> Option<String> {
        let text = self.said(key)?;
        match check(text) {
            Ok(()) => Some(text.to_owned()),
            Err(error) => {
                self.refuse_model(key, text, &error);
                None
            }
        }
    }

    /// The model's refusal, with the key and the place that it has here.
    pub(crate) fn refuse_model(&mut self, key: &str, text: &str, error: &ModelError) {
        match error {
            ModelError::NotAllowed { allowed, .. } => self.refuse(key, shown(text), allowed.clone()),
            ModelError::NotInThisVersion { allowed, .. } => {
                self.refuse(key, shown(text), (*allowed).to_owned())
            }
            other => self.apart(key, other.to_string()),
        }
    }

    /// Refuses a value.
    pub(crate) fn refuse(&mut self, key: &str, value: String, allowed: String) {
        let origin = self.said.origin(key);
        self.errors.push(ConfigError::NotAllowed { origin, key: key.to_owned(), value, allowed });
    }

    /// Refuses values that do not go together, at the one that decides.
    pub(crate) fn apart(&mut self, key: &str, reason: impl Into<String>) {
        let origin: Origin = self.said.origin(key);
        self.errors.push(ConfigError::Together { origin, key: key.to_owned(), reason: reason.into() });
    }
}

fn absolute(text: &str, home: &Path) -> Option<PathBuf> {
    if text.contains('\0') {
        return None;
    }
    let path = match text.strip_prefix(HOME) {
        Some("") => home.to_owned(),
        Some(rest) => home.join(rest.strip_prefix('/')?),
        None => PathBuf::from(text),
    };
    path.is_absolute().then_some(path)
}

/// Words as a sentence has them: `a, b or c`.
fn one_of<'a>(words: impl DoubleEndedIterator<Item = &'a str>) -> String {
    let mut words = words.rev();
    let last = words.next().unwrap_or_default();
    let others: Vec<_> = words.rev().collect();
    if others.is_empty() { last.to_owned() } else { format!("{} or {last}", others.join(", ")) }
}

/// A time span as a person would write it.
fn words(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        _ if seconds.is_multiple_of(86_400) && seconds > 86_400 => format!("{} d", seconds / 86_400),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ => format!("{seconds} s"),
    }
}
