//! HTTP on port 80 and in terminated TLS: every request is parsed, must be for the name that the connection was opened to, is
//! rewritten for the next hop by the rules of `belljar-http-hop`, and is serialized again.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use belljar_http_hop::{
    prepare_request, prepare_response, refuse_reflection, split_authority, wants_upgrade,
};
use belljar_model::{Decision, DomainName};
use bytes::Bytes;
use futures::future::OptionFuture;
use http::header::{CONNECTION, CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use crate::body::{Trailers, WithTrailers};
use crate::dial;
use crate::flow::Failed;
use crate::gateway::{Flow, Gateway, InFlight, Target};
use crate::relay::{Resets, Scanned};
use crate::terminate::{self, Termination};

/// Maximum length of the head of a request or an answer, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Maximum size of a header list of HTTP/2, in bytes as RFC 9113, 6.5.2 counts them. [`MAX_TERMINATED`](crate::budget::MAX_TERMINATED)
/// says what this and the following bounds add up to.
const MAX_HEADER_LIST: u32 = 32 << 10;

/// Window of a connection of HTTP/2 with a host, and of one request on it, in bytes: as much can be received before it is passed on.
const HOST_WINDOW: u32 = 1 << 20;
/// See [`HOST_WINDOW`].
const HOST_STREAM_WINDOW: u32 = 256 << 10;

/// As [`HOST_WINDOW`], with a program: within the machine, smaller ones are as fast.
const PROGRAM_WINDOW: u32 = 256 << 10;
/// See [`PROGRAM_WINDOW`].
const PROGRAM_STREAM_WINDOW: u32 = 64 << 10;

/// Maximum number of bytes of one request or answer of HTTP/2 that wait to be sent. One frame, of at most as many bytes, can be added.
const MAX_SEND_BUFFER: usize = 16 << 10;

/// Timeout for the head of a request, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Header that marks an answer of the gateway itself.
const DENIED: &str = "x-belljar-denied";

/// Maximum number of concurrent requests on a connection of HTTP/2.
const MAX_STREAMS: u32 = 32;

type Body = Either<WithTrailers, Full<Bytes>>;

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The host whose requests are served.
pub(crate) struct Site {
    /// Its name, or the address that the program used instead.
    pub(crate) host: Target,
    pub(crate) port: u16,
    /// TLS termination for the host; `None` for plain HTTP.
    pub(crate) termination: Option<Rc<Termination>>,
}

/// Serves the requests of an allowed connection to port 80.
pub(crate) async fn serve(gateway: &Rc<Gateway>, flow: &Rc<Flow>, stream: Resets) -> Result<(), Failed> {
    let site = Site { host: flow.target.clone(), port: flow.port, termination: None };
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
    let upstream = Mutex::new(Upstream { sender, switched: None });
    let stream = Scanned::new(stream, gateway.prepares);
    let left = serve_to_end(stream, async |request| {
        let forwarding = async |request| forward(gateway, flow, &site, &upstream, request).await;
        answer(gateway, flow, &site, request, forwarding).await
    });
    let left = left.await.map_err(broken)?;
    let switched = upstream.lock().await.switched.take();
    // The request is in flight until the other protocol has ended.
    if let Some((sandbox, host, _request)) = switched {
        let (sandbox, host) = tokio::try_join!(sandbox, host).map_err(broken)?;
        let (mut sandbox, mut host) = (TokioIo::new(sandbox), TokioIo::new(host));
        tokio::io::copy_bidirectional(&mut sandbox, &mut host).await?;
    } else {
        end(left).await;
    }
    Ok(())
}

/// Serves HTTP/1 until its end. A connection on which another protocol was requested is left open then, whether the request was granted or
/// not, and returned.
async fn serve_to_end(
    stream: impl Stream + 'static,
    answer: impl AsyncFn(Request<Incoming>) -> Response<Body>,
) -> hyper::Result<Option<OnUpgrade>> {
    let requested = RefCell::new(None);
    let service = service_fn(async |request: Request<Incoming>| {
        if let Some(upgrade) = request.extensions().get::<OnUpgrade>() {
            requested.replace(Some(upgrade.clone()));
        }
        Ok::<_, Infallible>(answer(request).await)
    });
    builder().serve_connection(TokioIo::new(stream), service).with_upgrades().await?;
    Ok(requested.take())
}

/// Ends a connection that is left open as others are ended: with its last answer, and no reset.
async fn end(left: Option<OnUpgrade>) {
    if let Some(Ok(stream)) = OptionFuture::from(left).await {
        let _ = TokioIo::new(stream).shutdown().await;
    }
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
    if gateway.bounds_http2 {
        client.initial_connection_window_size(HOST_WINDOW).initial_stream_window_size(HOST_STREAM_WINDOW);
        client.max_send_buf_size(MAX_SEND_BUFFER);
    }
    let (sender, connection) = client.handshake(TokioIo::new(connected)).await.map_err(broken)?;
    let mut host = tokio::task::spawn_local(connection);
    let site = Rc::new(site);
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, flow, site) = (Rc::clone(gateway), Rc::clone(flow), Rc::clone(&site));
        let mut sender = sender.clone();
        async move {
            let forwarding = async |request| {
                sender.ready().await.map_err(broken)?;
                sender.send_request(request).await.map_err(broken)
            };
            Ok::<_, Infallible>(answer(&gateway, &flow, &site, request, forwarding).await)
        }
    });
    let mut server = hyper::server::conn::http2::Builder::new(Local);
    server.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEADER_LIST);
    if gateway.bounds_http2 {
        server
            .initial_connection_window_size(PROGRAM_WINDOW)
            .initial_stream_window_size(PROGRAM_STREAM_WINDOW);
        server.max_send_buf_size(MAX_SEND_BUFFER);
    }
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
    forward: impl AsyncFnOnce(Request<WithTrailers>) -> Result<Response<Incoming>, Failed>,
) -> Response<Body> {
    let version = request.version();
    let secrets = gateway.secrets();
    let secrets = match &site.host {
        Target::Name(name) if site.termination.is_some() => secrets.of_host(name),
        _ => None,
    };
    let held = match check(gateway, flow, site, &request, secrets.is_some()) {
        Ok(held) => held,
        Err(decision) => {
            gateway.note(flow, &decision);
            return own_answer(version, StatusCode::FORBIDDEN, decision.reason);
        }
    };
    if gateway.prepares
        && let Err(refusal) = prepare_request(request.headers_mut(), version)
    {
        let reason = format!("this request cannot be passed on to {}: {refusal}", site.host);
        gateway.note(flow, &Decision::deny_request(reason.clone()));
        return own_answer(version, StatusCode::FORBIDDEN, reason);
    }
    if let Some(secrets) = &secrets {
        if gateway.prepares {
            secrets.remove_shadows(request.headers_mut());
        }
        flow.secrets.borrow_mut().extend(secrets.inject(request.headers_mut()));
    }
    let trailers = if gateway.prepares { Trailers::Dropped } else { Trailers::Kept };
    let sent = Rc::clone(&held);
    match forward(request.map(|body| WithTrailers { body, trailers, request: sent })).await {
        Ok(mut answer) => {
            if gateway.prepares {
                let is_upgrade = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
                prepare_response(answer.headers_mut(), is_upgrade);
            }
            let redactors = secrets.filter(|_| gateway.redacts).map(|secrets| secrets.redactors());
            let redactors = redactors.unwrap_or_default();
            if !redactors.is_empty() {
                answer.extensions_mut().remove::<ReasonPhrase>();
            }
            redactors.iter().for_each(|redactor| redactor.redact(answer.headers_mut()));
            let trailers = Trailers::Redacted(redactors);
            answer.map(|body| Either::Left(WithTrailers { body, trailers, request: held }))
        }
        Err(error) => {
            flow.failure.replace(Some(error.to_string()));
            own_answer(version, StatusCode::BAD_GATEWAY, unreachable(flow, &error))
        }
    }
}

