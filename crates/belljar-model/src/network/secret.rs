//! Secrets that the gateway puts into requests, so that code in a sandbox never holds them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::ModelError;
use crate::mounts::normalise;
use crate::network::name::DomainName;
use crate::node::Fields;

const FIELD: &str = "network.secrets";
const MAX_NAME_BYTES: usize = 128;
/// The longest value: common servers take no longer header line.
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
    /// The one header that it may stand in.
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
/// A variable or file is that of whoever wrote the policy. A server must not read its own for a caller.
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
    /// The source's kind: `value`, `env` or `file`.
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

    /// The one header that it may stand in, in lower case.
    pub fn header(&self) -> &str {
        &self.header
    }

    /// The source of the value.
    pub fn source(&self) -> &SecretSource {
        &self.source
    }
}

impl SecretFile {
    /// Checks a secret with its name; whether the policy allows the host is left to the caller.
    pub(super) fn resolve(self, name: &str) -> Result<Secret, ModelError> {
        if !is_variable(name) {
            let allowed = "a name as of an environment variable: letters, digits and _, no digit first, such as API_KEY";
            return Err(ModelError::not_allowed(FIELD, name, allowed));
        }
        let missing =
            |key: &str, expected| ModelError::MissingKey { key: format!("{FIELD}.{name}.{key}"), expected };
        let host = self.host.ok_or_else(|| missing("host", "the host that gets the secret"))?;
        let host =
            DomainName::read(&host).map_err(|allowed| ModelError::not_allowed(FIELD, host, allowed))?;
        let header = self.header.ok_or_else(|| missing("header", "the header that it stands in"))?;
        let header = header_name(&header)?;
        let source = match (self.value, self.env, self.file) {
            (Some(value), None, None) => SecretSource::Value(checked_value(name, value)?),
            (None, Some(env), None) if is_variable(&env) => SecretSource::Env(env),
            (None, Some(env), None) => {
                return Err(ModelError::not_allowed(FIELD, env, "the name of an environment variable"));
            }
            (None, None, Some(file)) => SecretSource::File(normalise(FIELD, Path::new(&file))?),
            _ => {
                return Err(ModelError::not_allowed(
                    FIELD,
                    name,
                    "exactly one of value, env and file for it",
                ));
            }
        };
        Ok(Secret { host, header, source })
    }

    /// Empties the source, so that its key still tells the kind.
    pub(super) fn redact(&mut self) {
        for source in [&mut self.value, &mut self.env, &mut self.file].into_iter().flatten() {
            source.clear();
        }
    }

    /// Takes the source out, whatever its kind.
    pub(super) fn remove_source(&mut self) {
        (self.value, self.env, self.file) = (None, None, None);
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

/// Returns what code in a sandbox has in place of the secret of this name, in the environment variable of the same name.
pub fn placeholder(name: &str) -> String {
    format!("belljar-secret-{name}")
}

impl From<&Secret> for SecretFile {
    fn from(secret: &Secret) -> Self {
        let mut file = Self {
            host: Some(secret.host.to_string()),
            header: Some(secret.header.clone()),
            ..Self::default()
        };
        match &secret.source {
            SecretSource::Value(value) => file.value = Some(value.clone()),
            SecretSource::Env(env) => file.env = Some(env.clone()),
            SecretSource::File(path) => file.file = Some(path.to_string_lossy().into_owned()),
        }
        file
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

fn is_variable(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(letter)
        && !name.starts_with(|char: char| char.is_ascii_digit())
}

fn header_name(name: &str) -> Result<String, ModelError> {
    // Source: RFC 9110, 5.6.2 (token).
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let refuse = |allowed| Err(ModelError::not_allowed(FIELD, name, allowed));
    if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(token) {
        return refuse("the name of a header, such as authorization");
    }
    let name = name.to_ascii_lowercase();
    if FRAMING_HEADERS.contains(&name.as_str()) || name.starts_with("proxy-") {
        return refuse("a header that does not frame or route the message, such as authorization");
    }
    Ok(name)
}

/// Checks a value without showing it: it has to stand on one line of a header.
fn checked_value(name: &str, value: String) -> Result<String, ModelError> {
    let visible = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let trimmed = value.trim_matches(' ').len() == value.len();
    if !(1..=MAX_VALUE_BYTES).contains(&value.len()) || !value.bytes().all(visible) || !trimmed {
        let allowed = "1 to 8192 visible ASCII characters as its value, with no space at either end";
        return Err(ModelError::not_allowed(FIELD, name, allowed));
    }
    Ok(value)
}
