//! Forwarding of operations to the guest.

use std::io;

use belljar_engine::GuestError;
use belljar_keeper::operation::{Opened, Operation, Pieces};
use belljar_keeper::{Entered, KeeperError};
use belljar_proto::{ConnectError, HasMessageView, InboundStream, RequestContext, ServiceStream};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};

use super::super::call::Call;
use super::super::error::guest_error;
use crate::guard::StreamSlot;

impl Call {
    /// Converts an error of the keeper or the guest. An error in the caller's own stream is returned as it is.
    pub(super) fn operation_error(&self, error: KeeperError) -> ConnectError {
        let KeeperError::Guest { source, .. } = &error else { return self.keeper_error(error) };
        if let GuestError::Source(broken) = source
            && let Some(own) = broken.get_ref().and_then(|error| error.downcast_ref::<ConnectError>())
        {
            return own.clone();
        }
        guest_error(error, &self.caller.request_id)
    }

    /// Converts an error in the caller's messages.
    fn stream_error(&self, error: io::Error) -> ConnectError {
        self.operation_error(GuestError::Source(error).into())
    }

    /// Enters the sandbox, or the volume, that the header names.
    pub(super) async fn enter(&self, context: &RequestContext) -> Result<Entered, ConnectError> {
        let keeper = &self.shared.keeper;
        let entered = match self.volume(context)? {
            Some(volume) => keeper.enter_volume(&self.caller, &volume).await,
            None => keeper.enter(&self.caller, &self.sandbox(context)?).await,
        };
        entered.map_err(|error| self.keeper_error(error))
    }

    /// Performs an operation in the sandbox, or on the files of the volume, that the header names.
    pub(super) async fn perform<O: Operation>(
        self,
        context: &RequestContext,
        operation: O,
    ) -> Result<O::Response, ConnectError> {
        Ok(self.open(context, operation).await?.into_answer())
    }

    /// Begins an operation whose response may be a stream.
    pub(super) async fn open<O: Operation>(
        &self,
        context: &RequestContext,
        operation: O,
    ) -> Result<Opened<O::Response>, ConnectError> {
        let keeper = &self.shared.keeper;
        let opened = match self.volume(context)? {
            Some(volume) => match keeper.enter_volume(&self.caller, &volume).await {
                Ok(entered) => keeper.begin_in(&self.caller, &entered, operation).await,
                Err(error) => Err(error),
            },
            None => keeper.begin(&self.caller, &self.sandbox(context)?, operation).await,
        };
        opened.map_err(|error| self.operation_error(error))
    }

    /// Forwards the pieces of a response, each as a message, between the first and the last message.
    pub(super) fn relay<A, T>(
        &self,
        slot: StreamSlot,
        opened: Opened<A>,
        first: Option<T>,
        message: impl Fn(A::Piece) -> T + Send + 'static,
        last: impl FnOnce(&A) -> Option<T> + Send + 'static,
    ) -> ServiceStream<T>
    where
        A: Pieces + Sync + 'static,
        T: Send + 'static,
    {
        self.until_stopped(slot, self.messages(opened, first, message, last))
    }

    /// Returns the messages that [`Self::relay`] forwards.
    pub(super) fn messages<A, T>(
        &self,
        mut opened: Opened<A>,
        first: Option<T>,
        message: impl Fn(A::Piece) -> T + Send + 'static,
        last: impl FnOnce(&A) -> Option<T> + Send + 'static,
    ) -> impl Stream<Item = Result<T, ConnectError>> + Send + 'static
    where
        A: Pieces + Sync + 'static,
        T: Send + 'static,
    {
        let call = self.clone();
        async_stream::stream! {
            if let Some(first) = first {
                yield Ok(first);
            }
            loop {
                match opened.next().await {
                    Ok(Some(piece)) => yield Ok(message(piece)),
                    Ok(None) => break,
                    Err(error) => {
                        yield Err(call.operation_error(error));
                        return;
                    }
                }
            }
            if let Some(last) = last(opened.get()) {
                yield Ok(last);
            }
        }
    }
}

/// Returns the caller's messages. A failure to receive one is an error of the stream.
pub(super) fn messages<M>(inbound: InboundStream<M>) -> impl Stream<Item = io::Result<M>> + Send + 'static
where
    M: HasMessageView + Send + 'static,
{
    inbound.map(|message| Ok(message.map_err(io::Error::other)?.to_owned_message()))
}

impl Call {
    /// Performs an operation on uploaded data. The first message has the parameters, and each message has data.
    pub(super) async fn upload<M, Open, O>(
        self,
        context: &RequestContext,
        inbound: InboundStream<M>,
        parts: fn(M) -> (Option<Open>, Bytes),
        operation: impl FnOnce(Open, BoxStream<'static, io::Result<Bytes>>) -> O,
    ) -> Result<O::Response, ConnectError>
    where
        M: HasMessageView + Send + 'static,
        Open: Send + 'static,
        O: Operation,
    {
        let _slot = self.slot()?;
        // Permission is checked before anything is read.
        let entered = self.enter(context).await?;
        let mut messages = Box::pin(messages(inbound));
        let first = match messages.next().await {
            Some(first) => parts(first.map_err(|error| self.stream_error(error))?),
            None => (None, Bytes::new()),
        };
        let (Some(open), data) = first else {
            return Err(self.field("open", "missing in the first message"));
        };
        let call = self.clone();
        let rest = messages.map(move |message| match parts(message?) {
            (None, data) => Ok(data),
            (Some(_), _) => Err(io::Error::other(call.field("open", "allowed in the first message only"))),
        });
        let content = futures::stream::iter([Ok(data)]).chain(rest).boxed();
        let done = self.shared.keeper.perform_in(&self.caller, &entered, operation(open, content)).await;
        done.map_err(|error| self.operation_error(error))
    }
}
