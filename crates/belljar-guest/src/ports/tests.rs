use std::io::Cursor;

use belljar_proto::v1::PortsExt;
use belljar_proto::{BidiStream, Connection, ErrorCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

type Client = v1::PortsClient<Connection>;
type Tunnel = BidiStream<v1::TunnelRequest, v1::__buffa::view::TunnelResponseView<'static>>;

fn start() -> (Arc<Ports>, Client) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ports = Arc::new(Ports::default());
    tokio::spawn(belljar_proto::serve(theirs, Arc::clone(&ports).register(connectrpc::Router::new())));
    (ports, Client::new(belljar_proto::connect(ours), belljar_proto::client_config(Some(DEADLINE))))
}

async fn listen() -> (TcpListener, u32) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port.into())
}

fn first_message(port: u32) -> v1::TunnelRequest {
    v1::TunnelRequest { port, ..Default::default() }
}

fn data(data: impl Into<Bytes>) -> v1::TunnelRequest {
    v1::TunnelRequest { data: data.into(), ..Default::default() }
}

async fn open(client: &Client, port: u32) -> Tunnel {
    let mut tunnel = client.tunnel().await.unwrap();
    tunnel.send(first_message(port)).await.unwrap();
    tunnel
}

async fn receive(tunnel: &mut Tunnel) -> Result<Option<Bytes>, ConnectError> {
    let message = tokio::time::timeout(DEADLINE, tunnel.message::<v1::TunnelResponse>()).await.unwrap()?;
    Ok(message.map(|message| message.to_owned_message().data))
}

async fn wait_for_free_slots(ports: &Ports, free: usize) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while ports.slots.available_permits() != free {
            tokio::task::yield_now().await;
        }
    });
    waited.await.unwrap();
}

#[tokio::test]
async fn tunnel_forwards_both_ways_and_the_clients_end_of_stream() {
    let (ports, client) = start();
    let (listener, port) = listen().await;
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = socket.split();
        let echoed = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        // The client has closed its side; later output still reaches it.
        writer.write_all(b"bye").await.unwrap();
        writer.shutdown().await.unwrap();
        echoed
    });
    let sent: Vec<u8> =
        (0..5_000_000u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let (mut sender, mut receiver) = open(&client, port).await.into_split();
    let chunks: Vec<Bytes> = sent.chunks(100_000).map(Bytes::copy_from_slice).collect();
    let sending = async {
        for chunk in chunks {
            sender.send(data(chunk)).await.unwrap();
        }
        sender.close_send();
    };
    let receiving = async {
        let mut received = Vec::new();
        while let Some(message) = receiver.message::<v1::TunnelResponse>().await.unwrap() {
            received.extend_from_slice(&message.to_owned_message().data);
        }
        received
    };
    let (_, received) =
        tokio::time::timeout(DEADLINE, async { tokio::join!(sending, receiving) }).await.unwrap();
    assert_eq!(server.await.unwrap(), 5_000_000);
    assert!(received.strip_suffix(b"bye").unwrap() == sent);
    wait_for_free_slots(&ports, MAX_TUNNELS).await;
}

#[tokio::test]
async fn client_may_send_after_the_servers_end_of_stream() {
    let (ports, client) = start();
    let (listener, port) = listen().await;
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"only this").await.unwrap();
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.unwrap();
        rest
    });
    let mut tunnel = open(&client, port).await;
    let mut received = Vec::new();
    while let Some(part) = receive(&mut tunnel).await.unwrap() {
        received.extend_from_slice(&part);
    }
    assert_eq!(received, b"only this");
    tunnel.send(data("still here")).await.unwrap();
    tunnel.close_send();
    assert_eq!(tokio::time::timeout(DEADLINE, server).await.unwrap().unwrap(), b"still here");
    wait_for_free_slots(&ports, MAX_TUNNELS).await;
}

#[tokio::test]
async fn disconnected_client_closes_the_connection() {
    let (ports, client) = start();
    let (listener, port) = listen().await;
    let mut tunnel = open(&client, port).await;
    let (mut socket, _) = listener.accept().await.unwrap();
    socket.write_all(b"x").await.unwrap();
    assert_eq!(receive(&mut tunnel).await.unwrap().unwrap(), b"x".as_slice());
    assert_eq!(ports.slots.available_permits(), MAX_TUNNELS - 1);
    drop(tunnel);
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(DEADLINE, socket.read_to_end(&mut rest)).await.unwrap();
    assert!(ended.is_err() || rest.is_empty());
    wait_for_free_slots(&ports, MAX_TUNNELS).await;
}

#[tokio::test]
async fn invalid_and_closed_ports_and_too_many_tunnels_are_refused() {
    let (ports, client) = start();
    let (listener, closed) = listen().await;
    drop(listener);
    let cases = [
        (0, ErrorCode::InvalidArgument, "port: 0 is not allowed; give 1 to 65535".to_owned()),
        (65_536, ErrorCode::InvalidArgument, "port: 65536 is not allowed; give 1 to 65535".to_owned()),
        (closed, ErrorCode::Unavailable, format!("nothing listens on port {closed}")),
    ];
    for (port, code, message) in cases {
        let mut tunnel = open(&client, port).await;
        let error = receive_error(&mut tunnel).await;
        assert_eq!((error.code, error.message), (code, Some(message)));
    }
    let slots = Arc::clone(&ports.slots).try_acquire_many_owned(u32::try_from(MAX_TUNNELS).unwrap()).unwrap();
    let (_listener, port) = listen().await;
    assert_eq!(receive_error(&mut open(&client, port).await).await.code, ErrorCode::ResourceExhausted);
    drop(slots);
}

async fn receive_error(tunnel: &mut Tunnel) -> ConnectError {
    match receive(tunnel).await {
        Err(error) => error,
        Ok(_) => tunnel.error().cloned().unwrap(),
    }
}

#[tokio::test]
async fn listening_ports_are_listed() {
    let (_, client) = start();
    let (first, port) = listen().await;
    let connected = TcpStream::connect(first.local_addr().unwrap()).await.unwrap();
    let listed = client.list(v1::ListPortsRequest::default()).await.unwrap().into_owned().tcp;
    assert!(listed.contains(&port));
    assert!(!listed.contains(&connected.local_addr().unwrap().port().into()));
    assert!(listed.is_sorted_by(|one, other| one < other));
    drop(first);
    let listed = client.list(v1::ListPortsRequest::default()).await.unwrap().into_owned().tcp;
    assert!(!listed.contains(&port));
}

#[tokio::test]
async fn socket_tables_are_parsed() {
    let table = "  sl  local_address rem_address   st tx_queue\n\
        0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
        1: 00000000:0050 00000000:0000 0A 00000000:00000000\n\
        2: 0100007F:1F91 0100007F:1F90 01 00000000:00000000\n\
        nonsense\n\n3: x:y z 0A\n";
    let mut ports = BTreeSet::new();
    read_table(Cursor::new(table), &mut ports).await.unwrap();
    assert_eq!(ports, BTreeSet::from([80, 8080]));

    let table = "  sl  local_address\n\
        0: 00000000000000000000000000000000:0BB8 00000000000000000000000000000000:0000 0A 0\n\
        1: 0000000000000000FFFF00000100007F:0BB9 00000000000000000000000000000000:0000 0A 0\n\
        2: 00000000000000000000000001000000:0BBA 00000000000000000000000000000000:0000 0A 0\n";
    let mut ports = BTreeSet::new();
    read_table(Cursor::new(table), &mut ports).await.unwrap();
    assert_eq!(ports, BTreeSet::from([3000, 3001, 3002]));
}
