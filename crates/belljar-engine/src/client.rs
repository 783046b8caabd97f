//! The host's client of the guest. Every response is bounded in size, and every non-streaming call in time: the guest
//! is hostile once user code has run.

mod archive;
mod call;
mod direct;
mod interpreter;
mod links;
mod search;
mod session;

pub use archive::{Archive, unpack_messages};
pub use call::{GuestCall, Pack, Upload};
pub use interpreter::{CodeEvent, CodeExecution};
pub use search::Search;

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::{
    BidiReceiver, BidiSender, BidiStream, ClientConfig, Connection, ErrorCode, NOT_REGULAR, ServerStream, v1,
};
use bytes::Bytes;
use direct::Direct;
use futures::{Stream, StreamExt as _};
use links::Links;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use v1::__buffa::oneof::process_event::Event;

/// Timeout of a call that does not stream.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for the start of a process, including the guest's own start if nobody has waited for that. Until then the
/// guest has no timeout that it could enforce.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// What a server that forwards the call has in addition, to find out why nothing starts.
const SERVER_SLACK: Duration = Duration::from_secs(10);

/// Maximum length of a guest's error message, in characters.
const MAX_ERROR_CHARS: usize = 1024;

/// Size of a chunk of files and input, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// Failure of a call to the guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The guest refused the call.
    #[error("{message}")]
    Refused {
        /// The kind of refusal.
        code: ErrorCode,
        /// The guest's message, which is text from inside the sandbox.
        message: String,
        /// Stable code of the error, such as `program_not_found`, if the call went through a server.
        problem: Option<String>,
    },
    /// The guest refused to read or write a file that is not regular.
    #[error("{message}")]
    NotRegular {
        /// The guest's message, which is text from inside the sandbox.
        message: String,
    },
    /// The connection broke during the call, as when the sandbox ends. The next call opens another one, if the sandbox is
    /// still there.
    #[error(
        "the connection to the sandbox broke during the call: it is unknown whether it took effect, and what it started \
         may still run"
    )]
    Gone(#[source] Box<belljar_proto::ConnectError>),
    /// No connection could be opened, so the call was not made.
    #[error("the sandbox cannot be reached, and the call was not made")]
    Unreachable(#[source] Box<belljar_proto::ConnectError>),
    /// The guest broke the protocol.
    #[error("the guest broke the protocol: {what}")]
    Protocol {
        /// The violation.
        what: &'static str,
    },
    /// The source of an upload could not be read.
    #[error("cannot read the data to send to the sandbox")]
    Source(#[source] std::io::Error),
}

impl GuestError {
    /// Reports whether the guest refused the call with this code.
    #[must_use]
    pub fn is(&self, expected: ErrorCode) -> bool {
        match self {
            Self::Refused { code, .. } => *code == expected,
            Self::NotRegular { .. } => expected == ErrorCode::FailedPrecondition,
            _ => false,
        }
    }
}

impl From<belljar_proto::ConnectError> for GuestError {
    fn from(mut error: belljar_proto::ConnectError) -> Self {
        let problem = belljar_proto::problem(&error).map(|problem| problem.code);
        // Also if it only becomes a source: its text may be the guest's in any case.
        error.message = error.message.as_deref().map(sanitize);
        match error.code {
            ErrorCode::Unavailable if is_dial_error(&error) => Self::Unreachable(Box::new(error)),
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
                    false => Self::Refused { code, message, problem },
                }
            }
        }
    }
}

/// Reports whether the call was not made because no connection could be opened.
fn is_dial_error(error: &belljar_proto::ConnectError) -> bool {
    error.source_arc().is_some_and(|source| source.is::<belljar_proto::DialError>())
}

/// Reports whether the connection was lost during a response, which the client library reports only by this text.
/// Held by `conformance::stop_is_shared_and_repeated`.
fn is_broken_body(message: &str) -> bool {
    message.starts_with("failed to read response body")
}

/// Removes control characters from text of the guest, which may be shown in terminals and logs, and truncates it.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars()
        .take(MAX_ERROR_CHARS)
        .map(|character| if character.is_control() { '\u{fffd}' } else { character })
        .collect()
}

