//! Secrets that the gateway puts into requests, so that code in a sandbox never holds them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::ModelError;
use crate::mounts::normalise;
use crate::network::name::DomainName;
use crate::network::{header, stored};
use crate::node::Fields;

pub(super) const FIELD: &str = "network.secrets";
const MAX_NAME_BYTES: usize = 128;
/// Maximum length of a value: common servers accept no longer header lines.
const MAX_VALUE_BYTES: usize = 8192;

/// Headers that say how a message is framed or routed, and `proxy-*`: a secret in one would change that.
/// Source: RFC 9110, 7.2, 7.6.1 and 8.6; RFC 9112, 6.1.
const FRAMING_HEADERS: [&str; 8] =
    ["connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// A secret as it was written. `Debug` does not show the value.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
pub struct SecretFile {
    /// The one host that gets the secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The one header that may contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The secret itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The environment variable that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A secret that is put into one header of requests to one host, and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Secret {
    host: DomainName,
    header: String,
    source: SecretSource,
}

/// The source of a secret's value. `Debug` does not show the value.
///
/// A variable or file belongs to the author of the policy. A server must not read its own for a caller.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// The value itself.
    Value(String),
    /// An environment variable.
    Env(String),
    /// A file: absolute.
    File(PathBuf),
}

impl SecretSource {
    /// Returns the names of the stored secrets in the value.
    pub(super) fn stored(&self) -> impl Iterator<Item = &str> {
        let value = match self {
            Self::Value(value) => value.as_str(),
            Self::Env(_) | Self::File(_) => "",
        };
        stored::names(value)
    }

    /// Returns a copy with references replaced by the values of stored secrets; `None` if one is missing.
    pub(super) fn fill(&self, secrets: &BTreeMap<String, String>) -> Option<Self> {
        match self {
            Self::Value(value) => stored::fill(value, secrets).map(Self::Value),
            other => Some(other.clone()),
        }
    }

    /// Returns the source's kind: `value`, `env` or `file`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Value(_) => "value",
            Self::Env(_) => "env",
            Self::File(_) => "file",
        }
    }
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl Secret {
    /// The one host that gets the secret.
    pub fn host(&self) -> &DomainName {
        &self.host
    }

    /// The one header that may contain it, in lower case.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The source of the value.
    pub fn source(&self) -> &SecretSource {
        &self.source
    }

    /// Returns a copy with references replaced by the values of stored secrets; `None` if one is missing.
    pub(super) fn fill(&self, secrets: &BTreeMap<String, String>) -> Option<Self> {
        Some(Self { source: self.source.fill(secrets)?, ..self.clone() })
    }
}

impl SecretFile {
    /// Parses a secret in the form of a flag: its name, its destination and its source.
    pub(super) fn parse_flag(text: &str) -> Result<(String, Self), ModelError> {
        const FORM: &str = "NAME=HOST:HEADER, with :env=VARIABLE, :file=PATH or :secret=STORED where the value is not in the variable NAME; \
             a value itself is no part of it, as other users see command lines";
        let refuse = |name| Err(ModelError::not_allowed(FIELD, name, FORM));
        let Some((name, rest)) = text.split_once('=') else { return refuse("") };
        check_name(name)?;
        match Self::parse_place(rest) {
            Some((secret, Some(true))) => Ok((name.to_owned(), secret)),
            Some((secret, None)) => Ok((name.to_owned(), Self { env: Some(name.to_owned()), ..secret })),
            _ => refuse(name),
        }
    }

    /// Parses a header in the form of a flag.
    pub(super) fn parse_header_flag(text: &str) -> Result<Self, ModelError> {
        const FORM: &str = "HOST:HEADER:env=VARIABLE, HOST:HEADER:file=PATH or HOST:HEADER:secret=STORED; a value itself is no part of \
             it, as other users see command lines";
        match Self::parse_place(text) {
            Some((secret, Some(true))) => Ok(secret),
            _ => {
                let host = text.split_once(':').map_or("", |(host, _)| host);
                Err(ModelError::not_allowed(header::FIELD, host, FORM))
            }
        }
    }

    /// Parses `HOST:HEADER[:SOURCE]`. Returns whether there is a source and whether it is valid.
    fn parse_place(text: &str) -> Option<(Self, Option<bool>)> {
        let mut parts = text.splitn(3, ':');
        let (host, header, source) = (parts.next()?, parts.next()?, parts.next());
        // A source in the place of the header.
        if header.contains('=') {
            return None;
        }
        let mut secret =
            Self { host: Some(host.to_owned()), header: Some(header.to_owned()), ..Self::default() };
        let is_source = source.map(|source| {
            match source.split_once('=') {
                Some(("env", variable)) => secret.env = Some(variable.to_owned()),
                Some(("file", path)) => secret.file = Some(path.to_owned()),
                Some(("secret", name)) => secret.value = Some(stored::reference(name)),
                _ => return false,
            }
            true
        });
        Some((secret, is_source))
    }

