//! Parses the file, with the position of each value.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::ConfigError;
use crate::layers::Value;
use crate::origin::Origin;
use crate::setting::{Setting, ValueKind};
use crate::settings::{SETTINGS, setting};

/// Maximum length of the file: 1 MiB, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// A value that a file assigns to a setting.
pub(crate) struct Assignment {
    pub(crate) setting: &'static Setting,
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// Reads the file. All errors are collected, so that a user sees them at once.
pub(crate) fn read(path: &Path, text: &str) -> (Vec<Assignment>, Vec<ConfigError>) {
    if text.len() > MAX_FILE_BYTES {
        let error = ConfigError::TooLong { path: path.to_owned(), bytes: text.len(), max: MAX_FILE_BYTES };
        return (Vec::new(), vec![error]);
    }
    let mut reader =
        Reader { positions: Positions::new(path, text), assignments: Vec::new(), errors: Vec::new() };
    match DeTable::parse(text) {
        Ok(table) => reader.table("", table.get_ref()),
        Err(error) => {
            let origin = reader.positions.origin(error.span().map_or(text.len(), |span| span.start));
            let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            reader.errors.push(ConfigError::Syntax { origin, reason });
        }
    }
    (reader.assignments, reader.errors)
}

struct Reader<'a> {
    positions: Positions<'a>,
    assignments: Vec<Assignment>,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    /// Reads the keys of one table, in the order of the file.
    fn table(&mut self, path: &str, table: &DeTable<'_>) {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let whole =
                if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            if let Some(setting) = setting(&whole) {
                self.value(setting, value);
            } else if is_section(&whole) {
                match value.get_ref() {
                    DeValue::Table(inner) => self.table(&whole, inner),
                    other => {
                        let origin = self.positions.origin(value.span().start);
                        let expected = "a table of keys and values";
                        self.errors.push(ConfigError::WrongKind {
                            origin,
                            key: whole,
                            found: describe(other),
                            expected,
                        });
                    }
                }
            } else {
                let origin = self.positions.origin(key.span().start);
                self.errors.push(unknown_key(origin, path, key.get_ref(), whole));
            }
        }
    }

    fn value(&mut self, setting: &'static Setting, value: &Spanned<DeValue<'_>>) {
        let origin = self.positions.origin(value.span().start);
        let wrong = |origin, key: String, found: &DeValue<'_>, expected| ConfigError::WrongKind {
            origin,
            key,
            found: describe(found),
            expected,
        };
        let parsed = match (setting.kind, value.get_ref()) {
            (ValueKind::Text | ValueKind::Number, DeValue::String(text)) => Value::Scalar(text.to_string()),
            (ValueKind::Number, DeValue::Integer(number)) => Value::Scalar(number.to_string()),
            (ValueKind::Number, DeValue::Float(number)) => Value::Scalar(number.to_string()),
            (ValueKind::Flag, DeValue::Boolean(flag)) => Value::Scalar(flag.to_string()),
            (ValueKind::List, DeValue::Array(items)) => {
                let mut texts = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    let origin = self.positions.origin(item.span().start);
                    match item.get_ref() {
                        DeValue::String(text) => texts.push((text.to_string(), origin)),
                        other => {
                            let key = format!("{}[{index}]", setting.key);
                            return self.errors.push(wrong(origin, key, other, "a text"));
                        }
                    }
                }
                Value::List(texts)
            }
            (ValueKind::Table, DeValue::Table(entries)) => {
                let mut texts = Vec::new();
                for (name, item) in entries {
                    let origin = self.positions.origin(item.span().start);
                    match item.get_ref() {
                        DeValue::String(text) => {
                            texts.push((name.get_ref().to_string(), text.to_string(), origin))
                        }
                        other => {
                            let key = format!("{}.{}", setting.key, name.get_ref());
                            return self.errors.push(wrong(origin, key, other, "a text"));
                        }
                    }
                }
                Value::Table(texts)
            }
            (kind, found) => {
                return self.errors.push(wrong(origin, setting.key.to_owned(), found, kind.description()));
            }
        };
        self.assignments.push(Assignment { setting, value: parsed, origin });
    }
}

/// Returns an error for an unknown key, with the known ones of its section.
pub(crate) fn unknown_key(origin: Origin, path: &str, name: &str, key: String) -> ConfigError {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    let mut allowed: Vec<&str> =
        SETTINGS.iter().filter_map(|setting| setting.key.strip_prefix(&prefix)?.split('.').next()).collect();
    allowed.dedup();
    ConfigError::UnknownKey {
        origin,
        nearest: belljar_model::nearest(name, allowed.iter().copied())
            .map(|known| format!("{prefix}{known}")),
        key,
        allowed: allowed.join(", "),
    }
}

fn is_section(path: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

fn describe(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Converts byte offsets of a file to line and column.
struct Positions<'a> {
    path: Arc<PathBuf>,
    text: &'a str,
}

impl<'a> Positions<'a> {
    fn new(path: &Path, text: &'a str) -> Self {
        Self { path: Arc::new(path.to_owned()), text }
    }

    fn origin(&self, offset: usize) -> Origin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Origin::File { path: Arc::clone(&self.path), line, column }
    }
}
