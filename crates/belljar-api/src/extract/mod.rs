//! Extractors for parts of a request. Each validates its part, and each refusal is a problem that names the field.

mod auth;
mod body;
mod form;
mod idempotency;
mod json;
mod path;
mod query;

pub(crate) use auth::Auth;
pub(crate) use body::RawBody;
pub(crate) use body::{BodyFailure, failure_of};
pub(crate) use form::Form;
pub(crate) use idempotency::refuse_keys;
pub(crate) use json::{IdempotentJson, Json, parse as parse_json};
pub(crate) use path::{BuildId, ContextId, Hash, Id, PathNumber, PathOf, Registry, Token};
pub(crate) use query::{Query, parse as parse_query};
