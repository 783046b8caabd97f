//! A guest whose answers the fuzzer chooses: the other end of the connection, implemented frame by frame.

use std::time::Duration;

use belljar_proto::v1;
use buffa::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::data::Input;

/// Length of the client's preface (RFC 9113, 3.4), in bytes.
const PREFACE_BYTES: usize = 24;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// Length of a body's frames: at most the limit of every client.
const FRAME_BYTES: usize = 16 * 1024;

/// Length of the pieces of a slow answer, and the pause before each: just below the host's timeouts.
const DRIP_BYTES: usize = 32;
const DRIP_PAUSE: Duration = Duration::from_secs(25);

/// Maximum number of bytes sent for one call, so that they fit in the windows of HTTP/2.
const MAX_BYTES: usize = 512 * 1024;

/// Runs `host` against a guest that answers each call with the next answer in `input`. Time is virtual, so that waiting costs
/// nothing.
pub(crate) fn run_against<T>(input: Input<'_>, host: impl AsyncFnOnce(DuplexStream) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let script: Vec<u8> = input.0.to_vec();
    runtime.block_on(async {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let guest =
            tokio::spawn(async move { Guest { stream: far, opened: 0, is_slow: false }.run(&script).await });
        let done = host(near).await;
        guest.abort();
        done
    })
}

struct Guest {
    stream: DuplexStream,
    /// The last stream that the host opened.
    opened: u32,
    /// True if the next answer is sent a few bytes at a time.
    is_slow: bool,
}

impl Guest {
    async fn run(mut self, script: &[u8]) -> Option<()> {
        let mut input = Input(script);
        self.frame(SETTINGS, 0, 0, &[]).await?;
        let mut preface = [0; PREFACE_BYTES];
        self.stream.read_exact(&mut preface).await.ok()?;
        loop {
            self.wait_for_call().await?;
            if input.is_empty() {
                // No more answers: it stays silent, like a stopped guest.
                continue;
            }
            let kind = input.byte();
            let length = usize::from(input.byte()) << 8 | usize::from(input.byte());
            let mut answer = Input(input.take(length));
            match kind % 9 {
                // A scripted stream of messages.
                0 | 1 => {
                    let body = events(&mut answer);
                    self.is_slow = kind & 0x20 != 0;
                    self.respond(b"application/connect+proto", 200, &body, kind & 0x40 == 0).await?;
                }
                // Arbitrary bytes as a stream of messages, or as one message.
                2 => self.respond(b"application/connect+proto", 200, answer.0, true).await?,
                3 => self.respond(b"application/proto", 200, answer.0, true).await?,
                // A list of files.
                4 => {
                    let body = listing(&mut answer).encode_to_vec();
                    self.respond(b"application/proto", 200, &body, true).await?;
                }
                // An error.
                5 => {
                    let status = [400, 404, 409, 429, 499, 500, 503, 200][usize::from(answer.byte() % 8)];
                    self.respond(b"application/json", status, answer.0, true).await?;
                }
                // Arbitrary bytes as frames.
                6 => {
                    self.stream.write_all(answer.0).await.ok()?;
                }
                // The stream is reset.
                7 => {
                    let code = u32::from(answer.byte()).to_be_bytes();
                    let stream = self.opened;
                    self.frame(3, 0, stream, &code).await?;
                }
                // The connection is closed.
                _ => return None,
            }
        }
    }

    /// Waits until the host opens a stream.
    async fn wait_for_call(&mut self) -> Option<()> {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, d, e, f, g] = head;
            let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).ok()?;
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).await.ok()?;
            match kind {
                HEADERS => {
                    self.opened = u32::from_be_bytes([d, e, f, g]);
                    return Some(());
                }
                SETTINGS if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]).await?,
                _ => {}
            }
        }
    }

    async fn respond(
        &mut self,
        content_type: &[u8],
        status: u16,
        body: &[u8],
        end_stream: bool,
    ) -> Option<()> {
        let is_slow = std::mem::take(&mut self.is_slow);
        let mut block = Vec::new();
        header(&mut block, b":status", status.to_string().as_bytes());
        header(&mut block, b"content-type", content_type);
        let stream = self.opened;
        self.frame(HEADERS, END_HEADERS, stream, &block).await?;
        let (length, pause) = if is_slow { (DRIP_BYTES, DRIP_PAUSE) } else { (FRAME_BYTES, Duration::ZERO) };
        for piece in body[..body.len().min(MAX_BYTES)].chunks(length) {
            tokio::time::sleep(pause).await;
            self.frame(0, 0, stream, piece).await?;
        }
        if end_stream { self.frame(0, END_STREAM, stream, &[]).await } else { Some(()) }
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<()> {
        let [_, a, b, c] = u32::try_from(payload.len()).ok()?.to_be_bytes();
        let [d, e, f, g] = stream.to_be_bytes();
        let mut frame = vec![a, b, c, kind, flags, d, e, f, g];
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await.ok()
    }
}

