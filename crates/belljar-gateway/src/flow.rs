//! One connection of the sandbox, from its acceptance to its end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use belljar_linux::NETWORK_ADDRESS;
use belljar_model::{Decision, DomainName};
use tokio::net::{TcpListener, TcpStream};

use crate::dial::{self, NotDialled};
use crate::gateway::{Flow, Gateway, Target};
use crate::names::Names;
use crate::{dns, relay, terminate, tls, web};

/// After a connection could not be taken, for want of descriptors.
const TRY_AGAIN: Duration = Duration::from_millis(50);

const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Dial(#[from] NotDialled),
    #[error(transparent)]
    Hello(#[from] tls::NoHello),
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    #[error("{name} is not trusted over TLS: {reason}")]
    Upstream { name: DomainName, reason: String },
    #[error("the policy has changed")]
    Cut,
}

/// Takes connections for as long as there is a socket.
pub(crate) async fn take_all(gateway: Rc<Gateway>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let gateway = Rc::clone(&gateway);
                tokio::task::spawn_local(async move { take(gateway, stream).await });
            }
            Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}

async fn take(gateway: Rc<Gateway>, stream: TcpStream) {
    // The address that the program gave, as the connection was led here before it went anywhere.
    let Ok(SocketAddr::V4(to)) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    let (address, port) = (*to.ip(), to.port());
    if address == NETWORK_ADDRESS {
        return dns::serve_stream(&gateway, stream).await;
    }
    let target = match gateway.names.borrow().name(address) {
        Some(name) => Target::Name(name.clone()),
        // It may have meant a name once, and no program can know what it means next.
        None if Names::is_made_up(address) => return relay::reset(&stream),
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
        gateway.end(&flow, Some(done.err().map(|error| error.to_string())));
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
            let hello = match tls::hello(&stream, name).await {
                Ok(hello) => hello,
                Err(error) => {
                    gateway.note(flow, &Decision::of_other_name(error.to_string()));
                    tls::alert(&stream).await;
                    return Err(error.into());
                }
            };
            if let Some(termination) = gateway.termination.as_ref().filter(|one| one.ends(name)) {
                return terminate::serve(gateway, flow, termination, stream, hello, name).await;
            }
            // Requests that cannot be read may be any.
            if gateway.matcher().has_requests(name) {
                let reason =
                    format!("requests to {name} are bound by rules that came after the sandbox's start");
                gateway.note(flow, &Decision::of_request(reason));
                tls::alert(&stream).await;
                return Err(Failed::Cut);
            }
            let upstream = dial::dial(gateway, flow).await?;
            relay::relay(flow, stream, upstream, &hello.bytes).await.map_err(Failed::from)
        }
        _ => {
            let upstream = dial::dial(gateway, flow).await?;
            relay::relay(flow, stream, upstream, &[]).await.map_err(Failed::from)
        }
    }
}

/// Ends a connection that is not allowed, in a way that tells why where its protocol has words for that.
async fn refuse(flow: &Flow, stream: TcpStream, reason: &str) {
    let stream = relay::Resets::new(stream);
    match flow.port {
        HTTP => web::refuse(stream, reason).await,
        HTTPS => tls::refuse(&stream).await,
        _ => {}
    }
}