/// A client of a guest. Clones share its connections.
#[derive(Clone)]
pub struct GuestClient {
    links: Links,
    /// Configuration of calls, without the timeout.
    config: ClientConfig,
    /// Notified when a connection breaks, or is reported as broken.
    doubts: Arc<Notify>,
    /// Timeout for the start of a process.
    start_timeout: Duration,
    /// The connection, if a program may be started on it before HTTP/2 is spoken.
    direct: Option<Arc<Direct>>,
    /// Told when a call begins to wait for approval; none if it is the guest itself that answers.
    waits: Option<ReportWaiting>,
}

/// Function that is told when a call begins to wait for approval.
type ReportWaiting = Arc<dyn Fn(v1::Waiting) + Send + Sync>;

impl std::fmt::Debug for GuestClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("GuestClient")
    }
}

type Result<T> = std::result::Result<T, GuestError>;

impl GuestClient {
    /// Creates a client of the guest at the other end of `stream`, its only connection. Nothing is sent before the first
    /// call.
    #[must_use]
    pub fn new<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let config = belljar_proto::client_config(None);
        let client = Self::from_connection(belljar_proto::connect(stream), config);
        Self { start_timeout: START_TIMEOUT, ..client }
    }

    /// Creates a client of a guest that starts its only program before it speaks HTTP/2, if a start is the first call. `owner` is the user
    /// and the group of the sandbox as this machine sees them, if they are not those of this process.
    #[must_use]
    pub fn direct(stream: tokio::net::UnixStream, owner: Option<(u32, u32)>) -> Self {
        let direct = Arc::new(Direct::new(stream, owner));
        let dialed = Arc::clone(&direct);
        let dial = move || {
            let direct = Arc::clone(&dialed);
            async move { direct.connection().await }
        };
        let connection = belljar_proto::connect_by(dial, || {});
        let client = Self::from_connection(connection, belljar_proto::client_config(None));
        Self { start_timeout: START_TIMEOUT, direct: Some(direct), ..client }
    }

    /// Creates a client of the guest at the other end of `stream` that opens more connections with `dial`: others for
    /// files and ports, and another one whenever one breaks.
    #[must_use]
    pub fn with_dialer<S, D, F>(stream: S, dial: D) -> Self
    where
        S: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static,
        D: Fn() -> F + Clone + Send + Sync + 'static,
        F: Future<Output = std::io::Result<S>> + Send + 'static,
    {
        Self::dialing(Some(stream), dial)
    }

    /// Creates a client that opens all of its connections with `dial`, the first one for the first call.
    #[must_use]
    pub fn from_dialer<S, D, F>(dial: D) -> Self
    where
        S: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static,
        D: Fn() -> F + Clone + Send + Sync + 'static,
        F: Future<Output = std::io::Result<S>> + Send + 'static,
    {
        Self::dialing(None, dial)
    }

    fn dialing<S, D, F>(first: Option<S>, dial: D) -> Self
    where
        S: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static,
        D: Fn() -> F + Clone + Send + Sync + 'static,
        F: Future<Output = std::io::Result<S>> + Send + 'static,
    {
        let doubts = Arc::new(Notify::new());
        let links = Links::with_dialer(first, dial, &doubts);
        let config = belljar_proto::client_config(None);
        Self { links, config, doubts, start_timeout: START_TIMEOUT, direct: None, waits: None }
    }

    /// Creates a client of a guest behind a server that forwards the calls: `config` has the server's address, and the
    /// headers that name the sandbox and its user.
    #[must_use]
    pub fn from_connection(connection: Connection, config: ClientConfig) -> Self {
        let start_timeout = START_TIMEOUT + SERVER_SLACK;
        let links = Links::single(connection);
        Self { links, config, doubts: Arc::default(), start_timeout, direct: None, waits: None }
    }

    /// Sets what is told when a call begins to wait for another person's approval, which it may do at a server. A guest itself that says so
    /// breaks the protocol, and so does a server that is not expected to.
    #[must_use]
    pub fn on_waiting(self, report: impl Fn(v1::Waiting) + Send + Sync + 'static) -> Self {
        Self { waits: Some(Arc::new(report)), ..self }
    }

    /// Reports that the guest may have stopped answering.
    pub fn doubt(&self) {
        self.doubts.notify_one();
    }

    /// Waits until a connection breaks, or [`Self::doubt`] is called. For one caller at a time.
    pub async fn wait_for_doubt(&self) {
        self.doubts.notified().await;
    }

    fn config(&self, timeout: Option<Duration>) -> ClientConfig {
        let config = self.config.clone();
        match timeout {
            Some(timeout) => config.with_default_timeout(timeout),
            None => config,
        }
    }

    fn processes(&self, timeout: Option<Duration>) -> v1::ProcessClient<Connection> {
        v1::ProcessClient::new(self.links.calls.clone(), self.config(timeout))
    }

    fn files(&self, timeout: Option<Duration>) -> v1::FilesystemClient<Connection> {
        v1::FilesystemClient::new(self.links.files.clone(), self.config(timeout))
    }

    fn ports(&self, timeout: Option<Duration>) -> v1::PortsClient<Connection> {
        v1::PortsClient::new(self.links.ports.clone(), self.config(timeout))
    }

    fn health(&self, timeout: Option<Duration>) -> v1::HealthClient<Connection> {
        v1::HealthClient::new(self.links.calls.clone(), self.config(timeout))
    }

    /// Checks the health of the guest.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn check(&self) -> Result<v1::CheckResponse> {
        self.call(v1::CheckRequest::default()).await
    }

    /// Returns the current resource usage, as reported by the guest.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn metrics(&self) -> Result<v1::MetricsResponse> {
        self.call(v1::MetricsRequest::default()).await
    }

    /// Sets the deadline at which everything inside ends; `None` removes it.
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
        if let Some(direct) = &self.direct {
            let starting = tokio::time::timeout(self.start_timeout, direct.start(&request));
            if let Some(started) = starting.await.unwrap_or_else(|_| Some(Err(call::timeout_error()))) {
                let program = started?;
                let pid = program.pid;
                return Ok(Execution {
                    events: Events::Direct(Box::new(program)),
                    id: direct::Program::ID,
                    pid,
                });
            }
        }
        self.call(request).await
    }

    /// Attaches to a running or ended process from the given offsets of stdout, stderr and terminal.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn attach(&self, id: u64, offsets: [u64; 3]) -> Result<Execution> {
        let [stdout_offset, stderr_offset, terminal_offset] = offsets;
        let request =
            v1::AttachRequest { id, stdout_offset, stderr_offset, terminal_offset, ..Default::default() };
        self.call(request).await
    }

    /// Feeds a process's input until `source` ends, and then closes it if `close`. Ends early, without an error, if the
    /// process accepts no more.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn feed<R>(&self, id: u64, source: R, close: bool) -> Result<u64>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        if let Some(direct) = &self.direct
            && let Some(input) = direct.take_input(id)
        {
            return direct.feed(input, source).await;
        }
        let message = move |data| v1::InputRequest { id, data, ..Default::default() };
        let last = v1::InputRequest { id, close, ..Default::default() };
        let pieces = call::bytes_of(source).map(move |piece| piece.map(message));
        self.call(Upload(pieces.chain(futures::stream::iter([Ok(last)])).boxed())).await
    }

    /// Sends a signal to a process, and with `tree` to all its descendants. Returns the number of processes, which is not known of a program
    /// that was started before HTTP/2 was spoken: at least 1.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn signal(&self, id: u64, signal: i32, tree: bool) -> Result<u32> {
        let request = v1::SignalRequest { id, signal, tree, ..Default::default() };
        if let Some(direct) = &self.direct
            && let Some(sent) = direct.signal(&request).await
        {
            return sent.map(|()| 1);
        }
        self.call(request).await
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn resize(&self, id: u64, rows: u16, columns: u16) -> Result<()> {
        let terminal = v1::Terminal { rows: rows.into(), columns: columns.into(), ..Default::default() };
        let request = v1::ResizeRequest { id, terminal: terminal.into(), ..Default::default() };
        self.call(request).await
    }

    /// Lists the processes that the guest has started.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_processes(&self) -> Result<Vec<v1::ProcessInfo>> {
        self.call(v1::ListProcessesRequest::default()).await
    }

    /// Writes a file from memory. Creates missing parent directories.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn write(&self, path: &Path, mode: u32, content: Bytes) -> Result<v1::Entry> {
        let open = v1::WriteOpen { path: path_bytes(path), mode, make_parents: true, ..Default::default() };
        let content = futures::stream::iter([Ok(content)]);
        self.call(write_messages(open, content)).await
    }

    /// Writes a file from a stream of bytes, with the options in `open`.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn write_from<R>(&self, open: v1::WriteOpen, source: R) -> Result<v1::Entry>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.call(write_messages(open, call::bytes_of(source))).await
    }

    /// Reads a range of a file; length 0 reads to its end.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn read(&self, path: &Path, offset: u64, length: u64, no_follow: bool) -> Result<Download> {
        let request =
            v1::ReadRequest { path: path_bytes(path), offset, length, no_follow, ..Default::default() };
        self.call(request).await
    }

    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    /// See [`GuestError`]; `OutOfRange` if the file is longer.
    pub async fn read_all(&self, path: &Path, limit: usize) -> Result<Bytes> {
        let mut download = self.read(path, 0, 0, false).await?;
        let mut content = Vec::new();
        while let Some(piece) = download.next().await? {
            if content.len() + piece.len() > limit {
                let message = format!("{} is longer than the {limit} bytes allowed here", path.display());
                return Err(GuestError::Refused { code: ErrorCode::OutOfRange, message, problem: None });
            }
            content.extend_from_slice(&piece);
        }
        Ok(content.into())
    }

    /// Returns a file's entry.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn stat(&self, path: &Path, follow: bool) -> Result<v1::Entry> {
        let request = v1::StatRequest { path: path_bytes(path), follow, ..Default::default() };
        self.call(request).await
    }

    /// Returns one page of a directory's entries, and the cursor of the next page if there is one.
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
        let answer = self.call(request).await?;
        let next = (!answer.next.is_empty()).then_some(answer.next);
        Ok((answer.entries, next))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn make_dir(&self, path: &Path, parents: bool) -> Result<v1::Entry> {
        let request = v1::MakeDirRequest { path: path_bytes(path), parents, mode: 0, ..Default::default() };
        self.call(request).await
    }

    /// Moves a file or directory.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn rename(&self, from: &Path, to: &Path, overwrite: bool) -> Result<v1::Entry> {
        let request =
            v1::MoveRequest { from: path_bytes(from), to: path_bytes(to), overwrite, ..Default::default() };
        self.call(request).await
    }

    /// Removes a file or a directory; with `recursive` including its content.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        let request = v1::RemoveRequest { path: path_bytes(path), recursive, ..Default::default() };
        self.call(request).await
    }

    /// Sets permission bits and the modification time, each if given.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn set_mode(&self, request: v1::SetModeRequest) -> Result<v1::Entry> {
        self.call(request).await
    }

    /// Watches a directory. The first event reports that the watch has begun.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn watch(&self, path: &Path, recursive: bool) -> Result<Watch> {
        let request = v1::WatchRequest { path: path_bytes(path), recursive, ..Default::default() };
        self.call(request).await
    }

    /// Returns the TCP ports that programs inside listen on.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_ports(&self) -> Result<Vec<u16>> {
        self.call(v1::ListPortsRequest::default()).await
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

