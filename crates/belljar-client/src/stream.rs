//! Streams of messages from a server.

use std::sync::Arc;

use belljar_proto::{ConnectError, HasMessageView, JsonDeserialize, MessageView, ServerStream};

use crate::error::ClientError;

/// Stream of messages that the server sends in response to one. The call ends when this is dropped.
pub struct Messages<M: HasMessageView> {
    stream: Box<ServerStream<M::View<'static>>>,
    first: Option<M>,
    target: Arc<str>,
}

impl<M> Messages<M>
where
    M: HasMessageView + JsonDeserialize,
    M::View<'static>: MessageView<'static, Owned = M>,
{
    pub(crate) fn new(stream: ServerStream<M::View<'static>>, target: Arc<str>) -> Self {
        Self { stream: Box::new(stream), first: None, target }
    }

    /// Waits for the first message: an error of the request arrives in its place.
    pub(crate) async fn wait_for_first(mut self) -> Result<Self, ConnectError> {
        self.first = self.message().await?;
        Ok(self)
    }

    /// Returns the next message, or `None` after the last.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<M>, ClientError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        self.message().await.map_err(|error| ClientError::new(&self.target, error))
    }

    async fn message(&mut self) -> Result<Option<M>, ConnectError> {
        match self.stream.message::<M>().await? {
            Some(message) => Ok(Some(message.to_owned_message())),
            None => self.stream.error().cloned().map_or(Ok(None), Err),
        }
    }
}
