//! Frames on the socket between server and launcher: four bytes of length, then JSON. A descriptor is sent with a frame's first
//! byte.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Maximum size of a frame in bytes, without its length. A specification may have 1 MiB, and is longer as JSON.
pub(crate) const MAX_FRAME_BYTES: usize = 2 << 20;

/// Size of the length in bytes, in network byte order.
const LENGTH_BYTES: usize = 4;

/// Bytes read at a time.
const READ_BYTES: usize = 16 * 1024;

/// Buffer capacity in bytes above which an empty buffer is freed.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// Error after which a peer is disconnected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The socket failed.
    #[error("the connection broke")]
    Socket(#[from] io::Error),
    /// The connection ended within a frame.
    #[error("the connection ended within a frame")]
    Cut,
    /// The length is out of range.
    #[error("invalid frame length: {length} bytes, expected 1 to {MAX_FRAME_BYTES}")]
    Length {
        /// Announced length.
        length: usize,
    },
    /// The content is not a message.
    #[error("invalid message")]
    Content(#[source] serde_json::Error),
    /// Unexpected or missing descriptors.
    #[error("unexpected or missing descriptors")]
    Descriptors,
}

/// Reader of frames.
pub(crate) struct FrameReader {
    stream: Arc<UnixStream>,
    buffer: Vec<u8>,
    /// Received descriptors, in the order of the frames they belong to.
    descriptors: VecDeque<OwnedFd>,
    /// Maximum number of queued descriptors. A server sends none.
    max_descriptors: usize,
}

impl FrameReader {
    pub(crate) fn new(stream: Arc<UnixStream>, max_descriptors: usize) -> Self {
        Self { stream, buffer: Vec::new(), descriptors: VecDeque::new(), max_descriptors }
    }

    /// Reads the next message; `None` is an orderly end. After an error nothing more can be read.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        loop {
            if let Some((length, rest)) = self.buffer.split_first_chunk::<LENGTH_BYTES>() {
                let length = u32::from_be_bytes(*length);
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if !(1..=MAX_FRAME_BYTES).contains(&length) {
                    return Err(FrameError::Length { length });
                }
                if let Some(content) = rest.get(..length) {
                    let message = serde_json::from_slice(content).map_err(FrameError::Content)?;
                    self.buffer.drain(..LENGTH_BYTES + length);
                    if self.buffer.is_empty() && self.buffer.capacity() > MAX_KEPT_BYTES {
                        self.buffer = Vec::new();
                    }
                    return Ok(Some(message));
                }
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(FrameError::Cut) };
            }
        }
    }

    /// Returns the descriptor that belongs to the message just read.
    pub(crate) fn descriptor(&mut self) -> Result<OwnedFd, FrameError> {
        self.descriptors.pop_front().ok_or(FrameError::Descriptors)
    }

    async fn fill(&mut self) -> Result<bool, FrameError> {
        let mut chunk = [0u8; READ_BYTES];
        let stream = Arc::clone(&self.stream);
        let received = stream
            .async_io(Interest::READABLE, || Ok(belljar_linux::receive_with(stream.as_fd(), &mut chunk)?))
            .await?;
        self.descriptors.extend(received.descriptors);
        if received.cut || self.descriptors.len() > self.max_descriptors {
            return Err(FrameError::Descriptors);
        }
        self.buffer.extend_from_slice(chunk.get(..received.length).unwrap_or_default());
        Ok(received.length > 0)
    }
}

/// Encodes a message.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message).map_err(FrameError::Content)?;
    let length = bytes.len() - LENGTH_BYTES;
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::Length { length });
    }
    let prefix = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    for (place, byte) in bytes.iter_mut().zip(prefix) {
        *place = byte;
    }
    Ok(bytes)
}

/// Sends an encoded message, and a descriptor with its first byte.
pub(crate) async fn send(
    stream: &UnixStream,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut sent = 0;
    while let Some(rest) = message.get(sent..).filter(|rest| !rest.is_empty()) {
        let with = if sent == 0 { descriptor.as_slice() } else { &[] };
        sent += stream
            .async_io(Interest::WRITABLE, || Ok(belljar_linux::send_with(stream.as_fd(), rest, with)?))
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    fn pair() -> (Arc<UnixStream>, Arc<UnixStream>) {
        let (here, there) = UnixStream::pair().unwrap();
        (Arc::new(here), Arc::new(there))
    }

    #[tokio::test]
    async fn frames_round_trip_with_descriptors() {
        let (here, there) = pair();
        let mut reader = FrameReader::new(Arc::clone(&there), 2);
        let long = "x".repeat(MAX_FRAME_BYTES - 2);
        let sending = async {
            for (text, passes) in [("a", false), ("b", true), (long.as_str(), true), ("c", false)] {
                let (mine, passed) = std::os::unix::net::UnixStream::pair().unwrap();
                (&mine).write_all(text.get(..1).unwrap().as_bytes()).unwrap();
                let descriptor = passes.then(|| passed.as_fd());
                send(&here, &encode(&text).unwrap(), descriptor).await.unwrap();
            }
        };
        let reading = async {
            for (expected, passes) in [("a", false), ("b", true), (long.as_str(), true), ("c", false)] {
                let text: String = reader.next().await.unwrap().unwrap();
                assert!(text == expected, "{} bytes", text.len());
                if passes {
                    let mut passed = std::os::unix::net::UnixStream::from(reader.descriptor().unwrap());
                    let mut first = String::new();
                    passed.read_to_string(&mut first).unwrap();
                    assert_eq!(first, expected.get(..1).unwrap());
                }
            }
            assert!(matches!(reader.descriptor(), Err(FrameError::Descriptors)));
        };
        futures::join!(sending, reading);
        drop(here);
        assert!(reader.next::<String>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn invalid_frames_are_refused() {
        let too_long = u32::try_from(MAX_FRAME_BYTES + 1).unwrap().to_be_bytes();
        let cases: [(&[u8], &str); 6] = [
            (&[0, 0, 0, 0], "0 bytes"),
            (&too_long, "bytes"),
            (&[0xff; 64], "bytes"),
            (b"\0\0\0\x03abc", "invalid message"),
            (b"\0\0\0\x09\"abc", "within a frame"),
            (b"\0\0", "within a frame"),
        ];
        for (bytes, expected) in cases {
            let (here, there) = pair();
            let mut reader = FrameReader::new(there, 0);
            send(&here, bytes, None).await.unwrap();
            drop(here);
            let error = reader.next::<String>().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{bytes:?}: {error}");
        }
        assert!(matches!(encode(&"x".repeat(MAX_FRAME_BYTES)), Err(FrameError::Length { .. })));
    }

    #[tokio::test]
    async fn unexpected_descriptors_are_refused() {
        let (here, there) = pair();
        let mut reader = FrameReader::new(there, 0);
        send(&here, &encode(&"a").unwrap(), Some(std::io::stdin().as_fd())).await.unwrap();
        assert!(matches!(reader.next::<String>().await, Err(FrameError::Descriptors)));
    }
}
