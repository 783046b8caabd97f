//! Sessions.

use belljar_engine::v1;
use belljar_keeper::CODE_DIGEST;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, StreamMessage};

use super::super::call::Inside;
use super::relay::{digest, stream};
use crate::api::Shared;
use crate::refusal::About;

/// The service `Session`, passed on.
pub(in super::super) struct Session(pub(in super::super) Shared);

impl v1::Session for Session {
    async fn open(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SessionOpen>,
    ) -> ServiceResult<v1::SessionOpened> {
        let mut request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        request.env = inside.with_own_env(std::mem::take(&mut request.env));
        let guest = inside.guest(v1::SessionClient::new);
        let answer = inside.answered(About::File, guest.open(request)).await;
        Response::ok(inside.recorded("session.open", Vec::new(), answer).await?.into_owned())
    }

    async fn run(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SessionRun>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::ProcessEvent>>> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        self.0.keeper.admit(&inside.call.caller).map_err(|error| inside.call.failed(error))?;
        let details = vec![
            ("session", request.id.to_string()),
            (CODE_DIGEST, digest([b"session".as_slice(), &request.command])),
        ];
        let opened = inside.opened(About::Session, inside.streams(v1::SessionClient::new).run(request)).await;
        let opened = inside.recorded("exec.start", details, opened).await?;
        Response::ok(stream!(inside, About::Session, v1::ProcessEvent, opened))
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListSessionsRequest>,
    ) -> ServiceResult<v1::ListSessionsResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::SessionClient::new);
        Response::ok(inside.answered(About::Session, guest.list(request)).await?.into_owned())
    }

    async fn close(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SessionClose>,
    ) -> ServiceResult<v1::SessionClosed> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::SessionClient::new);
        let details = vec![("session", request.id.to_string())];
        let answer = inside.answered(About::Session, guest.close(request)).await;
        Response::ok(inside.recorded("session.close", details, answer).await?.into_owned())
    }
}
