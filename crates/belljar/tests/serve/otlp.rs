//! Export of traces and log lines to a collector, which the test implements.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use rustix::process::Signal;

use crate::fixture::Home;
use crate::http::send;

/// Received requests: path, head and body.
type Received = Arc<Mutex<Vec<(String, String, Vec<u8>)>>>;

/// Starts a collector that accepts every request.
fn collector() -> (String, Received) {
    collector_with(Ok)
}

/// Starts a collector behind TLS. Also returns its certificate, in PEM.
fn tls_collector() -> (String, Received, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key.into()).unwrap());
    let (address, received) = collector_with(move |mut stream: TcpStream| {
        let mut connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(rustls::StreamOwned::new(connection, stream))
    });
    (address.replace("127.0.0.1", "localhost"), received, made.cert.pem())
}

/// Path under which a connection that cannot be opened is recorded.
const REFUSED: &str = "refused";

fn collector_with<S: Read + Write>(
    open: impl Fn(TcpStream) -> std::io::Result<S> + Send + 'static,
) -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let received: Received = Arc::default();
    let sink = Arc::clone(&received);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = match open(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    sink.lock().push((REFUSED.to_owned(), error.to_string(), Vec::new()));
                    continue;
                }
            };
            let mut bytes = Vec::new();
            let mut buffer = [0; 65536];
            let request = loop {
                let length = stream.read(&mut buffer).unwrap();
                bytes.extend_from_slice(&buffer[..length]);
                if let Some(request) = parse_request(&bytes) {
                    break request;
                }
                assert!(length > 0, "a request was cut off");
            };
            sink.lock().push(request);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (address, received)
}

fn parse_request(bytes: &[u8]) -> Option<(String, String, Vec<u8>)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().unwrap();
    let body = bytes.get(end + 4..end + 4 + length)?.to_vec();
    let path = head.split(' ').nth(1)?.to_owned();
    Some((path, head, body))
}

fn spans(received: &Received) -> Vec<Span> {
    let received = received.lock();
    let bodies = received.iter().filter(|(path, ..)| path == "/v1/traces").map(|(.., body)| body.as_slice());
    let requests = bodies.map(|body| ExportTraceServiceRequest::decode(body).unwrap());
    let resources = requests.flat_map(|request| request.resource_spans);
    resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
}

fn records(received: &Received) -> Vec<LogRecord> {
    let received = received.lock();
    let bodies = received.iter().filter(|(path, ..)| path == "/v1/logs").map(|(.., body)| body.as_slice());
    let requests = bodies.map(|body| ExportLogsServiceRequest::decode(body).unwrap());
    let resources = requests.flat_map(|request| request.resource_logs);
    resources.flat_map(|resource| resource.scope_logs).flat_map(|scope| scope.log_records).collect()
}

#[track_caller]
fn find<'a>(spans: &'a [Span], trace: &str, name: &str) -> &'a Span {
    let names = || {
        spans.iter().map(|span| format!("{} {}", hex::encode(&span.trace_id), span.name)).collect::<Vec<_>>()
    };
    let found = spans.iter().find(|span| span.name == name && hex::encode(&span.trace_id) == trace);
    found.unwrap_or_else(|| panic!("no {name} in {trace}: {:#?}", names()))
}

