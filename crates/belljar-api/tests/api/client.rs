//! A client over plain HTTP/1.1, one connection for each request.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::world::PATIENCE;

/// A client with a key, or without.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) key: Option<String>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The problem's code and field. Checks its form, too.
    pub(crate) fn problem(&self) -> (String, Option<String>) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16(), "{problem}");
        assert_eq!(problem["request_id"], self.header("x-request-id"), "{problem}");
        let code = problem["code"].as_str().unwrap().to_owned();
        assert_eq!(problem["type"], format!("https://belljar.dev/errors/{code}"));
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
        (code, problem["field"].as_str().map(str::to_owned))
    }

    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str, field: Option<&str>) {
        let found = self.problem();
        let expected = (code.to_owned(), field.map(str::to_owned));
        assert_eq!((self.status.as_u16(), found), (status, expected), "{self:?}");
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr, key: Option<String>) -> Self {
        Self { address, key }
    }

    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { address: self.address, key: Some(key.to_owned()) }
    }

    /// A request with this client's key and the server's name.
    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
        request = request.header("host", self.address.to_string());
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request
    }

    /// The answer's head, with its body still to come.
    pub(crate) async fn open(&self, request: Request<Body>) -> http::Response<hyper::body::Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let answer = tokio::time::timeout(PATIENCE * 3, async {
            let answer = self.open(request).await;
            let (parts, body) = answer.into_parts();
            let mut pieces = Body::new(body).into_data_stream();
            let mut body = Vec::new();
            while let Some(piece) = pieces.next().await {
                body.extend_from_slice(&piece.unwrap());
            }
            Answer { status: parts.status, headers: parts.headers, body: body.into() }
        });
        answer.await.unwrap()
    }

    pub(crate) async fn call(&self, method: &str, path: &str) -> Answer {
        self.send(self.request(method, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path).await
    }

    pub(crate) async fn json(&self, method: &str, path: &str, body: &Value) -> Answer {
        let request = self.request(method, path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.json("POST", path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(self.request("PUT", path).body(body.into()).unwrap()).await
    }

    /// Server-sent events.
    pub(crate) async fn events(&self, request: Request<Body>) -> Events {
        let answer = self.open(request).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Events { pieces: Body::new(answer.into_body()).into_data_stream(), text: String::new() }
    }
}

/// Server-sent events as they come.
pub(crate) struct Events {
    pieces: axum::body::BodyDataStream,
    text: String,
}

impl Events {
    /// The next event's name and data; nothing after the last.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        tokio::time::timeout(PATIENCE, self.read()).await.unwrap()
    }

    async fn read(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) =
                self.text.split_once("\n\n").map(|(event, rest)| (event.to_owned(), rest.to_owned()))
            {
                self.text = rest;
                let field =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let Some(name) = field("event: ") else { continue };
                let data = field("data: ").unwrap_or_default();
                return Some((name, serde_json::from_str(&data).unwrap()));
            }
            let piece = self.pieces.next().await?.unwrap();
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// Whether nothing comes for this long.
    pub(crate) async fn is_quiet(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.read()).await.is_err()
    }

    pub(crate) async fn rest(&mut self) -> Vec<(String, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// Percent-encodes every byte.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}
