//! Processes.

use belljar_engine::v1;
use belljar_keeper::CODE_DIGEST;
use belljar_proto::{
    InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, StreamMessage,
};
use sha2::{Digest as _, Sha256};

use super::super::call::Inside;
use super::relay::{stream, upload, uploaded};
use crate::api::Shared;
use crate::refusal::About;

/// The service `Process`, passed on.
pub(in super::super) struct Process(pub(in super::super) Shared);

/// The sandbox's own environment is the keeper's to know; what the caller adds comes after it and wins.
pub(super) fn with_own_env(inside: &Inside, env: &mut Vec<v1::EnvVar>) {
    let own = inside.entered.spec().env.clone();
    let variable = |variable: belljar_model::EnvVar| v1::EnvVar {
        name: variable.name().as_bytes().to_vec().into(),
        value: variable.value().as_bytes().to_vec().into(),
        ..Default::default()
    };
    env.splice(0..0, own.into_iter().map(variable));
}

impl v1::Process for Process {
    async fn start(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::StartRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::ProcessEvent>>> {
        let mut request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        with_own_env(&inside, &mut request.env);
        self.0.keeper.admit(&inside.call.caller).map_err(|error| inside.call.failed(error))?;
        let details = vec![(CODE_DIGEST, command_digest(&request))];
        let opened = inside.opened(About::File, inside.streams(v1::ProcessClient::new).start(request)).await;
        let opened = inside.recorded("exec.start", details, opened).await?;
        Response::ok(stream!(inside, About::File, v1::ProcessEvent, opened))
    }

    async fn attach(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::AttachRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::ProcessEvent>>> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.streams(v1::ProcessClient::new);
        let opened = inside.opened(About::Process, guest.attach(request)).await?;
        Response::ok(stream!(inside, About::Process, v1::ProcessEvent, opened))
    }

    async fn input(
        &self,
        context: RequestContext,
        requests: InboundStream<v1::InputRequest>,
    ) -> ServiceResult<v1::InputResponse> {
        let inside = Inside::of(&self.0, &context).await?;
        let _slot = inside.call.slot()?;
        let (messages, broken) = upload(requests, |_| {});
        let guest = inside.streams(v1::ProcessClient::new);
        let answer = uploaded(broken, guest.input(Box::pin(messages))).await?;
        Response::ok(inside.answered(About::Process, async { answer }).await?.into_owned())
    }

    async fn signal(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SignalRequest>,
    ) -> ServiceResult<v1::SignalResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let details = vec![("process", request.id.to_string()), ("signal", request.signal.to_string())];
        let guest = inside.guest(v1::ProcessClient::new);
        let answer = inside.answered(About::Process, guest.signal(request)).await;
        Response::ok(inside.recorded("process.signal", details, answer).await?.into_owned())
    }

    async fn resize(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ResizeRequest>,
    ) -> ServiceResult<v1::ResizeResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::ProcessClient::new);
        Response::ok(inside.answered(About::Process, guest.resize(request)).await?.into_owned())
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListProcessesRequest>,
    ) -> ServiceResult<v1::ListProcessesResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::ProcessClient::new);
        Response::ok(inside.answered(About::Process, guest.list(request)).await?.into_owned())
    }
}

/// SHA-256 over what is run and what it is fed first, each part with its length before it: as the keeper does it for
/// the commands that it runs.
fn command_digest(request: &v1::StartRequest) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    if request.shell.is_empty() {
        part(b"argv");
        request.argv.iter().for_each(|argument| part(argument));
    } else {
        part(b"shell");
        part(&request.shell);
    }
    part(&request.stdin);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
