//! Address of a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::any::AnyConnectOptions;

use crate::error::StoreError;

/// Address of a store: `sqlite:/path/to/belljar.db`, or `postgres://user@host/database`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Location);

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// In memory, for tests.
    Memory,
    /// Absolute path of a SQLite file.
    Sqlite(PathBuf),
    /// Complete address, including the password.
    Postgres(String),
}

impl StoreUrl {
    /// Returns the address of a SQLite file. A relative path is resolved against the working directory.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Address`] if the path is empty or not UTF-8, or if there is no working directory.
    pub fn sqlite(path: &Path) -> Result<Self, StoreError> {
        let refused = |why: String| StoreError::Address { why };
        if path.to_str().is_none() {
            return Err(refused("the path is not UTF-8".to_owned()));
        }
        let path = std::path::absolute(path).map_err(|error| refused(error.to_string()))?;
        if path.file_name().is_none() {
            return Err(refused("the path names no file".to_owned()));
        }
        Ok(Self(Location::Sqlite(path)))
    }

    /// Returns the file of a SQLite store.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Location::Sqlite(path) => Some(path),
            Location::Memory | Location::Postgres(_) => None,
        }
    }

    /// Reports whether the store is in PostgreSQL, where several keepers may share it.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Location::Postgres(_))
    }

    pub(crate) fn memory() -> Self {
        Self(Location::Memory)
    }

    pub(crate) fn location(&self) -> &Location {
        &self.0
    }

    /// Returns the connection options for sqlx.
    pub(crate) fn options(&self) -> Result<AnyConnectOptions, StoreError> {
        let text = match &self.0 {
            Location::Memory => "sqlite::memory:".to_owned(),
            Location::Sqlite(path) => format!("sqlite://{}?mode=rw", percent_encode(path)),
            Location::Postgres(text) => text.clone(),
        };
        text.parse().map_err(|error: sqlx::Error| StoreError::Address { why: cause(&error) })
    }
}

impl FromStr for StoreUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            // Other programs write two more slashes; the path is absolute either way.
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.contains(['?', '#', '%']) || path == ":memory:" {
                return Err(StoreError::Address {
                    why: "sqlite: must be followed by a plain path".to_owned(),
                });
            }
            return Self::sqlite(Path::new(path));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let url = Self(Location::Postgres(text.to_owned()));
            url.options()?;
            return Ok(url);
        }
        Err(StoreError::Address { why: "expected sqlite: or postgres://".to_owned() })
    }
}

/// Displays everything except the password and the options.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Location::Memory => f.write_str("in memory"),
            Location::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Location::Postgres(text) => {
                let Ok(options) = text.parse::<AnyConnectOptions>() else { return f.write_str("postgres:") };
                let url = options.database_url;
                f.write_str("postgres://")?;
                if !url.username().is_empty() {
                    write!(f, "{}@", url.username())?;
                }
                f.write_str(url.host_str().unwrap_or_default())?;
                if let Some(port) = url.port() {
                    write!(f, ":{port}")?;
                }
                f.write_str(url.path())
            }
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// Returns the cause without the address.
fn cause(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Configuration(source) => source.to_string(),
        other => other.to_string(),
    }
}

fn percent_encode(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let encoded = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.as_os_str().as_encoded_bytes().iter().copied().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_displayed_without_secrets() {
        let cases = [
            ("sqlite:/var/lib/belljar/belljar.db", Some("sqlite:/var/lib/belljar/belljar.db")),
            ("sqlite:///var/lib/belljar.db", Some("sqlite:/var/lib/belljar.db")),
            (
                "postgres://bell:secret@db.example:5433/jar?sslmode=disable",
                Some("postgres://bell@db.example:5433/jar"),
            ),
            ("postgresql:///jar?host=/run/postgresql&user=u", Some("postgres:///jar")),
            ("sqlite:", None),
            ("sqlite:/a.db?mode=memory", None),
            ("sqlite::memory:", None),
            ("mysql://x/y", None),
            ("postgres://[", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let shown = text.parse::<StoreUrl>().ok().map(|url| format!("{url}|{url:?}"));
            assert_eq!(shown, expected.map(|text| format!("{text}|StoreUrl({text})")), "{text}");
        }
    }

    #[test]
    fn errors_do_not_contain_the_password() {
        let error = "postgres://bell:secret@[/jar".parse::<StoreUrl>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn paths_are_percent_encoded() {
        assert_eq!(percent_encode(Path::new("/a b/ä?#%.db")), "/a%20b/%C3%A4%3F%23%25.db");
    }
}
