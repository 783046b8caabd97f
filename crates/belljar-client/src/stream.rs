//! Messages that a server sends one after the other.

use std::sync::Arc;

use belljar_proto::{HasMessageView, JsonDeserialize, MessageView, ServerStream};

use crate::error::ClientError;

/// Messages that the server sends in answer to one. The call ends when this is dropped.
pub struct Messages<M: HasMessageView> {
    stream: Box<ServerStream<M::View<'static>>>,
    target: Arc<str>,
}

impl<M> Messages<M>
where
    M: HasMessageView + JsonDeserialize,
    M::View<'static>: MessageView<'static, Owned = M>,
{
    pub(crate) fn new(stream: ServerStream<M::View<'static>>, target: Arc<str>) -> Self {
        Self { stream: Box::new(stream), target }
    }

    /// The next message; `None` after the last.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<M>, ClientError> {
        match self.stream.message::<M>().await {
            Ok(Some(message)) => Ok(Some(message.to_owned_message())),
            Ok(None) => match self.stream.error() {
                Some(error) => Err(ClientError::new(&self.target, error.clone())),
                None => Ok(None),
            },
            Err(error) => Err(ClientError::new(&self.target, error)),
        }
    }
}
