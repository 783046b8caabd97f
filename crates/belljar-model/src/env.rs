//! Environment variables.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;

/// Maximum length in bytes of `NAME=value` with its final NUL that the kernel passes to a program: 32 pages of 4 KiB.
const MAX_BYTES: usize = 131_072;

/// Environment variable of a sandbox. Its value may be a secret, so `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EnvVar {
    name: String,
    value: String,
}

impl EnvVar {
    /// Creates a variable.
    ///
    /// # Errors
    ///
    /// Fails if the name is empty or contains `=` or NUL, if the value contains NUL, or if both together are longer than the
    /// kernel passes to a program (128 KiB).
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Result<Self, ModelError> {
        let (name, value) = (name.into(), value.into());
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ModelError::not_allowed(
                "env",
                name,
                "a name that is not empty and has no = and no NUL in it, such as LANG",
            ));
        }
        if value.contains('\0') {
            return Err(ModelError::EnvValue { name, allowed: "a value without a NUL in it" });
        }
        if name.len() + value.len() + 2 > MAX_BYTES {
            return Err(ModelError::EnvValue {
                name,
                allowed: "less than 128 KiB for name and value together",
            });
        }
        Ok(Self { name, value })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl FromStr for EnvVar {
    type Err = ModelError;

    /// Parses `NAME=value`. The value starts after the first `=` and may be empty.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text.split_once('=') {
            Some((name, value)) => Self::new(name, value),
            None => Err(ModelError::not_allowed("env", text, "NAME=value, such as LANG=C")),
        }
    }
}

impl fmt::Debug for EnvVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvVar").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_parsed() {
        let cases = [
            ("K=V", Ok(("K", "V"))),
            ("K=", Ok(("K", ""))),
            ("K=a=b", Ok(("K", "a=b"))),
            ("K=two\nlines", Ok(("K", "two\nlines"))),
            ("with space=ü", Ok(("with space", "ü"))),
            ("K", Err("env: \"K\" is not allowed; give NAME=value, such as LANG=C")),
            ("", Err("env: \"\" is not allowed; give NAME=value, such as LANG=C")),
            (
                "=V",
                Err(
                    "env: \"\" is not allowed; give a name that is not empty and has no = and no NUL in it, such as LANG",
                ),
            ),
            (
                "K\0=V",
                Err(
                    "env: \"K\\0\" is not allowed; give a name that is not empty and has no = and no NUL in it, such as LANG",
                ),
            ),
            ("K=secret\0", Err("env: the value of \"K\" is not allowed; give a value without a NUL in it")),
        ];
        for (text, expected) in cases {
            let variable = text.parse::<EnvVar>();
            let found = variable.as_ref().map(|v| (v.name(), v.value())).map_err(ToString::to_string);
            assert_eq!(found, expected.map_err(str::to_owned));
        }
        assert!(EnvVar::new("A=B", "C").is_err());
    }

    #[test]
    fn length_is_limited_to_what_the_kernel_accepts() {
        assert!(EnvVar::new("K", "v".repeat(MAX_BYTES - 3)).is_ok());
        assert_eq!(
            EnvVar::new("K", "v".repeat(MAX_BYTES - 2)).unwrap_err().to_string(),
            "env: the value of \"K\" is not allowed; give less than 128 KiB for name and value together"
        );
    }

    #[test]
    fn debug_does_not_show_the_value() {
        assert_eq!(
            format!("{:?}", EnvVar::new("TOKEN", "hunter2").unwrap()),
            "EnvVar { name: \"TOKEN\", .. }"
        );
    }
}