/// Appends a header without indexing (RFC 7541, 6.2.2).
fn header(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap_or(0) & 0x7f);
        block.extend_from_slice(text);
    }
}

/// Builds the messages of a stream from a script: events of a process, pieces of a file, and invalid messages.
fn events(input: &mut Input<'_>) -> Vec<u8> {
    use v1::__buffa::oneof::process_event::Event;
    let mut body = Vec::new();
    while !input.is_empty() && body.len() < MAX_BYTES {
        let event =
            |event: Event| v1::ProcessEvent { event: Some(event), ..Default::default() }.encode_to_vec();
        let (flags, message) = match input.byte() % 12 {
            0 => {
                let started =
                    v1::Started { id: input.number(), pid: u32::from(input.byte()), ..Default::default() };
                (0, event(Event::Started(Box::new(started))))
            }
            1 | 2 => {
                let stream = i32::from(input.byte() % 5);
                let offset = u64::from(input.byte());
                let data = bytes::Bytes::copy_from_slice(input.piece());
                let output = v1::Output { stream: stream.into(), offset, data, ..Default::default() };
                (0, event(Event::Output(Box::new(output))))
            }
            3 => {
                // A large output from few bytes of input.
                let data = vec![input.byte(); usize::from(input.byte()) * 256];
                let output = v1::Output {
                    stream: i32::from(input.byte() % 5).into(),
                    offset: input.number(),
                    data: data.into(),
                    ..Default::default()
                };
                (0, event(Event::Output(Box::new(output))))
            }
            4 => {
                let exited = v1::Exited {
                    code: small_or_any(input),
                    signal: small_or_any(input),
                    cause: i32::from(input.byte() % 6).into(),
                    user_us: input.number(),
                    system_us: input.number(),
                    max_rss: input.number(),
                    ..Default::default()
                };
                (0, event(Event::Exited(Box::new(exited))))
            }
            5 => (0, input.piece().to_vec()),
            // The end of the stream, without and with an error.
            6 => (2, b"{}".to_vec()),
            7 => (2, input.piece().to_vec()),
            // A piece of a file with its entry, as the first has.
            8 => {
                let read = v1::ReadResponse {
                    entry: entry(input).into(),
                    data: bytes::Bytes::copy_from_slice(input.piece()),
                    ..Default::default()
                };
                (0, read.encode_to_vec())
            }
            9 => {
                let data = vec![input.byte(); usize::from(input.byte()) * 256];
                (0, v1::ReadResponse { data: data.into(), ..Default::default() }.encode_to_vec())
            }
            10 => (input.byte(), input.piece().to_vec()),
            _ => {
                // A length that does not match the following bytes.
                body.push(0);
                body.extend_from_slice(&input.number().to_be_bytes()[..4]);
                body.extend_from_slice(input.piece());
                continue;
            }
        };
        body.push(flags);
        body.extend_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        body.extend_from_slice(&message);
    }
    body
}

fn small_or_any(input: &mut Input<'_>) -> i32 {
    match input.byte() {
        255 => i32::from_le_bytes(std::array::from_fn(|_| input.byte())),
        small => i32::from(small) % 140,
    }
}

fn entry(input: &mut Input<'_>) -> v1::Entry {
    let kind = input.byte();
    v1::Entry {
        path: bytes::Bytes::copy_from_slice(input.piece()),
        kind: i32::from(kind % 8).into(),
        size: if kind & 0x80 == 0 { u64::from(input.byte()) } else { input.number() },
        inode: u64::from(input.byte()),
        ..Default::default()
    }
}

fn listing(input: &mut Input<'_>) -> v1::ListResponse {
    let next = bytes::Bytes::copy_from_slice(input.piece());
    let mut entries = Vec::new();
    while !input.is_empty() && entries.len() < 4096 {
        let entry = entry(input);
        entries.push(entry);
    }
    v1::ListResponse { entries, next, ..Default::default() }
}
