//! Frames on their way to a kernel. Running code need not read, and may write meanwhile, so the guest does not wait until it has read them.

use std::collections::VecDeque;
use std::io;

use bytes::{Buf as _, Bytes};
use tokio::net::UnixStream;

/// Maximum number of frames that wait: more than answers to all calls that a kernel makes at a time, and to a question.
const MAX_WAITING: usize = 32;

/// Frames that the kernel has not taken yet.
#[derive(Default)]
pub(super) struct Outbox {
    /// The first may be written in part.
    frames: VecDeque<Bytes>,
    is_first_begun: bool,
    /// True if the other side takes no more.
    is_broken: bool,
}

impl Outbox {
    /// Adds a frame, and writes what the socket takes at once.
    ///
    /// # Errors
    /// Fails if too many wait, which is the case only if code that goes round its kernel makes calls and does not read the answers.
    pub(super) fn push(&mut self, frame: Vec<u8>, socket: &UnixStream) -> Result<(), String> {
        if self.is_broken {
            return Ok(());
        }
        if self.frames.len() >= MAX_WAITING {
            return Err(format!("it did not read its input: {MAX_WAITING} messages wait"));
        }
        self.frames.push_back(frame.into());
        self.write_available(socket);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Reports whether the other side has closed the socket.
    pub(super) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Waits until the socket takes more, and writes that. Does not end while no frame waits. Cancel-safe.
    pub(super) async fn write(&mut self, socket: &UnixStream) {
        if self.is_empty() {
            return std::future::pending().await;
        }
        match socket.writable().await {
            Ok(()) => self.write_available(socket),
            Err(_) => self.close(),
        }
    }

    /// Drops all but a frame of which a part is written, at the end of the execution that they are for.
    pub(super) fn forget(&mut self) {
        self.frames.truncate(usize::from(self.is_first_begun));
    }

    fn write_available(&mut self, socket: &UnixStream) {
        while let Some(first) = self.frames.front_mut() {
            match socket.try_write(first) {
                Ok(written) => {
                    first.advance(written);
                    self.is_first_begun = !first.is_empty();
                    if first.is_empty() {
                        self.frames.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.close(),
            }
        }
    }

    fn close(&mut self) {
        self.frames.clear();
        self.is_first_begun = false;
        self.is_broken = true;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// More than a socket holds.
    const LARGE: usize = 1 << 20;

    #[tokio::test]
    async fn frames_are_written_in_order_as_they_are_read() {
        let (own, mut other) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::default();
        for byte in [b'a', b'b'] {
            outbox.push(vec![byte; LARGE], &own).unwrap();
        }
        outbox.push(b"c".to_vec(), &own).unwrap();
        let mut read = vec![0; 2 * LARGE + 1];
        let reading = other.read_exact(&mut read);
        tokio::pin!(reading);
        loop {
            tokio::select! {
                done = &mut reading => { done.unwrap(); break }
                () = outbox.write(&own) => {}
            }
        }
        assert!(outbox.is_empty());
        assert_eq!(read, [vec![b'a'; LARGE], vec![b'b'; LARGE], b"c".to_vec()].concat());
    }

    #[tokio::test]
    async fn begun_frames_are_completed() {
        let (own, mut other) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::default();
        for byte in [b'a', b'b'] {
            outbox.push(vec![byte; LARGE], &own).unwrap();
        }
        let mut read = vec![0; LARGE + 1];
        // A part of the first is on its way.
        while !outbox.is_first_begun {
            outbox.write(&own).await;
        }
        outbox.forget();
        outbox.push(b"c".to_vec(), &own).unwrap();
        let (_, ()) = tokio::join!(other.read_exact(&mut read), async {
            while !outbox.is_empty() {
                outbox.write(&own).await;
            }
        });
        assert_eq!(read, [vec![b'a'; LARGE], b"c".to_vec()].concat());
        outbox.forget();
        assert!(outbox.is_empty());
    }

    #[tokio::test]
    async fn frames_that_nobody_reads_are_bounded() {
        let (own, other) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::default();
        let pushed = (0..=MAX_WAITING).try_for_each(|_| outbox.push(vec![0; LARGE], &own));
        assert!(pushed.unwrap_err().contains("32 messages wait"));
        drop(other);
        while !outbox.is_broken() {
            outbox.write(&own).await;
        }
        assert!(outbox.is_empty() && outbox.push(vec![0], &own).is_ok() && outbox.is_empty());
    }
}
