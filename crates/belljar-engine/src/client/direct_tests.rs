//! Tests of `direct.rs`, against guests that may be hostile.

use std::io::Write as _;
use std::time::Duration;

use belljar_proto::{HTTP2_FIRST, direct_answer};
use tokio::io::AsyncReadExt as _;

use super::*;

/// A guest that answers as the test says, and may be hostile.
struct Guest {
    socket: std::os::unix::net::UnixStream,
    /// The program's streams.
    given: Vec<OwnedFd>,
}

impl Guest {
    fn pair() -> (Arc<Direct>, Self) {
        let (host, socket) = std::os::unix::net::UnixStream::pair().unwrap();
        host.set_nonblocking(true).unwrap();
        let host = UnixStream::from_std(host).unwrap();
        (Arc::new(Direct::new(host, None)), Self { socket, given: Vec::new() })
    }

    /// Receives the start, and answers with a message.
    fn answer(mut self, message: &[u8]) -> Self {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; 4096];
        let mut slices = [rustix::io::IoSliceMut::new(&mut buffer)];
        let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
        rustix::net::recvmsg(&self.socket, &mut slices, &mut control, flags).unwrap();
        for message in control.drain() {
            if let rustix::net::RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.given.extend(descriptors);
            }
        }
        self.socket.write_all(message).unwrap();
        self
    }
}

fn event(event: impl Into<Event>) -> Vec<u8> {
    direct_answer(&Ok(v1::ProcessEvent { event: Some(event.into()), ..Default::default() }))
}

fn started() -> Vec<u8> {
    event(v1::Started { id: 1, pid: 2, ..Default::default() })
}

fn exited() -> Vec<u8> {
    event(v1::Exited { code: 3, ..Default::default() })
}

fn request() -> v1::StartRequest {
    v1::StartRequest { argv: vec!["true".into()], kill_rest: true, ..Default::default() }
}

/// Starts a program in a guest that answers with these messages.
async fn start(messages: &[Vec<u8>]) -> (Result<Program>, Arc<Direct>, Guest) {
    let (direct, guest) = Guest::pair();
    let messages = messages.concat();
    let guest = tokio::task::spawn_blocking(move || guest.answer(&messages));
    let program = direct.start(&request()).await.unwrap();
    (program, direct, guest.await.unwrap())
}

async fn events(program: &mut Program) -> Result<(Vec<u8>, Option<v1::Exited>)> {
    let mut output = Vec::new();
    while let Some(event) = program.next().await? {
        match event {
            ProcessEvent::Output { offset, data, .. } => {
                assert_eq!(offset, output.len() as u64);
                output.extend_from_slice(&data);
            }
            ProcessEvent::Exited(exited) => return Ok((output, Some(exited))),
            ProcessEvent::Started { .. } => panic!("a second start"),
        }
    }
    Ok((output, None))
}

#[tokio::test]
async fn output_is_complete_when_the_end_arrives_first() {
    let (program, direct, mut guest) = start(&[started(), exited()]).await;
    let mut program = program.unwrap();
    assert_eq!(program.pid, 2);
    let out = std::fs::File::from(guest.given.remove(0));
    (&out).write_all(b"written before").unwrap();
    // Somebody else still has it open.
    let (output, exited) = events(&mut program).await.unwrap();
    let exited = exited.unwrap();
    assert_eq!((output.as_slice(), exited.code, exited.stdout_bytes), (b"written before".as_slice(), 3, 14));
    assert!(program.next().await.unwrap().is_none());
    assert!(direct.start(&request()).await.is_none(), "it has had its program");
}

/// The end may be found in the connection before the runtime has been told of the output.
#[tokio::test]
async fn output_that_nobody_has_told_of_is_read() {
    for _ in 0..200 {
        let (program, _direct, mut guest) = start(&[started()]).await;
        let mut program = program.unwrap();
        std::fs::File::from(guest.given.remove(0)).write_all(b"last words").unwrap();
        guest.socket.write_all(&exited()).unwrap();
        let (output, exited) = events(&mut program).await.unwrap();
        assert_eq!((output.as_slice(), exited.unwrap().stdout_bytes), (&b"last words"[..], 10));
    }
}

