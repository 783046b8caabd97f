//! The service `Ports`.

use belljar_engine::v1;
use belljar_keeper::GuestResource;
use belljar_keeper::operation::Connect;
use belljar_proto::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream,
};
use futures::StreamExt as _;
use tokio_util::task::AbortOnDropHandle;

use super::super::call::Call;
use crate::api::Shared;

/// The service `Ports`, forwarded to the guest.
pub(in super::super) struct Ports(pub(in super::super) Shared);

impl v1::Ports for Ports {
    async fn tunnel(
        &self,
        context: RequestContext,
        mut requests: InboundStream<v1::TunnelRequest>,
    ) -> ServiceResult<ServiceStream<v1::TunnelResponse>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        // Permission is checked before anything is read.
        let entered = call.enter(&context).await?;
        let Some(first) = requests.next().await else {
            return Err(call.field("port", "missing in the first message"));
        };
        let first = first?.to_owned_message();
        let port = u16::try_from(first.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| {
            call.field("port", format!("{} is not allowed; give 1 to 65535 in the first message", first.port))
        })?;
        let connected = call.shared.keeper.perform_in(&call.caller, &entered, Connect(port)).await;
        let tunnel = connected.map_err(|error| call.operation_error(error))?;
        let (mut to_guest, mut from_guest) = tunnel.into_halves();
        // A task of its own, since the two directions are independent: data from the guest must not block the caller's.
        let mut sending = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut next = Some(Ok(first));
            while let Some(message) = next {
                let v1::TunnelRequest { data, .. } = message?;
                // The guest's errors arrive in the other direction.
                if !data.is_empty()
                    && to_guest.send(v1::TunnelRequest { data, ..Default::default() }).await.is_err()
                {
                    return Ok(());
                }
                next = requests.next().await.map(|message| message.map(|message| message.to_owned_message()));
            }
            to_guest.close_send();
            Ok::<_, ConnectError>(())
        }));
        let failed_in = call.clone();
        let carried = async_stream::stream! {
            let mut sends = true;
            loop {
                let received = tokio::select! {
                    biased;
                    received = belljar_engine::receive_from(&mut from_guest) => received,
                    sent = &mut sending, if sends => match sent {
                        Ok(Err(error)) => {
                            yield Err(error);
                            break;
                        }
                        _ => {
                            sends = false;
                            continue;
                        }
                    },
                };
                match received {
                    Ok(Some(data)) => yield Ok(v1::TunnelResponse { data, ..Default::default() }),
                    Ok(None) => break,
                    Err(error) => {
                        yield Err(failed_in.operation_error(entered.explain_about(error, GuestResource::Port).await));
                        break;
                    }
                }
            }
        };
        Response::ok(call.until_stopped(slot, carried))
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListPortsRequest>,
    ) -> ServiceResult<v1::ListPortsResponse> {
        let tcp = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        let tcp = tcp.into_iter().map(u32::from).collect();
        Response::ok(v1::ListPortsResponse { tcp, ..Default::default() })
    }
}
