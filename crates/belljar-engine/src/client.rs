//! The guest as the host sees it. Every answer is bounded in size, and every call but those that stream is bounded in
//! time: the guest is hostile once user code has run.

mod archive;
mod ask;
mod interpreter;
mod search;
mod session;

pub use archive::{Archive, unpacked};
pub use ask::{Ask, Pack, Upload};
pub use interpreter::{CodeEvent, CodeExecution};
pub use search::Search;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use belljar_proto::{
    BidiReceiver, BidiSender, BidiStream, ClientConfig, Connection, ErrorCode, NOT_REGULAR, ServerStream, v1,
};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};

/// How long a call may take that does not stream.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a process may take to start, the guest's own start included where nobody has waited for that. Until then no time limit runs in the guest that could be enforced.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest text of a guest's error that is passed on, in characters.
const MAX_ERROR_CHARS: usize = 1024;

/// Size of the pieces in which files and input travel, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// What the guest answered instead of a result, or that it did not answer.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The guest refused the call and says why.
    #[error("{message}")]
    Refused {
        /// The kind of refusal.
        code: ErrorCode,
        /// What the guest says. It is text from inside the sandbox.
        message: String,
    },
    /// The guest refused to read or write what is no regular file.
    #[error("{message}")]
    NotRegular {
        /// What the guest says. It is text from inside the sandbox.
        message: String,
    },
    /// The connection broke: the sandbox has ended.
    #[error("the guest does not answer any more")]
    Gone(#[source] Box<belljar_proto::ConnectError>),
    /// The guest broke the protocol.
    #[error("the guest broke the protocol: {what}")]
    Protocol {
        /// How.
        what: &'static str,
    },
    /// What was to be sent could not be read.
    #[error("cannot read what is to be sent to the sandbox")]
    Source(#[source] std::io::Error),
}

impl GuestError {
    /// Whether the guest refused with this code.
    #[must_use]
    pub fn is(&self, wanted: ErrorCode) -> bool {
        match self {
            Self::Refused { code, .. } => *code == wanted,
            Self::NotRegular { .. } => wanted == ErrorCode::FailedPrecondition,
            _ => false,
        }
    }
}

impl From<belljar_proto::ConnectError> for GuestError {
    fn from(mut error: belljar_proto::ConnectError) -> Self {
        // Also where it is only the source of what is said: its text may be the guest's in each case.
        error.message = error.message.as_deref().map(printable);
        match error.code {
            ErrorCode::Unavailable if error.source_arc().is_some() => Self::Gone(Box::new(error)),
            ErrorCode::Canceled | ErrorCode::Unknown => Self::Gone(Box::new(error)),
            ErrorCode::Internal if error.message.as_deref().is_some_and(is_broken_body) => {
                Self::Gone(Box::new(error))
            }
            code => {
                let message = error.message.unwrap_or_else(|| "no reason given".to_owned());
                let is = |detail: &belljar_proto::ErrorDetail| detail.type_url == NOT_REGULAR;
                match code == ErrorCode::FailedPrecondition && error.details.iter().any(is) {
                    true => Self::NotRegular { message },
                    false => Self::Refused { code, message },
                }
            }
        }
    }
}

/// Whether the connection broke in the middle of an answer, for which the client library has these words and nothing else.
/// Held by `conformance::stop_is_shared_and_repeated`.
fn is_broken_body(message: &str) -> bool {
    message.starts_with("failed to read response body")
}

/// Text from inside goes to terminals and logs: without control characters, and not too much of it.
fn printable(text: &str) -> String {
    text.chars()
        .take(MAX_ERROR_CHARS)
        .map(|character| if character.is_control() { '\u{fffd}' } else { character })
        .collect()
}

/// A connection to a guest. Clones share it.
#[derive(Clone)]
pub struct GuestClient {
    connection: Connection,
    /// How calls are made, but for their time limit.
    config: ClientConfig,
}

impl std::fmt::Debug for GuestClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("GuestClient")
    }
}

type Result<T> = std::result::Result<T, GuestError>;

