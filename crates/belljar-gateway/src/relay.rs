//! Bytes in both directions, as fast as the kernel takes them and with next to no memory for connections that rest.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::gateway::{Count, Counts, Flow};

/// How much is read at once.
const CHUNK: usize = 64 << 10;

/// How long a client that was refused may take to go.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// What is read, by all connections in turn: it is empty whenever one of them waits.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK].into_boxed_slice());
}

/// A connection that is reset when it is dropped, unless it has been carried to its end: nobody may take what came through
/// it for the whole.
pub(crate) struct Resets {
    stream: TcpStream,
    is_whole: Cell<bool>,
    /// Counts what goes through it as `AsyncRead` and `AsyncWrite`, as the other side of this connection.
    counts: Option<Arc<Counts>>,
}

impl Resets {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, is_whole: Cell::new(false), counts: None }
    }

    pub(crate) fn counting(mut self, flow: &Flow) -> Self {
        self.counts = Some(Arc::clone(&flow.counts));
        self
    }

    /// What was to be said has been said.
    pub(crate) fn is_whole(&self) {
        self.is_whole.set(true);
    }
}

impl Deref for Resets {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Resets {
    fn drop(&mut self) {
        if !self.is_whole.get() {
            reset(&self.stream);
        }
    }
}

impl AsyncRead for Resets {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Some(counts) = &self.counts {
            counts.received.add(buffer.filled().len() - before);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Resets {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        if let Some(counts) = &self.counts {
            counts.sent.add(written);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Whoever speaks a protocol that has ended as it should ends the connection with it.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_whole();
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Makes the end of this connection a reset.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Carries both directions to their end. `first` has been read of the sandbox already.
pub(crate) async fn relay(flow: &Flow, sandbox: Resets, upstream: Resets, first: &[u8]) -> io::Result<()> {
    write(&upstream, first).await?;
    let Counts { sent, received } = &*flow.counts;
    sent.add(first.len());
    tokio::try_join!(one_way(&sandbox, &upstream, sent), one_way(&upstream, &sandbox, received))?;
    sandbox.is_whole();
    upstream.is_whole();
    Ok(())
}

async fn one_way(from: &TcpStream, to: &TcpStream, count: &Count) -> io::Result<()> {
    loop {
        from.readable().await?;
        let passed = BUFFER.with_borrow_mut(|buffer| pass(from, to, buffer));
        match passed {
            Ok((0, _)) => {
                rustix::net::shutdown(to, rustix::net::Shutdown::Write)?;
                return Ok(());
            }
            Ok((length, rest)) => {
                count.add(length);
                write(to, &rest).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads what is there, and writes as much of it as is taken at once. Hands back how much was read, and what is left of it.
fn pass(from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<u8>)> {
    let length = from.try_read(buffer)?;
    let mut rest = &buffer[..length];
    while !rest.is_empty() {
        match to.try_write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok((length, rest.to_vec()))
}

/// Writes all of it.
pub(crate) async fn write(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads what a client still sends, for a moment: a connection that is closed over unread bytes is reset, and what it was
/// told may be lost.
pub(crate) async fn drain(stream: &TcpStream) {
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, async {
        loop {
            stream.readable().await?;
            match BUFFER.with_borrow_mut(|buffer| stream.try_read(buffer)) {
                Ok(0) => return io::Result::Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    })
    .await;
}
