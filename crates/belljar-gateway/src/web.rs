//! HTTP on port 80 and in terminated TLS: every request is parsed, must be for the name that the connection was opened to, and is
//! serialized again.

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use belljar_model::{Decision, DomainName};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;

use crate::dial;
use crate::flow::Failed;
use crate::gateway::{Flow, Gateway, Target};
use crate::relay::Resets;
use crate::terminate::{self, Termination};

/// Maximum length of the head of a request or an answer, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Maximum size of a header list of HTTP/2, in bytes as RFC 9113, 6.5.2 counts them.
const MAX_HEADER_LIST: u32 = 64 << 10;

/// Timeout for the head of a request, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Header that marks an answer of the gateway itself.
const DENIED: &str = "x-belljar-denied";

/// Maximum number of concurrent requests on a connection of HTTP/2.
const MAX_STREAMS: u32 = 100;

/// Protocols of an upgrade that carry HTTP requests, which would pass unchecked. Sources: RFC 7540, 3.2; RFC 2817.
const UNREAD_PROTOCOLS: [&str; 4] = ["h2c", "h2", "http", "tls"];

type Body = Either<Incoming, Full<Bytes>>;

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The host whose requests are served.
pub(crate) struct Site {
    pub(crate) name: DomainName,
    pub(crate) port: u16,
    /// TLS termination for the host; `None` for plain HTTP.
    pub(crate) termination: Option<Rc<Termination>>,
}

/// Serves the requests of an allowed connection to port 80.
pub(crate) async fn serve(gateway: &Rc<Gateway>, flow: &Rc<Flow>, stream: Resets) -> Result<(), Failed> {
    let Target::Name(name) = &flow.target else { return Ok(()) };
    let site = Site { name: name.clone(), port: flow.port, termination: None };
    serve_http1(gateway, flow, site, stream, None).await
}

/// Serves HTTP/1. `connected` is a connection to the host, if there is one.
pub(crate) async fn serve_http1(
    gateway: &Rc<Gateway>,
    flow: &Rc<Flow>,
    site: Site,
    stream: impl Stream + 'static,
    connected: Option<Box<dyn Stream>>,
) -> Result<(), Failed> {
    let sender = match connected {
        Some(stream) => Some(handshake(stream).await?),
        None => None,
    };
    let upstream = Rc::new(Mutex::new(Upstream { sender, switched: None }));
    let site = Rc::new(site);
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, flow, site) = (Rc::clone(gateway), Rc::clone(flow), Rc::clone(&site));
        let upstream = Rc::clone(&upstream);
        async move {
            let forwarding = async |request| forward(&gateway, &flow, &site, &upstream, request).await;
            Ok::<_, Infallible>(answer(&gateway, &flow, &site, request, forwarding).await)
        }
    });
    let connection = builder().serve_connection(TokioIo::new(stream), service).with_upgrades();
    connection.await.map_err(broken)?;
    let switched = upstream.lock().await.switched.take();
    if let Some((sandbox, host)) = switched {
        let (sandbox, host) = tokio::try_join!(sandbox, host).map_err(broken)?;
        let (mut sandbox, mut host) = (TokioIo::new(sandbox), TokioIo::new(host));
        tokio::io::copy_bidirectional(&mut sandbox, &mut host).await?;
    }
    Ok(())
}

/// Serves HTTP/2. `connected` is a connection of HTTP/2 to the host.
pub(crate) async fn serve_http2(
    gateway: &Rc<Gateway>,
    flow: &Rc<Flow>,
    site: Site,
    stream: impl Stream + 'static,
    connected: impl Stream + 'static,
) -> Result<(), Failed> {
    let mut client = hyper::client::conn::http2::Builder::new(Local);
    client.timer(TokioTimer::new()).max_header_list_size(MAX_HEADER_LIST);
    let (sender, connection) = client.handshake(TokioIo::new(connected)).await.map_err(broken)?;
    let mut host = tokio::task::spawn_local(connection);
    let site = Rc::new(site);
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, flow, site) = (Rc::clone(gateway), Rc::clone(flow), Rc::clone(&site));
        let mut sender = sender.clone();
        async move {
            let forwarding = async |request| {
                sender.ready().await.map_err(broken)?;
                let answer = sender.send_request(request).await.map_err(broken)?;
                Ok(answer.map(Either::Left))
            };
            Ok::<_, Infallible>(answer(&gateway, &flow, &site, request, forwarding).await)
        }
    });
    let mut server = hyper::server::conn::http2::Builder::new(Local);
    server.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEADER_LIST);
    let serving = server.serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        served = &mut serving => return served.map_err(broken),
        // The host accepts no more requests; those in flight are completed.
        _ = &mut host => serving.as_mut().graceful_shutdown(),
    }
    serving.await.map_err(broken)
}

/// Executor that runs the tasks of a connection of HTTP/2 on the current thread.
#[derive(Clone)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move { drop(future.await) });
    }
}

