//! The single-request endpoints of E2B's daemon in a sandbox: their routing, and what they report about the sandbox.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use belljar_keeper::PortAccess;
use belljar_model::{SandboxId, SandboxState};
use http::{Method, StatusCode};

use super::E2b;
use super::access::Head;
use super::entry::SandboxCall;
use super::error::{self, Plain, Refusal, json_answer};
use super::types::Metric;
use super::{access, connect, files, filesystem, process};
use crate::api::Shared;
use crate::guard::PortHost;
use crate::problem::{Code, Problem};
use crate::proxy;

/// Answers a request to the daemon.
pub(super) async fn answer(shared: &E2b, id: &SandboxId, request: Request) -> Response {
    let path = request.uri().path();
    if connect::is_procedure(path) {
        return answer_call(shared, id, request).await;
    }
    match (request.method(), path) {
        (&Method::GET, "/health") => health(shared, id),
        (_, "/files") => files::answer(shared, Some(id), request).await,
        (&Method::GET, "/metrics") => metrics(shared, id, request).await.unwrap_or_else(|refused| refused.0),
        (&Method::GET, "/envs") => environment(shared, id, request).await.unwrap_or_else(|refused| refused.0),
        _ => error::plain(&Problem::new(Code::NotFound, "no such endpoint")),
    }
}

/// Reports whether the sandbox runs. Needs no token, and reveals nothing else.
pub(super) fn health(shared: &E2b, id: &SandboxId) -> Response {
    match shared.keeper.state_of(id) {
        Some(SandboxState::Creating | SandboxState::Running) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        _ => error::sandbox_missing(id.as_str()),
    }
}

async fn metrics(shared: &E2b, id: &SandboxId, request: Request) -> Result<Response, Plain> {
    let caller = access::caller(shared, id, Head::from_request(&request)).await?;
    let found = async {
        let info = shared.keeper.get(&caller, id.as_str()).await?;
        Ok((shared.keeper.metrics(&caller, id.as_str()).await?, info))
    };
    let (metrics, info) = found.await.map_err(|error| Plain::from_keeper(id.as_str(), error))?;
    Ok(json_answer(StatusCode::OK, &Metric::new(&info, &metrics).to_envd()))
}

async fn environment(shared: &E2b, id: &SandboxId, request: Request) -> Result<Response, Plain> {
    let caller = access::caller(shared, id, Head::from_request(&request)).await?;
    let info = shared
        .keeper
        .get(&caller, id.as_str())
        .await
        .map_err(|error| Plain::from_keeper(id.as_str(), error))?;
    let variables = info.spec.env.iter().map(|variable| (variable.name(), variable.value()));
    let variables: std::collections::BTreeMap<_, _> = variables.collect();
    Ok(json_answer(StatusCode::OK, &variables))
}

/// Answers a call of Connect.
async fn answer_call(shared: &E2b, id: &SandboxId, mut request: Request) -> Response {
    let is_stream = connect::is_stream(request.headers());
    if request.method() != Method::POST {
        return Refusal::invalid("a call is sent with POST").answer(is_stream);
    }
    let answered = async {
        // A missing sandbox is reported first: its token has expired with it.
        if shared.keeper.state_of(id).is_none() {
            return Err(Refusal::Missing(id.to_string()));
        }
        let caller = access::caller_with_body(shared, id, &mut request).await?;
        let path = request.uri().path().to_owned();
        let procedure = path.strip_prefix("/process.Process/");
        let entered = shared.keeper.enter(&caller, id.as_str()).await;
        let entered = entered.map_err(|error| Refusal::from_keeper(id.as_str(), error))?;
        if procedure != Some("Start") || !entered.spec().machine {
            access::check_user(access::user(request.headers()).as_deref())?;
        }
        let call = SandboxCall { shared, caller: &caller, entered: &entered };
        match procedure {
            Some(procedure) => process::answer(&call, procedure, request).await,
            None => filesystem::answer(&call, path.rsplit('/').next().unwrap_or_default(), request).await,
        }
    };
    let answered: Result<Response, Refusal> = answered.await;
    answered.unwrap_or_else(|refusal| refusal.answer(is_stream))
}

/// Forwards a request to any other port, and reports failures as E2B's proxy does. Ports may be public; else the sandbox's token opens
/// every port, and without it only published ports are open.
pub(super) async fn other_port(shared: E2b, host: PortHost, request: Request) -> Response {
    let (id, port) = (host.id.clone(), host.port);
    let Some(ports) = shared.keeper.port_settings(&id) else { return error::sandbox_missing(id.as_str()) };
    let is_public = access::has_public_ports(&shared, &id);
    let refuse = |problem: &Problem| match problem.code() {
        Code::Unauthenticated if ports.access != PortAccess::Published => error::traffic_refused(id.as_str()),
        _ => error::plain(problem),
    };
    let mut response = if port != 0 && (is_public || access::token(request.headers()).is_some()) {
        let entered = if is_public {
            shared.keeper.enter_public(&id).await
        } else {
            match access::caller(&shared, &id, Head::from_request(&request)).await {
                Ok(caller) => shared.keeper.enter(&caller, id.as_str()).await,
                Err(problem) => return refuse(&problem),
            }
        };
        match entered {
            Ok(entered) => proxy::to_port(&shared, entered, port, request).await,
            Err(error) => return Plain::from_keeper(id.as_str(), error).0,
        }
    } else {
        proxy::by_host(Shared::clone(&shared), host, request).await
    };
    match response.extensions_mut().remove::<Problem>() {
        Some(problem) if problem.code() == Code::PortNotOpen => error::port_closed(id.as_str(), port),
        Some(problem) if problem.code() == Code::SandboxGone => error::sandbox_missing(id.as_str()),
        Some(problem) => refuse(&problem),
        None => response,
    }
}