/// Reports that a call waits for approval.
fn report_waiting(waits: Option<&ReportWaiting>, waiting: v1::Waiting) -> Result<()> {
    let Some(report) = waits else {
        return Err(GuestError::Protocol { what: "a call waits for approval where nobody decides" });
    };
    report(waiting);
    Ok(())
}

/// Opens the stream of a process, and reads its start event, within the time for that. Time in which the call waits for approval does not
/// count.
async fn start<E: Into<GuestError>>(
    guest: &GuestClient,
    opening: impl Future<Output = std::result::Result<EventStream, E>> + Send,
) -> Result<Execution> {
    let timeout = guest.start_timeout;
    let begin = async {
        let stream = Box::new(opening.await.map_err(Into::into)?);
        let mut execution = Execution { events: Events::Stream(stream), id: 0, pid: 0 };
        let first = execution.message().await?;
        Ok::<_, GuestError>((execution, first))
    };
    let late = |_| Err(call::timeout_error());
    let (mut execution, mut first) = tokio::time::timeout(timeout, begin).await.unwrap_or_else(late)?;
    if let Some(Event::Waiting(waiting)) = first {
        report_waiting(guest.waits.as_ref(), *waiting)?;
        first = execution.message().await?;
    }
    match first {
        Some(Event::Started(started)) => {
            (execution.id, execution.pid) = (started.id, started.pid);
            Ok(execution)
        }
        _ => Err(GuestError::Protocol { what: "the first event of a process was not its start" }),
    }
}