    /// Checks a secret with its name, but not whether the policy allows its host.
    pub(super) fn resolve(self, name: &str) -> Result<Secret, ModelError> {
        check_name(name)?;
        let (host, header, source) = self.check(FIELD, name)?;
        let host =
            DomainName::read(&host).map_err(|allowed| ModelError::not_allowed(FIELD, host, allowed))?;
        Ok(Secret { host, header, source })
    }

    /// Checks everything but the host, which is returned unchanged. `what` is the secret in errors.
    pub(super) fn check(
        self,
        field: &'static str,
        what: &str,
    ) -> Result<(String, String, SecretSource), ModelError> {
        let missing =
            |key: &str, expected| ModelError::MissingKey { key: format!("{field}.{what}.{key}"), expected };
        let host = self.host.ok_or_else(|| missing("host", "the host that gets the secret"))?;
        let header = self.header.ok_or_else(|| missing("header", "the header that it stands in"))?;
        let header = header_name(field, &header)?;
        let source = match (self.value, self.env, self.file) {
            (Some(value), None, None) => {
                let checked = check_secret_value(&value).and_then(|()| stored::check(&value));
                checked.map_err(|allowed| ModelError::not_allowed(field, what, allowed))?;
                SecretSource::Value(value)
            }
            (None, Some(env), None) if is_variable(&env) => SecretSource::Env(env),
            (None, Some(env), None) => {
                return Err(ModelError::not_allowed(field, env, "the name of an environment variable"));
            }
            (None, None, Some(file)) => SecretSource::File(normalise(field, Path::new(&file))?),
            _ => {
                return Err(ModelError::not_allowed(
                    field,
                    what,
                    "exactly one of value, env and file for it",
                ));
            }
        };
        Ok((host, header, source))
    }

    /// Clears the source's value but not its kind. References to stored secrets stay.
    pub(super) fn redact(&mut self) {
        self.value = self.value.take().map(|value| stored::show(&value).unwrap_or_default());
        for source in [&mut self.env, &mut self.file].into_iter().flatten() {
            source.clear();
        }
    }

    /// Removes the source. References to stored secrets stay.
    pub(super) fn remove_source(&mut self) {
        self.value = self.value.take().and_then(|value| stored::show(&value));
        (self.env, self.file) = (None, None);
    }

    pub(super) fn from_fields(mut fields: Fields) -> Result<Self, ModelError> {
        let secret = Self {
            host: fields.text("host")?,
            header: fields.text("header")?,
            value: fields.text("value")?,
            env: fields.text("env")?,
            file: fields.text("file")?,
        };
        fields.finish()?;
        Ok(secret)
    }
}

/// Returns the placeholder for the secret of this name, which code in a sandbox finds in the environment variable of the same name.
pub fn placeholder(name: &str) -> String {
    format!("belljar-secret-{name}")
}

impl From<&Secret> for SecretFile {
    fn from(secret: &Secret) -> Self {
        let (host, header) = (secret.host.to_string(), secret.header.clone());
        Self { host: Some(host), header: Some(header), ..(&secret.source).into() }
    }
}

impl From<&SecretSource> for SecretFile {
    /// A secret without a host.
    fn from(source: &SecretSource) -> Self {
        let file = Self::default();
        match source {
            SecretSource::Value(value) => Self { value: Some(value.clone()), ..file },
            SecretSource::Env(env) => Self { env: Some(env.clone()), ..file },
            SecretSource::File(path) => Self { file: Some(path.to_string_lossy().into_owned()), ..file },
        }
    }
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretFile")
            .field("host", &self.host)
            .field("header", &self.header)
            .field("value", &self.value.as_ref().map(|_| "…"))
            .field("env", &self.env)
            .field("file", &self.file)
            .finish()
    }
}

fn check_name(name: &str) -> Result<(), ModelError> {
    let allowed =
        "a name as of an environment variable: letters, digits and _, no digit first, such as API_KEY";
    if is_variable(name) { Ok(()) } else { Err(ModelError::not_allowed(FIELD, name, allowed)) }
}

fn is_variable(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(letter)
        && !name.starts_with(|char: char| char.is_ascii_digit())
}

pub(super) fn header_name(field: &'static str, name: &str) -> Result<String, ModelError> {
    // Source: RFC 9110, 5.6.2 (token).
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let refuse = |allowed| Err(ModelError::not_allowed(field, name, allowed));
    if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(token) {
        return refuse("the name of a header, such as authorization");
    }
    let name = name.to_ascii_lowercase();
    if FRAMING_HEADERS.contains(&name.as_str()) || name.starts_with("proxy-") {
        return refuse("a header that does not frame or route the message, such as authorization");
    }
    Ok(name)
}

/// Checks that a value is valid in a header; the error is what to give instead, without the value.
///
/// # Errors
///
/// Fails if it is empty or too long, has characters other than visible ASCII and spaces, or a space at either end.
pub fn check_secret_value(value: &str) -> Result<(), &'static str> {
    let visible = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let trimmed = value.trim_matches(' ').len() == value.len();
    if !(1..=MAX_VALUE_BYTES).contains(&value.len()) || !value.bytes().all(visible) || !trimmed {
        return Err("1 to 8192 visible ASCII characters as its value, with no space at either end");
    }
    Ok(())
}