impl GuestClient {
    /// Speaks with the guest at the other end of `stream`. Nothing is sent before the first call.
    #[must_use]
    pub fn new<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::routed(belljar_proto::connect(stream), belljar_proto::client_config(None))
    }

    /// Speaks with a guest by way of a server that passes the calls on: `config` has the server's address, and the
    /// headers that name the sandbox and its user.
    #[must_use]
    pub fn routed(connection: Connection, config: ClientConfig) -> Self {
        Self { connection, config }
    }

    fn config(&self, timeout: Option<Duration>) -> ClientConfig {
        let config = self.config.clone();
        match timeout {
            Some(timeout) => config.with_default_timeout(timeout),
            None => config,
        }
    }

    fn processes(&self, timeout: Option<Duration>) -> v1::ProcessClient<Connection> {
        v1::ProcessClient::new(self.connection.clone(), self.config(timeout))
    }

    fn files(&self, timeout: Option<Duration>) -> v1::FilesystemClient<Connection> {
        v1::FilesystemClient::new(self.connection.clone(), self.config(timeout))
    }

    fn ports(&self, timeout: Option<Duration>) -> v1::PortsClient<Connection> {
        v1::PortsClient::new(self.connection.clone(), self.config(timeout))
    }

    fn health(&self, timeout: Option<Duration>) -> v1::HealthClient<Connection> {
        v1::HealthClient::new(self.connection.clone(), self.config(timeout))
    }

    /// Asks the guest how it is.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn check(&self) -> Result<v1::CheckResponse> {
        self.ask(v1::CheckRequest::default()).await
    }

    /// What the sandbox uses now, as the guest tells it.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn metrics(&self) -> Result<v1::MetricsResponse> {
        self.ask(v1::MetricsRequest::default()).await
    }

    /// Moves the deadline at which everything inside ends; `None` takes it away.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn set_deadline(&self, after: Option<Duration>) -> Result<()> {
        let after_ms = after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1));
        let health = self.health(Some(CALL_TIMEOUT));
        health.set_deadline(v1::SetDeadlineRequest { after_ms, ..Default::default() }).await?;
        Ok(())
    }

    /// Starts a process and attaches to it.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn start(&self, request: v1::StartRequest) -> Result<Execution> {
        self.ask(request).await
    }

    /// Attaches to a running or ended process from the given offsets of stdout, stderr and terminal.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn attach(&self, id: u64, offsets: [u64; 3]) -> Result<Execution> {
        let [stdout_offset, stderr_offset, terminal_offset] = offsets;
        let request =
            v1::AttachRequest { id, stdout_offset, stderr_offset, terminal_offset, ..Default::default() };
        self.ask(request).await
    }

    /// Feeds a process's input until `source` ends, and closes it then if asked to. Ends early, without an error, when
    /// the process takes no more.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn feed<R>(&self, id: u64, source: R, close: bool) -> Result<u64>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let message = move |data| v1::InputRequest { id, data, ..Default::default() };
        let last = v1::InputRequest { id, close, ..Default::default() };
        let pieces = ask::bytes_of(source).map(move |piece| piece.map(message));
        self.ask(Upload(pieces.chain(futures::stream::iter([Ok(last)])).boxed())).await
    }

    /// Sends a signal to a process, and with `tree` to all that descends from it. Hands back how many there were.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn signal(&self, id: u64, signal: i32, tree: bool) -> Result<u32> {
        let request = v1::SignalRequest { id, signal, tree, ..Default::default() };
        self.ask(request).await
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn resize(&self, id: u64, rows: u16, columns: u16) -> Result<()> {
        let terminal = v1::Terminal { rows: rows.into(), columns: columns.into(), ..Default::default() };
        let request = v1::ResizeRequest { id, terminal: terminal.into(), ..Default::default() };
        self.ask(request).await
    }

    /// Lists the processes that the guest has started.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_processes(&self) -> Result<Vec<v1::ProcessInfo>> {
        self.ask(v1::ListProcessesRequest::default()).await
    }

    /// Writes a file that is in memory. Missing parents are made.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn write(&self, path: &Path, mode: u32, content: Bytes) -> Result<v1::Entry> {
        let open = v1::WriteOpen { path: path_bytes(path), mode, make_parents: true, ..Default::default() };
        let content = futures::stream::iter([Ok(content)]);
        self.ask(written(open, content)).await
    }

    /// Writes a file from a stream of bytes, as `open` says.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn write_from<R>(&self, open: v1::WriteOpen, source: R) -> Result<v1::Entry>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.ask(written(open, ask::bytes_of(source))).await
    }

    /// Reads a range of a file; length 0 is up to its end.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn read(&self, path: &Path, offset: u64, length: u64, no_follow: bool) -> Result<Download> {
        let request =
            v1::ReadRequest { path: path_bytes(path), offset, length, no_follow, ..Default::default() };
        self.ask(request).await
    }

    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    /// See [`GuestError`]; a longer file is refused.
    pub async fn read_all(&self, path: &Path, limit: usize) -> Result<Bytes> {
        let mut download = self.read(path, 0, 0, false).await?;
        let mut content = Vec::new();
        while let Some(piece) = download.next().await? {
            if content.len() + piece.len() > limit {
                let message = format!("{} is longer than the {limit} bytes allowed here", path.display());
                return Err(GuestError::Refused { code: ErrorCode::OutOfRange, message });
            }
            content.extend_from_slice(&piece);
        }
        Ok(content.into())
    }

    /// A file's entry.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn stat(&self, path: &Path, follow: bool) -> Result<v1::Entry> {
        let request = v1::StatRequest { path: path_bytes(path), follow, ..Default::default() };
        self.ask(request).await
    }

    /// One page of a directory's entries, and where the next begins if there is one.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list(
        &self,
        path: &Path,
        depth: u32,
        limit: u32,
        after: Bytes,
    ) -> Result<(Vec<v1::Entry>, Option<Bytes>)> {
        let request = v1::ListRequest { path: path_bytes(path), depth, limit, after, ..Default::default() };
        let answer = self.ask(request).await?;
        let next = (!answer.next.is_empty()).then_some(answer.next);
        Ok((answer.entries, next))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn make_dir(&self, path: &Path, parents: bool) -> Result<v1::Entry> {
        let request = v1::MakeDirRequest { path: path_bytes(path), parents, mode: 0, ..Default::default() };
        self.ask(request).await
    }

    /// Moves a file or directory.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn rename(&self, from: &Path, to: &Path, overwrite: bool) -> Result<v1::Entry> {
        let request =
            v1::MoveRequest { from: path_bytes(from), to: path_bytes(to), overwrite, ..Default::default() };
        self.ask(request).await
    }

    /// Removes a file, or a directory, with `recursive` with all that is in it.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        let request = v1::RemoveRequest { path: path_bytes(path), recursive, ..Default::default() };
        self.ask(request).await
    }

    /// Sets permission bits and the time of the last change, each if it is given.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn set_mode(&self, request: v1::SetModeRequest) -> Result<v1::Entry> {
        self.ask(request).await
    }

    /// Watches a directory. The first event says that watching has begun.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn watch(&self, path: &Path, recursive: bool) -> Result<Watch> {
        let request = v1::WatchRequest { path: path_bytes(path), recursive, ..Default::default() };
        self.ask(request).await
    }

    /// The TCP ports that programs inside listen on.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_ports(&self) -> Result<Vec<u16>> {
        self.ask(v1::ListPortsRequest::default()).await
    }

    /// Connects to a TCP port that a program inside listens on.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn tunnel(&self, port: u16) -> Result<Tunnel> {
        let mut stream = self.ports(None).tunnel().await?;
        stream.send(v1::TunnelRequest { port: port.into(), ..Default::default() }).await?;
        Ok(Tunnel { stream })
    }
}

