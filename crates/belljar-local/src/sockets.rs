//! Sockets of a launch.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use rustix::net::SocketType;

/// Creates a pair of sockets that keep record boundaries, closed by an exec.
pub(crate) fn control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (host, sandbox) = pair(SocketType::SEQPACKET)?;
    // Away from the low numbers, which the sandbox's first process rearranges.
    let sandbox = rustix::io::fcntl_dupfd_cloexec(sandbox.as_fd(), 64)?;
    debug_assert!(sandbox.as_raw_fd() >= 64, "asked for above");
    Ok((host, sandbox))
}

/// Creates the pair over which a guest receives its connections. Few of them can be in flight at once, as a guest that accepts
/// none could use up the host's kernel memory.
pub(crate) fn guest_control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (host, guest) = pair(SocketType::SEQPACKET)?;
    // The kernel raises this to its minimum: some messages of one byte.
    rustix::net::sockopt::set_socket_send_buffer_size(&host, 1)?;
    Ok((host, guest))
}

/// Creates a connected pair of sockets, closed by an exec.
pub(crate) fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    Ok(rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None)?)
}

/// Converts a connected socket for tokio.
pub(crate) fn stream(socket: OwnedFd) -> io::Result<tokio::net::UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(socket)
}
