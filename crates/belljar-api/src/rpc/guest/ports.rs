//! Ports.

use belljar_engine::v1;
use belljar_proto::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
    StreamMessage,
};
use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use super::super::call::Inside;
use crate::api::Shared;
use crate::refusal::About;

/// The service `Ports`, passed on.
pub(in super::super) struct Ports(pub(in super::super) Shared);

impl v1::Ports for Ports {
    async fn tunnel(
        &self,
        context: RequestContext,
        mut requests: InboundStream<v1::TunnelRequest>,
    ) -> ServiceResult<ServiceStream<StreamMessage<v1::TunnelResponse>>> {
        let inside = Inside::of(&self.0, &context).await?;
        let slot = inside.call.slot()?;
        let call = inside.call.clone();
        let opened = inside.opened(About::Port, inside.streams(v1::PortsClient::new).tunnel()).await?;
        let (mut to_guest, mut from_guest) = opened.into_split();
        // On its own, as in a connection: who only sends for a while is not to stand still because the other side sends.
        let mut sending = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Some(message) = requests.next().await {
                let message = message.map_err(Broken::Caller)?;
                to_guest.send(message.to_owned_message()).await.map_err(Broken::Guest)?;
            }
            to_guest.close_send();
            Ok(())
        }));
        let carried = async_stream::stream! {
            let mut sends = true;
            loop {
                let received = tokio::select! {
                    biased;
                    received = from_guest.message::<v1::TunnelResponse>() => received,
                    sent = &mut sending, if sends => match sent {
                        Ok(Err(Broken::Caller(error))) => {
                            yield Err(error);
                            break;
                        }
                        // What the guest has to say comes the other way.
                        _ => {
                            sends = false;
                            continue;
                        }
                    },
                };
                let error = match received {
                    Ok(Some(message)) => {
                        yield Ok(message);
                        continue;
                    }
                    Ok(None) => from_guest.error().cloned(),
                    Err(error) => Some(error),
                };
                if let Some(error) = error {
                    yield Err(inside.explain(error, About::Port).await.into());
                }
                break;
            }
        };
        Response::ok(call.until_stopped(slot, carried))
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListPortsRequest>,
    ) -> ServiceResult<v1::ListPortsResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::PortsClient::new);
        Response::ok(inside.answered(About::Port, guest.list(request)).await?.into_owned())
    }
}

/// Which side broke the way to the guest.
enum Broken {
    Caller(ConnectError),
    Guest(#[expect(dead_code, reason = "the guest's own words come with its answer")] ConnectError),
}
