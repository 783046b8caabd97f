//! An RPC: its caller, and the sandbox that it addresses.

use belljar_keeper::{Caller, Idempotency, KeeperError};
use belljar_proto::{ConnectError, RequestContext, ServiceStream};
use sha2::{Digest as _, Sha256};

use super::error;
use crate::api::Shared;
use crate::guard::StreamSlot;
use crate::problem::Problem;

/// The header that names the sandbox of a call to a guest.
pub(super) const SANDBOX: &str = "belljar-sandbox";

/// The header that names a volume instead of a sandbox, in calls of the file service.
pub(super) const VOLUME: &str = "belljar-volume";

/// Maximum length of an idempotency key, in bytes.
const MAX_KEY_BYTES: usize = 255;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// An authenticated call.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) shared: Shared,
    pub(super) caller: Caller,
}

impl Call {
    /// Returns the call with this context. The guard has checked the key before any message was read.
    ///
    /// # Errors
    /// Fails if the guard has not authenticated the caller.
    pub(super) fn new(shared: &Shared, context: &RequestContext) -> Result<Self, ConnectError> {
        match context.extensions().get::<Caller>() {
            Some(caller) => Ok(Self { shared: shared.clone(), caller: caller.clone() }),
            None => Err(error::error(&crate::guard::denied(), "")),
        }
    }

    /// Converts an error of the keeper. Only the operator gets the cause of a server error, which is in the log as well.
    pub(super) fn keeper_error(&self, error: KeeperError) -> ConnectError {
        self.keeper_error_ref(&error)
    }

    /// Returns the protocol error for a shared error of the keeper.
    pub(super) fn keeper_error_ref(&self, error: &KeeperError) -> ConnectError {
        let why = self.caller.is_operator().then(|| belljar_keeper::chain(error));
        let problem = Problem::from(error);
        match why {
            Some(why) if problem.code().status().is_server_error() => {
                self.problem(&problem.with_detail(&why))
            }
            _ => self.problem(&problem),
        }
    }

    /// Converts a problem to an error of this call.
    pub(super) fn problem(&self, problem: &Problem) -> ConnectError {
        error::error(problem, &self.caller.request_id)
    }

    /// Returns the error for an invalid field.
    pub(super) fn field(&self, field: &str, reason: impl AsRef<str>) -> ConnectError {
        self.problem(&Problem::field(field, reason))
    }

    /// Returns the sandbox named by the header.
    pub(super) fn sandbox(&self, context: &RequestContext) -> Result<String, ConnectError> {
        let named = self.header_value(context, SANDBOX)?;
        named.ok_or_else(|| self.field(SANDBOX, "the header is missing; give the sandbox's id or name"))
    }

    /// Returns the volume named by the header, if it is given.
    pub(super) fn volume(&self, context: &RequestContext) -> Result<Option<String>, ConnectError> {
        let volume = self.header_value(context, VOLUME)?;
        if volume.is_some() && context.headers().contains_key(SANDBOX) {
            return Err(self.field(VOLUME, "another header names a sandbox; give only one of them"));
        }
        Ok(volume)
    }

    fn header_value(&self, context: &RequestContext, header: &str) -> Result<Option<String>, ConnectError> {
        let mut named = context.headers().get_all(header).iter();
        match (named.next(), named.next()) {
            (Some(_), Some(_)) => Err(self.field(header, "the header is given more than once")),
            (value, _) => Ok(value.map(|value| value.to_str().unwrap_or_default().to_owned())),
        }
    }

    /// Counts the call among the caller's open streams, for as long as the slot is held.
    pub(super) fn slot(&self) -> Result<StreamSlot, ConnectError> {
        self.shared.streams.take(&self.caller).map_err(|problem| self.problem(&problem))
    }

    /// Ends a stream with an error when the key is revoked or the server shuts down.
    pub(super) fn until_stopped<T: Send + 'static>(
        &self,
        slot: StreamSlot,
        stream: impl futures::Stream<Item = Result<T, ConnectError>> + Send + 'static,
    ) -> ServiceStream<T> {
        let call = self.clone();
        let stream = async_stream::stream! {
            futures::pin_mut!(stream);
            loop {
                match slot.next(&mut stream).await {
                    Ok(Some(item)) => yield item,
                    Ok(None) => break,
                    Err(problem) => {
                        yield Err(call.problem(&problem));
                        break;
                    }
                }
            }
        };
        Box::pin(stream)
    }

    /// Returns the idempotency key, with a digest that identifies the request.
    pub(super) fn idempotency(
        &self,
        context: &RequestContext,
        message: &[u8],
    ) -> Result<Option<Idempotency>, ConnectError> {
        let mut values = context.headers().get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
        let key = value.to_str().ok().filter(|key| {
            (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(allowed) && values.next().is_none()
        });
        let Some(key) = key else {
            let reason = "invalid key; give one key of 1 to 255 of A to Z, a to z, 0 to 9, _, ., : and -";
            return Err(self.field("Idempotency-Key", reason));
        };
        // The same message to another procedure is another request.
        let digest = Sha256::new()
            .chain_update(context.path().unwrap_or_default())
            .chain_update([0])
            .chain_update(message);
        Ok(Some(Idempotency { key: key.to_owned(), request_digest: digest.finalize().into() }))
    }
}
