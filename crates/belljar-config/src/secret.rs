//! Values that are never shown.

use std::fmt;

/// A secret text, which no log, message or listing shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text, for use only.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(HIDDEN)
    }
}

/// Replacement for a secret in output.
pub(crate) const HIDDEN: &str = "(hidden)";

/// Removes the password from an address, and the options, which may contain one.
pub(crate) fn redact_address(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    // Everything before the last @ may be part of a password that was not escaped.
    let (user, location) = match rest.rsplit_once('@') {
        Some((user, location)) => (Some(user.split(':').next().unwrap_or_default()), location),
        None => (None, rest),
    };
    let location = location.split(['?', '#']).next().unwrap_or_default();
    match user {
        Some(user) => format!("{scheme}://{user}@{location}"),
        None => format!("{scheme}://{location}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hush")), HIDDEN);
        for (address, shown) in [
            ("sqlite:/a/b.db", "sqlite:/a/b.db"),
            ("postgres://db/jar", "postgres://db/jar"),
            ("postgres://bell:hush@db:5433/jar?sslmode=disable", "postgres://bell@db:5433/jar"),
            ("postgres://bell:hu/sh@x@db/jar", "postgres://bell@db/jar"),
            ("postgres:///jar?host=/run&password=hush", "postgres:///jar"),
            ("https://user:hush@collector:4318/v1", "https://user@collector:4318/v1"),
        ] {
            assert_eq!(redact_address(address), shown);
        }
    }
}
