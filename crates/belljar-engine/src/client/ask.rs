//! Requests to a guest as values: whoever passes them on need not know what each is.

use std::io;
use std::time::Duration;

use belljar_proto::{Connection, v1};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::oneshot;

use super::{
    Archive, CALL_TIMEOUT, Download, Execution, GuestClient, GuestError, PIECE_BYTES, Result, START_TIMEOUT,
    Search, Watch, begun, entry,
};

/// A request to a guest, and how it is made. Answers are checked: the guest is hostile once user code has run.
pub trait Ask: Send + 'static {
    /// What is answered.
    type Answer: Send + 'static;

    /// Makes the request. See [`GuestError`] for what goes wrong.
    fn ask(self, guest: &GuestClient) -> impl Future<Output = Result<Self::Answer>> + Send;
}

impl GuestClient {
    /// Makes a request.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn ask<R: Ask>(&self, request: R) -> Result<R::Answer> {
        request.ask(self).await
    }

    fn sessions(&self, timeout: Option<Duration>) -> v1::SessionClient<Connection> {
        v1::SessionClient::new(self.connection.clone(), self.config(timeout))
    }
}

/// The most sessions that a guest has open.
const MAX_SESSIONS: usize = 64;

/// Calls with one answer.
macro_rules! calls {
    ($($request:ident by $service:ident.$call:ident => $answer:ty, |$found:ident| $take:expr;)*) => {$(
        impl Ask for v1::$request {
            type Answer = $answer;

            async fn ask(self, guest: &GuestClient) -> Result<$answer> {
                let $found = guest.$service(Some(CALL_TIMEOUT)).$call(self).await?.into_owned();
                $take
            }
        }
    )*};
}

calls! {
    CheckRequest by health.check => v1::CheckResponse, |answer| Ok(answer);
    MetricsRequest by health.metrics => v1::MetricsResponse, |answer| Ok(answer);
    SignalRequest by processes.signal => u32, |answer| Ok(answer.signalled);
    ResizeRequest by processes.resize => (), |_answer| Ok(());
    ListProcessesRequest by processes.list => Vec<v1::ProcessInfo>, |answer| Ok(answer.processes);
    StatRequest by files.stat => v1::Entry, |answer| entry(answer.entry);
    ListRequest by files.list => v1::ListResponse, |answer| Ok(answer);
    MakeDirRequest by files.make_dir => v1::Entry, |answer| entry(answer.entry);
    MoveRequest by files.r#move => v1::Entry, |answer| entry(answer.entry);
    RemoveRequest by files.remove => (), |_answer| Ok(());
    SetModeRequest by files.set_mode => v1::Entry, |answer| entry(answer.entry);
    ListPortsRequest by ports.list => Vec<u16>, |answer| {
        Ok(answer.tcp.into_iter().filter_map(|port| u16::try_from(port).ok()).collect())
    };
    SessionOpen by sessions.open => v1::SessionOpened, |answer| Ok(answer);
    ListSessionsRequest by sessions.list => Vec<v1::SessionInfo>, |answer| {
        if answer.sessions.len() > MAX_SESSIONS {
            return Err(GuestError::Protocol { what: "there are more sessions than can be open" });
        }
        Ok(answer.sessions)
    };
    SessionClose by sessions.close => (), |_answer| Ok(());
}

impl Ask for v1::StartRequest {
    type Answer = Execution;

    async fn ask(self, guest: &GuestClient) -> Result<Execution> {
        let starting = async { begun(guest.processes(None).start(self).await?).await };
        let started = tokio::time::timeout(START_TIMEOUT, starting).await;
        started.unwrap_or(Err(GuestError::Protocol { what: "a process neither started nor failed to" }))
    }
}

impl Ask for v1::SessionRun {
    type Answer = Execution;

    async fn ask(self, guest: &GuestClient) -> Result<Execution> {
        let starting = async { begun(guest.sessions(None).run(self).await?).await };
        let started = tokio::time::timeout(START_TIMEOUT, starting).await;
        started.unwrap_or(Err(GuestError::Protocol { what: "a command neither started nor failed to" }))
    }
}

/// Opens a stream, whose answer begins at once or not at all.
async fn opened<T, E: Into<GuestError>>(
    opening: impl Future<Output = std::result::Result<T, E>> + Send,
) -> Result<T> {
    let late = || GuestError::Refused {
        code: belljar_proto::ErrorCode::DeadlineExceeded,
        message: "the guest does not answer in time".to_owned(),
    };
    tokio::time::timeout(CALL_TIMEOUT, opening).await.map_err(|_| late())?.map_err(Into::into)
}

impl Ask for v1::AttachRequest {
    type Answer = Execution;

    async fn ask(self, guest: &GuestClient) -> Result<Execution> {
        let id = self.id;
        let stream = opened(guest.processes(None).attach(self)).await?;
        Ok(Execution { stream: Box::new(stream), id, pid: 0 })
    }
}

