//! A connection to a port inside as a byte stream, for whoever speaks a protocol over it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use belljar_proto::{BidiReceiver, BidiSender, v1};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::{GuestError, Tunnel};

/// The most bytes of one message into the tunnel.
const PIECE_BYTES: usize = 64 * 1024;

type Sender = BidiSender<v1::TunnelRequest>;
type Receiver = BidiReceiver<v1::__buffa::view::TunnelResponseView<'static>>;

/// A connection to a port inside, to be read and written. Both directions move on their own. Dropping it closes the
/// connection.
pub struct TunnelIo {
    read: Read,
    write: Write,
}

/// What a wait for bytes ends in: the receiver comes back with them.
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
    /// The other side takes no more. Why is told to the reader, so a write must not come before it with less.
    Broken,
}

impl TunnelIo {
    pub(crate) fn new(sender: Sender, receiver: Receiver) -> Self {
        Self { read: Read::Idle(Box::new(receiver)), write: Write::Idle(Box::new(sender)) }
    }

    /// Waits until nothing is on its way any more.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Write::Sending(sending) = &mut self.write {
            let (sender, sent) = ready!(sending.as_mut().poll(context));
            self.write = if sent { Write::Idle(sender) } else { Write::Broken };
        }
        Poll::Ready(())
    }
}

fn broken(error: GuestError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}

impl Tunnel {
    /// The connection as a byte stream.
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
                        let received = crate::client::received(&mut receiver).await;
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
                    Poll::Ready((_, Err(error))) => return Poll::Ready(Err(broken(error))),
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
        ready!(self.poll_sent(context));
        match std::mem::replace(&mut self.write, Write::Closed) {
            Write::Idle(mut sender) => {
                let piece = bytes.get(..bytes.len().min(PIECE_BYTES)).unwrap_or_default();
                let length = piece.len();
                let message = v1::TunnelRequest { data: Bytes::copy_from_slice(piece), ..Default::default() };
                self.write = Write::Sending(Box::pin(async move {
                    let sent = sender.send(message).await.is_ok();
                    (sender, sent)
                }));
                // It begins at once. If it waits, the next write or flush goes on with it.
                let _ = self.poll_sent(context);
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
        self.poll_sent(context).map(Ok)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_sent(context));
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
