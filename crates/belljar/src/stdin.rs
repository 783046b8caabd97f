//! Standard input on its way to the program.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::FileType;
use tokio::io::{AsyncRead, ReadBuf};

use crate::descriptor::Inherited;

/// Device number of `/dev/null`: major 1, minor 3 (devices.txt of the kernel).
const DEV_NULL: (u32, u32) = (1, 3);

/// Standard input as a stream. Nothing is read ahead.
#[derive(Debug)]
pub(crate) struct Stdin(Inherited);

impl Stdin {
    /// Opens standard input, or returns `None` if it is known to be empty, which saves forwarding it.
    pub(crate) fn open() -> Option<Self> {
        let stat = rustix::fs::fstat(rustix::stdio::stdin()).ok()?;
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let is_null =
            FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && device == DEV_NULL;
        (!is_null).then(|| Self(Inherited::stdin()))
    }
}

impl AsyncRead for Stdin {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = ready!(self.0.poll_read(context, buffer.initialize_unfilled()))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}
