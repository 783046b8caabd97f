//! Single calls to a guest that answers arbitrarily.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use belljar_engine::{GuestClient, GuestError, ProcessEvent, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::data::{Input, check_text};
use crate::hostile::run_against;

/// Maximum number of messages read from a stream.
const MAX_MESSAGES: usize = 4096;

/// Limit of `read_all` and `pack`, in bytes.
const READ_LIMIT: usize = 2048;

/// Maximum duration of a call that does not stream, or of the start of a process, whatever the guest does: 30 s, and one
/// more for the host to notice.
const CALL_TIMEOUT: Duration = Duration::from_secs(31);

/// Checks one call: a byte selects the call, then come answers.
pub(crate) fn guest_answer(data: &[u8]) {
    let mut input = Input(data);
    let which = input.byte();
    let answered = run_against(input, async |stream| {
        let guest = GuestClient::new(stream);
        let answered = tokio::time::timeout(CALL_TIMEOUT, call(&guest, which)).await;
        assert!(answered.is_ok() || STREAMS.contains(&(which % CALLS)), "call {which} hangs");
        answered
    });
    if let Ok(Err(error)) = answered {
        check_error(&error);
    }
}

/// Checks a guest that sends arbitrary bytes instead of HTTP/2, all at once.
pub(crate) fn guest_frames(data: &[u8]) {
    let data = data.to_vec();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let answered = runtime.block_on(async {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let guest = GuestClient::new(near);
        let sending = async move {
            // The frames are sent once the host has sent its request.
            let mut received = [0; 4096];
            let _ = far.read(&mut received).await;
            let _ = far.write_all(&data).await;
            // Then it reads everything, and sends nothing more.
            while let Ok(1..) = far.read(&mut received).await {}
        };
        tokio::select! {
            answered = guest.check() => Some(answered.map(|_| ())),
            () = sending => None,
        }
    });
    if let Some(Err(error)) = answered {
        check_error(&error);
    }
}

/// Checks that an error can be shown to a user: bounded, and without control characters.
pub(crate) fn check_error(error: &GuestError) {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        check_text(&error.to_string());
        cause = error.source();
    }
    if let GuestError::Refused { message, .. } = error {
        assert!(message.chars().count() <= 1024, "{}", message.len());
    }
}

const CALLS: u8 = 24;

/// Calls that may wait for as long as the guest runs.
const STREAMS: [u8; 10] = [4, 5, 6, 9, 10, 15, 16, 18, 19, 20];

async fn call(guest: &GuestClient, which: u8) -> Result<(), GuestError> {
    let path = Path::new("x");
    match which % CALLS {
        0 => guest.check().await.map(drop),
        1 => guest.metrics().await.map(drop),
        2 => guest.set_deadline(Some(Duration::from_secs(1))).await,
        3 => {
            // The host waits for the start of a process, with a timeout.
            let execution = guest.start(v1::StartRequest::default()).await?;
            drop(execution);
            Ok(())
        }
        4 => {
            let mut execution = guest.attach(7, [0; 3]).await?;
            for _ in 0..MAX_MESSAGES {
                match execution.next().await? {
                    Some(ProcessEvent::Output { data, .. }) => {
                        assert!(data.len() <= belljar_proto::MAX_MESSAGE_BYTES);
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            Ok(())
        }
        5 => guest.feed(7, &b"some input"[..], true).await.map(drop),
        6 => guest.write(path, 0o644, bytes::Bytes::from_static(b"some content")).await.map(drop),
        7 => guest.signal(7, 15, true).await.map(drop),
        8 => guest.resize(7, 24, 80).await,
        9 => {
            let mut download = guest.read(path, 0, 0, true).await?;
            for _ in 0..MAX_MESSAGES {
                match download.next().await? {
                    Some(piece) => assert!(piece.len() <= belljar_proto::MAX_MESSAGE_BYTES),
                    None => break,
                }
            }
            Ok(())
        }
        10 => {
            let content = guest.read_all(path, READ_LIMIT).await?;
            assert!(content.len() <= READ_LIMIT);
            Ok(())
        }
        11 => guest.stat(path, false).await.map(drop),
        12 => guest.list(path, 1, 10, bytes::Bytes::new()).await.map(drop),
        13 => guest.make_dir(path, true).await.map(drop),
        14 => guest.list_processes().await.map(drop),
        15 => {
            let mut watch = guest.watch(path, true).await?;
            for _ in 0..MAX_MESSAGES {
                if watch.next().await?.is_none() {
                    break;
                }
            }
            Ok(())
        }
        16 => {
            let mut tunnel = guest.tunnel(80).await?;
            tunnel.close_send();
            for _ in 0..MAX_MESSAGES {
                match tunnel.receive().await? {
                    Some(data) => assert!(data.len() <= belljar_proto::MAX_MESSAGE_BYTES),
                    None => break,
                }
            }
            Ok(())
        }
        17 => guest.list_ports().await.map(drop),
        18 => {
            let mut archive = guest.pack(v1::PackRequest::default(), READ_LIMIT as u64).await?;
            let mut received = 0;
            while let Some(piece) = archive.next().await? {
                received += piece.len();
                assert!(received <= READ_LIMIT && archive.summary().is_none());
            }
            assert!(archive.summary().is_some());
            Ok(())
        }
        19 => guest.unpack(v1::UnpackOpen::default(), &b"some archive"[..]).await.map(drop),
        20 => {
            let request = v1::SearchRequest { max_results: 10, ..Default::default() };
            let mut search = guest.search(request).await?;
            for _ in 0..10 {
                match search.next().await? {
                    Some(found) => assert!(found.line.len() <= 1024),
                    None => return Ok(()),
                }
            }
            assert!(search.next().await?.is_none(), "more matches than requested");
            Ok(())
        }
        21 => guest.open_session(v1::SessionOpen::default()).await.map(drop),
        22 => {
            // The host waits for the start of a command, with a timeout.
            let execution = guest.run_in_session(v1::SessionRun::default()).await?;
            drop(execution);
            guest.list_sessions().await?;
            guest.close_session(7).await
        }
        _ => guest.set_mode(v1::SetModeRequest::default()).await.map(drop),
    }
}
