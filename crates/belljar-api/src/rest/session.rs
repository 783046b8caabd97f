//! Sessions of pages in browsers: a key as a cookie that scripts cannot read.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::NewSession;
use http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::api::Shared;
use crate::extract::{Auth, Json, Query};
use crate::guard::{Client, RequestId, denied, refuse, set_cookie};
use crate::problem::Problem;

/// A session. Its cookie is in the header `Set-Cookie`.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionBody {
    /// Token that requests with the cookie have in the header `X-Belljar-Session`, and WebSockets as the subprotocol after
    /// `belljar.session`.
    token: String,
    /// When the session ends unless it is used.
    #[schema(format = DateTime)]
    expires_at: String,
}

fn begun(shared: &Shared, session: NewSession, headers: &HeaderMap, extensions: &Extensions) -> Response {
    let tls = Client::from_request(&shared.config, headers, extensions).tls;
    let body = SessionBody { token: session.token, expires_at: session.expires_at.to_string() };
    let mut response = (StatusCode::CREATED, axum::Json(body)).into_response();
    with_cookie(&mut response, set_cookie(&session.cookie, session.max_life, tls));
    response
}

fn with_cookie(response: &mut Response, cookie: Option<HeaderValue>) {
    let headers = response.headers_mut();
    headers.extend(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Begins a session that acts as the key, for a page of the server's own origin. It ends after 2 hours without a request, after 7 days,
/// and with its key.
#[utoipa::path(post, path = "/v1/session", tag = "session",
    responses((status = 201, description = "The session.", body = SessionBody)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let session = shared.keeper.create_session(&caller).await?;
    Ok(begun(&shared, session, &headers, &extensions))
}

/// Maximum size of the body that redeems a link, in bytes: the request has no key for which its memory would count, and a secret has 68.
const MAX_REDEEM_BYTES: usize = 1024;

/// A link.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RedeemLink, example = json!({"link": "bjl_00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"}))]
pub(super) struct RedeemBody {
    /// The link's secret.
    link: String,
}

/// Begins a session with a link, which can be used once, within 15 minutes. Needs no key.
#[utoipa::path(post, path = "/v1/session/redeem", tag = "session", security(()), request_body = RedeemBody,
    responses((status = 201, description = "The session.", body = SessionBody)))]
pub(super) async fn redeem(
    State(shared): State<Shared>,
    headers: HeaderMap,
    extensions: Extensions,
    Json(body): Json<RedeemBody, MAX_REDEEM_BYTES>,
) -> Result<Response, Problem> {
    let client = Client::from_request(&shared.config, &headers, &extensions);
    let request_id = RequestId::from_extensions(&extensions);
    let redeemed = shared.keeper.redeem_session_link(&body.link, &client.text, &request_id).await?;
    let (session, _) = redeemed.map_err(|why| refuse(&shared, &client, why, denied()))?;
    Ok(begun(&shared, session, &headers, &extensions))
}

/// A link that begins a session.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionLink)]
pub(super) struct LinkBody {
    /// The link's secret.
    link: String,
    /// Path and fragment that sign in to the console of this server.
    #[schema(example = "/console#link=bjl_00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff")]
    path: String,
    /// When it can no longer be used.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Creates a link that begins a session of this key, once, within 15 minutes.
#[utoipa::path(post, path = "/v1/session/links", tag = "session",
    responses((status = 201, description = "The link.", body = LinkBody)))]
pub(super) async fn link(State(shared): State<Shared>, Auth(caller): Auth) -> Result<Response, Problem> {
    let made = shared.keeper.create_session_link(&caller).await?;
    let path = format!("/console#link={}", made.link);
    let body = LinkBody { link: made.link, path, expires_at: made.expires_at.to_string() };
    let mut response = (StatusCode::CREATED, axum::Json(body)).into_response();
    with_cookie(&mut response, None);
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EndQuery {
    /// Whether to end all sessions and links of the key. `false` if not given.
    everywhere: Option<bool>,
}

/// Ends the session, or all sessions of its key. Their streams end.
#[utoipa::path(delete, path = "/v1/session", tag = "session", params(EndQuery),
    responses((status = 204, description = "The session has ended.")))]
pub(super) async fn end(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    headers: HeaderMap,
    extensions: Extensions,
    Query(query): Query<EndQuery>,
) -> Result<Response, Problem> {
    shared.keeper.end_session(&caller, query.everywhere == Some(true)).await?;
    let tls = Client::from_request(&shared.config, &headers, &extensions).tls;
    let mut response = StatusCode::NO_CONTENT.into_response();
    with_cookie(&mut response, set_cookie("", std::time::Duration::ZERO, tls));
    Ok(response)
}
