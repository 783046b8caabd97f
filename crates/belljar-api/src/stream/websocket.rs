//! Processes over a WebSocket: input and output as binary messages, control messages and events as JSON.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use belljar_engine::{Execution, ProcessEvent, v1};
use belljar_keeper::operation::{Feed, Opened, Operation};
use belljar_keeper::{Caller, Entered, Keeper, KeeperError};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::api::Shared;
use crate::guard::StreamSlot;
use crate::problem::{Code, Problem};
use crate::rest::types::{ExitedBody, TerminalBody, signal_number};

/// Maximum length of a client's message, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Maximum length of a control message, in bytes.
const MAX_CONTROL_BYTES: usize = 4096;

/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Maximum time without any message from the client, pongs included.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time to send one message, after which the client counts as too slow.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for the process to read the remaining input after the client has disconnected.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of input messages that wait for the process.
const MAX_WAITING_INPUTS: usize = 1;

/// Maximum number of control errors that wait for the client.
const MAX_WAITING_ERRORS: usize = 16;

/// A process to attach to, with its caller.
pub(crate) struct Attachment {
    /// The process.
    pub(crate) execution: Opened<Execution>,
    /// First message to the client.
    pub(crate) greeting: Option<String>,
    /// Slot of an open stream.
    pub(crate) slot: StreamSlot,
    /// The caller.
    pub(crate) caller: Caller,
}

/// Reason for the end of a connection, as a close frame.
struct Closing {
    code: u16,
    reason: &'static str,
}

const fn closing(code: u16, reason: &'static str) -> Closing {
    Closing { code, reason }
}

/// Relays messages between process and client, until either ends, the key is revoked or the server shuts down.
pub(crate) async fn attach(socket: WebSocket, shared: Shared, attachment: Attachment) {
    let Attachment { execution, greeting, slot, caller } = attachment;
    let (mut sink, source) = socket.split();
    let target = Target {
        keeper: shared.keeper.clone(),
        entered: execution.sandbox().clone(),
        process: execution.get().id,
        caller,
    };
    let (errors, mut reported) = mpsc::channel(MAX_WAITING_ERRORS);
    let closing = {
        let sender = OutputSender { shared: &shared, request_id: &target.caller.request_id };
        let outgoing = async {
            if let Some(text) = greeting {
                send(&mut sink, Message::text(text)).await?;
            }
            sender.send_output(&mut sink, execution, &mut reported).await
        };
        let incoming = receive_input(source, target.clone(), errors);
        tokio::select! {
            ended = outgoing => ended.err().unwrap_or(closing(close_code::NORMAL, "the process has ended")),
            ended = incoming => ended,
            problem = slot.wait_for_end() => match problem.code() {
                Code::ShuttingDown => closing(close_code::AWAY, "the server is shutting down"),
                _ => closing(close_code::POLICY, "the key was revoked or changed, or the session has ended"),
            },
        }
    };
    let frame = CloseFrame { code: closing.code, reason: closing.reason.into() };
    // The client may have disconnected, or not read.
    let _ = timeout(SEND_TIMEOUT, sink.send(Message::Close(Some(frame)))).await;
    let _ = timeout(Duration::from_secs(1), sink.close()).await;
}

/// The attached process, for input and control.
#[derive(Clone)]
struct Target {
    keeper: Keeper,
    entered: Entered,
    process: u64,
    caller: Caller,
}

impl Target {
    async fn perform<O: Operation>(&self, operation: O) -> Result<O::Response, KeeperError> {
        self.keeper.perform_in(&self.caller, &self.entered, operation).await
    }
}

struct OutputSender<'a> {
    shared: &'a Shared,
    request_id: &'a str,
}

type Sink = SplitSink<WebSocket, Message>;

