//! A connection to a port inside the sandbox as a byte stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use belljar_proto::{BidiReceiver, BidiSender, v1};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::{GuestError, Tunnel};

/// Maximum data in one message to the tunnel, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

type Sender = BidiSender<v1::TunnelRequest>;
type Receiver = BidiReceiver<v1::__buffa::view::TunnelResponseView<'static>>;

/// A connection to a port inside the sandbox, for reading and writing. The two directions are independent. Dropping it
/// closes the connection.
pub struct TunnelIo {
    read: Read,
    write: Write,
}

/// Result of waiting for bytes: the receiver and the bytes.
type Received = (Box<Receiver>, Result<Option<Bytes>, GuestError>);

enum Read {
    Idle(Box<Receiver>),
    Waiting(BoxFuture<'static, Received>),
    Has(Box<Receiver>, Bytes),
    Ended,
}

enum Write {
    Idle(Box<Sender>),
    Sending(BoxFuture<'static, (Box<Sender>, bool)>),
    Closed,
    /// The other side accepts no more data. The reader gets the reason, so writes succeed silently instead of failing
    /// without one.
    Broken,
}

impl TunnelIo {
    pub(crate) fn new(sender: Sender, receiver: Receiver) -> Self {
        Self { read: Read::Idle(Box::new(receiver)), write: Write::Idle(Box::new(sender)) }
    }

    /// Waits until no message is in flight.
    fn poll_in_flight(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Write::Sending(sending) = &mut self.write {
            let (sender, sent) = ready!(sending.as_mut().poll(context));
            self.write = if sent { Write::Idle(sender) } else { Write::Broken };
        }
        Poll::Ready(())
    }
}

fn connection_error(error: GuestError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}

impl Tunnel {
    /// Converts the tunnel to a byte stream.
    #[must_use]
    pub fn into_io(self) -> TunnelIo {
        let (sender, receiver) = self.into_halves();
        TunnelIo::new(sender, receiver)
    }
}

impl AsyncRead for TunnelIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match std::mem::replace(&mut self.read, Read::Ended) {
                Read::Ended => return Poll::Ready(Ok(())),
                Read::Idle(mut receiver) => {
                    self.read = Read::Waiting(Box::pin(async move {
                        let received = crate::client::receive_from(&mut receiver).await;
                        (receiver, received)
                    }));
                }
                Read::Waiting(mut waiting) => match waiting.as_mut().poll(context) {
                    Poll::Pending => {
                        self.read = Read::Waiting(waiting);
                        return Poll::Pending;
                    }
                    Poll::Ready((receiver, Ok(Some(data)))) => self.read = Read::Has(receiver, data),
                    Poll::Ready((_, Ok(None))) => return Poll::Ready(Ok(())),
                    Poll::Ready((_, Err(error))) => return Poll::Ready(Err(connection_error(error))),
                },
                Read::Has(receiver, mut data) => {
                    let taken = data.split_to(data.len().min(buffer.remaining()));
                    buffer.put_slice(&taken);
                    self.read =
                        if data.is_empty() { Read::Idle(receiver) } else { Read::Has(receiver, data) };
                    if !taken.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    if buffer.remaining() == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

impl AsyncWrite for TunnelIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_in_flight(context));
        match std::mem::replace(&mut self.write, Write::Closed) {
            Write::Idle(mut sender) => {
                let piece = bytes.get(..bytes.len().min(CHUNK_BYTES)).unwrap_or_default();
                let length = piece.len();
                let message = v1::TunnelRequest { data: Bytes::copy_from_slice(piece), ..Default::default() };
                self.write = Write::Sending(Box::pin(async move {
                    let sent = sender.send(message).await.is_ok();
                    (sender, sent)
                }));
                // Starts sending now. If that is pending, the next write or flush continues it.
                let _ = self.poll_in_flight(context);
                Poll::Ready(Ok(length))
            }
            Write::Broken => {
                self.write = Write::Broken;
                Poll::Ready(Ok(bytes.len()))
            }
            state => {
                self.write = state;
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_in_flight(context).map(Ok)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_in_flight(context));
        if let Write::Idle(sender) = &mut self.write {
            sender.close_send();
            self.write = Write::Closed;
        }
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for TunnelIo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TunnelIo")
    }
}
