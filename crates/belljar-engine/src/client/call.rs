//! Calls to a guest as values, so that they can be forwarded generically.

use std::io;
use std::time::Duration;

use belljar_proto::{Connection, v1};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::oneshot;

use super::{
    Archive, CALL_TIMEOUT, CHUNK_BYTES, Download, Execution, GuestClient, GuestError, Result, Search, Watch,
    entry, start,
};

/// A call to a guest. Responses are checked: the guest is hostile once user code has run.
pub trait GuestCall: Send + 'static {
    /// The response.
    type Response: Send + 'static;

    /// Makes the call. See [`GuestError`] for the failures.
    fn call(self, guest: &GuestClient) -> impl Future<Output = Result<Self::Response>> + Send;
}

impl GuestClient {
    /// Makes a call.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn call<R: GuestCall>(&self, request: R) -> Result<R::Response> {
        request.call(self).await
    }

    fn sessions(&self, timeout: Option<Duration>) -> v1::SessionClient<Connection> {
        v1::SessionClient::new(self.links.calls.clone(), self.config(timeout))
    }
}

/// Maximum number of sessions in a list.
const MAX_SESSIONS: usize = 64;

/// Unary calls.
macro_rules! calls {
    ($($request:ident by $service:ident.$call:ident => $answer:ty, |$found:ident| $take:expr;)*) => {$(
        impl GuestCall for v1::$request {
            type Response = $answer;

            async fn call(self, guest: &GuestClient) -> Result<$answer> {
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
            return Err(GuestError::Protocol { what: "more sessions are listed than can be open" });
        }
        Ok(answer.sessions)
    };
    SessionClose by sessions.close => (), |_answer| Ok(());
}

impl GuestCall for v1::StartRequest {
    type Response = Execution;

    async fn call(self, guest: &GuestClient) -> Result<Execution> {
        start(guest, guest.processes(None).start(self)).await
    }
}

impl GuestCall for v1::SessionRun {
    type Response = Execution;

    async fn call(self, guest: &GuestClient) -> Result<Execution> {
        start(guest, guest.sessions(None).run(self)).await
    }
}

pub(super) fn timeout_error() -> GuestError {
    GuestError::Refused {
        code: belljar_proto::ErrorCode::DeadlineExceeded,
        message: "the guest did not respond in time".to_owned(),
        problem: None,
    }
}

/// Opens a stream, with a timeout for its first message.
async fn open_stream<T, E: Into<GuestError>>(
    opening: impl Future<Output = std::result::Result<T, E>> + Send,
) -> Result<T> {
    tokio::time::timeout(CALL_TIMEOUT, opening).await.map_err(|_| timeout_error())?.map_err(Into::into)
}

impl GuestCall for v1::AttachRequest {
    type Response = Execution;

    async fn call(self, guest: &GuestClient) -> Result<Execution> {
        let id = self.id;
        let stream = open_stream(guest.processes(None).attach(self)).await?;
        Ok(Execution { events: super::Events::Stream(Box::new(stream)), id, pid: 0 })
    }
}

impl GuestCall for v1::ReadRequest {
    type Response = Download;

    async fn call(self, guest: &GuestClient) -> Result<Download> {
        let beginning = async {
            let stream = guest.files(None).read(self).await?;
            let mut download =
                Download { stream: Box::new(stream), entry: v1::Entry::default(), ahead: None };
            let Some(message) = download.message().await? else {
                return Err(GuestError::Protocol { what: "the first message of a file is not its entry" });
            };
            download.entry = entry(message.entry)?;
            download.ahead = Some(message.data);
            Ok(download)
        };
        open_stream(beginning).await
    }
}

impl GuestCall for v1::WatchRequest {
    type Response = Watch;

    async fn call(self, guest: &GuestClient) -> Result<Watch> {
        let beginning = async {
            let stream = Box::new(guest.files(None).watch(self).await?);
            let mut watch = Watch { stream, first: None };
            // A refusal arrives in place of the first event.
            watch.first = watch.next().await?;
            Ok::<_, GuestError>(watch)
        };
        open_stream(beginning).await
    }
}

impl GuestCall for v1::SearchRequest {
    type Response = Search;

    async fn call(self, guest: &GuestClient) -> Result<Search> {
        open_stream(guest.search(self)).await
    }
}

/// Packing of an archive with a maximum size.
#[derive(Debug)]
pub struct Pack {
    /// The files to pack.
    pub request: v1::PackRequest,
    /// Maximum size in bytes; a longer archive fails during the transfer.
    pub max_bytes: u64,
}

impl GuestCall for Pack {
    type Response = Archive;

    async fn call(self, guest: &GuestClient) -> Result<Archive> {
        open_stream(guest.pack(self.request, self.max_bytes)).await
    }
}

/// A stream of messages to a guest, the first of which describes the upload. An error in the stream aborts the call, so
/// that a truncated upload does not look complete, and the guest discards it.
pub struct Upload<M>(pub BoxStream<'static, io::Result<M>>);

impl<M: Send + 'static> Upload<M> {
    /// Creates an upload of `first`, followed by the source in chunks.
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
                let next = rest.split_to(rest.len().min(CHUNK_BYTES));
                (!next.is_empty()).then(|| Ok(piece(next)))
            });
            futures::stream::iter(cut.chain(failed))
        });
        Self(futures::stream::iter([Ok(first)]).chain(rest).boxed())
    }

    /// Splits the upload into messages, which never end after a failure, and the failure.
    fn split_error(self) -> (BoxStream<'static, M>, oneshot::Receiver<io::Error>) {
        let (report, failed) = oneshot::channel();
        let messages =
            futures::stream::unfold((self.0, Some(report)), |(mut messages, mut report)| async move {
                match messages.next().await? {
                    Ok(message) => Some((message, (messages, report))),
                    Err(error) => {
                        report.take().map(|report| report.send(error));
                        std::future::pending().await
                    }
                }
            });
        (messages.boxed(), failed)
    }
}

impl<M> std::fmt::Debug for Upload<M> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Upload")
    }
}

/// Calls with an upload and a single response.
macro_rules! uploads {
    ($($request:ident by $service:ident.$call:ident => $answer:ty, |$found:ident| $take:expr;)*) => {$(
        impl GuestCall for Upload<v1::$request> {
            type Response = $answer;

            async fn call(self, guest: &GuestClient) -> Result<$answer> {
                let (messages, failed) = self.split_error();
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

/// Returns the bytes of a source as they arrive.
pub(super) fn bytes_of<R>(source: R) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static
where
    R: AsyncRead + Send + Unpin + 'static,
{
    futures::stream::try_unfold(source, |mut source| async move {
        let mut buffer = Vec::with_capacity(CHUNK_BYTES);
        let count = source.read_buf(&mut buffer).await?;
        Ok((count > 0).then(|| (Bytes::from(buffer), source)))
    })
}