#[tokio::test]
async fn writers_that_go_on_are_left_behind() {
    let (program, _direct, mut guest) = start(&[started(), exited()]).await;
    let out = std::fs::File::from(guest.given.remove(0));
    let writing = std::thread::spawn(move || while (&out).write_all(&[b'x'; 65536]).is_ok() {});
    let (output, exited) = events(&mut program.unwrap()).await.unwrap();
    assert!(exited.is_some());
    assert!(output.len() as u64 <= DRAIN_BYTES + READ_BYTES as u64, "{}", output.len());
    // Its pipe is closed.
    writing.join().unwrap();
}

#[tokio::test]
async fn a_guest_that_breaks_the_protocol_is_not_followed() {
    let refused = direct_answer(&Err(ConnectError::not_found("true: no such program")));
    let (program, direct, _guest) = start(&[refused]).await;
    assert!(program.err().unwrap().is(belljar_proto::ErrorCode::NotFound));
    direct.connection().await.unwrap();
    let hostile: [&[Vec<u8>]; 6] = [
        &[exited()],
        &[started(), started()],
        &[vec![0xff; 8]],
        &[vec![0; 4]],
        &[started(), vec![0, 1, 0, 0]],
        &[vec![0, 0, 0, 2, 0, 0xff]],
    ];
    for messages in hostile {
        let (program, direct, _guest) = start(messages).await;
        let error = match program {
            Ok(mut program) => events(&mut program).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, GuestError::Protocol { .. }), "{messages:?}: {error}");
        assert_eq!(
            direct.connection().await.unwrap_err().kind(),
            io::ErrorKind::NotConnected,
            "{messages:?}"
        );
    }
}

#[tokio::test]
async fn a_guest_that_goes_is_gone() {
    let (program, _direct, guest) = start(&[started(), exited()[..5].to_vec()]).await;
    drop(guest);
    assert!(matches!(events(&mut program.unwrap()).await, Err(GuestError::Gone(_))));
    let (program, ..) = start(&[started()]).await;
    assert!(matches!(events(&mut program.unwrap()).await, Err(GuestError::Gone(_))));
}