/// A process whose stream begins with its start.
async fn begun(stream: EventStream) -> Result<Execution> {
    let mut execution = Execution { stream: Box::new(stream), id: 0, pid: 0 };
    match execution.next().await? {
        Some(ProcessEvent::Started { id, pid }) => {
            execution.id = id;
            execution.pid = pid;
            Ok(execution)
        }
        _ => Err(GuestError::Protocol { what: "a process did not begin with its start" }),
    }
}

fn path_bytes(path: &Path) -> Bytes {
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

fn entry(entry: belljar_proto::MessageField<v1::Entry>) -> Result<v1::Entry> {
    entry.into_option().ok_or(GuestError::Protocol { what: "an answer about a file came without its entry" })
}

/// The messages that write a file.
pub fn written(
    open: v1::WriteOpen,
    content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> Upload<v1::WriteRequest> {
    let first = v1::WriteRequest { open: open.into(), ..Default::default() };
    Upload::new(first, content, |data| v1::WriteRequest { data, ..Default::default() })
}

type EventStream = ServerStream<v1::__buffa::view::ProcessEventView<'static>>;
type ReadStream = ServerStream<v1::__buffa::view::ReadResponseView<'static>>;
type WatchStream = ServerStream<v1::__buffa::view::WatchEventView<'static>>;
type TunnelStream = BidiStream<v1::TunnelRequest, v1::__buffa::view::TunnelResponseView<'static>>;

/// A process that is attached to.
pub struct Execution {
    stream: Box<EventStream>,
    /// Its number in the guest; unlike its pid it is never used again.
    pub id: u64,
    /// Its pid inside, 0 when it was attached to later.
    pub pid: u32,
}

/// What happens to a process.
#[derive(Debug, Clone)]
pub enum ProcessEvent {
    /// It runs.
    Started {
        /// Its number in the guest.
        id: u64,
        /// Its pid inside.
        pid: u32,
    },
    /// It has written something.
    Output {
        /// Which stream.
        stream: v1::Stream,
        /// Where in the stream; a jump means that bytes were not kept for this reader.
        offset: u64,
        /// What.
        data: Bytes,
    },
    /// It has ended, and all its output has come.
    Exited(v1::Exited),
}

impl Execution {
    /// The next event; `None` after the last.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        use v1::__buffa::oneof::process_event::Event;
        let Some(message) = self.stream.message::<v1::ProcessEvent>().await? else {
            return match self.stream.error() {
                Some(error) => Err(error.clone().into()),
                None => Ok(None),
            };
        };
        Ok(Some(match message.to_owned_message().event {
            Some(Event::Started(started)) => ProcessEvent::Started { id: started.id, pid: started.pid },
            Some(Event::Output(output)) => ProcessEvent::Output {
                stream: output.stream.as_known().unwrap_or_default(),
                offset: output.offset,
                data: output.data,
            },
            Some(Event::Exited(exited)) => ProcessEvent::Exited(*exited),
            None => return Err(GuestError::Protocol { what: "an event without content" }),
        }))
    }
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Execution").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A file on its way out.
pub struct Download {
    stream: Box<ReadStream>,
    /// The file's entry when it was opened.
    pub entry: v1::Entry,
    first: Option<Bytes>,
}

impl Download {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Ok(Some(first));
        }
        Ok(self.message().await?.map(|message| message.data))
    }

    async fn message(&mut self) -> Result<Option<v1::ReadResponse>> {
        match self.stream.message::<v1::ReadResponse>().await? {
            Some(message) => Ok(Some(message.to_owned_message())),
            None => match self.stream.error() {
                Some(error) => Err(error.clone().into()),
                None => Ok(None),
            },
        }
    }
}

