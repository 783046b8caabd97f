//! Inherited standard input and output. They are shared with the parent process, so they are not made non-blocking; each
//! access first polls for readiness.

use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes that a ready pipe takes without blocking (guaranteed by POSIX as `PIPE_BUF`).
const NONBLOCKING_BYTES: usize = 4096;

/// Offset with which pwritev2(2) writes at the current position, as write(2) does.
const CURRENT_POSITION: u64 = u64::MAX;

/// One inherited descriptor, used in one direction.
#[derive(Debug)]
pub(crate) struct Inherited {
    fd: BorrowedFd<'static>,
    flags: PollFlags,
    waiter: Waiter,
    /// Whether the kernel supports `RWF_NOWAIT` on this descriptor, as far as known.
    may_use_nowait: bool,
}

#[derive(Debug)]
enum Waiter {
    /// Not determined: nothing had to wait so far.
    Unknown,
    /// Always ready, and not supported by epoll: a regular file, `/dev/null`.
    Always,
    /// Registered with the runtime.
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
        Self { fd, flags, waiter: Waiter::Unknown, may_use_nowait: true }
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
                    // The readiness may be stale; if it is not, the check at the top of the loop succeeds.
                    if !self.is_ready()? {
                        guard.clear_ready();
                    }
                }
            }
        }
    }

    /// Reads available data into `buffer`, and waits if there is none; 0 is the end of the input.
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

    /// Writes all of `data` without blocking the runtime.
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

    /// Writes as much as fits without blocking: all that there is room for where the kernel supports `RWF_NOWAIT` (on pipes
    /// since Linux 6.5), and otherwise at most [`NONBLOCKING_BYTES`].
    fn write_some(&mut self, data: &[u8]) -> Result<usize, Errno> {
        if self.may_use_nowait && data.len() > NONBLOCKING_BYTES {
            match rustix::io::pwritev2(
                self.fd,
                &[IoSlice::new(data)],
                CURRENT_POSITION,
                ReadWriteFlags::NOWAIT,
            ) {
                Err(Errno::AGAIN) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {
                    self.may_use_nowait = false
                }
                other => return other,
            }
        }
        rustix::io::write(self.fd, data.get(..NONBLOCKING_BYTES).unwrap_or(data))
    }
}
