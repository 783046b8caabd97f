//! Converts values from text, and checks that they are allowed.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use belljar_model::{ByteSize, EngineName, LimitsFile, ModelError, format_span};

use crate::error::{ConfigError, quote};
use crate::example::example;
use crate::layers::{ConfigLayers, Value};
use crate::origin::Origin;

/// Placeholder for the service's home at the beginning of a path.
const HOME: &str = "$BELLJAR_HOME";

/// The defaults, as if each were set in a file.
static DEFAULTS: LazyLock<ConfigLayers> = LazyLock::new(|| {
    let mut layers = ConfigLayers::default();
    let parsed = layers.add_file(Path::new("defaults"), &example().replace("\n#:", "\n"));
    debug_assert!(parsed.is_ok(), "{parsed:?}");
    layers
});

/// Reads values from the layers, and collects all errors. What is not set, or is refused, has the default in the table of settings.
pub(crate) struct Reader<'a> {
    layers: &'a ConfigLayers,
    home: &'a Path,
    pub(crate) errors: Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(layers: &'a ConfigLayers, home: &'a Path) -> Self {
        Self { layers, home, errors: Vec::new() }
    }

    /// Returns the names of the program's engines.
    pub(crate) fn engines(&self) -> &'a [EngineName] {
        &self.layers.engines
    }

    /// Returns the text of a setting, if it is set.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        scalar(self.layers, key)
    }

    /// Reads a value with `parse`, which returns a description of the allowed values on failure.
    pub(crate) fn value<T: Default>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> T {
        match self.text(key).map(|text| (text, parse(text))) {
            Some((_, Ok(value))) => return value,
            Some((text, Err(allowed))) => self.refuse(key, quote(text), allowed),
            None => {}
        }
        let default = scalar(&DEFAULTS, key).map(parse);
        debug_assert!(matches!(default, Some(Ok(_))), "{key} has no valid default");
        default.and_then(Result::ok).unwrap_or_default()
    }

    /// Reads one of a few words.
    pub(crate) fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> T {
        let index: usize = self.value(key, |text| {
            let found = words.iter().position(|(word, _)| *word == text);
            found.ok_or_else(|| one_of(words.iter().map(|(word, _)| *word)))
        });
        words[index].1
    }

    pub(crate) fn flag(&mut self, key: &str) -> bool {
        self.word(key, &[("true", true), ("false", false)])
    }

    /// Reads a whole number within a range.
    pub(crate) fn count<T>(&mut self, key: &str, min: T, max: T) -> T
    where
        T: FromStr + PartialOrd + std::fmt::Display + Copy + Default,
    {
        self.value(key, |text| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|number| is_number && *number >= min && *number <= max);
            number.ok_or_else(|| format!("a whole number from {min} to {max}"))
        })
    }

    /// Reads a size in bytes within a range.
    pub(crate) fn size(&mut self, key: &str, min: ByteSize, max: ByteSize) -> u64 {
        self.value(key, |text| {
            let size = text.parse().ok().filter(|size| (min..=max).contains(size));
            size.map(ByteSize::bytes).ok_or_else(|| format!("a size from {min} to {max}, such as 256m"))
        })
    }

    /// Reads a time span within a range.
    pub(crate) fn span(&mut self, key: &str, min: Duration, max: Duration) -> Duration {
        self.value(key, |text| {
            let span = belljar_model::parse_span(text).filter(|span| (min..=max).contains(span));
            span.ok_or_else(|| {
                format!(
                    "a time from {} to {}, such as 30s, 10m, 2h or 7d",
                    format_span(min),
                    format_span(max)
                )
            })
        })
    }

    /// Reads a quota: a value, or `none`.
    pub(crate) fn quota<T>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Option<T>,
        allowed: &str,
    ) -> Option<T> {
        self.value(key, |text| match text {
            "none" => Ok(None),
            text => parse(text).map(Some).ok_or_else(|| format!("{allowed}, or none")),
        })
    }

    /// Reads a text; an empty one is `None`.
    pub(crate) fn optional(&mut self, key: &str) -> Option<String> {
        self.text(key).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Reads a path, in which `$BELLJAR_HOME` is replaced. An empty one is `None`.
    pub(crate) fn path(&mut self, key: &str) -> Option<PathBuf> {
        let home = self.home;
        self.value(key, |text| match absolute(text, home) {
            _ if text.is_empty() => Ok(None),
            Some(path) => Ok(Some(path)),
            None => Err(format!("an absolute path, or one that begins with {HOME}/")),
        })
    }

    /// Reads a list whose items are read with `parse`, which returns a description of the allowed values on failure.
    pub(crate) fn list<T>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let value = self.layers.get(key).or_else(|| DEFAULTS.get(key));
        let Some((Value::List(items), _)) = value else { return Vec::new() };
        let mut values = Vec::new();
        for (text, origin) in items {
            match parse(text) {
                Ok(value) => values.push(value),
                Err(allowed) => {
                    let value = quote(text);
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

    /// Reads a list of absolute paths.
    pub(crate) fn paths(&mut self, key: &str) -> Vec<PathBuf> {
        let home = self.home;
        self.list(key, |text| absolute(text, home).ok_or_else(|| "an absolute path".to_owned()))
    }

    /// Reads the entries of a table, sorted by name. `check` returns a description of the allowed entries on failure; values are
    /// not shown.
    pub(crate) fn table(
        &mut self,
        key: &str,
        check: impl Fn(&str, &str) -> Result<(), String>,
    ) -> Vec<(String, String)> {
        let Some((Value::Table(entries), _)) = self.layers.get(key) else { return Vec::new() };
        let mut values = Vec::new();
        for (name, text, origin) in entries {
            match check(name, text) {
                Ok(()) => values.push((name.clone(), text.clone())),
                Err(allowed) => self.errors.push(ConfigError::NotAllowed {
                    origin: origin.clone(),
                    key: key.to_owned(),
                    value: quote(name),
                    allowed,
                }),
            }
        }
        values.sort();
        values
    }

    /// Reads a value of the model, which is validated and kept as text.
    pub(crate) fn model<T: FromStr<Err = ModelError>>(&mut self, key: &str) -> Option<String> {
        self.validate(key, |text| text.parse::<T>().map(drop))
    }

    /// Reads the limit `name`, if it is set.
    pub(crate) fn limit(&mut self, key: &str, name: &str, limits: &mut LimitsFile) {
        self.validate(key, |text| limits.set(name, text).map(drop));
    }

    fn validate(&mut self, key: &str, check: impl FnOnce(&str) -> Result<(), ModelError>) -> Option<String> {
        let text = self.text(key)?;
        match check(text) {
            Ok(()) => Some(text.to_owned()),
            Err(error) => {
                self.refuse_model(key, text, &error);
                None
            }
        }
    }

    /// Records a refusal by the model, with the key and origin of the setting.
    pub(crate) fn refuse_model(&mut self, key: &str, text: &str, error: &ModelError) {
        match error {
            ModelError::NotAllowed { allowed, .. } => self.refuse(key, quote(text), allowed.clone()),
            ModelError::NotInThisVersion { allowed, .. } => self.refuse(key, quote(text), allowed.clone()),
            other => self.refuse_combination(key, other.to_string()),
        }
    }

    /// Records a refused value.
    pub(crate) fn refuse(&mut self, key: &str, value: String, allowed: String) {
        let origin = self.layers.origin(key);
        self.errors.push(ConfigError::NotAllowed { origin, key: key.to_owned(), value, allowed });
    }

    /// Records a conflict of several values, at the setting `key`.
    pub(crate) fn refuse_combination(&mut self, key: &str, reason: impl Into<String>) {
        let origin: Origin = self.layers.origin(key);
        self.errors.push(ConfigError::Conflict { origin, key: key.to_owned(), reason: reason.into() });
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

/// Joins words as in a sentence: `a, b or c`.
pub fn one_of<'a>(words: impl DoubleEndedIterator<Item = &'a str>) -> String {
    let mut words = words.rev();
    let last = words.next().unwrap_or_default();
    let others: Vec<_> = words.rev().collect();
    if others.is_empty() { last.to_owned() } else { format!("{} or {last}", others.join(", ")) }
}

fn scalar<'a>(layers: &'a ConfigLayers, key: &str) -> Option<&'a str> {
    match layers.get(key)? {
        (Value::Scalar(text), _) => Some(text),
        _ => None,
    }
}
