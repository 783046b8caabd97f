//! How calls and streams are passed on.

use std::time::Duration;

use belljar_engine::{GuestError, v1};
use belljar_proto::{ClientConfig, ConnectError, Connection, InboundStream, RequestContext, client_config};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::super::call::{Call, Inside};
use super::super::error::of_guest;
use crate::api::Shared;
use crate::refusal::About;

/// How long a guest may take to answer a call that does not stream.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A guest's refusal, as its caller gets it, and its name for the audit trail.
pub(super) struct Refused {
    error: ConnectError,
    code: &'static str,
}

impl From<Refused> for ConnectError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

impl Inside {
    /// Goes in to the sandbox that the call names.
    pub(super) async fn of(shared: &Shared, context: &RequestContext) -> Result<Self, ConnectError> {
        Call::of(shared, context)?.enter(context).await
    }

    /// A client of the guest for calls that do not stream.
    pub(super) fn guest<C>(&self, new: impl FnOnce(Connection, ClientConfig) -> C) -> C {
        new(self.entered.guest().connection().clone(), client_config(Some(CALL_TIMEOUT)))
    }

    /// A client of the guest for calls that stream.
    pub(super) fn streams<C>(&self, new: impl FnOnce(Connection, ClientConfig) -> C) -> C {
        new(self.entered.guest().connection().clone(), client_config(None))
    }

    /// The environment of something that is started: the sandbox's own, which its guest may not know if it was made
    /// ahead, and what was asked for, which wins.
    pub(super) fn with_own_env(&self, asked: Vec<v1::EnvVar>) -> Vec<v1::EnvVar> {
        let own = self.entered.spec().env.iter().map(|variable| v1::EnvVar {
            name: Bytes::copy_from_slice(variable.name().as_bytes()),
            value: Bytes::copy_from_slice(variable.value().as_bytes()),
            ..Default::default()
        });
        own.chain(asked).collect()
    }

    /// What a guest's error means to the caller.
    pub(super) async fn explain(&self, error: ConnectError, about: About) -> Refused {
        let explained = self.entered.explain(GuestError::from(error)).await;
        let code = explained.code();
        Refused { error: of_guest(explained, about, &self.call.caller.request_id), code }
    }

    /// The answer, or what the guest's error means.
    pub(super) async fn answered<T>(
        &self,
        about: About,
        answer: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, Refused> {
        match answer.await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.explain(error, about).await),
        }
    }

    /// Opens a stream of the guest, within a time.
    pub(super) async fn opened<T>(
        &self,
        about: About,
        opening: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, Refused> {
        let opening = tokio::time::timeout(CALL_TIMEOUT, opening);
        let late = || ConnectError::deadline_exceeded("the guest does not answer in time");
        self.answered(about, async { opening.await.unwrap_or_else(|_| Err(late())) }).await
    }

    /// Writes what was done to the audit trail, and hands on what came of it.
    pub(super) async fn recorded<T>(
        &self,
        action: &'static str,
        details: Vec<(&'static str, String)>,
        answer: Result<T, Refused>,
    ) -> Result<T, ConnectError> {
        let outcome = answer.as_ref().map_or_else(|refused| refused.code, |_| "ok");
        self.call.record(action, self.entered.id(), outcome, details).await?;
        Ok(answer?)
    }
}

/// SHA-256 over the parts of what is run, each with its length before it, in hexadecimal.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Passes a guest's stream on to the caller.
macro_rules! stream {
    ($inside:expr, $about:expr, $message:ty, $stream:expr) => {{
        let look = |_: &Inside, _: &_| {};
        stream!($inside, $about, $message, $stream, look)
    }};
    // `look` sees each message on its way.
    ($inside:expr, $about:expr, $message:ty, $stream:expr, $look:ident) => {{
        let inside = $inside;
        let mut stream = $stream;
        let slot = inside.call.slot()?;
        let call = inside.call.clone();
        let messages = async_stream::stream! {
            loop {
                let error = match stream.message::<$message>().await {
                    Ok(Some(message)) => {
                        $look(&inside, &message);
                        yield Ok(message);
                        continue;
                    }
                    Ok(None) => stream.error().cloned(),
                    Err(error) => Some(error),
                };
                if let Some(error) = error {
                    yield Err(inside.explain(error, $about).await.into());
                }
                break;
            }
        };
        call.until_stopped(slot, messages)
    }};
}
pub(super) use stream;

/// The caller's messages on their way to the guest, and what broke that stream.
///
/// A stream that breaks must not look like one that ends: it stands still then, and the call is given up by
/// [`uploaded`], so that the guest gives up what it has begun.
pub(super) fn upload<Request>(
    inbound: InboundStream<Request>,
    look: impl FnMut(&Request) + Send + 'static,
) -> (impl Stream<Item = Request> + Send + 'static, oneshot::Receiver<ConnectError>)
where
    Request: belljar_proto::HasMessageView + Send + 'static,
{
    let (broke, broken) = oneshot::channel();
    let state = (inbound, Some(broke), look);
    let messages = futures::stream::unfold(state, |(mut inbound, mut broke, mut look)| async move {
        match inbound.next().await? {
            Ok(message) => {
                let message = message.to_owned_message();
                look(&message);
                Some((message, (inbound, broke, look)))
            }
            Err(error) => {
                broke.take().map(|broke| broke.send(error));
                std::future::pending().await
            }
        }
    });
    (messages, broken)
}

/// The answer to a stream of messages, unless the stream broke.
pub(super) async fn uploaded<T>(
    broken: oneshot::Receiver<ConnectError>,
    answer: impl Future<Output = Result<T, ConnectError>>,
) -> Result<Result<T, ConnectError>, ConnectError> {
    tokio::select! {
        biased;
        Ok(error) = broken => Err(error),
        answer = answer => Ok(answer),
    }
}
