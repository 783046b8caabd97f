//! Where a store is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::any::AnyConnectOptions;

use crate::error::StoreError;

/// Where a store is: `sqlite:/path/to/belljar.db`, or `postgres://user@host/database`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Place);

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Only in memory, for tests.
    Memory,
    /// An absolute path.
    Sqlite(PathBuf),
    /// An address with all that is in it, also the password.
    Postgres(String),
}

impl StoreUrl {
    /// A store in a SQLite file. A relative path is taken from the working directory.
    ///
    /// # Errors
    ///
    /// [`StoreError::Address`] if the path is empty or not UTF-8, or if there is no working directory.
    pub fn sqlite(path: &Path) -> Result<Self, StoreError> {
        let refused = |why: String| StoreError::Address { why };
        if path.to_str().is_none() {
            return Err(refused("the path is not UTF-8".to_owned()));
        }
        let path = std::path::absolute(path).map_err(|error| refused(error.to_string()))?;
        if path.file_name().is_none() {
            return Err(refused("the path names no file".to_owned()));
        }
        Ok(Self(Place::Sqlite(path)))
    }

    /// The file of a SQLite store.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Place::Sqlite(path) => Some(path),
            Place::Memory | Place::Postgres(_) => None,
        }
    }

    /// Whether the store is in PostgreSQL, where several keepers may share it.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Place::Postgres(_))
    }

    pub(crate) fn memory() -> Self {
        Self(Place::Memory)
    }

    pub(crate) fn place(&self) -> &Place {
        &self.0
    }

    /// What sqlx opens.
    pub(crate) fn options(&self) -> Result<AnyConnectOptions, StoreError> {
        let text = match &self.0 {
            Place::Memory => "sqlite::memory:".to_owned(),
            Place::Sqlite(path) => format!("sqlite://{}?mode=rw", percent_encoded(path)),
            Place::Postgres(text) => text.clone(),
        };
        text.parse().map_err(|error: sqlx::Error| StoreError::Address { why: reason(&error) })
    }
}

impl FromStr for StoreUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            // Two slashes more are a habit of others; the path is absolute either way.
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.contains(['?', '#', '%']) || path == ":memory:" {
                return Err(StoreError::Address { why: "after sqlite: comes a plain path".to_owned() });
            }
            return Self::sqlite(Path::new(path));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let url = Self(Place::Postgres(text.to_owned()));
            url.options()?;
            return Ok(url);
        }
        Err(StoreError::Address { why: "it begins neither with sqlite: nor with postgres://".to_owned() })
    }
}

/// Shows everything but the password and the options.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Memory => f.write_str("in memory"),
            Place::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Place::Postgres(text) => {
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

/// The text of the cause, which does not show the address again.
fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Configuration(source) => source.to_string(),
        other => other.to_string(),
    }
}

fn percent_encoded(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let encoded = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.as_os_str().as_encoded_bytes().iter().copied().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_secrets() {
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
    fn a_password_is_in_no_error() {
        let error = "postgres://bell:secret@[/jar".parse::<StoreUrl>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn every_path_reaches_the_driver() {
        assert_eq!(percent_encoded(Path::new("/a b/ä?#%.db")), "/a%20b/%C3%A4%3F%23%25.db");
    }
}
