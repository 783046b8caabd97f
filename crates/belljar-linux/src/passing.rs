//! Passing descriptors over Unix sockets (unix(7), `SCM_RIGHTS`).

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Maximum number of descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 12;

/// Byte on a guest's control socket that announces a spare interpreter rather than a connection. It carries the interpreter's
/// control socket and its output pipes.
pub const SPARE: u8 = b'k';

/// Byte on a guest's control socket that announces the descriptors of [`MemoryFiles`](crate::MemoryFiles).
pub const MEMORY_FILES: u8 = b'm';

/// Data and descriptors received from a socket.
#[derive(Debug, Default)]
pub struct Received {
    /// Number of bytes; 0 is the end of the stream.
    pub length: usize,
    /// The descriptors, marked close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// True if more descriptors came than one message may carry; the kernel has closed the excess.
    pub cut: bool,
}

/// Sends `bytes`, and `descriptors` with the first of them, without blocking. Returns the number of bytes sent.
///
/// # Errors
/// `EAGAIN` if the call would block; `EPIPE` if the other end is closed; `EINVAL` for too many descriptors.
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let too_many = descriptors.len() > MAX_DESCRIPTORS
        || (!descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)));
    if too_many {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Receives bytes into `buffer`, and the descriptors that came with them, without blocking.
///
/// # Errors
/// `EAGAIN` if nothing has arrived yet, or the kernel's reason.
pub fn receive_with(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    receive(socket, buffer, RecvFlags::empty())
}

/// Like [`receive_with`], but the bytes and the descriptors stay there to be received again.
///
/// # Errors
/// As [`receive_with`].
pub fn peek_with(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    receive(socket, buffer, RecvFlags::PEEK)
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut received = Received {
        length: message.bytes,
        cut: message.flags.contains(ReturnFlags::CTRUNC),
        ..Received::default()
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.descriptors.extend(descriptors);
        }
    }
    // Alignment may leave room in the buffer for one descriptor more.
    received.cut |= received.descriptors.len() > MAX_DESCRIPTORS;
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_with_the_first_byte() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut mine, passed) = UnixStream::pair().unwrap();
        let mut buffer = [0u8; 16];
        assert_eq!(receive_with(there.as_fd(), &mut buffer).unwrap_err(), Errno::AGAIN);
        assert_eq!(send_with(here.as_fd(), b"abc", &[passed.as_fd()]).unwrap(), 3);
        drop(passed);
        let mut received = receive_with(there.as_fd(), &mut buffer).unwrap();
        assert_eq!((received.length, received.descriptors.len(), received.cut), (3, 1, false));
        let flags = rustix::io::fcntl_getfd(&received.descriptors[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let mut passed = UnixStream::from(received.descriptors.remove(0));
        mine.write_all(b"hello").unwrap();
        drop(mine);
        let mut text = String::new();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        drop(here);
        assert_eq!(receive_with(there.as_fd(), &mut buffer).unwrap().length, 0);
    }

    #[test]
    fn peeked_descriptors_stay() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut mine, passed) = UnixStream::pair().unwrap();
        send_with(here.as_fd(), b"a", &[passed.as_fd()]).unwrap();
        drop((here, passed));
        for _ in 0..3 {
            let mut buffer = [0u8; 1];
            let mut received = peek_with(there.as_fd(), &mut buffer).unwrap();
            assert_eq!((received.length, received.descriptors.len(), &buffer), (1, 1, b"a"));
            let mut passed = UnixStream::from(received.descriptors.remove(0));
            mine.write_all(b"x").unwrap();
            passed.read_exact(&mut buffer).unwrap();
            assert_eq!(&buffer, b"x");
        }
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let (here, _there) = UnixStream::pair().unwrap();
        let many = [here.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(send_with(here.as_fd(), b"x", &many).unwrap_err(), Errno::INVAL);
    }
}