/// Decides about a request. `is_extended` is set if the gateway adds secrets or headers to it. Returns the request, which is in flight
/// as long as that is kept.
fn check(
    gateway: &Gateway,
    flow: &Flow,
    site: &Site,
    request: &Request<Incoming>,
    is_extended: bool,
) -> Result<Rc<InFlight>, Decision> {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let hosts = match &site.host {
        Target::Name(name) => {
            is_for(method, uri, headers, request.version(), name, site.port)
                .map_err(Decision::deny_other_name)?;
            Vec::new()
        }
        target => hosts(method, uri, headers).map_err(|reason| {
            Decision::deny_other_name(format!(
                "a request to {target}:{} {reason}; the network policy has names checked",
                site.port
            ))
        })?,
    };
    let held = InFlight { method: method.clone(), path: uri.path().to_owned(), hosts };
    let names = headers.keys().map(http::HeaderName::as_str);
    gateway.check_request(flow, &held, names).map_or(Ok(()), Err)?;
    if is_extended && gateway.prepares {
        refuse_reflection(method, headers).map_err(|refusal| {
            Decision::deny_request(format!("this request to {} is not allowed: {refusal}", site.host))
        })?;
    }
    Ok(flow.hold(held))
}

/// Returns the hosts that a request to an address names.
fn hosts(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Vec<String>, &'static str> {
    // A tunnel to another host, in which nothing is read.
    if method == Method::CONNECT {
        return Err("asks for a tunnel");
    }
    let in_header: Vec<_> = headers.get_all(HOST).iter().collect();
    if in_header.len() > 1 {
        return Err("has several headers Host");
    }
    let in_header = in_header.into_iter().map(|host| host.to_str().map_err(|_| "has a host that is no text"));
    let in_uri = uri.authority().map(|authority| Ok(authority.as_str()));
    in_header.chain(in_uri).map(|host| host.map(str::to_owned)).collect()
}