/// Answers one request: with the host's answer, or with the reason why it was not forwarded.
async fn answer(
    gateway: &Gateway,
    flow: &Flow,
    site: &Site,
    mut request: Request<Incoming>,
    forward: impl AsyncFnOnce(Request<Incoming>) -> Result<Response<Body>, Failed>,
) -> Response<Body> {
    if let Err(reason) = check(&request, &site.name, site.port) {
        gateway.note(flow, &Decision::deny_other_name(reason.clone()));
        return own_answer(request.version(), StatusCode::FORBIDDEN, reason);
    }
    let headers = request.headers().keys().map(http::HeaderName::as_str);
    let denied =
        gateway.matcher().request(&site.name, request.method().as_str(), request.uri().path(), headers);
    if let Some(decision) = denied.filter(|_| gateway.looks_at_requests) {
        gateway.note(flow, &decision);
        return own_answer(request.version(), StatusCode::FORBIDDEN, decision.reason);
    }
    let version = request.version();
    let secrets = gateway.secrets();
    let secrets = site.termination.as_ref().and_then(|_| secrets.of_host(&site.name));
    if let Some(secrets) = &secrets {
        secrets.inject(request.headers_mut());
    }
    match forward(request).await {
        Ok(mut answer) => {
            if let Some(secrets) = secrets.filter(|_| gateway.redacts) {
                secrets.redact(answer.headers_mut());
            }
            answer
        }
        Err(error) => own_answer(version, StatusCode::BAD_GATEWAY, unreachable(&error)),
    }
}

fn broken(error: hyper::Error) -> Failed {
    Failed::Broken(io::Error::other(error))
}

/// Answers every request with the reason why the host must not be reached.
pub(crate) async fn refuse(stream: Resets, reason: &str) {
    always(stream, StatusCode::FORBIDDEN, reason).await;
}

/// Answers every request with the reason why the host cannot be reached.
pub(crate) async fn fail(stream: impl Stream + 'static, error: &Failed) {
    always(stream, StatusCode::BAD_GATEWAY, &unreachable(error)).await;
}

async fn always(stream: impl Stream + 'static, status: StatusCode, reason: &str) {
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(own_answer(request.version(), status, reason.to_owned()))
    });
    let _ = builder().serve_connection(TokioIo::new(stream), service).await;
}

fn unreachable(error: &Failed) -> String {
    format!("the gateway cannot reach it: {error}")
}

fn builder() -> server::Builder {
    let mut builder = server::Builder::new();
    builder.max_buf_size(MAX_HEAD).timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.preserve_header_case(true).half_close(true).auto_date_header(false);
    builder
}

/// Returns an answer of the gateway itself, after which it closes a connection of HTTP/1.
fn own_answer(version: Version, status: StatusCode, reason: String) -> Response<Body> {
    let mut answer = Response::new(Either::Right(Full::from(reason + "\n")));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if version < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(DENIED, HeaderValue::from_static("network policy"));
    answer
}

/// Checks that a request is for this host: every part that a server could take for the host must name it.
fn check(request: &Request<Incoming>, name: &DomainName, port: u16) -> Result<(), String> {
    is_for(request.method(), request.uri(), request.headers(), request.version(), name, port)
}

pub(crate) fn is_for(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    version: Version,
    name: &DomainName,
    port: u16,
) -> Result<(), String> {
    if method == Method::CONNECT {
        return Err(format!(
            "{name}:{port} is reached for its own pages, not as a proxy to others; connect to what you want to reach itself"
        ));
    }
    let has_host_header = headers.contains_key(HOST);
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default(),
        // HTTP/1.0 has no header Host (RFC 1945).
        (None, None) if version == Version::HTTP_10 && uri.authority().is_none() => return Ok(()),
        // HTTP/2 has a separate field for the host (RFC 9113, 8.3.1).
        (None, None) if version == Version::HTTP_2 && uri.authority().is_some() => "",
        _ => {
            return Err(format!(
                "a request to {name}:{port} has to have one header Host, and this one has not"
            ));
        }
    };
    let in_header = Some(host).filter(|_| has_host_header);
    let asked = [in_header, uri.authority().map(Authority::as_str)];
    match asked.into_iter().flatten().find(|asked| !is_name(asked, name, port)) {
        None => Ok(()),
        Some(asked) => Err(format!(
            "the connection was opened to {name}:{port}, and the request asks for {asked}; connect to that name instead"
        )),
    }
}

/// Reports whether the text, a host with or without a port, is this one.
fn is_name(asked: &str, name: &DomainName, port: u16) -> bool {
    let Ok(authority) = asked.parse::<Authority>() else { return false };
    let is_port = match authority.as_str().strip_prefix(authority.host()) {
        Some("" | ":") => true,
        Some(_) => authority.port_u16() == Some(port),
        // It begins with a user name.
        None => false,
    };
    is_port && authority.host().parse::<DomainName>().is_ok_and(|host| host == *name)
}

