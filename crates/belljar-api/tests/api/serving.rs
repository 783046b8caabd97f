//! Connections: both versions of HTTP, slow clients, shutdown, TLS, the operator's socket.

use std::io::Write as _;
use std::time::{Duration, Instant};

use axum::body::Body;
use belljar_api::{Api, ApiConfig, Listener, Tls};
use belljar_testing::wait::{DEADLINE, until};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, cases, config, sandbox};

cases![
    http2_by_prior_knowledge_works,
    connections_are_reused_and_bounded,
    all_listeners_share_one_count,
    slow_heads_are_cut_off,
    server_shuts_down_gracefully,
    socket_clients_are_the_operator,
    tls_speaks_both_versions,
];

async fn http2_by_prior_knowledge_works(fixture: Fixture) {
    let user = fixture.user().await;
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let request = http::Request::builder().uri(format!("http://{}/v1/me", fixture.address));
        let request = request.header("x-api-key", user.key.as_ref().unwrap()).body(Body::empty()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    }
    let request = http::Request::builder().uri("http://evil.example/v1/me");
    let request = request.header("x-api-key", user.key.as_ref().unwrap()).body(Body::empty()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 403);
}

async fn connections_are_reused_and_bounded(fixture: Fixture) {
    let few =
        fixture.beside(ApiConfig { max_connections: 2, max_requests_per_connection: 3, ..config() }).await;
    let stream = TcpStream::connect(few.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = || few.stranger().request("GET", "/health").body(Body::empty()).unwrap();
    for _ in 0..3 {
        sender.ready().await.unwrap();
        let answer = sender.send_request(request()).await.unwrap();
        assert_eq!(answer.status(), 200);
        axum::body::to_bytes(Body::new(answer.into_body()), 1000).await.unwrap();
    }
    tokio::time::timeout(DEADLINE, connection).await.unwrap().unwrap().unwrap();

    // The slot of the connection that has just ended may be released a little later.
    let _first = connect_in_free_slot(few.address).await;
    let _second = connect_in_free_slot(few.address).await;
    no_room(few.address).await;
}

/// Waits until a new connection is closed at once.
async fn no_room(address: std::net::SocketAddr) {
    until("there is no room for another one", || async {
        let mut another = TcpStream::connect(address).await.unwrap();
        matches!(
            tokio::time::timeout(Duration::from_secs(1), another.read(&mut [0; 1])).await,
            Ok(Ok(0) | Err(_))
        )
    })
    .await;
}

async fn all_listeners_share_one_count(fixture: Fixture) {
    let api =
        std::sync::Arc::new(Api::new(ApiConfig { max_connections: 3, ..config() }, fixture.keeper.clone()));
    let (one, other) = (fixture.listen_beside(&api).await, fixture.listen_beside(&api).await);
    let _first = connect_in_free_slot(one.address).await;
    let _second = connect_in_free_slot(one.address).await;
    let third = connect_in_free_slot(other.address).await;
    no_room(one.address).await;
    no_room(other.address).await;
    // A slot that is released on one listener is free on all.
    drop(third);
    until("there is room again", || async { connect_and_request(one.address).await.is_some() }).await;
}

/// Opens a connection that counts, as soon as there is a free slot.
async fn connect_in_free_slot(address: std::net::SocketAddr) -> TcpStream {
    let begin = Instant::now();
    loop {
        if let Some(kept) = connect_and_request(address).await {
            return kept;
        }
        assert!(begin.elapsed() < DEADLINE, "no room came for a connection");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Opens a connection and awaits an answer, so that it is known to count.
async fn connect_and_request(address: std::net::SocketAddr) -> Option<TcpStream> {
    let mut kept = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /health HTTP/1.1\r\nhost: {address}\r\n\r\n");
    kept.write_all(request.as_bytes()).await.ok()?;
    matches!(kept.read(&mut [0; 4096]).await, Ok(1..)).then_some(kept)
}

async fn slow_heads_are_cut_off(fixture: Fixture) {
    let begin = Instant::now();
    let mut slow = TcpStream::connect(fixture.address).await.unwrap();
    let (mut read, mut write) = slow.split();
    let trickle = async {
        for byte in b"GET /health HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'y')) {
            if write.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = trickle => {}
        _ = read.read_to_end(&mut answer) => {}
    }
    assert!((8..15).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
    // Another connection is not delayed by it, and may be idle between two requests.
    let mut kept = TcpStream::connect(fixture.address).await.unwrap();
    let request = format!("GET /health HTTP/1.1\r\nhost: {}\r\n\r\n", fixture.address);
    kept.write_all(request.as_bytes()).await.unwrap();
    assert!(kept.read(&mut [0; 4096]).await.unwrap() > 0);
    tokio::time::sleep(Duration::from_secs(12)).await;
    kept.write_all(request.as_bytes()).await.unwrap();
    assert!(kept.read(&mut [0; 4096]).await.unwrap() > 0);
}

async fn server_shuts_down_gracefully(fixture: Fixture) {
    let mut serving = fixture.beside(config()).await;
    let user = serving.user().await;
    let id = sandbox(&user).await;
    let request =
        user.request("GET", &format!("/v1/sandboxes/{id}/files/watch")).body(Body::empty()).unwrap();
    let mut events = user.events(request).await;
    assert_eq!(events.next().await.unwrap().0, "ready");
    let (running, place) = (user.clone(), id.clone());
    let running = tokio::spawn(async move {
        running
            .post(
                &format!("/v1/sandboxes/{place}/exec"),
                &json!({"command": "touch began; sleep 1; echo whole"}),
            )
            .await
    });
    until("the command runs", || async {
        user.get(&format!("/v1/sandboxes/{id}/files/stat?path=began")).await.status == 200
    })
    .await;
    serving.stop();
    let (name, problem) = loop {
        let event = events.next().await.unwrap();
        if event.0 == "error" {
            break event;
        }
    };
    assert_eq!((name.as_str(), &problem["code"]), ("error", &json!("shutting_down")));
    assert_eq!(running.await.unwrap().json()["stdout"]["data"], "whole\n");
    serving.stopped().await;
    assert!(TcpStream::connect(serving.address).await.is_err());
}

async fn socket_clients_are_the_operator(fixture: Fixture) {
    for (operator_socket, status) in [(true, 200), (false, 401)] {
        let path = fixture.dir.path().join(format!("{operator_socket}.sock"));
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let api = Api::new(ApiConfig { operator_socket, ..config() }, fixture.keeper.clone());
        let serving =
            tokio::spawn(async move { api.serve(Listener::Unix(listener), std::future::pending()).await });
        let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request =
            http::Request::builder().uri("/v1/keys").header("host", "belljar").body(Body::empty()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), status);
        serving.abort();
    }
}

/// Creates a certificate with the program openssl.
fn certificate(dir: &std::path::Path, name: &str) -> Option<(std::path::PathBuf, std::path::PathBuf)> {
    let (certificate, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    let done = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-out")
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output();
    done.is_ok_and(|done| done.status.success()).then_some((certificate, key))
}

async fn tls_speaks_both_versions(fixture: Fixture) {
    use std::sync::Arc;
    let Some((first, first_key)) = certificate(fixture.dir.path(), "first") else {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "SKIPPED serving::tls_speaks_both_versions: there is no program openssl");
        return;
    };
    let (second, second_key) = certificate(fixture.dir.path(), "second").unwrap();
    assert!(Tls::load(&first, &second_key).is_err());
    assert!(Tls::load(&first_key, &first_key).is_err());
    assert!(Tls::load(&fixture.dir.path().join("none"), &first_key).is_err());
    let tls = Tls::load(&first, &first_key).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let api = Api::new(config(), fixture.keeper.clone());
    let accepting = tls.clone();
    let serving = tokio::spawn(async move {
        api.serve(Listener::Tcp(listener, Some(accepting)), std::future::pending()).await
    });

    let connect = |trusted: std::path::PathBuf, alpn: &'static [u8]| async move {
        use rustls::pki_types::pem::PemObject as _;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(rustls::pki_types::CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let mut client = client.with_root_certificates(roots).with_no_client_auth();
        client.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        connector.connect("localhost".try_into().unwrap(), stream).await
    };
    let request = || {
        http::Request::builder()
            .uri("https://localhost/health")
            .header("host", "localhost")
            .body(Body::empty())
            .unwrap()
    };
    let stream = connect(first.clone(), b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(sender.send_request(request()).await.unwrap().status(), 200);
    let stream = connect(first.clone(), b"http/1.1").await.unwrap();
    let (mut old, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(old.send_request(request()).await.unwrap().status(), 200);

    std::fs::copy(&second, &first).unwrap();
    assert!(tls.reload().is_err(), "the key does not fit");
    std::fs::copy(&second_key, &first_key).unwrap();
    tls.reload().unwrap();
    assert!(connect(second, b"h2").await.is_ok());
    assert_eq!(sender.send_request(request()).await.unwrap().status(), 200);
    serving.abort();
}
