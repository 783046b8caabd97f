//! The gateway's own connections.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use belljar_model::{Decision, ProxyHost, UpstreamProxy};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::TcpStream;

use crate::gateway::{Flow, Gateway, Target};
use crate::proxy::{self, Destination, ProxyError};
use crate::relay::Resets;
use crate::resolve::NotResolved;

/// How long one address may take to answer.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

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
    #[error("the operator's proxy: {0}")]
    Proxy(#[from] ProxyError),
}

/// Connects to where a connection of the sandbox wants to go: to an address that has been checked, and no other. Where the
/// operator's proxy looks names up, it is told the name.
pub(crate) async fn dial(gateway: &Gateway, flow: &Flow) -> Result<Resets, NotDialled> {
    if let (Some(proxy), Target::Name(name), true) = (&gateway.proxy, &flow.target, gateway.proxy_resolves) {
        gateway.note(flow, &gateway.decide(&flow.target, flow.port));
        return Ok(Resets::new(through(gateway, proxy, Destination::Name(name), flow.port).await?));
    }
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
        let connected = match &gateway.proxy {
            Some(proxy) => through(gateway, proxy, Destination::Address(address), flow.port).await,
            None => connect(to).await.map_err(|source| NotDialled::Address { address: to, source }),
        };
        match connected {
            Ok(stream) => return Ok(Resets::new(stream)),
            Err(error) => failed = Some(error),
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

/// Connects through the operator's proxy. Where that is was said by the operator, so no policy is asked about it.
async fn through(
    gateway: &Gateway,
    proxy: &UpstreamProxy,
    to: Destination<'_>,
    port: u16,
) -> Result<TcpStream, NotDialled> {
    let addresses = match proxy.host() {
        ProxyHost::Address(address) => vec![*address],
        ProxyHost::Name(name) => {
            gateway.resolver.look_up(name).await.map_err(|error| ProxyError::Unknown(error.to_string()))?
        }
    };
    let mut failed = ProxyError::Unknown("it has no address".to_owned());
    for address in addresses.into_iter().take(MAX_TRIES) {
        let asking = async {
            let mut stream = connect(SocketAddrV4::new(address, proxy.port())).await?;
            proxy::ask(&mut stream, proxy, to, port).await.map(|()| stream)
        };
        match tokio::time::timeout(DIAL_TIMEOUT, asking).await {
            Ok(Ok(stream)) => return Ok(stream),
            // Another address of it is tried only where this one cannot be reached.
            Ok(Err(ProxyError::Broken(error))) => failed = error.into(),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => failed = std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
        }
    }
    Err(failed.into())
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