impl OutputSender<'_> {
    /// Sends output, events and pings, until the process has ended or the client reads too slowly.
    async fn send_output(
        &self,
        sink: &mut Sink,
        mut execution: Opened<Execution>,
        reported: &mut mpsc::Receiver<String>,
    ) -> Result<(), Closing> {
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset();
        loop {
            let message = tokio::select! {
                event = execution.next() => match event {
                    Ok(Some(ProcessEvent::Output { stream, offset, data })) => Message::Binary(frame(stream, offset, &data)),
                    Ok(Some(ProcessEvent::Exited(exited))) => {
                        let judgement = self.shared.keeper.judge(&exited);
                        let body = JsonEvent { event: "exited", body: ExitedBody::new(&exited, judgement) };
                        return send(sink, Message::text(json(&body))).await;
                    }
                    Ok(Some(ProcessEvent::Started { .. })) => continue,
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        let problem = Problem::from(error);
                        let body = JsonEvent { event: "error", body: problem.body(self.request_id) };
                        return send(sink, Message::text(json(&body))).await;
                    }
                },
                Some(problem) = reported.recv() => {
                    let body = JsonEvent { event: "error", body: Problem::field("message", problem).body(self.request_id) };
                    Message::text(json(&body))
                }
                _ = pings.tick() => Message::Ping(Bytes::new()),
            };
            send(sink, message).await?;
        }
    }
}

async fn send(sink: &mut Sink, message: Message) -> Result<(), Closing> {
    match timeout(SEND_TIMEOUT, sink.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(closing(close_code::NORMAL, "the client has disconnected")),
        Err(_) => Err(closing(close_code::POLICY, "the client reads too slowly")),
    }
}

/// Encodes a message of output: the stream's number, the offset, and the data.
fn frame(stream: v1::Stream, offset: u64, data: &[u8]) -> Bytes {
    let number = match stream {
        v1::Stream::STREAM_UNSPECIFIED | v1::Stream::STREAM_STDOUT => 1,
        v1::Stream::STREAM_STDERR => 2,
        v1::Stream::STREAM_TERMINAL => 3,
    };
    let mut frame = BytesMut::with_capacity(9 + data.len());
    frame.put_u8(number);
    frame.put_u64(offset);
    frame.put_slice(data);
    frame.freeze()
}

/// An event to the client, as JSON.
#[derive(Serialize)]
struct JsonEvent<T> {
    event: &'static str,
    #[serde(flatten)]
    body: T,
}

fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

/// A control message of the client: exactly one of these.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Control {
    resize: Option<TerminalBody>,
    signal: Option<belljar_model::Scalar>,
    close_stdin: Option<bool>,
}

/// Receives input and control messages, until the client disconnects. `errors` gets the errors of control messages.
async fn receive_input(
    source: SplitStream<WebSocket>,
    target: Target,
    errors: mpsc::Sender<String>,
) -> Closing {
    let mut input = Input::new(target);
    let closing = receive_messages(source, &mut input, &errors).await;
    input.finish().await;
    closing
}

async fn receive_messages(
    mut source: SplitStream<WebSocket>,
    input: &mut Input,
    errors: &mpsc::Sender<String>,
) -> Closing {
    let mut last_message = Instant::now();
    loop {
        // Waiting for the process to read its input is not silence: nothing is received meanwhile.
        let left = SILENCE_TIMEOUT.saturating_sub(last_message.elapsed());
        let message = match timeout(left, source.next()).await {
            Err(_) => return closing(close_code::AWAY, "the client is silent"),
            Ok(None) => return closing(close_code::NORMAL, "the client has disconnected"),
            Ok(Some(Err(error))) => return read_error(&error),
            Ok(Some(Ok(message))) => message,
        };
        match message {
            Message::Binary(data) => input.write(data).await,
            Message::Text(text) => {
                if let Err(reason) = apply_control(&text, input).await {
                    // Dropped if the client does not read.
                    let _ = errors.try_send(reason);
                }
            }
            Message::Close(_) => return closing(close_code::NORMAL, "closed by the client"),
            Message::Ping(_) | Message::Pong(_) => {}
        }
        last_message = Instant::now();
    }
}

/// Returns the reason why a message could not be read.
fn read_error(error: &axum::Error) -> Closing {
    use tokio_tungstenite::tungstenite::Error;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<Error>() {
            Some(Error::Capacity(_)) => return closing(close_code::SIZE, "the message is larger than 1 MiB"),
            Some(Error::Utf8(_)) => return closing(close_code::INVALID, "a text message is not UTF-8"),
            Some(Error::Protocol(_)) => return closing(close_code::PROTOCOL, "invalid WebSocket message"),
            _ => cause = error.source(),
        }
    }
    closing(close_code::NORMAL, "the client has disconnected")
}

