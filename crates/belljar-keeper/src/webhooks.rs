//! Webhooks: events are sent to an address of the operator, signed as the specification Standard Webhooks says.
//!
//! ```text
//!  event bus ─► message ─► sent, up to 64 at once ─► 2xx
//!                             └─► else again after 1, 2, 4 … 60 s, 12 times in all
//! ```
//!
//! While 64 messages are under way, events stay in the bus, which forgets the oldest ones beyond its bounds. A message has no code
//! and no arguments: whoever may see them asks for them with a key.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_model::{ApprovalState, WebhookSecret};
use belljar_registry::{RegistryClient, RegistryError, RegistryHosts};
use bytes::Bytes;
use futures::StreamExt as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde::Serialize;
use sha2::Sha256;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::approval::{ApprovalInfo, ApprovalRequest};
use crate::caller::Caller;
use crate::config::WebhooksConfig;
use crate::error::{KeeperError, chain};
use crate::events::{Event, EventFilter, Occurrence};
use crate::json;
use crate::keeper::{Keeper, Result};

/// Maximum number of messages under way. Source: docs/spec.md.
const MAX_UNDER_WAY: usize = 64;

/// Maximum number of attempts to send a message. Source: docs/spec.md.
const MAX_ATTEMPTS: u32 = 12;

/// Time until the second attempt, which doubles with each further one, and its maximum. Source: docs/spec.md.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Time for messages under way at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Status with which a receiver says that it wants no more of a message.
const GONE: u16 = 410;

/// Returns the header `webhook-signature` of a message.
fn sign(secret: &WebhookSecret, id: &str, seconds: i64, body: &[u8]) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.reveal()).ok()?;
    mac.update(format!("{id}.{seconds}.").as_bytes());
    mac.update(body);
    Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

/// Sends messages.
struct Sender {
    client: RegistryClient,
    url: String,
    secret: WebhookSecret,
    stopping: CancellationToken,
}

/// A message, in the form of the specification.
#[derive(Serialize)]
struct Message<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(with = "json::time")]
    timestamp: Timestamp,
    data: MessageData<'a>,
}

#[derive(Serialize)]
struct MessageData<'a> {
    #[serde(flatten)]
    event: &'a Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<MessageApproval<'a>>,
}

/// What a message has of an approval: neither code nor arguments, which may be secret.
#[derive(Serialize)]
struct MessageApproval<'a> {
    id: &'a str,
    state: ApprovalState,
    requester: &'a str,
    key: &'a str,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a str>,
    /// Sandbox of the code that makes the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    calling_sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    risk: Option<&'static str>,
    digest: &'a str,
    #[serde(with = "json::time")]
    expires_at: Timestamp,
}

impl<'a> From<&'a ApprovalInfo> for MessageApproval<'a> {
    fn from(info: &'a ApprovalInfo) -> Self {
        let ApprovalRequest { action, tool, sandbox, calling_code, screening, .. } = &info.request;
        Self {
            id: &info.id,
            state: info.state,
            requester: &info.requester,
            key: &info.key,
            action,
            tool: tool.as_deref(),
            sandbox: sandbox.as_deref(),
            calling_sandbox: calling_code.as_ref().map(|code| code.sandbox.as_str()),
            risk: screening.as_ref().map(|found| found.risk.as_str()),
            digest: &info.digest,
            expires_at: info.expires_at,
        }
    }
}

impl Keeper {
    /// Spawns the task that sends events, if the operator has configured an address.
    ///
    /// # Errors
    /// Fails if the address is none, or the certificates cannot be read.
    pub(crate) fn spawn_webhooks(&self) -> Result<()> {
        let Some(config) = self.inner.config.now().webhooks.clone() else { return Ok(()) };
        let WebhooksConfig { url, secret, events, allowed_hosts, exceptions, ca_file } = config;
        let hosts = RegistryHosts { registries: allowed_hosts, exceptions };
        let client = RegistryClient::new(hosts, ca_file.as_deref())
            .map_err(|error| KeeperError::Machine(format!("webhooks: {}", chain(&error))))?;
        let stopping = self.inner.webhooks_stopping.clone();
        let sender = Arc::new(Sender { client, url, secret, stopping: stopping.clone() });
        let filter = EventFilter { kinds: events, ..EventFilter::default() };
        let caller = Caller::operator("server", "webhooks");
        let events = self.follow(&caller, filter.clone(), None, true)?;
        let keeper = self.clone();
        self.inner.webhooks.spawn(async move {
            let room = Arc::new(Semaphore::new(MAX_UNDER_WAY));
            let mut events = pin!(events);
            let mut last = None;
            loop {
                let next = tokio::select! {
                    biased;
                    next = events.next() => next,
                    () = stopping.cancelled() => None,
                };
                let Some(next) = next else { break };
                keeper.send_event(&sender, &room, next, &mut last).await;
            }
            // Those of the shutdown itself.
            let Ok(rest) = keeper.follow(&caller, filter, last.as_deref(), false) else { return };
            let mut rest = pin!(rest);
            while let Some(next) = rest.next().await {
                keeper.send_event(&sender, &room, next, &mut last).await;
            }
        });
        Ok(())
    }

