//! Parts of a request, each checked, and each refusal a problem that names the field.

mod auth;
mod body;
mod json;
mod path;
mod query;

pub(crate) use auth::Auth;
pub(crate) use body::{BodyFailure, RawBody, failure_of};
pub(crate) use json::{IdempotentJson, Json, parse as parse_json};
pub(crate) use path::{Id, PathNumber, PathOf, Token};
pub(crate) use query::Query;