/// Applies a control message.
async fn apply_control(text: &str, input: &mut Input) -> Result<(), String> {
    if text.len() > MAX_CONTROL_BYTES {
        return Err(format!("it is longer than {MAX_CONTROL_BYTES} bytes"));
    }
    let problem = |problem: Problem| problem.detail().to_owned();
    let control: Control = crate::extract::parse_json(text.as_bytes()).map_err(problem)?;
    let refused = |error: KeeperError| error.to_string();
    let id = input.target.process;
    match control {
        Control { resize: Some(size), signal: None, close_stdin: None } => {
            let (rows, columns) = size.validate("resize.").map_err(problem)?;
            let terminal = v1::Terminal { rows: rows.into(), columns: columns.into(), ..Default::default() };
            let request = v1::ResizeRequest { id, terminal: terminal.into(), ..Default::default() };
            input.target.perform(request).await.map_err(refused)
        }
        Control { resize: None, signal: Some(signal), close_stdin: None } => {
            let number = signal_number(&signal.0);
            let number = number.ok_or("signal: give a name such as SIGTERM, or a number from 1 to 64")?;
            let request = v1::SignalRequest { id, signal: number, ..Default::default() };
            input.target.perform(request).await.map(drop).map_err(refused)
        }
        Control { resize: None, signal: None, close_stdin: Some(true) } => {
            input.close().await;
            Ok(())
        }
        _ => Err("give exactly one of resize, signal and close_stdin: true".to_owned()),
    }
}

/// The standard input of the process. It is opened with the first message.
struct Input {
    target: Target,
    pipe: Option<mpsc::Sender<Bytes>>,
    feeding: Option<tokio::task::JoinHandle<()>>,
    ended: bool,
}

impl Input {
    fn new(target: Target) -> Self {
        Self { target, pipe: None, feeding: None, ended: false }
    }

    /// Writes as fast as the process reads. Input is dropped once the process no longer reads.
    async fn write(&mut self, data: Bytes) {
        if self.ended {
            return;
        }
        if self.pipe.is_none() {
            let (sender, mut receiver) = mpsc::channel(MAX_WAITING_INPUTS);
            let (target, id) = (self.target.clone(), self.target.process);
            let pieces = async_stream::stream! {
                while let Some(data) = receiver.recv().await {
                    yield Ok(v1::InputRequest { id, data, ..Default::default() });
                }
            };
            self.feeding = Some(tokio::spawn(async move {
                // Ends with the pipe, or when the process no longer reads.
                let _ = target.perform(Feed(pieces.boxed())).await;
            }));
            self.pipe = Some(sender);
        }
        if let Some(pipe) = &mut self.pipe
            && pipe.send(data).await.is_err()
        {
            self.ended = true;
        }
    }

    /// Closes the input, after all of it has been written.
    async fn close(&mut self) {
        self.pipe = None;
        if let Some(feeding) = &mut self.feeding {
            let _ = feeding.await;
        }
        self.feeding = None;
        if !std::mem::replace(&mut self.ended, true) {
            let last = v1::InputRequest { id: self.target.process, close: true, ..Default::default() };
            let _ = self.target.perform(Feed(futures::stream::iter([Ok(last)]).boxed())).await;
        }
    }

    /// Waits up to [`FINISH_TIMEOUT`] for the process to read the remaining input.
    async fn finish(&mut self) {
        self.pipe = None;
        if let Some(feeding) = &mut self.feeding {
            let _ = timeout(FINISH_TIMEOUT, feeding).await;
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Some(feeding) = &self.feeding {
            feeding.abort();
        }
    }
}

/// Returns the problem for a request that is not a WebSocket upgrade.
pub(crate) fn upgrade_required() -> Problem {
    Problem::new(Code::UpgradeRequired, "a WebSocket is required; connect with a WebSocket client")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_framed() {
        let found = frame(v1::Stream::STREAM_TERMINAL, 0x0102, b"ab");
        assert_eq!(&found[..], [3, 0, 0, 0, 0, 0, 0, 1, 2, b'a', b'b']);
        assert_eq!(frame(v1::Stream::STREAM_STDOUT, 0, b"")[0], 1);
        assert_eq!(
            frame(v1::Stream::STREAM_STDERR, u64::MAX, b"")[..9],
            [2, 255, 255, 255, 255, 255, 255, 255, 255]
        );
    }

    #[test]
    fn json_events_are_flat() {
        let body = JsonEvent { event: "error", body: Problem::field("a", "b").body("r") };
        let value: serde_json::Value = serde_json::from_str(&json(&body)).unwrap();
        assert_eq!((value["event"].as_str(), value["field"].as_str()), (Some("error"), Some("a")));
    }
}
