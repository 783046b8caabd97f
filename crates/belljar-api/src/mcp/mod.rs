//! The Model Context Protocol (MCP) over HTTP, at `/mcp`: tools of models. `belljar mcp` passes messages of standard streams on to it.
//!
//! The protocol itself is rmcp's, in all revisions that it knows. Requests are served without sessions: a sandbox is named by its id, so
//! any server that has it can answer. Closing the response ends what the call runs.

mod call;
mod fixture_tasks;
mod fixtures;
mod handler;
mod offer;
mod parked;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use belljar_keeper::{Caller, Keeper, action};
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;

use crate::api::Shared;
use crate::facade::{Claims, Facade, Form, Head};
use crate::guard::count_collected;
use crate::problem::{Code, Problem};
use fixtures::Fixtures;
use handler::Handler;
use offer::{Offer, Profile};

#[cfg(feature = "fuzzing")]
pub use tools::patch_for_fuzzing;

/// The endpoint.
const PATH: &str = "/mcp";

/// Maximum length of a message, in bytes: code whose every byte takes two in JSON, and 1 MiB for the rest.
const MAX_MESSAGE_BYTES: usize = 2 * belljar_keeper::MAX_CODE_BYTES + (1 << 20);

/// Key that seals the states of the fixtures, which protect nothing.
const FIXTURES_KEY: [u8; 32] = *b"the fixtures of the conformance.";

/// Beginning of the transport's refusal of a body that is no message.
const NO_MESSAGE: &str = "fail to deserialize request body";

/// Error codes of JSON-RPC 2.0.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

/// The facade.
pub(crate) struct Mcp(Arc<Endpoint>);

struct Endpoint {
    keeper: Keeper,
    tools: StreamableHttpService<Handler, NeverSessionManager>,
    /// The only ones with sessions: some ask the client during a call, which the older revision can only do in one. Sessions are not
    /// bounded, so only administrators may use them.
    fixtures: StreamableHttpService<Fixtures, LocalSessionManager>,
}

impl Mcp {
    /// Creates the facade.
    pub(crate) fn new(shared: &Shared) -> Self {
        // Host names and origins are checked by the guards.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_max_request_body_bytes(MAX_MESSAGE_BYTES)
            .with_cancellation_token(shared.stopping.clone())
            .with_json_response(true);
        let (handler, fixtures) = (Handler::new(shared.clone()), Fixtures::new(FIXTURES_KEY));
        let fixtures =
            StreamableHttpService::new(move || Ok(fixtures.clone()), Arc::default(), config.clone());
        let config = config.with_legacy_session_mode(false);
        let tools = StreamableHttpService::new(move || Ok(handler.clone()), Arc::default(), config);
        Self(Arc::new(Endpoint { keeper: shared.keeper.clone(), tools, fixtures }))
    }
}

impl Facade for Mcp {
    fn name(&self) -> &'static str {
        "mcp"
    }

    fn claims(&self) -> Claims {
        Claims { prefixes: &[PATH], ..Claims::default() }
    }

    fn may_always_begin(&self, _head: Head<'_>) -> bool {
        // What it asks for is in its body: the handler checks each call.
        true
    }

    fn form(&self, _head: Head<'_>) -> Form {
        Box::new(|problem, request_id| {
            let mut response = problem.answer(request_id);
            let code = match problem.code() {
                Code::InvalidJson => PARSE_ERROR,
                _ if response.status().is_server_error() => INTERNAL_ERROR,
                _ => INVALID_REQUEST,
            };
            let error = json!({"code": code, "message": problem.detail(), "data": problem.body(request_id)});
            *response.body_mut() = Body::from(json!({"jsonrpc": "2.0", "error": error}).to_string());
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        })
    }

    fn router(&self) -> Router {
        Router::new().route(PATH, any(answer)).with_state(Arc::clone(&self.0))
    }
}

async fn answer(State(endpoint): State<Arc<Endpoint>>, mut request: Request) -> Response {
    let offer = match Offer::parse(request.uri().query().unwrap_or_default()) {
        Ok(offer) => offer,
        Err(problem) => return problem.into_response(),
    };
    let is_conformance = offer.profile == Profile::Conformance;
    if is_conformance {
        let caller = request.extensions().get::<Caller>();
        let refused = match caller.map(|caller| endpoint.keeper.require(caller, action::TOOL_FIXTURES)) {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Problem::from(error)),
            None => Some(Problem::new(Code::Unauthenticated, "missing or invalid key")),
        };
        if let Some(refused) = refused {
            return refused.into_response();
        }
    }
    request.extensions_mut().insert(offer);
    let request = count_collected(request);
    let mut response = match is_conformance {
        true => endpoint.fixtures.handle(request).await,
        false => endpoint.tools.handle(request).await,
    };
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    } else if !response.status().is_success() && kind.is_none() {
        return to_problem(response).await.into_response();
    }
    response.map(Body::new)
}

/// Converts a refusal of the transport, which is plain text, to a problem.
async fn to_problem<B>(response: http::Response<B>) -> Problem
where
    B: http_body::Body<Error = std::convert::Infallible>,
{
    let status = response.status();
    let Ok(body) = response.into_body().collect().await;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    // The transport has this status for a body that is no message, too.
    if status == StatusCode::UNSUPPORTED_MEDIA_TYPE && text.starts_with(NO_MESSAGE) {
        return Problem::new(Code::InvalidJson, format!("the body is not a message of JSON-RPC: {text}"));
    }
    let code = match status {
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        StatusCode::PAYLOAD_TOO_LARGE => {
            let detail = format!(
                "the message is larger than {MAX_MESSAGE_BYTES} bytes; write large content to a file in parts"
            );
            return Problem::new(Code::TooLarge, detail);
        }
        status if status.is_server_error() => Code::Internal,
        _ => Code::InvalidRequest,
    };
    Problem::new(code, text).with_status(status)
}