/// A watched directory.
pub struct Watch {
    stream: Box<WatchStream>,
    first: Option<v1::WatchEvent>,
}

impl Watch {
    /// The next event; `None` when watching has ended.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<v1::WatchEvent>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        match self.stream.message::<v1::WatchEvent>().await? {
            Some(message) => Ok(Some(message.to_owned_message())),
            None => match self.stream.error() {
                Some(error) => Err(error.clone().into()),
                None => Ok(None),
            },
        }
    }
}

/// A connection to a port inside.
pub struct Tunnel {
    stream: TunnelStream,
}

impl Tunnel {
    /// Sends bytes into the connection.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn send(&mut self, data: Bytes) -> Result<()> {
        Ok(self.stream.send(v1::TunnelRequest { data, ..Default::default() }).await?)
    }

    /// Says that nothing more will be sent.
    pub fn close_send(&mut self) {
        self.stream.close_send();
    }

    /// Both directions, each on its own.
    #[must_use]
    pub fn into_halves(
        self,
    ) -> (BidiSender<v1::TunnelRequest>, BidiReceiver<v1::__buffa::view::TunnelResponseView<'static>>) {
        self.stream.into_split()
    }

    /// The next bytes; `None` when the other side sends no more.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn receive(&mut self) -> Result<Option<Bytes>> {
        match self.stream.message::<v1::TunnelResponse>().await? {
            Some(message) => Ok(Some(message.to_owned_message().data)),
            None => match self.stream.error() {
                Some(error) => Err(error.clone().into()),
                None => Ok(None),
            },
        }
    }
}

/// The next bytes of a tunnel whose directions are apart; `None` when the other side sends no more.
///
/// # Errors
/// See [`GuestError`].
pub async fn received(
    receiver: &mut BidiReceiver<v1::__buffa::view::TunnelResponseView<'static>>,
) -> Result<Option<Bytes>> {
    match receiver.message::<v1::TunnelResponse>().await? {
        Some(message) => Ok(Some(message.to_owned_message().data)),
        None => match receiver.error() {
            Some(error) => Err(error.clone().into()),
            None => Ok(None),
        },
    }
}

/// Events as a [`Stream`], for callers that like those better.
pub fn events(execution: Execution) -> impl Stream<Item = Result<ProcessEvent>> {
    futures::stream::try_unfold(execution, |mut execution| async move {
        Ok(execution.next().await?.map(|event| (event, execution)))
    })
}