impl Ask for v1::ReadRequest {
    type Answer = Download;

    async fn ask(self, guest: &GuestClient) -> Result<Download> {
        let beginning = async {
            let stream = guest.files(None).read(self).await?;
            let mut download =
                Download { stream: Box::new(stream), entry: v1::Entry::default(), first: None };
            let Some(message) = download.message().await? else {
                return Err(GuestError::Protocol { what: "a file's content did not begin with its entry" });
            };
            download.entry = entry(message.entry)?;
            download.first = Some(message.data);
            Ok(download)
        };
        opened(beginning).await
    }
}

impl Ask for v1::WatchRequest {
    type Answer = Watch;

    async fn ask(self, guest: &GuestClient) -> Result<Watch> {
        let beginning = async {
            let stream = Box::new(guest.files(None).watch(self).await?);
            let mut watch = Watch { stream, first: None };
            // What is refused is refused with the first event.
            watch.first = watch.next().await?;
            Ok::<_, GuestError>(watch)
        };
        opened(beginning).await
    }
}

impl Ask for v1::SearchRequest {
    type Answer = Search;

    async fn ask(self, guest: &GuestClient) -> Result<Search> {
        opened(guest.search(self)).await
    }
}

/// An archive that is packed, of at most so many bytes.
#[derive(Debug)]
pub struct Pack {
    /// What goes into it.
    pub request: v1::PackRequest,
    /// A longer one is refused on its way.
    pub max_bytes: u64,
}

impl Ask for Pack {
    type Answer = Archive;

    async fn ask(self, guest: &GuestClient) -> Result<Archive> {
        opened(guest.pack(self.request, self.max_bytes)).await
    }
}

/// Messages that are sent to a guest, the first of which says what they are. With an error the request is broken off: what is cut
/// short must not look like what ends, and the guest gives up what it has begun.
pub struct Upload<M>(pub BoxStream<'static, io::Result<M>>);

impl<M: Send + 'static> Upload<M> {
    /// Pieces of a source, each in a message of its own after `first`.
    pub fn new(
        first: M,
        source: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        piece: impl Fn(Bytes) -> M + Clone + Send + 'static,
    ) -> Self {
        let rest = source.flat_map(move |bytes| {
            let (mut rest, failed) = match bytes {
                Ok(bytes) => (bytes, None),
                Err(error) => (Bytes::new(), Some(Err(error))),
            };
            let piece = piece.clone();
            let cut = std::iter::from_fn(move || {
                let next = rest.split_to(rest.len().min(PIECE_BYTES));
                (!next.is_empty()).then(|| Ok(piece(next)))
            });
            futures::stream::iter(cut.chain(failed))
        });
        Self(futures::stream::iter([Ok(first)]).chain(rest).boxed())
    }

    /// The messages, which do not end when one fails, and the failure.
    fn parts(self) -> (BoxStream<'static, M>, oneshot::Receiver<io::Error>) {
        let (broke, broken) = oneshot::channel();
        let messages =
            futures::stream::unfold((self.0, Some(broke)), |(mut messages, mut broke)| async move {
                match messages.next().await? {
                    Ok(message) => Some((message, (messages, broke))),
                    Err(error) => {
                        broke.take().map(|broke| broke.send(error));
                        std::future::pending().await
                    }
                }
            });
        (messages.boxed(), broken)
    }
}

impl<M> std::fmt::Debug for Upload<M> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Upload")
    }
}

/// Uploads with one answer.
macro_rules! uploads {
    ($($request:ident by $service:ident.$call:ident => $answer:ty, |$found:ident| $take:expr;)*) => {$(
        impl Ask for Upload<v1::$request> {
            type Answer = $answer;

            async fn ask(self, guest: &GuestClient) -> Result<$answer> {
                let (messages, failed) = self.parts();
                let service = guest.$service(None);
                let answer = service.$call(messages);
                tokio::select! {
                    biased;
                    Ok(error) = failed => Err(GuestError::Source(error)),
                    answer = answer => {
                        let $found = answer?.into_owned();
                        $take
                    }
                }
            }
        }
    )*};
}

uploads! {
    WriteRequest by files.write => v1::Entry, |answer| entry(answer.entry);
    UnpackRequest by files.unpack => v1::UnpackResponse, |answer| Ok(answer);
    InputRequest by processes.input => u64, |answer| Ok(answer.bytes);
}

/// The bytes of a source, as they come.
pub(super) fn bytes_of<R>(source: R) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static
where
    R: AsyncRead + Send + Unpin + 'static,
{
    futures::stream::try_unfold(source, |mut source| async move {
        let mut buffer = Vec::with_capacity(PIECE_BYTES);
        let count = source.read_buf(&mut buffer).await?;
        Ok((count > 0).then(|| (Bytes::from(buffer), source)))
    })
}
