//! Outgoing connections of the gateway.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use belljar_model::{ASK_TO_ALLOW, DecidedBy, Decision, ProxyHost, UpstreamProxy};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::{TcpSocket, TcpStream};

use crate::budget::FAR_BUFFER;
use crate::gateway::{Flow, Gateway, Target};
use crate::proxy::{self, Destination, ProxyError};
use crate::relay::{self, Resets};
use crate::resolve::ResolveError;

/// Timeout for connecting to one address.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Arbitrary port; nothing is sent to it.
const DISCARD: u16 = 9;

/// Maximum number of a name's addresses that are tried.
const MAX_TRIES: usize = 4;

/// Error when connecting to a destination.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(transparent)]
    Name(#[from] ResolveError),
    #[error("{}", .0.reason)]
    Denied(Decision),
    #[error("{}", .0.reason)]
    Alias(Decision),
    #[error("{address} does not answer: {source}")]
    Address { address: SocketAddrV4, source: std::io::Error },
    #[error("the operator's proxy: {0}")]
    Proxy(#[from] ProxyError),
}

impl DialError {
    /// Returns the error for code in the sandbox: without addresses that it has not used itself, and without what it could learn about
    /// the operator's network. The log has the full error.
    pub(crate) fn to_public(&self, target: &Target, port: u16) -> String {
        match self {
            Self::Name(error) => error.to_public(),
            Self::Denied(decision) => match (target, &decision.by) {
                (Target::Address(address), DecidedBy::OwnAddress) => {
                    format!("{address} is denied in every mode")
                }
                (Target::Address(_), _) => decision.reason.clone(),
                (Target::Name(name), DecidedBy::Deny(_)) => {
                    format!("{name} resolves to an address that the network policy denies")
                }
                // The operator has made an exception for the address.
                (Target::Name(name), DecidedBy::NoRule) => {
                    format!("{name} resolves to an address that is not public; {ASK_TO_ALLOW}{name}:{port}")
                }
                (Target::Name(name), _) => format!(
                    "{name} resolves to an address that is not public; only the operator's configuration can make an exception"
                ),
            },
            Self::Alias(_) => format!("{target} is another name for one that the network policy denies"),
            Self::Address { source, .. } => format!("{target}:{port} does not answer: {source}"),
            Self::Proxy(ProxyError::Unknown(_)) => "the operator's proxy cannot be found".to_owned(),
            Self::Proxy(error) => format!("the operator's proxy: {error}"),
        }
    }
}

/// Connects to the destination of a sandbox's connection: only to an address that has been checked. If the operator's proxy
/// resolves names, the name is sent to it instead.
pub(crate) async fn dial(gateway: &Gateway, flow: &Flow) -> Result<Resets, DialError> {
    if let (Some(proxy), Target::Name(name), true) = (&gateway.proxy, &flow.target, gateway.proxy_resolves) {
        gateway.note(flow, &gateway.decide(&flow.target, flow.port));
        return Ok(Resets::new(connect_via_proxy(gateway, proxy, Destination::Name(name), flow.port).await?));
    }
    let addresses = match &flow.target {
        Target::Address(address) => vec![*address],
        Target::Name(name) => match gateway.resolver.resolve(name).await {
            Ok(resolved) => {
                flow.aliases.replace(resolved.aliases);
                if let Some(decision) = gateway.refuse_alias(flow) {
                    gateway.note(flow, &decision);
                    return Err(DialError::Alias(decision));
                }
                resolved.addresses
            }
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
            Some(proxy) => connect_via_proxy(gateway, proxy, Destination::Address(address), flow.port).await,
            None => connect(gateway, to).await.map_err(|source| DialError::Address { address: to, source }),
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
            Err(DialError::Denied(denied))
        }
        (None, None) => {
            gateway.note(flow, &gateway.decide(&flow.target, flow.port));
            Err(ResolveError::NoAddress { name: flow.target.to_string() }.into())
        }
    }
}

/// Checks an address against the policy and against this machine's own addresses, which are never public, even if they look so.
fn check(gateway: &Gateway, flow: &Flow, address: Ipv4Addr) -> Decision {
    let decision = gateway.decide_address(&flow.target, address, flow.port);
    if !decision.allowed || !gateway.protects_own(address) || !is_own(address) {
        return decision;
    }
    Decision::deny_own_address(address)
}

/// Reports whether an address belongs to this machine: the kernel would reach it from that very address.
fn is_own(address: Ipv4Addr) -> bool {
    let from = || {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrV4::new(address, DISCARD))?;
        rustix::net::getsockname(&socket)
    };
    // Without a route the address is unreachable.
    from().is_ok_and(|from| SocketAddr::try_from(from).is_ok_and(|from| from.ip() == address))
}

/// Connects through the operator's proxy. The operator configured its address, so no policy applies to it.
async fn connect_via_proxy(
    gateway: &Gateway,
    proxy: &UpstreamProxy,
    to: Destination<'_>,
    port: u16,
) -> Result<TcpStream, DialError> {
    let addresses = match proxy.host() {
        ProxyHost::Address(address) => vec![*address],
        ProxyHost::Name(name) => {
            let resolved = gateway.resolver.resolve(name).await;
            resolved.map_err(|error| ProxyError::Unknown(error.to_string()))?.addresses
        }
    };
    let mut failed = ProxyError::Unknown("no address".to_owned());
    for address in addresses.into_iter().take(MAX_TRIES) {
        let request = async {
            let mut stream = connect(gateway, SocketAddrV4::new(address, proxy.port())).await?;
            proxy::request_connection(&mut stream, proxy, to, port).await.map(|()| stream)
        };
        match tokio::time::timeout(DIAL_TIMEOUT, request).await {
            Ok(Ok(stream)) => return Ok(stream),
            // Its next address is tried only if this one is unreachable.
            Ok(Err(ProxyError::Broken(error))) => failed = error.into(),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => failed = std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
        }
    }
    Err(failed.into())
}

async fn connect(gateway: &Gateway, to: SocketAddrV4) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if gateway.bounds_sockets {
        // Before the connection, as the window's scale is negotiated by it.
        relay::bound_buffers(&socket, FAR_BUFFER)?;
    }
    let stream = tokio::time::timeout(DIAL_TIMEOUT, socket.connect(SocketAddr::V4(to)));
    let stream = stream.await.map_err(|_| std::io::ErrorKind::TimedOut)??;
    if stream.peer_addr()? != SocketAddr::V4(to) {
        return Err(std::io::ErrorKind::AddrNotAvailable.into());
    }
    let _ = stream.set_nodelay(true);
    Ok(stream)
}
