//! The gateway's own connections.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use belljar_model::Decision;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::TcpStream;

use crate::gateway::{Flow, Gateway, Target};
use crate::relay::Resets;
use crate::resolve::NotResolved;

/// How long one address may take to answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Some port; nothing is sent to it.
const DISCARD: u16 = 9;

/// The most addresses of a name that are tried.
const MAX_TRIES: usize = 4;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDialled {
    #[error(transparent)]
    Name(#[from] NotResolved),
    #[error("{0}")]
    Denied(String),
    #[error("{address} does not answer: {source}")]
    Address { address: SocketAddrV4, source: std::io::Error },
}

/// Connects to where a connection of the sandbox wants to go: to an address that has been checked, and no other.
pub(crate) async fn dial(gateway: &Gateway, flow: &Flow) -> Result<Resets, NotDialled> {
    let addresses = match &flow.target {
        Target::Address(address) => vec![*address],
        Target::Name(name) => match gateway.resolver.look_up(name).await {
            Ok(addresses) => addresses,
            Err(error) => {
                gateway.note(flow, &gateway.decide(&flow.target, flow.port));
                return Err(error.into());
            }
        },
    };
    let mut failed = None;
    let mut denied = None;
    for address in addresses.into_iter().take(MAX_TRIES) {
        let decision = check(gateway, flow, address);
        if !decision.allowed {
            denied = Some(decision);
            continue;
        }
        if flow.address.replace(Some(address)).is_none() {
            gateway.note(flow, &decision);
        }
        let to = SocketAddrV4::new(address, flow.port);
        match connect(to).await {
            Ok(stream) => return Ok(Resets::new(stream)),
            Err(source) => failed = Some(NotDialled::Address { address: to, source }),
        }
    }
    match (failed, denied) {
        (Some(failed), _) => Err(failed),
        (None, Some(denied)) => {
            gateway.note(flow, &denied);
            Err(NotDialled::Denied(denied.reason))
        }
        (None, None) => {
            gateway.note(flow, &gateway.decide(&flow.target, flow.port));
            Err(NotResolved::Addressless { name: flow.target.to_string() }.into())
        }
    }
}

/// What the policy says of an address, and what this machine does: its own addresses are not public, whatever they look like.
fn check(gateway: &Gateway, flow: &Flow, address: Ipv4Addr) -> Decision {
    let decision = gateway.decide_address(&flow.target, address, flow.port);
    if !decision.allowed || !gateway.keeps_own(address) || !is_own(address) {
        return decision;
    }
    Decision::of_own_address(address)
}

/// Whether an address is this machine's: the kernel would reach it from that very address.
fn is_own(address: Ipv4Addr) -> bool {
    let from = || {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrV4::new(address, DISCARD))?;
        rustix::net::getsockname(&socket)
    };
    // Where there is no route there is nothing to reach.
    from().is_ok_and(|from| SocketAddr::try_from(from).is_ok_and(|from| from.ip() == address))
}

async fn connect(to: SocketAddrV4) -> std::io::Result<TcpStream> {
    let stream = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(SocketAddr::V4(to)));
    let stream = stream.await.map_err(|_| std::io::ErrorKind::TimedOut)??;
    if stream.peer_addr()? != SocketAddr::V4(to) {
        return Err(std::io::ErrorKind::AddrNotAvailable.into());
    }
    let _ = stream.set_nodelay(true);
    Ok(stream)
}