/// Removes the request to upgrade to a protocol in which further requests would pass unchecked. Without it the host answers as usual
/// (RFC 9110, 7.8).
fn stay_readable(headers: &mut HeaderMap) {
    let has_requests = |protocol: &str| {
        let name = protocol.split('/').next().unwrap_or_default().trim();
        UNREAD_PROTOCOLS.iter().any(|other| name.eq_ignore_ascii_case(other))
    };
    let is_unread =
        |value: &HeaderValue| value.to_str().map_or(true, |wish| wish.split(',').any(has_requests));
    if headers.get_all(UPGRADE).iter().any(is_unread) {
        headers.remove(UPGRADE);
        headers.remove("http2-settings");
    }
}

type Sender = client::SendRequest<Incoming>;

/// The host's side of one connection.
struct Upstream {
    sender: Option<Sender>,
    /// Both sides, once they have agreed on another protocol.
    switched: Option<(OnUpgrade, OnUpgrade)>,
}

/// Forwards a request over this connection's upstream, and returns the answer.
async fn forward(
    gateway: &Gateway,
    flow: &Flow,
    site: &Site,
    upstream: &Mutex<Upstream>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Failed> {
    let mut upstream = upstream.lock().await;
    let sender = match upstream.sender.take().filter(|sender| !sender.is_closed()) {
        Some(sender) => sender,
        None => connect(gateway, flow, site).await?,
    };
    let sender = upstream.sender.insert(sender);
    sender.ready().await.map_err(broken)?;
    stay_readable(request.headers_mut());
    let upgrade = hyper::upgrade::on(&mut request);
    // An absolute address is reduced to its path; the host is in the header.
    if let Some(path) =
        request.uri().path_and_query().filter(|_| request.uri().authority().is_some()).cloned()
    {
        *request.uri_mut() = path.into();
    }
    let mut answer = sender.send_request(request).await.map_err(broken)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        upstream.switched = Some((upgrade, hyper::upgrade::on(&mut answer)));
    }
    Ok(answer.map(Either::Left))
}

async fn connect(gateway: &Gateway, flow: &Flow, site: &Site) -> Result<Sender, Failed> {
    match &site.termination {
        Some(termination) => {
            let protocols = vec![terminate::HTTP_1.to_vec()];
            handshake(Box::new(termination.connect(gateway, flow, &site.name, protocols).await?)).await
        }
        None => handshake(Box::new(dial::dial(gateway, flow).await?.counting(flow))).await,
    }
}

async fn handshake(stream: Box<dyn Stream>) -> Result<Sender, Failed> {
    let io = TokioIo::new(stream);
    let mut builder = client::Builder::new();
    builder.max_buf_size(MAX_HEAD).preserve_header_case(true);
    let (sender, connection) = builder.handshake(io).await.map_err(broken)?;
    tokio::task::spawn_local(connection.with_upgrades());
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(method: &str, uri: &str, hosts: &[&str], version: Version) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        let name = "x.example".parse().unwrap();
        is_for(&method.parse().unwrap(), &uri.parse().unwrap(), &headers, version, &name, 80)
    }

    #[test]
    fn requests_for_the_name_pass() {
        for host in ["x.example", "X.EXAMPLE", "x.example:80", "x.example.", "x.example:"] {
            assert_eq!(verdict("GET", "/", &[host], Version::HTTP_11), Ok(()), "{host}");
        }
        assert_eq!(verdict("GET", "http://x.example/a", &["x.example"], Version::HTTP_11), Ok(()));
        assert_eq!(verdict("OPTIONS", "*", &["x.example"], Version::HTTP_11), Ok(()));
        assert_eq!(verdict("GET", "/", &[], Version::HTTP_10), Ok(()));
    }

    #[test]
    fn upgrades_to_unreadable_protocols_are_removed() {
        for (wish, is_kept) in [
            ("websocket", true),
            ("tcp", true),
            ("SPDY/3.1", true),
            ("h2c", false),
            ("websocket, H2C", false),
            ("HTTP/2.0", false),
            ("TLS/1.2,websocket", false),
        ] {
            let mut headers = HeaderMap::from_iter([(UPGRADE, HeaderValue::from_static(wish))]);
            stay_readable(&mut headers);
            assert_eq!(headers.contains_key(UPGRADE), is_kept, "{wish}");
        }
    }

    #[test]
    fn requests_for_other_hosts_are_refused() {
        for hosts in [
            &["y.example"][..],
            &["x.example", "x.example"],
            &["x.example", "y.example"],
            &["x.example:81"],
            &["a@x.example"],
            &["x.example@y.example"],
            &["x.example, y.example"],
            &["sub.x.example"],
            &["198.18.1.0"],
            &[""],
            &[],
        ] {
            assert!(verdict("GET", "/", hosts, Version::HTTP_11).is_err(), "{hosts:?}");
        }
        for uri in ["http://y.example/", "http://x.example:81/", "http://x.example@y.example/"] {
            assert!(verdict("GET", uri, &["x.example"], Version::HTTP_11).is_err(), "{uri}");
        }
        assert!(verdict("GET", "http://y.example/", &[], Version::HTTP_10).is_err());
        assert!(verdict("CONNECT", "x.example:80", &["x.example:80"], Version::HTTP_11).is_err());
    }
}
