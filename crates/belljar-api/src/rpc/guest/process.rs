//! Processes.

use belljar_engine::v1;
use belljar_keeper::CODE_DIGEST;
use belljar_proto::{
    InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, StreamMessage,
};

use super::super::call::Inside;
use super::relay::{digest, stream, upload, uploaded};
use crate::api::Shared;
use crate::refusal::About;

/// The service `Process`, passed on.
pub(in super::super) struct Process(pub(in super::super) Shared);

impl v1::Process for Process {
    async fn start(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::StartRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::ProcessEvent>>> {
        let mut request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        request.env = inside.with_own_env(std::mem::take(&mut request.env));
        self.0.keeper.admit(&inside.call.caller).map_err(|error| inside.call.failed(error))?;
        let details = vec![(CODE_DIGEST, command_digest(&request))];
        let opened = inside.opened(About::File, inside.streams(v1::ProcessClient::new).start(request)).await;
        let opened = inside.recorded("exec.start", details, opened).await?;
        let mut process = None;
        let mut look = move |inside: &Inside, event: &StreamMessage<v1::ProcessEvent>| {
            inside.entered.observe(&mut process, &event.to_owned_message());
        };
        Response::ok(stream!(inside, About::File, v1::ProcessEvent, opened, look))
    }

    async fn attach(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::AttachRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::ProcessEvent>>> {
        let request = request.to_owned_message();
        let id = request.id;
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.streams(v1::ProcessClient::new);
        let opened = inside.opened(About::Process, guest.attach(request)).await?;
        let mut process = Some(id);
        let mut look = move |inside: &Inside, event: &StreamMessage<v1::ProcessEvent>| {
            inside.entered.observe(&mut process, &event.to_owned_message());
        };
        Response::ok(stream!(inside, About::Process, v1::ProcessEvent, opened, look))
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

/// Of what is run and what it is fed first: as the keeper does it for the commands that it runs.
fn command_digest(request: &v1::StartRequest) -> String {
    let (kind, parts) = match request.shell.is_empty() {
        true => (b"argv".as_slice(), request.argv.as_slice()),
        false => (b"shell".as_slice(), std::slice::from_ref(&request.shell)),
    };
    let parts = parts.iter().map(|part| part.as_ref());
    digest(std::iter::once(kind).chain(parts).chain(std::iter::once(request.stdin.as_ref())))
}
