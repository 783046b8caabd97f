//! The authenticated caller.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use belljar_keeper::Caller;
use http::request::Parts;

use crate::problem::{Code, Problem};

/// The authenticated caller. The guard has authenticated it before any handler runs; a request that bypassed the guard
/// is refused.
pub(crate) struct Auth(pub(crate) Caller);

impl<S: Sync> FromRequestParts<S> for Auth {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.map(Self).ok_or_else(|| Problem::new(Code::Unauthenticated, "missing or invalid key"))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Auth {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Caller>().cloned().map(Self))
    }
}
