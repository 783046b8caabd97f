//! The values that are set, each with its origin. Later layers override earlier ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use belljar_model::EngineName;

use crate::error::{ConfigError, ConfigErrors};
use crate::file;
use crate::origin::Origin;
use crate::setting::{Setting, ValueKind};
use crate::settings::{SETTINGS, setting};

/// A value as it was written, with the origins of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Scalar(String),
    List(Vec<(String, Origin)>),
    Table(Vec<(String, String, Origin)>),
}

/// The settings of all layers: the file, the environment and the flags.
#[derive(Clone, Default)]
pub struct ConfigLayers {
    /// Names of the engines that the program has; every name is accepted if there are none.
    pub engines: Vec<EngineName>,
    values: BTreeMap<&'static str, (Value, Origin)>,
}

/// A setting that differs between two configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingChange {
    /// The setting's key.
    pub key: &'static str,
    /// True if a running server applies the new value on a reload.
    pub reload: bool,
}

impl ConfigLayers {
    /// Adds the text of a file, which overrides earlier layers.
    ///
    /// # Errors
    /// Returns all mistakes in the file: syntax, unknown keys, values of another kind.
    /// [`Config::resolve`](crate::Config::resolve) validates the values.
    pub fn add_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigErrors> {
        let (assignments, errors) = file::read(path, text);
        for assignment in assignments {
            self.set(assignment.setting, assignment.value, assignment.origin);
        }
        ConfigErrors::check(errors)
    }

    /// Adds the environment, which overrides earlier layers. Empty variables count as not set.
    ///
    /// # Errors
    /// Fails on an unknown variable with the prefix of one of the service's, or on a value that is not UTF-8.
    pub fn add_environment(
        &mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        let mut aliases = Vec::new();
        let mut values = Vec::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with("BELLJAR_")) else { continue };
            if value.is_empty() {
                continue;
            }
            let found = SETTINGS.iter().find(|setting| setting.variable() == name);
            let alias = SETTINGS.iter().find(|setting| setting.alias == Some(name));
            let Some(setting) = found.or(alias) else {
                errors.extend(unknown_variable(name));
                continue;
            };
            match value.into_string() {
                Ok(value) if found.is_some() => values.push((setting, value, name.to_owned())),
                Ok(value) => aliases.push((setting, value, name.to_owned())),
                Err(_) => errors.push(ConfigError::NotUtf8 { name: name.to_owned() }),
            }
        }
        // A setting's own variable overrides one with an older name.
        for (setting, value, name) in aliases.into_iter().chain(values) {
            if let Err(error) = self.set_text(setting, &value, Origin::Variable(name)) {
                errors.push(error);
            }
        }
        ConfigErrors::check(errors)
    }

    /// Adds a flag, which overrides earlier layers: all its values for a list, else the last one.
    ///
    /// # Errors
    /// Fails on an unknown key, or a value of another kind.
    pub fn add_flag(&mut self, name: &str, key: &str, values: &[String]) -> Result<(), ConfigErrors> {
        let origin = Origin::Flag(name.to_owned());
        let Some(found) = setting(key) else { return self.set_table_entry(origin, key, values) };
        match (found.kind, values) {
            (ValueKind::List, values) if values.len() > 1 => {
                let items = values.iter().map(|value| (value.clone(), origin.clone())).collect();
                self.set(found, Value::List(items), origin);
            }
            (_, values) => {
                let value = values.last().map(String::as_str).unwrap_or_default();
                self.set_text(found, value, origin)?;
            }
        }
        Ok(())
    }

    /// Sets one entry of a table, for a flag such as `--set template.env.LANG=C`.
    fn set_table_entry(&mut self, origin: Origin, key: &str, values: &[String]) -> Result<(), ConfigErrors> {
        let table = SETTINGS.iter().filter(|setting| setting.kind == ValueKind::Table).find_map(|setting| {
            let name = key.strip_prefix(setting.key)?.strip_prefix('.')?;
            Some((setting, name))
        });
        if let Some((setting, name)) = table {
            let value = values.last().cloned().unwrap_or_default();
            self.set(setting, Value::Table(vec![(name.to_owned(), value, origin.clone())]), origin);
            return Ok(());
        }
        let (path, name) = key.rsplit_once('.').unwrap_or(("", key));
        Err(file::unknown_key(origin, path, name, key.to_owned()).into())
    }

    /// Sets a value that is given as one text.
    fn set_text(&mut self, setting: &'static Setting, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let items = || text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let value = match setting.kind {
            ValueKind::Text | ValueKind::Number | ValueKind::Flag => Value::Scalar(text.to_owned()),
            ValueKind::List => Value::List(items().map(|item| (item.to_owned(), origin.clone())).collect()),
            ValueKind::Table => {
                let mut entries = Vec::new();
                for item in items() {
                    let Some((name, value)) = item.split_once('=') else {
                        let expected = "NAME=VALUE, several separated by commas";
                        let key = setting.key.to_owned();
                        return Err(ConfigError::WrongKind {
                            origin,
                            key,
                            found: "an item without =",
                            expected,
                        });
                    };
                    entries.push((name.trim().to_owned(), value.trim().to_owned(), origin.clone()));
                }
                Value::Table(entries)
            }
        };
        self.set(setting, value, origin);
        Ok(())
    }

    /// Sets a value. A later one replaces an earlier one; the entries of tables are merged.
    fn set(&mut self, setting: &'static Setting, value: Value, origin: Origin) {
        let earlier = self.values.remove(setting.key);
        let value = match (earlier, value) {
            (Some((Value::Table(earlier), _)), Value::Table(later)) => {
                let is_kept = |name: &String| later.iter().all(|(new, ..)| new != name);
                let kept: Vec<_> = earlier.into_iter().filter(|(name, ..)| is_kept(name)).collect();
                Value::Table(kept.into_iter().chain(later).collect())
            }
            (_, value) => value,
        };
        self.values.insert(setting.key, (value, origin));
    }

    fn content(&self, key: &str) -> Option<Vec<(&str, &str)>> {
        self.values.get(key).map(|(value, _)| value.content())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&(Value, Origin)> {
        self.values.get(key)
    }

    /// Returns the origin of a setting.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// Returns the settings that differ in `later`, in the order of [`SETTINGS`]. Origins are ignored.
    #[must_use]
    pub fn changes(&self, later: &Self) -> Vec<SettingChange> {
        SETTINGS
            .iter()
            .filter(|setting| self.content(setting.key) != later.content(setting.key))
            .map(|setting| SettingChange { key: setting.key, reload: setting.reload })
            .collect()
    }
}