#[test]
fn request_is_traced_from_its_caller_to_the_guest() {
    const CREATE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const EXEC: &str = "0af7651916cd43dd8448eb211c80319c";
    const CALLER: &str = "00f067aa0ba902b7";
    let (address, received) = collector();
    let home = Home::new();
    let endpoint = format!("otlp.endpoint=http://{address}");
    let server = home.serve(&["--set", &endpoint, "--set", "otlp.headers=x-tenant=hush-header"]);
    let traced = |trace: &str| format!("00-{trace}-{CALLER}-01");
    let call = |method: &str, path: &str, body: &str, trace: &str| {
        let headers = [("X-API-Key", server.key.as_str()), ("traceparent", trace)];
        send(&server.address, method, path, &headers, body)
    };
    let created = call("POST", "/v1/sandboxes", "{}", &traced(CREATE));
    assert_eq!(created.status, 201, "{created:?}");
    assert!(created.header("traceparent").unwrap().starts_with(&format!("00-{CREATE}-")), "{created:?}");
    let id = created.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{id}/exec");
    call("POST", &path, r#"{"command":"echo hush-command"}"#, &traced(EXEC));
    // A request that its caller has marked as not sampled.
    call("GET", "/v1/me", "", &format!("00-{}-{CALLER}-00", "5".repeat(32)));
    let key = server.key.clone();
    assert_eq!(server.stop(Signal::TERM), Some(0));

    let spans = spans(&received);
    let request = find(&spans, CREATE, "POST /v1/sandboxes");
    assert_eq!(hex::encode(&request.parent_span_id), CALLER);
    let create = find(&spans, CREATE, "keeper.create");
    assert_eq!(create.parent_span_id, request.span_id);
    assert_eq!(find(&spans, CREATE, "engine.launch").parent_span_id, create.span_id);
    let request = find(&spans, EXEC, "POST /v1/sandboxes/{id}/exec");
    let exec = find(&spans, EXEC, "keeper.exec");
    assert_eq!(exec.parent_span_id, request.span_id);
    assert_eq!(find(&spans, EXEC, "guest.start").parent_span_id, exec.span_id);
    assert!(!spans.iter().any(|span| hex::encode(&span.trace_id) == "5".repeat(32)));

    let records = records(&received);
    let of_exec: Vec<_> = records.iter().filter(|record| hex::encode(&record.trace_id) == EXEC).collect();
    assert!(!of_exec.is_empty(), "{records:#?}");
    let received = received.lock();
    assert!(received.iter().all(|(_, head, _)| head.contains("x-tenant: hush-header")));
    for (path, _, body) in received.iter() {
        let text = String::from_utf8_lossy(body);
        assert!(!text.contains("hush") && !text.contains(&key) && !text.contains("bj_"), "{path}");
    }
}

#[test]
fn unreachable_collector_is_logged_and_does_not_delay_shutdown() {
    let home = Home::new();
    // A port without a listener.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = home.serve(&["--set", &format!("otlp.endpoint=http://{address}")]);
    let id = server.create("{}");
    assert_eq!(server.exec(&id, "echo served"), "served\n");
    while !server.log().contains("the collector of otlp.endpoint takes no traces") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let begin = std::time::Instant::now();
    assert_eq!(server.stop(Signal::TERM), Some(0));
    assert!(begin.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn collector_behind_tls_needs_a_trusted_certificate() {
    for is_trusted in [true, false] {
        let (address, received, certificate) = tls_collector();
        let home = Home::new();
        let file = home.path().with_extension("pem");
        std::fs::write(&file, certificate).unwrap();
        let endpoint = format!("otlp.endpoint=https://{address}");
        let mut command =
            home.belljar(&["serve", "--listen", "127.0.0.1:0", "--on-exit", "end", "--pool", "0"]);
        command.args(["--set", &endpoint]);
        match is_trusted {
            true => command.env("SSL_CERT_FILE", &file),
            false => command.env_remove("SSL_CERT_FILE"),
        };
        let server = home.spawn(&mut command).unwrap_or_else(|refused| panic!("{refused:?}"));
        server.create("{}");
        assert_eq!(server.stop(Signal::TERM), Some(0));
        let spans = spans(&received);
        assert_eq!(spans.iter().any(|span| span.name == "POST /v1/sandboxes"), is_trusted, "{spans:#?}");
        let received = received.lock();
        assert_eq!(received.iter().any(|(path, ..)| path == REFUSED), !is_trusted, "{received:?}");
    }
}

#[test]
fn endpoint_without_trusted_certificates_is_refused_at_start() {
    let home = Home::new();
    let set = ["serve", "--listen", "127.0.0.1:0", "--set", "otlp.endpoint=https://localhost:1"];
    let missing = home.path().with_extension("none");
    let refused = home.spawn(home.belljar(&set).env("SSL_CERT_FILE", &missing)).err().expect("it is refused");
    assert!(refused.stderr.contains(missing.to_str().unwrap()), "{refused:?}");
}
