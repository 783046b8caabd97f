//! A process over a WebSocket: its output as binary messages, its input too, and control in JSON.

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

/// The longest message of a client, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The longest control message, in bytes.
const MAX_CONTROL_BYTES: usize = 4096;

/// How often the client is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// How long a client may say nothing, not even that it is there.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// How long a client may take for one message before it counts as too slow.
const MAX_SEND: Duration = Duration::from_secs(30);

/// How long a process may take for the input that came before the client left.
const MAX_FINISH: Duration = Duration::from_secs(2);

/// Messages of input that wait for the process.
const INPUT_PIECES: usize = 1;

/// Messages to the client that wait besides output.
const NOTES: usize = 16;

/// What is attached to.
pub(crate) struct Attachment {
    /// The process.
    pub(crate) execution: Opened<Execution>,
    /// What is said first.
    pub(crate) greeting: Option<String>,
    /// Counts as an open stream.
    pub(crate) slot: StreamSlot,
    /// Who asked.
    pub(crate) caller: Caller,
}

/// Why a connection ends, as a close frame.
struct Ending {
    code: u16,
    reason: &'static str,
}

const fn ending(code: u16, reason: &'static str) -> Ending {
    Ending { code, reason }
}

/// Passes on what process and client say to each other, until one of them is through or the server stops.
pub(crate) async fn attach(socket: WebSocket, shared: Shared, attachment: Attachment) {
    let Attachment { execution, greeting, slot, caller } = attachment;
    let (mut sink, source) = socket.split();
    let target = Target {
        keeper: shared.keeper.clone(),
        entered: execution.sandbox().clone(),
        process: execution.get().id,
        caller,
    };
    let (notes, mut noted) = mpsc::channel(NOTES);
    let ending = {
        let talk = Talk { shared: &shared, request_id: &target.caller.request_id };
        let outgoing = async {
            if let Some(text) = greeting {
                send(&mut sink, Message::text(text)).await?;
            }
            talk.outgoing(&mut sink, execution, &mut noted).await
        };
        let incoming = incoming(source, target.clone(), notes);
        tokio::select! {
            ended = outgoing => ended.err().unwrap_or(ending(close_code::NORMAL, "the process has ended")),
            ended = incoming => ended,
            problem = slot.ended() => match problem.code() {
                Code::ShuttingDown => ending(close_code::AWAY, "the server is shutting down"),
                _ => ending(close_code::POLICY, "the key was revoked"),
            },
        }
    };
    let frame = CloseFrame { code: ending.code, reason: ending.reason.into() };
    // The client may be gone, or not listen.
    let _ = timeout(MAX_SEND, sink.send(Message::Close(Some(frame)))).await;
    let _ = timeout(Duration::from_secs(1), sink.close()).await;
}

/// The process that is attached to, for what is asked of it besides.
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

struct Talk<'a> {
    shared: &'a Shared,
    request_id: &'a str,
}

type Sink = SplitSink<WebSocket, Message>;

impl Talk<'_> {
    /// Sends output, answers and questions, until the process has ended or the client does not take them.
    async fn outgoing(
        &self,
        sink: &mut Sink,
        mut execution: Opened<Execution>,
        noted: &mut mpsc::Receiver<String>,
    ) -> Result<(), Ending> {
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset();
        loop {
            let message = tokio::select! {
                event = execution.next() => match event {
                    Ok(Some(ProcessEvent::Output { stream, offset, data })) => Message::Binary(frame(stream, offset, &data)),
                    Ok(Some(ProcessEvent::Exited(exited))) => {
                        let judgement = self.shared.keeper.judge(&exited);
                        let body = Told { event: "exited", body: ExitedBody::new(&exited, judgement) };
                        return send(sink, Message::text(json(&body))).await;
                    }
                    Ok(Some(ProcessEvent::Started { .. })) => continue,
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        let problem = Problem::from(error);
                        let body = Told { event: "error", body: problem.body(self.request_id) };
                        return send(sink, Message::text(json(&body))).await;
                    }
                },
                Some(problem) = noted.recv() => {
                    let body = Told { event: "error", body: Problem::field("message", problem).body(self.request_id) };
                    Message::text(json(&body))
                }
                _ = pings.tick() => Message::Ping(Bytes::new()),
            };
            send(sink, message).await?;
        }
    }
}

async fn send(sink: &mut Sink, message: Message) -> Result<(), Ending> {
    match timeout(MAX_SEND, sink.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(ending(close_code::ABNORMAL, "the client is gone")),
        Err(_) => Err(ending(close_code::POLICY, "the client takes too slowly what it asked for")),
    }
}

/// One message of output: which stream, where in it, what.
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

