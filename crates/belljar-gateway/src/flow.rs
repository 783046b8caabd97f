//! Handling of one connection of the sandbox.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use belljar_linux::NETWORK_ADDRESS;
use belljar_model::{Decision, DomainName};
use tokio::net::{TcpListener, TcpStream};

use crate::budget::{MAX_HTTP2, MAX_TERMINATED, NEAR_BUFFER};
use crate::dial::{self, DialError};
use crate::gateway::{Flow, Gateway, Target};
use crate::names::Names;
use crate::{dns, opening, relay, terminate, tls, web};

/// Delay after a failed accept, for want of descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// Error that ended a connection early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{}", .0.reason)]
    Denied(Decision),
    #[error(transparent)]
    Hello(#[from] tls::HelloError),
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    #[error("{name} is not trusted over TLS: {reason}")]
    Upstream { name: DomainName, reason: String },
    #[error("the host switched protocols, which the request did not ask for")]
    Unrequested,
    #[error(
        "the sandbox has {MAX_TERMINATED} connections on which TLS is terminated already, or {MAX_HTTP2} with HTTP/2 and this one offers nothing else"
    )]
    Full,
    #[error("the policy has changed")]
    Cut,
}

impl Failed {
    /// Reports whether this is only how the kernel says that the other side had closed the connection before.
    fn is_end(&self) -> bool {
        matches!(self, Self::Broken(error) if error.kind() == std::io::ErrorKind::NotConnected)
    }

    /// Returns the error for code in the sandbox, which does not get every detail.
    pub(crate) fn to_public(&self, target: &Target, port: u16) -> String {
        match self {
            Self::Dial(error) => error.to_public(target, port),
            other => other.to_string(),
        }
    }
}

/// Accepts connections, forever.
pub(crate) async fn accept_all(gateway: Rc<Gateway>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let gateway = Rc::clone(&gateway);
                tokio::task::spawn_local(async move { handle(gateway, stream).await });
            }
            Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

async fn handle(gateway: Rc<Gateway>, stream: TcpStream) {
    // The program's original destination: the kernel redirected the connection here before it left the sandbox.
    let Ok(SocketAddr::V4(to)) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    if gateway.bounds_sockets && relay::bound_buffers(&stream, NEAR_BUFFER).is_err() {
        return relay::reset(&stream);
    }
    let (address, port) = (*to.ip(), to.port());
    if address == NETWORK_ADDRESS {
        return dns::serve_stream(&gateway, stream).await;
    }
    let target = match gateway.names.borrow().name(address) {
        Some(name) => Target::Name(name.clone()),
        // The address may have been assigned to a name before; no program can know its next assignment.
        None if Names::is_synthetic(address) => return relay::reset(&stream),
        None => Target::Address(address),
    };
    let Some(flow) = gateway.begin(target, port) else {
        return relay::reset(&stream);
    };
    let decision = gateway.decide(&flow.target, port);
    if decision.allowed {
        flow.is_carried.set(true);
        let done = tokio::select! {
            done = carry(&gateway, &flow, stream) => done,
            () = flow.cut.cancelled() => Err(Failed::Cut),
        };
        let error = done.err().filter(|error| !error.is_end()).map(|error| error.to_string());
        gateway.end(&flow, Some(error.or_else(|| flow.failure.take())));
    } else {
        gateway.note(&flow, &decision);
        tokio::select! {
            () = refuse(&flow, stream, &decision.reason) => {}
            () = flow.cut.cancelled() => {}
        }
        gateway.end(&flow, None);
    }
}

async fn carry(gateway: &Rc<Gateway>, flow: &Rc<Flow>, stream: TcpStream) -> Result<(), Failed> {
    let stream = relay::Resets::new(stream);
    match (&flow.target, flow.port) {
        (Target::Name(_), HTTP) if gateway.looks_at_names => web::serve(gateway, flow, stream).await,
        (Target::Name(name), HTTPS) if gateway.looks_at_names => {
            let hello = match tls::read_client_hello(&stream, name).await {
                Ok(hello) => hello,
                Err(error) => {
                    gateway.note(flow, &Decision::deny_other_name(error.to_string()));
                    tls::alert(&stream).await;
                    return Err(error.into());
                }
            };
            if let Some(termination) = gateway.termination.as_ref().filter(|one| one.ends(name)) {
                return terminate::serve(gateway, flow, termination, stream, hello, name).await;
            }
            flow.is_unread.set(true);
            if let Some(decision) = gateway.refuse_unread(flow) {
                gateway.note(flow, &decision);
                tls::alert(&stream).await;
                return Err(Failed::Denied(decision));
            }
            let upstream = match dial::dial(gateway, flow).await {
                Err(error @ (DialError::Denied(_) | DialError::Alias(_))) => {
                    tls::alert(&stream).await;
                    return Err(error.into());
                }
                dialled => dialled?,
            };
            relay::relay(flow, &stream, &upstream, async { Ok(hello.bytes) }).await
        }
        (Target::Address(_), HTTP | HTTPS) if gateway.must_read_names() => {
            opening::serve(gateway, flow, stream).await
        }
        (target, port) => {
            flow.is_unread.set(matches!((target, port), (Target::Address(_), HTTP | HTTPS)));
            let upstream = dial::dial(gateway, flow).await?;
            relay::relay(flow, &stream, &upstream, async { Ok(Vec::new()) }).await
        }
    }
}

/// Ends a connection that is not allowed, with the reason if its protocol can express one.
async fn refuse(flow: &Flow, stream: TcpStream, reason: &str) {
    let stream = relay::Resets::new(stream);
    match flow.port {
        HTTP => web::refuse(stream, reason).await,
        HTTPS => tls::refuse(&stream).await,
        _ => {}
    }
}
