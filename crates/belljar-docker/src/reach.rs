//! How the guest's socket is reached: through the container's root directory in `/proc`, if the container is on this machine and this
//! process may look into it, else through a program that the daemon starts in the container and that copies (`belljar-guest bridge`).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use belljar_engine::Dial;
use belljar_guest_config::BRIDGE_ARGUMENT;
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures::StreamExt as _;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use crate::container::{SOCKET, SOCKET_DIR};
use crate::guest_volume::PROGRAM;

/// Bytes of one piece of a bridge's output.
const PIECE_BYTES: usize = 64 << 10;

/// How a guest is reached.
#[derive(Debug, Clone)]
pub(crate) enum Reach {
    /// The directory of its socket, opened.
    Direct(Arc<OwnedFd>),
    /// A program in its container for each connection.
    Bridge { client: Docker, container: String, user: u32, open: Arc<AtomicU32> },
}

impl Reach {
    /// Opens the directory of a container's socket by the id of its first process, which must have been found to be in that container.
    ///
    /// # Errors
    /// Fails if this process may not look into the container.
    pub(crate) fn direct(pid: i32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())?;
        // What is there belongs to the image and to the sandbox: links would lead to this machine's files.
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let dir = rustix::fs::openat2(&root, SOCKET_DIR, flags, Mode::empty(), resolve)?;
        Ok(Self::Direct(Arc::new(dir)))
    }

    /// Returns the way through the daemon to the guest of a container.
    pub(crate) fn bridge(client: Docker, container: String, user: u32) -> Self {
        Self::Bridge { client, container, user, open: Arc::default() }
    }

    pub(crate) const fn is_direct(&self) -> bool {
        matches!(self, Self::Direct(_))
    }

    /// Returns the number of programs that run in the container now.
    pub(crate) fn open_bridges(&self) -> u32 {
        match self {
            Self::Direct(_) => 0,
            Self::Bridge { open, .. } => open.load(Ordering::Acquire),
        }
    }
}

impl Dial for Reach {
    type Stream = UnixStream;

    async fn dial(&self) -> io::Result<UnixStream> {
        match self {
            Self::Direct(dir) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let socket = rustix::fs::openat(&**dir, SOCKET, flags, Mode::empty())?;
                UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
            }
            Self::Bridge { client, container, user, open } => {
                let bridging = bridge(client, container, *user, open).await;
                bridging.map_err(io::Error::other)?
            }
        }
    }

    /// Through the daemon, the program that copies may have found nobody. If it could not be started, such as in a container that has just
    /// ended, the daemon writes why in place of its output.
    fn is_early(&self, error: &io::Error) -> bool {
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => true,
            io::ErrorKind::InvalidData => !self.is_direct(),
            _ => false,
        }
    }
}

/// Starts the program in the container, and returns a stream that it is connected to.
async fn bridge(
    client: &Docker,
    container: &str,
    user: u32,
    open: &Arc<AtomicU32>,
) -> Result<io::Result<UnixStream>, bollard::errors::Error> {
    let socket = format!("/{SOCKET_DIR}/{SOCKET}");
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        cmd: Some(vec![PROGRAM.to_owned(), BRIDGE_ARGUMENT.to_owned(), socket]),
        user: Some(format!("{user}:{user}")),
        ..CreateExecOptions::default()
    };
    let exec = client.create_exec(container, options).await?.id;
    let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(PIECE_BYTES) };
    let StartExecResults::Attached { mut output, mut input } =
        client.start_exec(&exec, Some(options)).await?
    else {
        return Ok(Err(io::Error::other("the daemon did not connect to the program in the container")));
    };
    let pair = UnixStream::pair();
    let counted = Counted::new(open);
    Ok(pair.map(|(ours, theirs)| {
        let (mut from_host, mut to_host) = theirs.into_split();
        tokio::spawn(async move {
            // A stream that breaks is closed on the other side, as one that ends.
            let _ = tokio::io::copy(&mut from_host, &mut input).await;
            let _ = input.shutdown().await;
        });
        tokio::spawn(async move {
            let _counted = counted;
            while let Some(Ok(piece)) = output.next().await {
                if let LogOutput::StdOut { message } = piece
                    && to_host.write_all(&message).await.is_err()
                {
                    return;
                }
            }
        });
        ours
    }))
}

/// A program in a container, counted until its output ends.
struct Counted(Arc<AtomicU32>);

impl Counted {
    fn new(open: &Arc<AtomicU32>) -> Self {
        open.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