    async fn send_event(
        &self,
        sender: &Arc<Sender>,
        room: &Arc<Semaphore>,
        next: Occurrence,
        last: &mut Option<String>,
    ) {
        let event = match next {
            Occurrence::Event(event) => event,
            Occurrence::Missed(count) => {
                tracing::warn!(
                    count,
                    "events were not sent to the webhook, as earlier ones were not accepted"
                );
                return;
            }
        };
        *last = Some(event.id.clone());
        let approval = match event.kind.starts_with("approval.") {
            true => self.approval(&Caller::operator("server", "webhooks"), &event.detail).await.ok(),
            false => None,
        };
        let data = MessageData { event: &event, approval: approval.as_ref().map(Into::into) };
        let message = Message { kind: &event.kind, timestamp: event.at, data };
        // Cannot fail: texts and numbers only.
        let body = Bytes::from(serde_json::to_vec(&message).unwrap_or_default());
        // Never closed.
        let Ok(permit) = Arc::clone(room).acquire_owned().await else { return };
        let (sender, id) = (Arc::clone(sender), format!("evt_{}", event.id));
        self.inner.webhooks.spawn(async move { sender.deliver(&id, body, permit).await });
    }

    /// Waits for messages under way, and makes no further attempts.
    pub(crate) async fn end_webhooks(&self) {
        self.inner.webhooks_stopping.cancel();
        self.inner.webhooks.close();
        if tokio::time::timeout(DRAIN_TIMEOUT, self.inner.webhooks.wait()).await.is_err() {
            tracing::warn!("events at the end of this server were not accepted by the webhook");
        }
    }
}

impl Sender {
    /// Sends a message until it is accepted, or there are no more attempts.
    async fn deliver(&self, id: &str, body: Bytes, _permit: OwnedSemaphorePermit) {
        let (mut wait, max) = BACKOFF;
        let mut attempt = 1;
        let reason = loop {
            let reason = match self.send(id, body.clone()).await {
                Ok(()) => return,
                Err(Refused::Final(reason)) => break reason,
                Err(Refused::Now(reason)) => reason,
            };
            if attempt == 1 {
                tracing::warn!(
                    message = id,
                    reason,
                    "a message was not accepted by the webhook; trying again"
                );
            }
            if attempt >= MAX_ATTEMPTS || self.stopping.is_cancelled() {
                break reason;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stopping.cancelled() => break reason,
            }
            wait = (wait * 2).min(max);
            attempt += 1;
        };
        tracing::warn!(message = id, attempt, reason, "a message was not delivered to the webhook");
    }

    async fn send(&self, id: &str, body: Bytes) -> std::result::Result<(), Refused> {
        let seconds = Timestamp::now().as_second();
        let signature = sign(&self.secret, id, seconds, &body).unwrap_or_default();
        let headers = [
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", signature),
        ];
        match self.client.post(&self.url, &headers, body).await {
            Ok(status) if status.is_success() => Ok(()),
            Ok(status) if status.as_u16() == GONE => Err(Refused::Final(format!("it answered {status}"))),
            Ok(status) => Err(Refused::Now(format!("it answered {status}"))),
            Err(RegistryError::NotAllowed { host, reason }) => {
                let fix = "the operator can allow the host with the setting webhooks.allowed_hosts";
                Err(Refused::Now(format!("{host} is not allowed{reason}; {fix}")))
            }
            Err(error) => Err(Refused::Now(chain(&error))),
        }
    }
}

/// Why a message was not accepted.
enum Refused {
    /// A further attempt may succeed.
    Now(String),
    /// The receiver does not want it.
    Final(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of the specification's own libraries.
    #[test]
    fn signatures_are_those_of_the_specification() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let signed = sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