fn path_bytes(path: &Path) -> Bytes {
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

fn entry(entry: belljar_proto::MessageField<v1::Entry>) -> Result<v1::Entry> {
    entry.into_option().ok_or(GuestError::Protocol { what: "a response about a file has no entry" })
}

/// Returns the messages that write a file.
pub fn write_messages(
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

/// Where the events of a process come from.
enum Events {
    Stream(Box<EventStream>),
    Direct(Box<direct::Program>),
}

/// An attached process.
pub struct Execution {
    events: Events,
    /// Its id in the guest; unlike its pid it is never reused.
    pub id: u64,
    /// Its pid inside, 0 if attached later.
    pub pid: u32,
}

/// Event of a process.
#[derive(Debug, Clone)]
pub enum ProcessEvent {
    /// The process was started.
    Started {
        /// Its id in the guest.
        id: u64,
        /// Its pid inside.
        pid: u32,
    },
    /// The process has written output.
    Output {
        /// The stream.
        stream: v1::Stream,
        /// Offset in the stream; a gap means that bytes were not kept for this reader.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// The process has exited, and all its output was delivered.
    Exited(v1::Exited),
}

impl Execution {
    /// Returns the next event; `None` after the last.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        if let Events::Direct(program) = &mut self.events {
            return program.next().await;
        }
        let Some(event) = self.message().await? else { return Ok(None) };
        Ok(Some(match event {
            Event::Started(started) => ProcessEvent::Started { id: started.id, pid: started.pid },
            Event::Output(output) => ProcessEvent::Output {
                stream: output.stream.as_known().unwrap_or_default(),
                offset: output.offset,
                data: output.data,
            },
            Event::Exited(exited) => ProcessEvent::Exited(*exited),
            Event::Waiting(_) => {
                return Err(GuestError::Protocol { what: "a process waits for approval that has started" });
            }
        }))
    }

    async fn message(&mut self) -> Result<Option<Event>> {
        let Events::Stream(stream) = &mut self.events else { return Ok(None) };
        match stream.message::<v1::ProcessEvent>().await? {
            Some(message) => {
                let event = message.to_owned_message().event;
                event.map(Some).ok_or(GuestError::Protocol { what: "an event has no content" })
            }
            None => match stream.error() {
                Some(error) => Err(error.clone().into()),
                None => Ok(None),
            },
        }
    }
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Execution").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Download of a file.
pub struct Download {
    stream: Box<ReadStream>,
    /// The file's entry when it was opened.
    pub entry: v1::Entry,
    /// The next bytes; `None` at the end.
    ahead: Option<Bytes>,
}

impl Download {
    /// Returns the next bytes; `None` at the end. The last bytes come after the end of the stream has arrived, as a reader
    /// that knows the length asks for nothing after them.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.ahead.is_some() {
            let following = self.message().await?.map(|message| message.data);
            let piece = std::mem::replace(&mut self.ahead, following);
            if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
                return Ok(Some(piece));
            }
        }
        Ok(None)
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
    /// Returns the next event; `None` once the watch has ended.
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

    /// Closes the sending direction.
    pub fn close_send(&mut self) {
        self.stream.close_send();
    }

    /// Splits the tunnel into its two directions.
    #[must_use]
    pub fn into_halves(
        self,
    ) -> (BidiSender<v1::TunnelRequest>, BidiReceiver<v1::__buffa::view::TunnelResponseView<'static>>) {
        self.stream.into_split()
    }

    /// Returns the next bytes; `None` once the other side sends no more.
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

/// Returns the next bytes of a split tunnel; `None` once the other side sends no more.
///
/// # Errors
/// See [`GuestError`].
pub async fn receive_from(
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

/// Converts an execution to a [`Stream`] of events.
pub fn events(execution: Execution) -> impl Stream<Item = Result<ProcessEvent>> {
    futures::stream::try_unfold(execution, |mut execution| async move {
        Ok(execution.next().await?.map(|event| (event, execution)))
    })
}
