//! `belljar sandbox port` and `port-forward`: ports of programs in a sandbox, through the server's address or on this machine.

use std::net::{Ipv4Addr, SocketAddr};

use belljar_client::v1;
use belljar_engine::{ErrorCode, GuestClient, GuestError};
use tokio::net::{TcpListener, TcpStream};

use super::args::SandboxCommand;
use super::link::Link;
use super::show::{Table, print};
use super::values;
use crate::message::{Quit, chain, say};

/// Default life of the token in the address of a private port.
const TOKEN_LIFE: &str = "1h";

/// Publishes or unpublishes a port, or lists the published ones.
pub(super) async fn port(link: &Link, command: &SandboxCommand) -> Result<(), Quit> {
    let SandboxCommand::Port { sandbox, port, public, remove, token } = command else { return Ok(()) };
    let Some(port) = port else {
        let request = v1::ListPublishedPortsRequest { sandbox: sandbox.clone(), ..Default::default() };
        let ports = link.client.list_ports(request).await?;
        if link.json(&ports)? {
            return Ok(());
        }
        let mut table = Table::new(&["PORT", "WHO", "URL"]);
        for port in ports.ports {
            let who = if port.public { "anybody" } else { "with a token" };
            table.row(vec![port.port.to_string(), who.to_owned(), url(link, &port, None)]);
        }
        return link.list(&table, 0);
    };
    if *remove {
        let request =
            v1::UnpublishPortRequest { sandbox: sandbox.clone(), port: (*port).into(), ..Default::default() };
        link.client.unpublish_port(request).await?;
        return Ok(());
    }
    let request = v1::PublishPortRequest {
        sandbox: sandbox.clone(),
        port: (*port).into(),
        public: *public,
        ..Default::default()
    };
    let published = link.client.publish_port(request).await?;
    if token.is_none() && link.json(&published)? {
        return Ok(());
    }
    let life = token.as_deref().or((!public).then_some(TOKEN_LIFE));
    let issued = match life {
        None => None,
        Some(life) => {
            let request = v1::IssuePortTokenRequest {
                sandbox: sandbox.clone(),
                port: (*port).into(),
                expires: values::span("token", Some(life))?,
                ..Default::default()
            };
            Some(link.client.issue_port_token(request).await?)
        }
    };
    match (&issued, token) {
        (Some(issued), Some(_)) => {
            if link.json(issued)? {
                return Ok(());
            }
            print(&format!("{}\n", issued.token))
        }
        (issued, _) => {
            print(&format!(
                "{}\n",
                url(link, &published, issued.as_ref().map(|issued| issued.token.as_str()))
            ))?;
            if let Some(socket) = link.only_socket() {
                link.remark(&format!(
                    "this server has no address but its socket: curl --unix-socket {socket} URL, or belljar sandbox \
                     port-forward {sandbox} {port}"
                ));
            }
            Ok(())
        }
    }
}

/// Returns the URL of a port.
fn url(link: &Link, port: &v1::PublishedPort, token: Option<&str>) -> String {
    let query = token.map(|token| format!("?belljar_token={token}")).unwrap_or_default();
    // With an address, the port has a host name of its own below the server's domain.
    match link.url.as_deref().and_then(|url| url.split_once("://")) {
        Some((scheme, authority)) if !port.host.is_empty() => {
            let server_port = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
            let server_port = server_port.map(|(_, port)| format!(":{port}")).unwrap_or_default();
            format!("{scheme}://{}{server_port}/{query}", port.host)
        }
        Some((scheme, authority)) => format!("{scheme}://{authority}{}{query}", port.path),
        None => format!("http://localhost{}{query}", port.path),
    }
}

/// Listens on this machine's loopback, and forwards connections to a port in the sandbox, until a signal ends it.
pub(super) async fn forward(link: &Link, sandbox: &str, ports: &str) -> Result<(), Quit> {
    let (local, inside) = parse_ports(ports)?;
    let request = v1::GetSandboxRequest { sandbox: sandbox.to_owned(), ..Default::default() };
    link.client.get(request).await?;
    let guest = link.client.guest(sandbox)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, local));
    let listener = TcpListener::bind(address).await.map_err(|error| {
        anyhow::Error::new(error)
            .context(format!("cannot listen on {address}; name another port as LOCAL:{inside}"))
    })?;
    print(&format!("http://{}/\n", listener.local_addr()?))?;
    let (ended, mut has_ended) = tokio::sync::mpsc::unbounded_channel();
    loop {
        let connection = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            Some(error) = has_ended.recv() => return Err(Quit::from(anyhow::Error::new(error))),
        };
        let (guest, ended) = (guest.clone(), ended.clone());
        tokio::spawn(async move {
            match forward_connection(&guest, inside, connection).await {
                // The sandbox itself is gone.
                Err(error) if error.is(ErrorCode::NotFound) => drop(ended.send(error)),
                Err(error) => say(&format!("port {inside}: {}", chain(&error))),
                Ok(()) => {}
            }
        });
    }
}

/// Forwards one connection, in both directions.
async fn forward_connection(
    guest: &GuestClient,
    port: u16,
    mut connection: TcpStream,
) -> Result<(), GuestError> {
    let mut inside = guest.tunnel(port).await?.into_io();
    // Either side may break off, which has no one to be reported to.
    let _ = tokio::io::copy_bidirectional(&mut connection, &mut inside).await;
    Ok(())
}

/// Parses `LOCAL:INSIDE`, or one port for both.
fn parse_ports(text: &str) -> Result<(u16, u16), Quit> {
    let port = |text: &str| text.parse::<u16>().ok();
    let (local, inside) = text.split_once(':').unwrap_or((text, text));
    match (port(local), port(inside)) {
        (Some(local), Some(inside @ 1..)) => Ok((local, inside)),
        _ => Err(Quit::Usage(format!(
            "{text:?} is not allowed; give a port, or the port here and the one inside as 8000:8080"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed() {
        for (text, expected) in [
            ("8000", Some((8000, 8000))),
            ("8000:8080", Some((8000, 8080))),
            ("0:80", Some((0, 80))),
            ("0", None),
            ("80:0", None),
            ("80:", None),
            ("65536", None),
            ("a:b", None),
        ] {
            assert_eq!(parse_ports(text).ok(), expected, "{text}");
        }
    }
}
