//! Shells that remember.

use belljar_engine::v1;
use belljar_keeper::CODE_DIGEST;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, StreamMessage};
use sha2::{Digest as _, Sha256};

use super::super::call::Inside;
use super::process::with_own_env;
use super::relay::stream;
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
        self.0.keeper.admit(&inside.call.caller).map_err(|error| inside.call.failed(error))?;
        with_own_env(&inside, &mut request.env);
        let guest = inside.guest(v1::SessionClient::new);
        let answer = inside.answered(About::Session, guest.open(request)).await;
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
        let digest = Sha256::digest(&request.command);
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let details = vec![(CODE_DIGEST, digest), ("session", request.id.to_string())];
        let guest = inside.streams(v1::SessionClient::new);
        let opened = inside.opened(About::Session, guest.run(request)).await;
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
        let details = vec![("session", request.id.to_string())];
        let guest = inside.guest(v1::SessionClient::new);
        let answer = inside.answered(About::Session, guest.close(request)).await;
        Response::ok(inside.recorded("session.close", details, answer).await?.into_owned())
    }
}
