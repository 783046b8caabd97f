//! Network system calls that have no safe wrapper.

#![expect(unsafe_code, reason = "raw system calls; each block says why it is sound")]

use std::os::fd::{AsFd, AsRawFd as _};

use libc::c_int;
use rustix::io::Errno;

use crate::kernel::check;

/// Brings the loopback interface of this network namespace up (netdevice(7)). Fork-safe.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    #[repr(C)]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        flags: libc::c_short,
        rest: [u8; 22],
    }
    let mut request = Request { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    request.flags = 1; // IFF_UP; the kernel adds IFF_RUNNING itself.
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: `request` is an ifreq: 16 bytes of name, then a union of 24 bytes that starts with the flags.
    check(unsafe {
        libc::syscall(libc::SYS_ioctl, socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    })
    .map(drop)
}

/// Lets a socket accept connections to foreign addresses (`IP_TRANSPARENT`, ip(7)). Fork-safe.
pub(crate) fn set_transparent(socket: impl AsFd) -> Result<(), Errno> {
    let on: c_int = 1;
    let length = size_of_val(&on);
    // SAFETY: the kernel reads an int of this length.
    check(unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            socket.as_fd().as_raw_fd(),
            libc::SOL_IP,
            libc::IP_TRANSPARENT,
            &raw const on,
            length,
        )
    })
    .map(drop)
}