fn broken(error: hyper::Error) -> Failed {
    Failed::Broken(io::Error::other(error))
}

/// Answers every request with the reason why the host must not be reached.
pub(crate) async fn refuse(stream: Resets, reason: &str) {
    always(stream, StatusCode::FORBIDDEN, reason).await;
}

/// Answers every request with the reason why the host cannot be reached.
pub(crate) async fn fail(flow: &Flow, stream: impl Stream + 'static, error: &Failed) {
    always(stream, StatusCode::BAD_GATEWAY, &unreachable(flow, error)).await;
}

async fn always(stream: impl Stream + 'static, status: StatusCode, reason: &str) {
    let own = async |request: Request<Incoming>| own_answer(request.version(), status, reason.to_owned());
    let served = serve_to_end(stream, own).await;
    end(served.ok().flatten()).await;
}

fn unreachable(flow: &Flow, error: &Failed) -> String {
    format!("the gateway cannot reach it: {}", error.to_public(&flow.target, flow.port))
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
    split_authority(asked).is_some_and(|(host, asked_port)| {
        asked_port.is_none_or(|asked_port| asked_port == port)
            && host.parse::<DomainName>().is_ok_and(|host| host == *name)
    })
}

type Sender = client::SendRequest<WithTrailers>;

/// The host's side of one connection.
struct Upstream {
    sender: Option<Sender>,
    /// Both sides, once they have agreed on another protocol, and the request for it.
    switched: Option<(OnUpgrade, OnUpgrade, Rc<InFlight>)>,
}

/// Forwards a request over this connection's upstream, and returns the answer.
async fn forward(
    gateway: &Gateway,
    flow: &Flow,
    site: &Site,
    upstream: &Mutex<Upstream>,
    mut request: Request<WithTrailers>,
) -> Result<Response<Incoming>, Failed> {
    let mut upstream = upstream.lock().await;
    let sender = match upstream.sender.take().filter(|sender| !sender.is_closed()) {
        Some(sender) => sender,
        None => connect(gateway, flow, site).await?,
    };
    let sender = upstream.sender.insert(sender);
    sender.ready().await.map_err(broken)?;
    // Each hop has its own version (RFC 9110, 2.5).
    *request.version_mut() = Version::HTTP_11;
    let upgrade = wants_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
    // An absolute address is reduced to its path, as the host is in the header. A host that the program knows by its address may be a
    // proxy, which needs it.
    if let (Target::Name(_), Some(_), Some(path)) =
        (&site.host, request.uri().authority(), request.uri().path_and_query().cloned())
    {
        *request.uri_mut() = path.into();
    }
    let held = Rc::clone(&request.body().request);
    let mut answer = sender.send_request(request).await.map_err(broken)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upgrade = upgrade.ok_or(Failed::Unrequested)?;
        upstream.switched = Some((upgrade, hyper::upgrade::on(&mut answer), held));
    }
    Ok(answer)
}

async fn connect(gateway: &Gateway, flow: &Flow, site: &Site) -> Result<Sender, Failed> {
    match (&site.termination, &site.host) {
        (Some(termination), Target::Name(name)) => {
            let protocols = vec![terminate::HTTP_1.to_vec()];
            handshake(Box::new(termination.connect(gateway, flow, name, protocols).await?)).await
        }
        _ => handshake(Box::new(dial::dial(gateway, flow).await?.counting(flow))).await,
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
        assert_eq!(verdict("GET", "/", &["x.example"], Version::HTTP_10), Ok(()));
    }

    #[test]
    fn requests_for_other_hosts_are_refused() {
        for hosts in [
            &["y.example"][..],
            &["x.example", "x.example"],
            &["x.example", "y.example"],
            &["x.example:81"],
            &["x.example:+80"],
            &["x.example:080"],
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
        for uri in ["/", "http://x.example/", "http://y.example/"] {
            assert!(verdict("GET", uri, &[], Version::HTTP_10).is_err(), "{uri}");
        }
        assert!(verdict("CONNECT", "x.example:80", &["x.example:80"], Version::HTTP_11).is_err());
    }
}
