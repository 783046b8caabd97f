//! The sockets of a launch.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use rustix::net::SocketType;

/// A pair of sockets that keep the borders of records, closed by an exec.
pub(crate) fn control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (host, sandbox) = pair(SocketType::SEQPACKET)?;
    // Out of the way of the low numbers, which the sandbox's first process rearranges.
    let sandbox = rustix::io::fcntl_dupfd_cloexec(sandbox.as_fd(), 64)?;
    debug_assert!(sandbox.as_raw_fd() >= 64, "asked for above");
    Ok((host, sandbox))
}

/// The pair over which a guest gets its connections. Few of them can be on their way at once: what a guest that takes none
/// could pile up in the kernel is the host's.
pub(crate) fn guest_control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (host, guest) = pair(SocketType::SEQPACKET)?;
    // The kernel makes of it the least that it allows: some messages of one byte.
    rustix::net::sockopt::set_socket_send_buffer_size(&host, 1)?;
    Ok((host, guest))
}

/// A connected pair of sockets, closed by an exec.
pub(crate) fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    Ok(rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None)?)
}

/// A connected socket, for tokio.
pub(crate) fn stream(socket: OwnedFd) -> io::Result<tokio::net::UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(socket)
}
