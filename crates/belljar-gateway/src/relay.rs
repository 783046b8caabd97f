//! Relay of bytes in both directions, as fast as the kernel accepts them, with almost no memory for idle connections.

use std::cell::RefCell;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use belljar_http_hop::FramingScan;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::flow::Failed;
use crate::gateway::{Count, Counts, Flow};

/// Maximum length of one read, in bytes.
const CHUNK: usize = 64 << 10;

/// Time that a refused client has to close its connection.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// Read buffer shared by all connections: it is empty whenever one of them waits.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK].into_boxed_slice());
}

/// A connection that is reset when dropped, unless it was relayed to its end: the peer must not take a truncated stream for a
/// complete one.
pub(crate) struct Resets {
    stream: TcpStream,
    /// Counts bytes read and written through `AsyncRead` and `AsyncWrite`, as seen from the other side of this connection.
    counts: Option<Arc<Counts>>,
}

impl Resets {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // From the beginning, so that nothing stays of it on the machine either when the gateway is killed.
        reset(&stream);
        Self { stream, counts: None }
    }

    pub(crate) fn counting(mut self, flow: &Flow) -> Self {
        self.counts = Some(Arc::clone(&flow.counts));
        self
    }

    /// Marks the stream as complete, so that it is not reset.
    pub(crate) fn mark_complete(&self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, None);
    }
}

impl Deref for Resets {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
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

    /// Marks the stream as complete: a protocol that ended properly shuts the connection down.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.mark_complete();
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection that replays bytes which have been read already.
pub(crate) struct Replay {
    bytes: Vec<u8>,
    at: usize,
    stream: Resets,
}

impl Replay {
    pub(crate) fn new(bytes: Vec<u8>, stream: Resets) -> Self {
        Self { bytes, at: 0, stream }
    }
}

impl AsyncRead for Replay {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let length = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replay {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection whose requests are framed in one way.
pub(crate) struct Scanned<S> {
    stream: S,
    /// `None` if the rules for what is passed on are disabled.
    scan: Option<FramingScan>,
}

impl<S> Scanned<S> {
    pub(crate) fn new(stream: S, prepares: bool) -> Self {
        Self { stream, scan: prepares.then(FramingScan::with_tunnels) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Scanned<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Some(scan) = &mut self.scan {
            scan.spoil(&mut buffer.filled_mut()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Scanned<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Fixes the sizes of a socket's buffers, which otherwise grow while nobody reads (tcp(7)).
///
/// # Errors
/// Fails if the kernel refuses them.
pub(crate) fn bound_buffers(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let (socket, bytes) = (socket.as_fd(), bytes as usize);
    rustix::net::sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    Ok(rustix::net::sockopt::set_socket_send_buffer_size(socket, bytes)?)
}

/// Makes closing this connection send a reset.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Relays both directions until both end. `first` returns what has already been read from the sandbox, which nothing overtakes.
pub(crate) async fn relay(
    flow: &Flow,
    sandbox: &Resets,
    upstream: &Resets,
    first: impl Future<Output = Result<Vec<u8>, Failed>>,
) -> Result<(), Failed> {
    let Counts { sent, received } = &*flow.counts;
    let there = async {
        let first = first.await?;
        write(upstream, &first).await?;
        sent.add(first.len());
        one_way(sandbox, upstream, sent).await.map_err(Failed::from)
    };
    let back = async { one_way(upstream, sandbox, received).await.map_err(Failed::from) };
    tokio::try_join!(there, back)?;
    sandbox.mark_complete();
    upstream.mark_complete();
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

/// Reads what is available and writes as much of it as possible without waiting. Returns the length read, and the unwritten
/// rest.
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

/// Writes all bytes.
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

/// Reads what a client still sends, until [`DRAIN_TIMEOUT`]: closing a connection with unread bytes resets it, and what was
/// sent to the client may be lost.
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
