//! The service `Process`.

use std::pin::pin;

use belljar_engine::{Execution, ProcessEvent, v1};
use belljar_keeper::operation::{Feed, Operation};
use belljar_keeper::{Caller, RunEvent};
use belljar_model::Approval;
use belljar_proto::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::StreamExt as _;
use v1::__buffa::oneof::process_event::Event;

use super::super::call::Call;
use super::super::convert;
use super::relay::messages;
use crate::api::Shared;

/// The service `Process`, forwarded to the guest.
pub(in super::super) struct Process(pub(in super::super) Shared);

impl v1::Process for Process {
    async fn start(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::StartRequest>,
    ) -> ServiceResult<ServiceStream<v1::ProcessEvent>> {
        let request = request.to_owned_message();
        let waits = context.extensions().get::<Caller>().is_some_and(|one| one.approval != Approval::Never);
        Response::ok(match waits {
            true => start_approved(&self.0, &context, request).await?,
            false => start_stream(&self.0, &context, request).await?,
        })
    }

    async fn attach(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::AttachRequest>,
    ) -> ServiceResult<ServiceStream<v1::ProcessEvent>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let opened = call.open(&context, request.to_owned_message()).await?;
        Response::ok(call.relay(slot, opened, None, to_message, |_| None))
    }

    async fn input(
        &self,
        context: RequestContext,
        requests: InboundStream<v1::InputRequest>,
    ) -> ServiceResult<v1::InputResponse> {
        let call = Call::new(&self.0, &context)?;
        let _slot = call.slot()?;
        let bytes = call.perform(&context, Feed(messages(requests).boxed())).await?;
        Response::ok(v1::InputResponse { bytes, ..Default::default() })
    }

    async fn signal(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SignalRequest>,
    ) -> ServiceResult<v1::SignalResponse> {
        let signalled = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::SignalResponse { signalled, ..Default::default() })
    }

    async fn resize(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ResizeRequest>,
    ) -> ServiceResult<v1::ResizeResponse> {
        Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::ResizeResponse::default())
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListProcessesRequest>,
    ) -> ServiceResult<v1::ListProcessesResponse> {
        let processes = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::ListProcessesResponse { processes, ..Default::default() })
    }
}

/// Starts a process or a command of a session, and streams its events.
pub(super) async fn start_stream<O: Operation<Response = Execution>>(
    shared: &Shared,
    context: &RequestContext,
    operation: O,
) -> Result<ServiceStream<v1::ProcessEvent>, ConnectError> {
    let call = Call::new(shared, context)?;
    let slot = call.slot()?;
    let opened = call.open(context, operation).await?;
    let Execution { id, pid, .. } = *opened.get();
    let first = to_message(ProcessEvent::Started { id, pid });
    Ok(call.relay(slot, opened, Some(first), to_message, |_| None))
}

/// Starts a process once it is approved, and streams its events.
async fn start_approved(
    shared: &Shared,
    context: &RequestContext,
    request: v1::StartRequest,
) -> Result<ServiceStream<v1::ProcessEvent>, ConnectError> {
    let call = Call::new(shared, context)?;
    let slot = call.slot()?;
    let entered = call.enter(context).await?;
    let mut run = shared.keeper.stream_start(&call.caller, &entered, request);
    // An immediate refusal is the response itself.
    run.begun().await.map_err(|error| call.operation_error(error))?;
    let starting = call.clone();
    let events = async_stream::stream! {
        while let Some(next) = run.next().await {
            match next {
                RunEvent::Waiting(waiting) => {
                    let event = convert::waiting(waiting).into();
                    yield Ok(v1::ProcessEvent { event, ..Default::default() });
                }
                RunEvent::Queued | RunEvent::Progress(()) => {}
                RunEvent::Ended(Ok(opened)) => {
                    let Execution { id, pid, .. } = *opened.get();
                    let first = to_message(ProcessEvent::Started { id, pid });
                    let mut messages = pin!(starting.messages(opened, Some(first), to_message, |_| None));
                    while let Some(message) = messages.next().await {
                        yield message;
                    }
                }
                RunEvent::Ended(Err(error)) => yield Err(starting.operation_error(error)),
            }
        }
    };
    Ok(call.until_stopped(slot, events))
}

fn to_message(event: ProcessEvent) -> v1::ProcessEvent {
    let event = match event {
        ProcessEvent::Started { id, pid } => Event::from(v1::Started { id, pid, ..Default::default() }),
        ProcessEvent::Output { stream, offset, data } => {
            Event::from(v1::Output { stream: stream.into(), offset, data, ..Default::default() })
        }
        ProcessEvent::Exited(exited) => Event::from(exited),
    };
    v1::ProcessEvent { event: Some(event), ..Default::default() }
}
