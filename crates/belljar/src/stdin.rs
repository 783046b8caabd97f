//! Standard input on its way to the program.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustix::fs::FileType;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

use crate::descriptor::Inherited;
use crate::message::Quit;

/// Maximum length of the input that is sent with a call, in bytes: the guest's maximum.
const MAX_SENT_BYTES: usize = 64 << 10;

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

    /// Reads all of it, for a call that waits for approval, which covers no later input. A terminal has no end, and is not read.
    pub(crate) async fn read_ahead(self) -> Result<Bytes, Quit> {
        let mut input = Vec::new();
        if !rustix::termios::isatty(rustix::stdio::stdin()) {
            self.take(MAX_SENT_BYTES as u64 + 1).read_to_end(&mut input).await?;
        }
        if input.len() > MAX_SENT_BYTES {
            return Err(Quit::Usage(format!(
                "standard input: it has more than {MAX_SENT_BYTES} bytes, which a call that waits for approval cannot have; give less"
            )));
        }
        Ok(input.into())
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

/// Turns off the terminal's echo until dropped.
pub(crate) struct Hidden(rustix::termios::Termios);

impl Hidden {
    pub(crate) fn enter() -> io::Result<Self> {
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(stdin, OptionalActions::Now, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}
