//! Parts of a path.

use std::str::FromStr;

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;

use crate::problem::{Code, Problem};

/// The longest part of a path that is looked at, in bytes. Ids and names are shorter.
const MAX_PART_BYTES: usize = 256;

/// The longest token in a path, in bytes. One for a file holds the file's path.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// The parameter `id` of a path: a sandbox's, template's or key's id or name.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        text_of(parts, state, "id", MAX_PART_BYTES).await.map(Self)
    }
}

/// The parameter `context` of a path: the id of a context, which only the guest knows.
pub(crate) struct ContextId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for ContextId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = text_of(parts, state, "context", MAX_PART_BYTES).await?;
        let can_be = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.+-".contains(&byte);
        if text.is_empty() || !text.bytes().all(can_be) {
            return Err(Problem::new(Code::ContextNotFound, format!("there is no context {text:?}")));
        }
        Ok(Self(text))
    }
}

/// The parameter `build` of a path: the id of a template's build.
pub(crate) struct BuildId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for BuildId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        text_of(parts, state, "build", MAX_PART_BYTES).await.map(Self)
    }
}

/// The parameter `hash` of a path.
pub(crate) struct Hash(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Hash {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        text_of(parts, state, "hash", MAX_PART_BYTES).await.map(Self)
    }
}

/// The parameter `token` of a path.
pub(crate) struct Token(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Token {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        text_of(parts, state, "token", MAX_TOKEN_BYTES).await.map(Self)
    }
}

/// What the number of a part of a path is called, and which number it can be.
pub(crate) trait PathNumber: FromStr + ToString {
    /// The parameter's name in the path.
    const NAME: &'static str;
    /// What is answered when it is no such number.
    const NONE: Code;
}

/// A number in a path, in the one form that it has: `7`, never `07` or `+7`.
pub(crate) struct PathOf<T>(pub(crate) T);

impl<S: Send + Sync, T: PathNumber> FromRequestParts<S> for PathOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = text_of(parts, state, T::NAME, MAX_PART_BYTES).await?;
        let number = text.parse::<T>().ok().filter(|number| number.to_string() == text);
        number.map(Self).ok_or_else(|| {
            Problem::new(T::NONE, format!("{}: there is none of the number {text:?}", T::NAME))
        })
    }
}

async fn text_of<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &str,
    most: usize,
) -> Result<String, Problem> {
    let refused = |reason: &str| Problem::field(name, reason);
    let parameters = RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|_| refused("it is not UTF-8 in percent-encoding"))?;
    let text = parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
    let text = text.ok_or_else(|| refused("it is missing in the path"))?;
    if text.len() > most {
        return Err(refused("it is longer than any id or name"));
    }
    Ok(text)
}
