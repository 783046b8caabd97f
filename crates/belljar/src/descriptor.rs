//! Standard input and output as they were inherited. They are shared with whoever started this program, so they are not
//! made non-blocking; they are asked first whether they are ready.

use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A pipe that is ready takes this much without blocking (POSIX promises it as `PIPE_BUF`).
const SURE_BYTES: usize = 4096;

/// The offset that makes pwritev2(2) write where a plain write would.
const HERE: u64 = u64::MAX;

/// One inherited descriptor, used in one direction.
#[derive(Debug)]
pub(crate) struct Inherited {
    fd: BorrowedFd<'static>,
    flags: PollFlags,
    waiter: Waiter,
    /// Whether the kernel may be asked for a write that does not block.
    can_ask: bool,
}

#[derive(Debug)]
enum Waiter {
    /// Waiting was not necessary yet.
    Unknown,
    /// It cannot be waited for, because it is always ready: a regular file, `/dev/null`.
    Always,
    /// By the runtime.
    Runtime(AsyncFd<BorrowedFd<'static>>),
}

impl Inherited {
    /// Standard input.
    pub(crate) fn stdin() -> Self {
        Self::new(rustix::stdio::stdin(), PollFlags::IN)
    }

    /// Standard output.
    pub(crate) fn stdout() -> Self {
        Self::new(rustix::stdio::stdout(), PollFlags::OUT)
    }

    /// Standard error.
    pub(crate) fn stderr() -> Self {
        Self::new(rustix::stdio::stderr(), PollFlags::OUT)
    }

    fn new(fd: BorrowedFd<'static>, flags: PollFlags) -> Self {
        Self { fd, flags, waiter: Waiter::Unknown, can_ask: true }
    }

    fn is_ready(&self) -> io::Result<bool> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(self.fd, self.flags)], Some(&now)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    #[expect(deprecated, reason = "its successor is unsafe to call; these descriptors are borrowed for good")]
    fn register(&self) -> io::Result<AsyncFd<BorrowedFd<'static>>> {
        let interest = if self.flags == PollFlags::IN { Interest::READABLE } else { Interest::WRITABLE };
        AsyncFd::with_interest(self.fd, interest)
    }

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.is_ready()? {
                return Poll::Ready(Ok(()));
            }
            match &self.waiter {
                Waiter::Always => return Poll::Ready(Ok(())),
                Waiter::Unknown => {
                    self.waiter = match self.register() {
                        Ok(waiter) => Waiter::Runtime(waiter),
                        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Waiter::Always,
                        Err(error) => return Poll::Ready(Err(error)),
                    };
                }
                Waiter::Runtime(waiter) => {
                    let guard = if self.flags == PollFlags::IN {
                        waiter.poll_read_ready(context)
                    } else {
                        waiter.poll_write_ready(context)
                    };
                    let mut guard = ready!(guard)?;
                    // The readiness may be an old one; if it is a new one, it is seen at the top of the loop.
                    if !self.is_ready()? {
                        guard.clear_ready();
                    }
                }
            }
        }
    }

    /// Reads what is there into `buffer`, waiting for something if need be; 0 is the end.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(context))?;
        Poll::Ready(match rustix::io::read(self.fd, buffer) {
            Ok(count) => Ok(count),
            Err(Errno::INTR | Errno::AGAIN) => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            // The terminal is gone.
            Err(Errno::IO) => Ok(0),
            Err(errno) => Err(errno.into()),
        })
    }

    /// Writes all of `data`, and lets everything else go on meanwhile.
    pub(crate) async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            poll_fn(|context| self.poll_ready(context)).await?;
            match self.write_some(data) {
                Ok(count) => data = data.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => tokio::task::yield_now().await,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Writes what the descriptor takes without blocking: as much as there is room for where the kernel can tell
    /// (`RWF_NOWAIT`, on pipes since Linux 6.5), and else what is sure to fit.
    fn write_some(&mut self, data: &[u8]) -> Result<usize, Errno> {
        if self.can_ask && data.len() > SURE_BYTES {
            match rustix::io::pwritev2(self.fd, &[IoSlice::new(data)], HERE, ReadWriteFlags::NOWAIT) {
                Err(Errno::AGAIN) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => self.can_ask = false,
                other => return other,
            }
        }
        rustix::io::write(self.fd, data.get(..SURE_BYTES).unwrap_or(data))
    }
}
