//! The header `Idempotency-Key`, and the routes that have none.

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse as _;
use http::Method;

use crate::problem::Problem;

/// Name of the header.
pub(crate) const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// Refuses a POST with the header on all routes so far, where it would not be obeyed, except on `keyed` ones.
pub(crate) fn refuse_keys<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    keyed: &'static [&'static str],
    reason: &'static str,
) -> Router<S> {
    router.route_layer(from_fn(move |request: Request, next: Next| async move {
        match is_refused(&request, keyed) {
            true => Problem::field(IDEMPOTENCY_KEY, reason).into_response(),
            false => next.run(request).await,
        }
    }))
}

fn is_refused(request: &Request, keyed: &[&str]) -> bool {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    request.method() == Method::POST
        && request.headers().contains_key(IDEMPOTENCY_KEY)
        && !path.is_some_and(|path| keyed.contains(&path))
}
