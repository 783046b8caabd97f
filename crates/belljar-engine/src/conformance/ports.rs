//! Tunnels to servers inside the sandbox.

use std::time::Duration;

use belljar_proto::ErrorCode;
use bytes::Bytes;

use super::case::{Case, Checked, Stop, cases, ensure, equal, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{python, read_until};
use super::streams::pattern;
use crate::client::{Execution, Tunnel};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    tunnel_is_bidirectional [Loopback],
    tunnel_closes_half [Loopback],
    tunnel_reaches_a_server_on_ipv6 [Loopback],
    tunnels_run_side_by_side [Loopback],
    tunnel_to_a_closed_port_is_refused [Loopback],
    tunnel_to_port_zero_is_refused [],
    tunnel_ends_when_the_server_does [Loopback],
    listening_ports_are_listed [Loopback],
];

/// Creates a server that calls `serve(connection)` in a thread for each connection, and prints its port.
fn server(serve: &str) -> belljar_proto::v1::StartRequest {
    python(&format!(
        "
import os, socket, threading
{serve}
listener = socket.create_server(('127.0.0.1', 0))
print('port', listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"
    ))
}

const ECHO: &str = "
def serve(connection):
    while True:
        data = connection.recv(65536)
        if not data: break
        connection.sendall(data)
    connection.close()
";

async fn start_server(sandbox: &Sandbox, serve: &str) -> Checked<(Execution, u16)> {
    let mut execution = sandbox.guest().start(server(serve)).await?;
    let seen = read_until(&mut execution, "\n").await?;
    let port = seen.trim().strip_prefix("port ").and_then(|port| port.parse().ok());
    Ok((execution, port.ok_or_else(|| Stop::Failed(format!("the server said {seen:?}")))?))
}

/// Returns all bytes until the other side closes.
async fn drain(tunnel: &mut Tunnel) -> Checked<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(data) = within("the end of a tunnel", Duration::from_secs(20), tunnel.receive()).await?? {
        all.extend_from_slice(&data);
    }
    Ok(all)
}

async fn receive(tunnel: &mut Tunnel, length: usize) -> Checked<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < length {
        let piece = within("an answer", Duration::from_secs(20), tunnel.receive()).await??;
        all.extend_from_slice(&piece.ok_or_else(|| Stop::Failed("the tunnel ended early".to_owned()))?);
    }
    Ok(all)
}

async fn tunnel_is_bidirectional(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let (_server, port) = start_server(&sandbox, ECHO).await?;
    let mut tunnel = sandbox.guest().tunnel(port).await?;
    for turn in 1..=50_usize {
        let sent = Bytes::from(pattern(turn * 997));
        tunnel.send(sent.clone()).await?;
        ensure!(receive(&mut tunnel, sent.len()).await? == sent, "a wrong echo in turn {turn}");
    }
    tunnel.close_send();
    equal!(drain(&mut tunnel).await?.len(), 0);
    context.stop(sandbox).await
}

async fn tunnel_closes_half(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let serve = "
def serve(connection):
    total = 0
    while True:
        data = connection.recv(65536)
        if not data: break
        total += len(data)
    connection.sendall(b'%d bytes' % total + b'.' * 300000)
    connection.close()
";
    let (_server, port) = start_server(&sandbox, serve).await?;
    let mut tunnel = sandbox.guest().tunnel(port).await?;
    for _ in 0..30 {
        tunnel.send(Bytes::from(vec![b'x'; 50_000])).await?;
    }
    tunnel.close_send();
    let answer = drain(&mut tunnel).await?;
    ensure!(answer.starts_with(b"1500000 bytes."), "the server said {:?}", answer.get(..40));
    equal!(answer.len(), 13 + 300_000);
    context.stop(sandbox).await
}

