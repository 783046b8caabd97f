//! Limit on the open streams of one key, which end when the key is revoked, expires or may do less, or the server shuts down.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use belljar_keeper::{Caller, Rights, ServiceWall, Session};
use belljar_model::SandboxId;
use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::problem::{Code, Problem};

/// Beginning of the names under which connections to ports of a sandbox are counted. No key's id begins so.
const PORT_OF: &str = "port of ";

/// Beginning of the names under which connections to ports end with their key.
const PORTS_OF: &str = "ports opened by ";

/// Beginning of the names under which requests without a key are counted by address, and the name of all.
const OPEN_OF: &str = "open of ";
const OPEN: &str = "open of all";

/// Maximum numbers of requests without a key whose bodies are kept in memory at a time: of one address, and of all. Each takes some 40 KiB.
const MAX_OPEN_OF_ADDRESS: usize = 32;
const MAX_OPEN: usize = 512;

/// Beginning of the names under which bodies that are being sent end with their key.
const BODIES_OF: &str = "bodies of ";

/// Why a stream ends early.
pub(crate) const ENDED: &str = "the key was revoked or changed, or has expired";

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
    /// What their callers could do, each once, and how many of them; empty if they are of no key.
    rights: Vec<(Rights, usize)>,
}

/// An open stream. It is counted until it is dropped.
pub(crate) struct StreamSlot {
    slots: StreamSlots,
    key: String,
    rights: Option<Rights>,
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

    /// Ends the open streams of a key, the bodies that it sends, and connections to ports that it has opened.
    pub(crate) fn end(&self, key: &str) {
        for name in [key.to_owned(), format!("{PORTS_OF}{key}"), format!("{BODIES_OF}{key}")] {
            let open = self.open().remove(&name);
            if let Some(open) = open.filter(|_| !ServiceWall::RevokedStreams.is_down()) {
                open.end.cancel();
            }
        }
    }