#[tokio::test]
async fn http2_waits_for_the_end_and_is_spoken_once() {
    let (program, direct, mut guest) = start(&[started()]).await;
    let mut program = program.unwrap();
    let waiting = tokio::spawn({
        let direct = Arc::clone(&direct);
        async move { direct.connection().await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    guest.socket.write_all(&exited()).unwrap();
    guest.given.clear();
    events(&mut program).await.unwrap();
    let mut connection = waiting.await.unwrap().unwrap();
    guest.socket.write_all(&[HTTP2_FIRST]).unwrap();
    assert_eq!(connection.read_u8().await.unwrap(), HTTP2_FIRST);
    assert_eq!(direct.connection().await.unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[tokio::test]
async fn http2_follows_the_end_of_a_program_that_is_not_followed_any_more() {
    let (begin, end) = (exited()[..3].to_vec(), exited()[3..].to_vec());
    let (program, direct, mut guest) = start(&[started(), begin]).await;
    let mut program = program.unwrap();
    // A part of the message has been read.
    assert!(tokio::time::timeout(Duration::from_millis(20), program.next()).await.is_err());
    drop(program);
    assert!(direct.signal(&v1::SignalRequest { id: ID, signal: 2, ..Default::default() }).await.is_none());
    guest.socket.write_all(&[&end[..], &[HTTP2_FIRST]].concat()).unwrap();
    let mut connection = direct.connection().await.unwrap();
    assert_eq!(connection.read_u8().await.unwrap(), HTTP2_FIRST);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_never_tells_the_end_has_no_other_connection() {
    let (program, direct, _guest) = start(&[started()]).await;
    drop(program);
    assert_eq!(direct.connection().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
}

/// The runtime has one thread, as that of `belljar run`.
#[tokio::test]
async fn output_without_end_does_not_outlast_a_time_limit() {
    let (program, _direct, mut guest) = start(&[started()]).await;
    let out = std::fs::File::from(guest.given.remove(0));
    let writing = std::thread::spawn(move || while (&out).write_all(&[b'x'; 65536]).is_ok() {});
    let mut program = program.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), events(&mut program)).await.is_err());
    drop(program);
    writing.join().unwrap();
}

/// Who reads late still gets the output before the errors, as they were most likely written.
#[tokio::test]
async fn streams_take_turns_and_output_is_first() {
    for _ in 0..20 {
        let (program, _direct, mut guest) = start(&[started()]).await;
        let mut program = program.unwrap();
        let [out, error] = [0, 0].map(|_| std::fs::File::from(guest.given.remove(0)));
        let mut streams = Vec::new();
        for _ in 0..3 {
            (&out).write_all(b"out").unwrap();
            (&error).write_all(b"error").unwrap();
            // Both are known to have something.
            tokio::time::sleep(Duration::from_millis(2)).await;
            for _ in 0..2 {
                let Some(ProcessEvent::Output { stream, .. }) = program.next().await.unwrap() else {
                    panic!()
                };
                streams.push(stream == v1::Stream::STREAM_STDOUT);
            }
        }
        assert_eq!(streams, [true, false, true, false, true, false]);
        guest.socket.write_all(&exited()).unwrap();
        assert!(matches!(program.next().await.unwrap(), Some(ProcessEvent::Exited(_))));
    }
}

#[tokio::test]
async fn streams_are_counted_whatever_ends_first() {
    let (program, _direct, mut guest) = start(&[started()]).await;
    let mut program = program.unwrap();
    std::fs::File::from(guest.given.remove(0)).write_all(b"four").unwrap();
    guest.given.clear();
    assert!(matches!(program.next().await.unwrap(), Some(ProcessEvent::Output { .. })));
    assert!(tokio::time::timeout(Duration::from_millis(20), program.next()).await.is_err());
    guest.socket.write_all(&exited()).unwrap();
    let (_, ended) = events(&mut program).await.unwrap();
    let ended = ended.unwrap();
    assert_eq!((ended.stdout_bytes, ended.stderr_bytes), (4, 0));
}

#[tokio::test]
async fn starts_that_need_more_are_left_to_http2() {
    let (direct, _guest) = Guest::pair();
    let terminal = v1::Terminal { rows: 24, columns: 80, ..Default::default() };
    for other in [
        v1::StartRequest { terminal: terminal.into(), ..request() },
        v1::StartRequest { kill_rest: false, ..request() },
        v1::StartRequest { keep_bytes: 1, ..request() },
        v1::StartRequest { stdin: "input".into(), ..request() },
    ] {
        assert!(direct.start(&other).await.is_none());
    }
    direct.connection().await.unwrap();
    assert!(direct.start(&request()).await.is_none(), "HTTP/2 is spoken");
}

#[tokio::test]
async fn input_is_fed_until_the_program_closes_it() {
    let (direct, guest) = Guest::pair();
    let guest = tokio::task::spawn_blocking(move || guest.answer(&started()));
    let request = v1::StartRequest { stdin_open: true, ..request() };
    let program = direct.start(&request).await.unwrap().unwrap();
    let mut guest = guest.await.unwrap();
    assert!(direct.take_input(1).is_none(), "of another process");
    let input = direct.take_input(Program::ID).unwrap();
    assert_eq!(direct.feed(input, &b"second"[..]).await.unwrap(), 6);
    let mut reader = pipe::Receiver::from_owned_fd(guest.given.remove(0)).unwrap();
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(20), reader.read_to_string(&mut text)).await.unwrap().unwrap();
    assert_eq!(text, "second");
    drop((program, guest));
}

struct Unreadable;

impl AsyncRead for Unreadable {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Err(io::ErrorKind::IsADirectory.into()))
    }
}

/// Input that could not be read to its end does not look complete.
#[tokio::test]
async fn input_that_cannot_be_read_has_no_end() {
    let (direct, guest) = Guest::pair();
    let guest = tokio::task::spawn_blocking(move || guest.answer(&started()));
    let request = v1::StartRequest { stdin_open: true, ..request() };
    let program = direct.start(&request).await.unwrap().unwrap();
    let mut guest = guest.await.unwrap();
    let input = direct.take_input(Program::ID).unwrap();
    let source = (&b"begin"[..]).chain(Unreadable);
    assert!(matches!(direct.feed(input, source).await, Err(GuestError::Source(_))));
    let mut reader = pipe::Receiver::from_owned_fd(guest.given.remove(0)).unwrap();
    let mut text = [0; 5];
    reader.read_exact(&mut text).await.unwrap();
    let more = tokio::time::timeout(Duration::from_millis(50), reader.read_u8()).await;
    assert!(&text == b"begin" && more.is_err(), "{text:?}, {more:?}");
    // It ends with the program.
    drop(program);
    assert!(reader.read_u8().await.is_err());
}