impl Value {
    /// Returns the texts, without origins.
    fn content(&self) -> Vec<(&str, &str)> {
        match self {
            Self::Scalar(text) => vec![("", text)],
            Self::List(items) => items.iter().map(|(text, _)| ("", text.as_str())).collect(),
            Self::Table(entries) => {
                let mut texts: Vec<_> =
                    entries.iter().map(|(name, text, _)| (name.as_str(), text.as_str())).collect();
                texts.sort_unstable();
                texts
            }
        }
    }
}

/// Returns an error for an unknown variable whose prefix is that of a section. Other variables are not the service's.
fn unknown_variable(name: &str) -> Option<ConfigError> {
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    let is_ours = SETTINGS.iter().any(|setting| {
        let top = setting.key.split('.').next().unwrap_or_default().to_ascii_uppercase();
        name.strip_prefix("BELLJAR_")
            .and_then(|rest| rest.strip_prefix(&top))
            .is_some_and(|rest| rest.starts_with('_'))
    });
    is_ours.then(|| ConfigError::UnknownVariable {
        nearest: nearest_variable(name, &known),
        name: name.to_owned(),
    })
}

fn nearest_variable(name: &str, known: &[String]) -> Option<String> {
    // The search compares with lower-case words.
    let lower: Vec<String> = known.iter().map(|name| name.to_ascii_lowercase()).collect();
    belljar_model::nearest(name, lower.iter().map(String::as_str)).map(str::to_ascii_uppercase)
}

impl std::fmt::Debug for ConfigLayers {
    /// Shows the keys and their origins; values may be secrets.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let origins = self.values.iter().map(|(key, (_, origin))| (key, origin.to_string()));
        formatter.debug_map().entries(origins).finish()
    }
}