    /// Returns the keys that have open streams, send bodies, or have connections to ports, with what they could do when these were opened.
    pub(crate) fn keys(&self) -> BTreeMap<String, Vec<Rights>> {
        let mut keys: BTreeMap<String, Vec<Rights>> = BTreeMap::new();
        for (name, streams) in self.open().iter().filter(|(_, streams)| !streams.rights.is_empty()) {
            let bare = [PORTS_OF, BODIES_OF].iter().find_map(|prefix| name.strip_prefix(prefix));
            keys.entry(bare.unwrap_or(name).to_owned())
                .or_default()
                .extend(streams.rights.iter().map(|(rights, _)| *rights));
        }
        keys
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, OpenStreams>> {
        self.open.lock()
    }

    /// Opens a stream of the caller's key, which ends with the caller's session too.
    ///
    /// # Errors
    /// Fails if the key has the maximum number of open streams.
    pub(crate) fn take(&self, caller: &Caller) -> Result<StreamSlot, Problem> {
        let mut slot = self.take_of("", caller, self.max)?;
        check(caller)?;
        slot.session = caller.session.clone();
        Ok(slot)
    }

    /// Opens a connection to a port of a sandbox, which counts for the sandbox, and ends with the key that has opened it.
    ///
    /// # Errors
    /// Fails if the sandbox has the maximum number of open connections.
    pub(crate) fn take_port(
        &self,
        sandbox: &SandboxId,
        opener: Option<&Caller>,
    ) -> Result<StreamSlot, Problem> {
        let mut slot = self.take_for(&format!("{PORT_OF}{sandbox}"), self.max)?;
        if let Some(opener) = opener {
            slot.opened_by = Some(Box::new(self.take_of(PORTS_OF, opener, usize::MAX)?));
            check(opener)?;
        }
        Ok(slot)
    }

    /// Makes the body of a request break off when the caller's key is not valid any more or may do less, or its session ends, however short
    /// the body is: it may take its time to arrive.
    pub(crate) fn bind(&self, caller: &Caller, body: Body) -> Body {
        if body.is_end_stream() {
            return body;
        }
        match self.take_of(BODIES_OF, caller, usize::MAX) {
            Ok(_) if check(caller).is_err() => {
                let ended = io::Error::new(io::ErrorKind::PermissionDenied, ENDED);
                Body::from_stream(futures::stream::iter([io::Result::<Bytes>::Err(ended)]))
            }
            Ok(mut slot) => {
                slot.session = caller.session.clone();
                Body::from_stream(slot.break_off(body.into_data_stream().map_err(io::Error::other)))
            }
            // There is no limit on their number.
            Err(_) => body,
        }
    }

    /// Counts a request without a key whose body is kept in memory.
    ///
    /// # Errors
    /// Fails if its address, or all together, have the maximum number of them.
    pub(crate) fn take_open(&self, address: IpAddr) -> Result<[StreamSlot; 2], Problem> {
        let of_address = self.take_for(&format!("{OPEN_OF}{address}"), MAX_OPEN_OF_ADDRESS)?;
        Ok([of_address, self.take_for(OPEN, MAX_OPEN)?])
    }

    /// Counts a stream of the caller's key under a name that begins so.
    fn take_of(&self, beginning: &str, caller: &Caller, max: usize) -> Result<StreamSlot, Problem> {
        self.take_with(&format!("{beginning}{}", caller.key), max, Some(caller.rights()))
    }

    fn take_for(&self, key: &str, max: usize) -> Result<StreamSlot, Problem> {
        self.take_with(key, max, None)
    }

    fn take_with(&self, key: &str, max: usize, rights: Option<Rights>) -> Result<StreamSlot, Problem> {
        let mut open = self.open();
        let new = || OpenStreams { count: 0, end: self.stopping.child_token(), rights: Vec::new() };
        let of_key = open.entry(key.to_owned()).or_insert_with(new);
        if of_key.count >= max {
            let detail = format!("streams: {max} of {max} are open; close one and try again");
            return Err(Problem::new(Code::QuotaExceeded, detail)
                .with_retry_after(Some(std::time::Duration::from_secs(1))));
        }
        of_key.count += 1;
        if let Some(rights) = rights {
            match of_key.rights.iter_mut().find(|(known, _)| *known == rights) {
                Some((_, count)) => *count += 1,
                None => of_key.rights.push((rights, 1)),
            }
        }
        let (key, end) = (key.to_owned(), of_key.end.clone());
        Ok(StreamSlot { slots: self.clone(), key, rights, end, session: None, opened_by: None })
    }
}

/// Checks that the caller's key has not ended since it was authenticated: what is opened before is ended with the key, and this is what is
/// opened after. So it has to be called once the stream is counted.
///
/// # Errors
/// Fails if it has.
fn check(caller: &Caller) -> Result<(), Problem> {
    if caller.has_ended() && !ServiceWall::RevokedStreams.is_down() {
        return Err(Problem::new(Code::Unauthenticated, ENDED));
    }
    Ok(())
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

    /// Waits until its caller's key is not valid any more or may do less, or its session ends; not for a shutdown.
    pub(crate) async fn wait_for_caller(&self) {
        let session_end = async {
            match &self.session {
                Some(session) => session.wait_for_end().await,
                None => std::future::pending().await,
            }
        };
        let key_end = async {
            self.end.cancelled().await;
            if self.slots.stopping.is_cancelled() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = key_end => {}
            () = self.key_end() => {}
            () = session_end => {}
        }
    }

    /// Returns a stream of bytes that fails when the caller may not have it any more. At a shutdown it is completed.
    pub(crate) fn break_off(
        self,
        stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        async_stream::stream! {
            let mut stream = std::pin::pin!(stream);
            let mut ended = std::pin::pin!(self.wait_for_caller());
            loop {
                tokio::select! {
                    biased;
                    () = &mut ended => {
                        yield Err(io::Error::new(io::ErrorKind::PermissionDenied, ENDED));
                        return;
                    }
                    next = stream.next() => match next {
                        Some(piece) => yield piece,
                        None => return,
                    },
                }
            }
        }
    }

    /// Returns the next item of a stream, or why it ends early. A caller that may not have it any more gets nothing else, however
    /// much is ready; at a shutdown what is ready comes first.
    pub(crate) async fn next<S: Stream + Unpin>(&self, stream: &mut S) -> Result<Option<S::Item>, Problem> {
        tokio::select! {
            biased;
            () = self.wait_for_caller() => Err(self.wait_for_end().await),
            next = stream.next() => Ok(next),
            problem = self.wait_for_end() => Err(problem),
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
            Problem::new(Code::Unauthenticated, ENDED)
        }
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open();
        // Streams of a revoked key are no longer counted.
        if let Some(of_key) = open.get_mut(&self.key).filter(|_| !self.end.is_cancelled()) {
            of_key.count = of_key.count.saturating_sub(1);
            of_key.rights.retain_mut(|(rights, count)| {
                *count = count.saturating_sub((Some(*rights) == self.rights).into());
                *count > 0
            });
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

    #[test]
    fn rights_are_those_of_open_streams() {
        use belljar_model::{Approval, Role};

        let slots = StreamSlots::new(9, CancellationToken::new());
        let rights = |role| Rights { role, approval: Approval::Never };
        let take = |role| slots.take_with("a", 9, Some(rights(role))).unwrap();
        let (_user, first, second) = (take(Role::User), take(Role::Admin), take(Role::Admin));
        drop(first);
        assert_eq!(slots.keys()["a"], [rights(Role::User), rights(Role::Admin)]);
        drop(second);
        assert_eq!(slots.keys()["a"], [rights(Role::User)]);
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

    #[test]
    fn requests_without_a_key_are_few() {
        let slots = StreamSlots::new(1, CancellationToken::new());
        let address = |number: u8| IpAddr::from([10, 0, 0, number]);
        let mut held: Vec<_> = (0..32).map(|_| slots.take_open(address(0)).unwrap()).collect();
        assert!(slots.take_open(address(0)).is_err() && slots.take_open(address(1)).is_ok());
        held.extend(
            (1..16)
                .flat_map(|number| (0..32).map(move |_| number))
                .map(|number| slots.take_open(address(number)).unwrap()),
        );
        assert!(slots.take_open(address(99)).is_err());
        assert!(slots.keys().is_empty());
        drop(held);
        assert!(slots.take_open(address(99)).is_ok() && slots.open().is_empty());
    }

    #[tokio::test]
    async fn what_is_ready_does_not_keep_a_stream_open() {
        let stopping = CancellationToken::new();
        let slots = StreamSlots::new(2, stopping.clone());
        let slot = slots.take_for("a", 2).unwrap();
        let mut ready = futures::stream::repeat(7);
        assert_eq!(slot.next(&mut ready).await.unwrap(), Some(7));
        slots.end("a");
        assert_eq!(slot.next(&mut ready).await.unwrap_err().code(), Code::Unauthenticated);
        // At a shutdown it is read to its end.
        let slot = slots.take_for("b", 2).unwrap();
        stopping.cancel();
        let mut ready = futures::stream::iter([1]);
        assert_eq!(slot.next(&mut ready).await.unwrap(), Some(1));
        assert_eq!(
            slot.next(&mut futures::stream::pending::<u8>()).await.unwrap_err().code(),
            Code::ShuttingDown
        );
    }

    #[tokio::test]
    async fn bodies_break_off_with_their_key() {
        let slots = StreamSlots::new(1, CancellationToken::new());
        let caller = |key: &str| Caller { key: key.to_owned(), ..Caller::operator("test", "request") };
        let endless =
            || Body::from_stream(futures::stream::repeat_with(|| io::Result::Ok(Bytes::from_static(b"x"))));
        let mut body = slots.bind(&caller("a"), endless()).into_data_stream();
        let mut other = slots.bind(&caller("b"), endless()).into_data_stream();
        assert_eq!(body.next().await.unwrap().unwrap(), "x");
        assert_eq!(slots.keys().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        slots.end("a");
        let error = body.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("revoked"), "{error}");
        assert!(body.next().await.is_none() && other.next().await.unwrap().is_ok());
        drop((body, other));
        // There is nothing to watch.
        let _empty = slots.bind(&caller("a"), Body::empty());
        assert!(slots.keys().is_empty());
        let mut small = slots.bind(&caller("a"), Body::from("small")).into_data_stream();
        slots.end("a");
        assert!(small.next().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn keys_that_end_after_they_were_read_open_nothing() {
        let slots = StreamSlots::new(1, CancellationToken::new());
        let ends = belljar_keeper::KeyEnds::default();
        let caller =
            || Caller { key: "a".to_owned(), validity: ends.now(), ..Caller::operator("test", "request") };
        let before = caller();
        ends.add("a");
        slots.end("a");
        let port = SandboxId::from_entropy([1; 20]);
        let mut body = slots.bind(&before, Body::from("small")).into_data_stream();
        assert!(body.next().await.unwrap().unwrap_err().to_string().contains("revoked"));
        let refused = [slots.take(&before), slots.take_port(&port, Some(&before))];
        for refused in refused {
            assert_eq!(refused.err().unwrap().code(), Code::Unauthenticated);
        }
        assert!(slots.keys().is_empty());
        let _streams = [slots.take(&caller()).unwrap(), slots.take_port(&port, Some(&caller())).unwrap()];
    }

    #[test]
    fn streams_know_what_their_callers_could_do() {
        use belljar_model::{Approval, Role};

        let slots = StreamSlots::new(9, CancellationToken::new());
        let caller = |role, approval| Caller { role, approval, ..Caller::operator("test", "request") };
        let reader = slots.take(&caller(Role::Read, Approval::Never)).unwrap();
        let _body = slots.bind(&caller(Role::User, Approval::Always), Body::from("body"));
        let again = slots.take(&caller(Role::Read, Approval::Never)).unwrap();
        let rights = |role, approval| Rights { role, approval };
        let known = || slots.keys().into_values().flatten().collect::<Vec<_>>();
        let all = known();
        assert_eq!(all.len(), 2, "each once: {all:?}");
        for one in [rights(Role::Read, Approval::Never), rights(Role::User, Approval::Always)] {
            assert!(all.contains(&one), "{all:?}");
        }
        drop((reader, again));
        assert_eq!(known(), [rights(Role::User, Approval::Always)]);
    }

    #[tokio::test]
    async fn connections_to_ports_end_with_their_key() {
        let stopping = CancellationToken::new();
        let slots = StreamSlots::new(1, stopping.clone());
        let [one, two] = [1, 2].map(|byte| SandboxId::from_entropy([byte; 20]));
        let caller = |key: &str| Caller { key: key.to_owned(), ..Caller::operator("test", "request") };
        let first = slots.take_port(&one, Some(&caller("a"))).unwrap();
        assert!(slots.take_port(&one, None).is_err(), "they count for the sandbox");
        let (second, public) = (
            slots.take_port(&two, Some(&caller("b"))).unwrap(),
            slots.take_port(&SandboxId::from_entropy([3; 20]), None).unwrap(),
        );
        assert_eq!(slots.keys().into_keys().collect::<Vec<_>>(), ["a", "b"]);
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
