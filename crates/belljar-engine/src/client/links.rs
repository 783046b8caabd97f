//! The connections of a client to its guest.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::Connection;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

/// Timeout for opening a connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of a client, for calls of different kinds: what is written to a guest that does not read it fills the window of its
/// connection, and all other streams on that wait. A client that cannot open more has the same one for all.
#[derive(Clone)]
pub(super) struct Links {
    /// Processes, sessions, code and health.
    pub(super) calls: Connection,
    /// Files.
    pub(super) files: Connection,
    /// Ports, which strangers may use.
    pub(super) ports: Connection,
}

impl Links {
    pub(super) fn single(connection: Connection) -> Self {
        Self { calls: connection.clone(), files: connection.clone(), ports: connection }
    }

    /// Returns connections that are opened with `dial` when needed, except for the first of all, which is `stream` if that is there.
    /// When one breaks, `doubts` is notified.
    pub(super) fn with_dialer<S, D, F>(stream: Option<S>, dial: D, doubts: &Arc<Notify>) -> Self
    where
        S: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static,
        D: Fn() -> F + Clone + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        let open = |first: Option<S>| {
            let (first, dial, doubts) = (Mutex::new(first), dial.clone(), Arc::clone(doubts));
            let dial = move || {
                let (first, dialed) = (first.lock().take(), dial());
                async move {
                    match first {
                        Some(stream) => Ok(stream),
                        None => tokio::time::timeout(DIAL_TIMEOUT, dialed).await?,
                    }
                }
            };
            belljar_proto::connect_by(dial, move || doubts.notify_one())
        };
        Self { calls: open(stream), files: open(None), ports: open(None) }
    }
}
