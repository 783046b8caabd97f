//! Path parameters.

use std::str::FromStr;

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;

use crate::problem::{Code, Problem};

/// Maximum length of a path segment, in bytes. Ids and names are shorter.
const MAX_PART_BYTES: usize = 256;

/// Maximum length of a token in a path, in bytes. A token for a file contains the file's path.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// The path parameter `id`: the id or name of a sandbox, template or key.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        read_parameter(parts, state, "id", MAX_PART_BYTES).await.map(Self)
    }
}

/// The path parameter `context`: the id of a context, whose existence only the guest can check.
pub(crate) struct ContextId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for ContextId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = read_parameter(parts, state, "context", MAX_PART_BYTES).await?;
        let is_allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.+-".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_allowed) {
            return Err(Problem::new(Code::ContextNotFound, format!("context {text:?} not found")));
        }
        Ok(Self(text))
    }
}

/// The path parameter `build`: the id of a template's build.
pub(crate) struct BuildId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for BuildId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        read_parameter(parts, state, "build", MAX_PART_BYTES).await.map(Self)
    }
}

/// The path parameter `hash`.
pub(crate) struct Hash(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Hash {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        read_parameter(parts, state, "hash", MAX_PART_BYTES).await.map(Self)
    }
}

/// The path parameter `registry`.
pub(crate) struct Registry(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Registry {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        read_parameter(parts, state, "registry", MAX_PART_BYTES).await.map(Self)
    }
}

/// The path parameter `token`.
pub(crate) struct Token(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Token {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        read_parameter(parts, state, "token", MAX_TOKEN_BYTES).await.map(Self)
    }
}

/// Type of a number in a path: its name and its valid values.
pub(crate) trait PathNumber: FromStr + ToString {
    /// Name of the path parameter.
    const NAME: &'static str;
    /// Error code for a value that is not such a number.
    const NONE: Code;
}

/// A number in a path, in its canonical form: `7`, never `07` or `+7`.
pub(crate) struct PathOf<T>(pub(crate) T);

impl<S: Send + Sync, T: PathNumber> FromRequestParts<S> for PathOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = read_parameter(parts, state, T::NAME, MAX_PART_BYTES).await?;
        let number = text.parse::<T>().ok().filter(|number| number.to_string() == text);
        number.map(Self).ok_or_else(|| Problem::new(T::NONE, format!("{} {text:?} not found", T::NAME)))
    }
}

async fn read_parameter<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &str,
    max: usize,
) -> Result<String, Problem> {
    let refused = |reason: &str| Problem::field(name, reason);
    let parameters = RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|_| refused("it is not UTF-8 in percent-encoding"))?;
    let text = parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
    let text = text.ok_or_else(|| refused("it is missing in the path"))?;
    if text.len() > max {
        return Err(refused("it is longer than any id or name"));
    }
    Ok(text)
}
