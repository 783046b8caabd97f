//! Control socket, over which the host passes descriptors to a gateway, one kind per message; and the sockets of the sandbox's
//! network.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use belljar_linux::{GATEWAY_SOCKETS, Received, peek_with, receive_with};
use rustix::event::{PollFd, PollFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, UdpSocket, UnixStream};

use crate::config::{CONNECTION, GatewayConfig, SETUP};
use crate::gateway::Gateway;
use crate::{dns, flow, host};

/// Waits for the first message. Joins the control group in it, if there is one, before anything else is opened. Returns the
/// configuration, and the socket with the sockets of the sandbox's network.
pub(crate) fn configuration(control: &OwnedFd) -> io::Result<(GatewayConfig, OwnedFd)> {
    loop {
        let mut polls = [PollFd::new(control, PollFlags::IN)];
        match rustix::event::poll(&mut polls, None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut kind = [0; 1];
    let Received { length: 1, descriptors, .. } = receive_with(control.as_fd(), &mut kind)? else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let mut descriptors = descriptors.into_iter();
    let (Some(file), Some(network), group, None, [SETUP]) =
        (descriptors.next(), descriptors.next(), descriptors.next(), descriptors.next(), kind)
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if let Some(group) = group {
        rustix::io::write(&group, b"0")?;
    }
    let mut text = Vec::new();
    std::fs::File::from(file).read_to_end(&mut text)?;
    Ok((serde_json::from_slice(&text)?, network))
}

/// Waits for the sockets of the sandbox's network, and serves them.
pub(crate) async fn serve_network(gateway: &Rc<Gateway>, network: OwnedFd) -> io::Result<()> {
    let network = async_fd(network)?;
    loop {
        let mut ready = network.readable().await?;
        let mut kind = [0; 1];
        // The message stays for the next gateway, if this one ends unexpectedly.
        let received = match peek_with(network.as_fd(), &mut kind) {
            Err(rustix::io::Errno::AGAIN) => {
                ready.clear_ready();
                continue;
            }
            other => other?,
        };
        let sockets = <[OwnedFd; 2]>::try_from(received.descriptors);
        let ([GATEWAY_SOCKETS], Ok([listener, resolver])) = (kind, sockets) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let listener = TcpListener::from_std(listener.into())?;
        let resolver = UdpSocket::from_std(resolver.into())?;
        tokio::task::spawn_local(flow::accept_all(Rc::clone(gateway), listener));
        tokio::task::spawn_local(dns::serve(Rc::clone(gateway), resolver));
        return Ok(());
    }
}

/// Handles messages until the last sender has closed the socket, which means that the sandbox is gone.
pub(crate) async fn serve(gateway: &Rc<Gateway>, control: OwnedFd) -> io::Result<()> {
    let control = async_fd(control)?;
    loop {
        let mut ready = control.readable().await?;
        let mut kind = [0; 1];
        let received = match receive_with(control.as_fd(), &mut kind) {
            Err(rustix::io::Errno::AGAIN) => {
                ready.clear_ready();
                continue;
            }
            other => other?,
        };
        if received.length == 0 {
            return Ok(());
        }
        take(gateway, kind[0], received.descriptors)?;
    }
}

/// Watches a descriptor with tokio.
#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

fn take(gateway: &Rc<Gateway>, kind: u8, descriptors: Vec<OwnedFd>) -> io::Result<()> {
    let (CONNECTION, Ok([stream])) = (kind, <[OwnedFd; 1]>::try_from(descriptors)) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    // Uses fcntl(2): the standard library uses ioctl(2), which the jail does not allow.
    rustix::fs::fcntl_setfl(&stream, rustix::fs::OFlags::NONBLOCK)?;
    let served = host::serve(Rc::clone(gateway), UnixStream::from_std(stream.into())?);
    tokio::task::spawn_local(gateway.hosts.track_future(served));
    Ok(())
}