async fn tunnel_reaches_a_server_on_ipv6(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    // Dual stack, as dev servers bind, and on the IPv6 loopback alone.
    for address in ["::", "::1"] {
        let code = format!(
            "
import http.server
class Server(http.server.ThreadingHTTPServer): address_family = http.server.socket.AF_INET6
server = Server(('{address}', 0), http.server.SimpleHTTPRequestHandler)
print('port', server.server_port, flush=True)
server.serve_forever()
"
        );
        let mut server = sandbox.guest().start(python(&code)).await?;
        let seen = read_until(&mut server, "\n").await?;
        let port = seen.trim().strip_prefix("port ").and_then(|port| port.parse().ok());
        let port = port.ok_or_else(|| Stop::Failed(format!("the server on {address} said {seen:?}")))?;
        let mut tunnel = sandbox.guest().tunnel(port).await?;
        tunnel.send(Bytes::from_static(b"GET / HTTP/1.0\r\n\r\n")).await?;
        let answer = drain(&mut tunnel).await?;
        ensure!(answer.starts_with(b"HTTP/1.0 200 OK"), "{address} said {:?}", answer.get(..40));
        ensure!(sandbox.guest().list_ports().await?.contains(&port), "{port} on {address} is not listed");
    }
    context.stop(sandbox).await
}

async fn tunnels_run_side_by_side(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let (_server, port) = start_server(&sandbox, ECHO).await?;
    let talks = (0..16_u8).map(|number| {
        let sandbox = &sandbox;
        async move {
            let mut tunnel = sandbox.guest().tunnel(port).await?;
            tunnel.send(Bytes::from(vec![number; 100_000])).await?;
            let answer = receive(&mut tunnel, 100_000).await?;
            ensure!(answer == [number; 100_000], "tunnel {number} got the bytes of another");
            Checked::Ok(())
        }
    });
    for result in futures::future::join_all(talks).await {
        result?;
    }
    context.stop(sandbox).await
}

/// Opens a tunnel and waits for its first bytes.
async fn try_tunnel(sandbox: &Sandbox, port: u16) -> Result<Option<Bytes>, crate::GuestError> {
    sandbox.guest().tunnel(port).await?.receive().await
}

async fn tunnel_to_a_closed_port_is_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    // A port whose server was just killed.
    let (server, port) = start_server(&sandbox, ECHO).await?;
    sandbox.guest().signal(server.id, 9, false).await?;
    super::program::collect_with_gaps(server, [0; 3]).await?;
    let result = within("a refused port", Duration::from_secs(10), try_tunnel(&sandbox, port)).await?;
    expect_refused(result, ErrorCode::Unavailable, &[&port.to_string(), "nothing listens"])?;
    context.stop(sandbox).await
}

async fn tunnel_to_port_zero_is_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let result = within("port 0", Duration::from_secs(10), try_tunnel(&sandbox, 0)).await?;
    expect_refused(result, ErrorCode::InvalidArgument, &["port", "0"])?;
    context.stop(sandbox).await
}

async fn tunnel_ends_when_the_server_does(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let (_server, port) = start_server(
        &sandbox,
        "def serve(connection):\n    connection.sendall(b'bye')\n    connection.close()\n",
    )
    .await?;
    let mut tunnel = sandbox.guest().tunnel(port).await?;
    equal!(drain(&mut tunnel).await?, b"bye");
    context.stop(sandbox).await
}

async fn listening_ports_are_listed(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let (server, port) = start_server(&sandbox, ECHO).await?;
    let ports = sandbox.guest().list_ports().await?;
    ensure!(ports.contains(&port), "{port} is not in {ports:?}");
    if context.has(super::Capability::OwnNetwork) {
        equal!(ports, [port]);
    }
    sandbox.guest().signal(server.id, 9, false).await?;
    super::program::collect_with_gaps(server, [0; 3]).await?;
    let ports = sandbox.guest().list_ports().await?;
    ensure!(!ports.contains(&port), "{port} is still in {ports:?}");
    context.stop(sandbox).await
}
