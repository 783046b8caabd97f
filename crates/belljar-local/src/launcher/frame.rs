//! Frames on the socket between server and launcher: four bytes of length, then JSON. A descriptor travels with a frame's
//! first byte.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The longest frame, without its length. A specification may have 1 MiB, and is longer as JSON.
pub(crate) const MAX_FRAME_BYTES: usize = 2 << 20;

/// Bytes of the length, which is in network order.
const LENGTH_BYTES: usize = 4;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// A buffer that has grown beyond this is given back when it is empty.
const KEPT_BYTES: usize = 64 * 1024;

/// Why a peer is not listened to any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The socket failed.
    #[error("the connection broke")]
    Socket(#[from] io::Error),
    /// The connection ended within a frame.
    #[error("the connection ended within a frame")]
    Cut,
    /// The length is not allowed.
    #[error("a frame of {length} bytes; 1 to {MAX_FRAME_BYTES} are allowed")]
    Length {
        /// What was announced.
        length: usize,
    },
    /// The content is no message.
    #[error("a frame that is no message")]
    Content(#[source] serde_json::Error),
    /// Descriptors came where none belong, or none where one does.
    #[error("descriptors do not fit the frame")]
    Descriptors,
}

/// Reads frames.
pub(crate) struct FrameReader {
    stream: Arc<UnixStream>,
    buffer: Vec<u8>,
    /// Descriptors in the order of the frames that they belong to.
    descriptors: VecDeque<OwnedFd>,
    /// How many may wait there. A server sends none.
    most_descriptors: usize,
}

impl FrameReader {
    pub(crate) fn new(stream: Arc<UnixStream>, most_descriptors: usize) -> Self {
        Self { stream, buffer: Vec::new(), descriptors: VecDeque::new(), most_descriptors }
    }

    /// The next message; `None` is an orderly end. After an error nothing more can be read.
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
                    if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES {
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

    /// The descriptor that belongs to the message that has just been read.
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
        if received.cut || self.descriptors.len() > self.most_descriptors {
            return Err(FrameError::Descriptors);
        }
        self.buffer.extend_from_slice(chunk.get(..received.length).unwrap_or_default());
        Ok(received.length > 0)
    }
}

/// One message as it is sent.
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
    async fn frames_arrive_whole_with_their_descriptors() {
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
            for (wanted, passes) in [("a", false), ("b", true), (long.as_str(), true), ("c", false)] {
                let text: String = reader.next().await.unwrap().unwrap();
                assert!(text == wanted, "{} bytes", text.len());
                if passes {
                    let mut passed = std::os::unix::net::UnixStream::from(reader.descriptor().unwrap());
                    let mut first = String::new();
                    passed.read_to_string(&mut first).unwrap();
                    assert_eq!(first, wanted.get(..1).unwrap());
                }
            }
            assert!(matches!(reader.descriptor(), Err(FrameError::Descriptors)));
        };
        futures::join!(sending, reading);
        drop(here);
        assert!(reader.next::<String>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_is_no_frame_is_refused() {
        let too_long = u32::try_from(MAX_FRAME_BYTES + 1).unwrap().to_be_bytes();
        let cases: [(&[u8], &str); 6] = [
            (&[0, 0, 0, 0], "0 bytes"),
            (&too_long, "bytes"),
            (&[0xff; 64], "bytes"),
            (b"\0\0\0\x03abc", "no message"),
            (b"\0\0\0\x09\"abc", "within a frame"),
            (b"\0\0", "within a frame"),
        ];
        for (bytes, wanted) in cases {
            let (here, there) = pair();
            let mut reader = FrameReader::new(there, 0);
            send(&here, bytes, None).await.unwrap();
            drop(here);
            let error = reader.next::<String>().await.unwrap_err().to_string();
            assert!(error.contains(wanted), "{bytes:?}: {error}");
        }
        assert!(matches!(encode(&"x".repeat(MAX_FRAME_BYTES)), Err(FrameError::Length { .. })));
    }

    #[tokio::test]
    async fn descriptors_are_refused_where_none_belong() {
        let (here, there) = pair();
        let mut reader = FrameReader::new(there, 0);
        send(&here, &encode(&"a").unwrap(), Some(std::io::stdin().as_fd())).await.unwrap();
        assert!(matches!(reader.next::<String>().await, Err(FrameError::Descriptors)));
    }
}