/// A message to the client in JSON.
#[derive(Serialize)]
struct Told<T> {
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
    signal: Option<crate::rest::types::Scalar>,
    close_stdin: Option<bool>,
}

/// Takes input and control, until the client is gone. `notes` tell it what was wrong with a control message.
async fn incoming(source: SplitStream<WebSocket>, target: Target, notes: mpsc::Sender<String>) -> Ending {
    let mut input = Input::new(target);
    let ending = take(source, &mut input, &notes).await;
    input.finish().await;
    ending
}

async fn take(mut source: SplitStream<WebSocket>, input: &mut Input, notes: &mpsc::Sender<String>) -> Ending {
    let mut spoken = Instant::now();
    loop {
        // What waits for the process to take its input is not silence: nothing is read meanwhile.
        let left = MAX_SILENCE.saturating_sub(spoken.elapsed());
        let message = match timeout(left, source.next()).await {
            Err(_) => return ending(close_code::AWAY, "the client is silent"),
            Ok(None) => return ending(close_code::NORMAL, "the client is gone"),
            Ok(Some(Err(error))) => return of_error(&error),
            Ok(Some(Ok(message))) => message,
        };
        match message {
            Message::Binary(data) => input.write(data).await,
            Message::Text(text) => {
                if let Err(reason) = control(&text, input).await {
                    // A client that does not listen need not be told.
                    let _ = notes.try_send(reason);
                }
            }
            Message::Close(_) => return ending(close_code::NORMAL, "closed by the client"),
            Message::Ping(_) | Message::Pong(_) => {}
        }
        spoken = Instant::now();
    }
}

/// Why the client's message could not be read.
fn of_error(error: &axum::Error) -> Ending {
    use tokio_tungstenite::tungstenite::Error;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<Error>() {
            Some(Error::Capacity(_)) => return ending(close_code::SIZE, "the message is larger than 1 MiB"),
            Some(Error::Utf8(_)) => return ending(close_code::INVALID, "a text message is not UTF-8"),
            Some(Error::Protocol(_)) => return ending(close_code::PROTOCOL, "that is no WebSocket message"),
            _ => cause = error.source(),
        }
    }
    ending(close_code::ABNORMAL, "the client is gone")
}

/// Does what a control message says.
async fn control(text: &str, input: &mut Input) -> Result<(), String> {
    if text.len() > MAX_CONTROL_BYTES {
        return Err(format!("it is longer than {MAX_CONTROL_BYTES} bytes"));
    }
    let problem = |problem: Problem| problem.detail().to_owned();
    let control: Control = crate::extract::parse_json(text.as_bytes()).map_err(problem)?;
    let refused = |error: KeeperError| error.to_string();
    let id = input.target.process;
    match control {
        Control { resize: Some(size), signal: None, close_stdin: None } => {
            let (rows, columns) = size.checked("resize.").map_err(problem)?;
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

/// The standard input of the process. It begins with the first byte.
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

    /// Writes, as fast as the process reads. What a process does not take that reads no more is dropped.
    async fn write(&mut self, data: Bytes) {
        if self.ended {
            return;
        }
        if self.pipe.is_none() {
            let (near, mut far) = mpsc::channel(INPUT_PIECES);
            let (target, id) = (self.target.clone(), self.target.process);
            let pieces = async_stream::stream! {
                while let Some(data) = far.recv().await {
                    yield Ok(v1::InputRequest { id, data, ..Default::default() });
                }
            };
            self.feeding = Some(tokio::spawn(async move {
                // It ends with the pipe, or when the process takes no more.
                let _ = target.perform(Feed(pieces.boxed())).await;
            }));
            self.pipe = Some(near);
        }
        if let Some(pipe) = &mut self.pipe
            && pipe.send(data).await.is_err()
        {
            self.ended = true;
        }
    }

    /// Says that no more comes, after all that came has been taken.
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

    /// Lets the process take what came before the client left, if it takes it soon.
    async fn finish(&mut self) {
        self.pipe = None;
        if let Some(feeding) = &mut self.feeding {
            let _ = timeout(MAX_FINISH, feeding).await;
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

/// What is answered to a request that should have been a WebSocket.
pub(crate) fn no_upgrade() -> Problem {
    Problem::new(Code::UpgradeRequired, "this place speaks WebSocket; connect with a WebSocket client")
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
    fn told_events_are_flat() {
        let body = Told { event: "error", body: Problem::field("a", "b").body("r") };
        let value: serde_json::Value = serde_json::from_str(&json(&body)).unwrap();
        assert_eq!((value["event"].as_str(), value["field"].as_str()), (Some("error"), Some("a")));
    }
}
