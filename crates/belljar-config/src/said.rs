//! What is said about the service: only what was, and where. Later words win over earlier ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use crate::error::{ConfigError, ConfigErrors};
use crate::file;
use crate::origin::Origin;
use crate::setting::{Form, Setting};
use crate::settings::{SETTINGS, setting};

/// A value as it was written, with the places of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Scalar(String),
    List(Vec<(String, Origin)>),
    Table(Vec<(String, String, Origin)>),
}

/// What is said about the service.
#[derive(Clone, Default)]
pub struct Said {
    values: BTreeMap<&'static str, (Value, Origin)>,
}

/// A setting that differs between two configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Its key.
    pub key: &'static str,
    /// Whether a running server takes the new value.
    pub reload: bool,
}

impl Said {
    /// Lays the text of a file over what was said before.
    ///
    /// # Errors
    /// All that is wrong in the file: syntax, unknown keys, values of another form. What values mean is looked at by
    /// [`Config::resolve`](crate::Config::resolve).
    pub fn file(&mut self, path: &Path, text: &str) -> Result<(), ConfigErrors> {
        let (given, errors) = file::read(path, text);
        for given in given {
            self.put(given.setting, given.value, given.origin);
        }
        ConfigErrors::check(errors)
    }

    /// Lays the environment over what was said before. Variables that are empty count as not set.
    ///
    /// # Errors
    /// A variable that begins like one of the service's and is none of them, or whose value is not text.
    pub fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        let mut aliases = Vec::new();
        let mut given = Vec::new();
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
                Ok(value) if found.is_some() => given.push((setting, value, name.to_owned())),
                Ok(value) => aliases.push((setting, value, name.to_owned())),
                Err(_) => errors.push(ConfigError::NotUtf8 { name: name.to_owned() }),
            }
        }
        // A setting's own variable wins over one of an older name.
        for (setting, value, name) in aliases.into_iter().chain(given) {
            if let Err(error) = self.text(setting, &value, Origin::Variable(name)) {
                errors.push(error);
            }
        }
        ConfigErrors::check(errors)
    }

    /// Lays a flag over what was said before: its values for a list, else its only one.
    ///
    /// # Errors
    /// A key that is not known, or a value of another form.
    pub fn flag(&mut self, name: &str, key: &str, values: &[String]) -> Result<(), ConfigErrors> {
        let origin = Origin::Flag(name.to_owned());
        let Some(found) = setting(key) else { return self.entry_of_table(origin, key, values) };
        match (found.form, values) {
            (Form::List, values) if values.len() > 1 => {
                let items = values.iter().map(|value| (value.clone(), origin.clone())).collect();
                self.put(found, Value::List(items), origin);
            }
            (_, values) => {
                let value = values.last().map(String::as_str).unwrap_or_default();
                self.text(found, value, origin)?;
            }
        }
        Ok(())
    }

    /// Lays a flag such as `--set template.env.LANG=C` over what was said before.
    fn entry_of_table(&mut self, origin: Origin, key: &str, values: &[String]) -> Result<(), ConfigErrors> {
        let table = SETTINGS.iter().filter(|setting| setting.form == Form::Table).find_map(|setting| {
            let name = key.strip_prefix(setting.key)?.strip_prefix('.')?;
            Some((setting, name))
        });
        if let Some((setting, name)) = table {
            let value = values.last().cloned().unwrap_or_default();
            self.put(setting, Value::Table(vec![(name.to_owned(), value, origin.clone())]), origin);
            return Ok(());
        }
        let (path, name) = key.rsplit_once('.').unwrap_or(("", key));
        Err(file::unknown_key(origin, path, name, key.to_owned()).into())
    }

    /// A value that comes as one text.
    fn text(&mut self, setting: &'static Setting, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let items = || text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let value = match setting.form {
            Form::Text | Form::Number | Form::Flag => Value::Scalar(text.to_owned()),
            Form::List => Value::List(items().map(|item| (item.to_owned(), origin.clone())).collect()),
            Form::Table => {
                let mut entries = Vec::new();
                for item in items() {
                    let Some((name, value)) = item.split_once('=') else {
                        let wanted = "NAME=VALUE, several separated by commas";
                        let key = setting.key.to_owned();
                        return Err(ConfigError::WrongForm {
                            origin,
                            key,
                            found: "an item without =",
                            wanted,
                        });
                    };
                    entries.push((name.trim().to_owned(), value.trim().to_owned(), origin.clone()));
                }
                Value::Table(entries)
            }
        };
        self.put(setting, value, origin);
        Ok(())
    }

    /// A later value replaces an earlier one; the entries of tables join.
    fn put(&mut self, setting: &'static Setting, value: Value, origin: Origin) {
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

    fn words(&self, key: &str) -> Option<Vec<(&str, &str)>> {
        self.values.get(key).map(|(value, _)| value.words())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&(Value, Origin)> {
        self.values.get(key)
    }

    /// Where a setting was said.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// The settings that `later` says otherwise, in the order of [`SETTINGS`]. Where they stand makes no difference.
    #[must_use]
    pub fn changed(&self, later: &Self) -> Vec<Changed> {
        SETTINGS
            .iter()
            .filter(|setting| self.words(setting.key) != later.words(setting.key))
            .map(|setting| Changed { key: setting.key, reload: setting.reload })
            .collect()
    }
}

impl Value {
    /// What is said, without its place.
    fn words(&self) -> Vec<(&str, &str)> {
        match self {
            Self::Scalar(text) => vec![("", text)],
            Self::List(items) => items.iter().map(|(text, _)| ("", text.as_str())).collect(),
            Self::Table(entries) => {
                let mut words: Vec<_> =
                    entries.iter().map(|(name, text, _)| (name.as_str(), text.as_str())).collect();
                words.sort_unstable();
                words
            }
        }
    }
}

/// A variable whose name begins like those of a section is meant for the service.
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
    // The look-up knows words in small letters.
    let small: Vec<String> = known.iter().map(|name| name.to_ascii_lowercase()).collect();
    belljar_model::nearest(name, small.iter().map(String::as_str)).map(str::to_ascii_uppercase)
}

impl std::fmt::Debug for Said {
    /// Shows the keys and their places; values may be secrets.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = self.values.iter().map(|(key, (_, origin))| (key, origin.to_string()));
        formatter.debug_map().entries(places).finish()
    }
}
