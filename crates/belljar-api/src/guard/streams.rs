//! Limit on the open streams of one key, which end when the key is revoked, expires or may do less, or the server shuts down.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use belljar_keeper::{Caller, ServiceWall, Session};
use belljar_model::SandboxId;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::problem::{Code, Problem};

/// Beginning of the names under which connections to ports of a sandbox are counted. No key's id begins so.
const PORT_OF: &str = "port of ";

/// Beginning of the names under which connections to ports end with their key.
const PORTS_OF: &str = "ports opened by ";

fn ports_of(key: &str) -> String {
    format!("{PORTS_OF}{key}")
}

/// Counter of open streams by key.
#[derive(Clone)]
pub(crate) struct StreamSlots {
    max: usize,
    /// Cancelled when the server shuts down.
    stopping: CancellationToken,
    open: Arc<Mutex<HashMap<String, OpenStreams>>>,
}

/// The open streams of a key.
struct OpenStreams {
    count: usize,
    /// Cancelled when the streams have to end.
    end: CancellationToken,
}

/// An open stream. It is counted until it is dropped.
pub(crate) struct StreamSlot {
    slots: StreamSlots,
    key: String,
    end: CancellationToken,
    /// The session of its caller.
    session: Option<Session>,
    /// That of the key that has opened a connection to a port.
    opened_by: Option<Box<StreamSlot>>,
}

impl StreamSlots {
    /// Allows at most `max` streams for each key.
    pub(crate) fn new(max: usize, stopping: CancellationToken) -> Self {
        Self { max, stopping, open: Arc::default() }
    }

    /// Ends the open streams of a key, and connections to ports that it has opened.
    pub(crate) fn end(&self, key: &str) {
        for name in [key.to_owned(), ports_of(key)] {
            let open = self.open().remove(&name);
            if let Some(open) = open.filter(|_| !ServiceWall::RevokedStreams.is_down()) {
                open.end.cancel();
            }
        }
    }

    /// Returns the keys that have open streams, or connections to ports.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        let open = self.open();
        let names = open.keys().filter(|name| !name.starts_with(PORT_OF));
        names.map(|name| name.strip_prefix(PORTS_OF).unwrap_or(name).to_owned()).collect()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, OpenStreams>> {
        self.open.lock()
    }

    /// Opens a stream of the caller's key, which ends with the caller's session too.
    ///
    /// # Errors
    /// Fails if the key has the maximum number of open streams.
    pub(crate) fn take(&self, caller: &Caller) -> Result<StreamSlot, Problem> {
        let mut slot = self.take_for(&caller.key, self.max)?;
        slot.session = caller.session.clone();
        Ok(slot)
    }

    /// Opens a connection to a port of a sandbox, which counts for the sandbox, and ends with the key that has opened it.
    ///
    /// # Errors
    /// Fails if the sandbox has the maximum number of open connections.
    pub(crate) fn take_port(&self, sandbox: &SandboxId, key: Option<&str>) -> Result<StreamSlot, Problem> {
        let mut slot = self.take_for(&format!("{PORT_OF}{sandbox}"), self.max)?;
        slot.opened_by = key.map(|key| self.take_for(&ports_of(key), usize::MAX)).transpose()?.map(Box::new);
        Ok(slot)
    }

    fn take_for(&self, key: &str, max: usize) -> Result<StreamSlot, Problem> {
        let mut open = self.open();
        let new = || OpenStreams { count: 0, end: self.stopping.child_token() };
        let of_key = open.entry(key.to_owned()).or_insert_with(new);
        if of_key.count >= max {
            let detail = format!("streams: {} of {} are open; close one and try again", self.max, self.max);
            return Err(Problem::new(Code::QuotaExceeded, detail)
                .with_retry_after(Some(std::time::Duration::from_secs(1))));
        }
        of_key.count += 1;
        let (key, end) = (key.to_owned(), of_key.end.clone());
        Ok(StreamSlot { slots: self.clone(), key, end, session: None, opened_by: None })
    }
}

impl StreamSlot {
    /// Returns a future that waits until the key that has opened the connection to a port is not valid any more, or may do less.
    pub(crate) fn key_end(&self) -> impl Future<Output = ()> + Send + use<> {
        let ends = self.opened_by.as_ref().map(|slot| (slot.end.clone(), slot.slots.stopping.clone()));
        async move {
            match ends {
                Some((end, stopping)) => {
                    end.cancelled().await;
                    // At a shutdown, responses are completed.
                    if stopping.is_cancelled() {
                        std::future::pending::<()>().await;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until the stream has to end, and returns why.
    pub(crate) async fn wait_for_end(&self) -> Problem {
        let session_end = async {
            match &self.session {
                Some(session) => session.wait_for_end().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.end.cancelled() => {}
            () = self.key_end() => {}
            () = session_end => return Problem::new(Code::Unauthenticated, "the session has ended"),
        }
        if self.slots.stopping.is_cancelled() {
            Problem::new(Code::ShuttingDown, "the server is shutting down; connect again soon")
        } else {
            Problem::new(Code::Unauthenticated, "the key was revoked or changed, or has expired")
        }
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open();
        // Streams of a revoked key are no longer counted.
        if let Some(of_key) = open.get_mut(&self.key).filter(|_| !self.end.is_cancelled()) {
            of_key.count = of_key.count.saturating_sub(1);
            if of_key.count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn slots_are_released() {
        let stopping = CancellationToken::new();
        let slots = StreamSlots::new(2, stopping);
        let first = slots.take_for("a", 2).unwrap();
        let _second = slots.take_for("a", 2).unwrap();
        assert_eq!(slots.take_for("a", 2).err().map(|problem| problem.code()), Some(Code::QuotaExceeded));
        assert!(slots.take_for("b", 2).is_ok());
        drop(first);
        assert!(slots.take_for("a", 2).is_ok());
        assert_eq!(slots.open().len(), 1);
    }

    #[tokio::test]
    async fn streams_end_on_revocation_and_shutdown() {
        let stopping = CancellationToken::new();
        let slots = StreamSlots::new(2, stopping.clone());
        let (first, other) = (slots.take_for("a", 2).unwrap(), slots.take_for("b", 2).unwrap());
        slots.end("a");
        assert_eq!(first.wait_for_end().await.code(), Code::Unauthenticated);
        drop(first);
        assert!(!other.end.is_cancelled());
        stopping.cancel();
        assert_eq!(other.wait_for_end().await.code(), Code::ShuttingDown);
    }

    #[tokio::test]
    async fn connections_to_ports_end_with_their_key() {
        let stopping = CancellationToken::new();
        let slots = StreamSlots::new(1, stopping.clone());
        let [one, two] = [1, 2].map(|byte| SandboxId::from_entropy([byte; 20]));
        let first = slots.take_port(&one, Some("a")).unwrap();
        assert!(slots.take_port(&one, None).is_err(), "they count for the sandbox");
        let (second, public) = (
            slots.take_port(&two, Some("b")).unwrap(),
            slots.take_port(&SandboxId::from_entropy([3; 20]), None).unwrap(),
        );
        assert_eq!(slots.keys().into_iter().collect::<Vec<_>>(), ["a", "b"]);
        slots.end("a");
        first.key_end().await;
        for left in [&second, &public] {
            assert!(left.key_end().now_or_never().is_none());
        }
        stopping.cancel();
        assert!(second.key_end().now_or_never().is_none(), "it is completed");
        assert_eq!(second.wait_for_end().await.code(), Code::ShuttingDown);
    }
}
