//! Channel between the supervisor and the sandbox's first process: each message is one byte, with an optional descriptor.
//! Both sides run between a clone and an exec, so nothing here allocates.

// A panic between a clone and an exec would allocate and print: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// A message to the first process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Message {
    /// The id maps are written.
    Mapped = b'm',
    /// A file that the receiver writes to in order to join a control group.
    Group = b'g',
    /// The network namespace to enter.
    Network = b'n',
    /// Everything has been sent, except perhaps the network.
    ResourcesSent = b'e',
}

const MESSAGES: [Message; 4] = [Message::Mapped, Message::Group, Message::Network, Message::ResourcesSent];

/// Sends one message with at most one descriptor.
pub(crate) fn send(channel: BorrowedFd<'_>, message: Message, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(channel, &[IoSlice::new(&[message as u8])], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
}

/// Waits for the next message. `ESRCH` means that the supervisor has died.
pub(crate) fn receive(channel: BorrowedFd<'_>) -> Result<(Message, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut byte = [0u8; 1];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Ok(received) if received.bytes == 1 => {
                let mut fd = None;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        fd = fds.last();
                    }
                }
                let message =
                    MESSAGES.into_iter().find(|message| *message as u8 == byte[0]).ok_or(Errno::BADMSG)?;
                return Ok((message, fd));
            }
            Ok(_) => return Err(Errno::SRCH),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Reports whether the other side has closed.
pub(crate) fn hung_up(channel: BorrowedFd<'_>) -> bool {
    let channel = channel.as_fd();
    let mut poll = [rustix::event::PollFd::new(&channel, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut poll, Some(&now)) {
        Ok(_) => poll[0].revents().contains(rustix::event::PollFlags::HUP),
        Err(_) => true,
    }
}
