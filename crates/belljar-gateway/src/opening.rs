//! Connections that a program opens to an address: the names of hosts that it asks for in the first bytes.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use belljar_model::{Decision, DomainName};
use tokio::net::TcpStream;

use crate::flow::Failed;
use crate::gateway::{Flow, Gateway, Target};
use crate::relay::{self, Replay, Resets};
use crate::web::{self, Site};
use crate::{dial, tls};

/// Maximum length in bytes of what is read before it is known what a connection carries.
const MAX_OPENING: usize = 16 << 10;

/// Timeout for the rest of these bytes, after the first one. Programs may wait for the host to speak first.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);

/// Content type of a TLS record with a handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// First bytes of SSH (RFC 4253, 4.2), which names no host.
const SSH: &[u8] = b"SSH-";

/// What a connection carries, as far as names of hosts are concerned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// TLS, with the server name that it asks for, if any.
    Tls(Option<String>),
    /// Requests of HTTP, or what a server may take for one.
    Http,
    /// SSH, or nothing at all.
    Unnamed,
    /// Anything else.
    Other,
    /// Begins like TLS or HTTP, and cannot be read.
    Unreadable,
}

/// Incremental parser of a connection's first bytes.
#[derive(Default)]
pub(crate) struct Opening {
    bytes: Vec<u8>,
    hello: tls::Reader,
}

impl Opening {
    /// Parses more bytes; `None` if that is not enough.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<Kind> {
        self.bytes.extend_from_slice(bytes);
        let kind = match self.bytes.first()? {
            &HANDSHAKE => match self.hello.read(bytes) {
                Ok(hello) => hello.map(|(name, _)| Kind::Tls(name)),
                Err(tls::NotTls) => Some(Kind::Unreadable),
            },
            _ => text(&self.bytes),
        };
        kind.or_else(|| (self.bytes.len() >= MAX_OPENING).then_some(Kind::Unreadable))
    }

    /// Returns what bytes are that nothing follows.
    fn end(&self) -> Kind {
        match self.bytes.first() {
            None => Kind::Unnamed,
            Some(&HANDSHAKE) => Kind::Unreadable,
            _ => Kind::Other,
        }
    }
}

/// Classifies text by its first line that is not empty: servers skip empty ones (RFC 9112, 2.2), and take a line with a version or an
/// absolute address for a request. `None` if the line is incomplete.
fn text(whole: &[u8]) -> Option<Kind> {
    // That is the beginning of a method as well, which some servers accept.
    let is_ssh = whole.starts_with(SSH);
    let bytes = whole.trim_ascii_start();
    let is_method = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let method_len = bytes.iter().position(|byte| !is_method(byte));
    if !is_ssh && method_len.is_some_and(|at| at == 0 || !b" \t".contains(&bytes[at])) {
        return Some(Kind::Other);
    }
    let line = &bytes[..bytes.iter().position(|byte| *byte == b'\n')?];
    let is_http = line.windows(4).any(|part| part.eq_ignore_ascii_case(b"http"));
    Some(match (is_http, is_ssh) {
        (true, _) => Kind::Http,
        (false, true) => Kind::Unnamed,
        (false, false) => Kind::Other,
    })
}

/// Carries an allowed connection to an address, whose first bytes are checked for names that are denied. Whoever speaks first, the
/// other side waits for nothing: a host's first bytes are relayed at once.
///
/// If the program speaks first, only what is known to name no host passes unread: servers of TLS and HTTP accept more than their
/// standards allow, and none of them speaks first.
pub(crate) async fn serve(gateway: &Rc<Gateway>, flow: &Rc<Flow>, stream: Resets) -> Result<(), Failed> {
    let upstream = dial::dial(gateway, flow).await?;
    // Not `readable`, which may be ready without a byte.
    let (mut from_program, mut from_host) = ([0], [0]);
    tokio::select! {
        biased;
        ready = stream.peek(&mut from_program) => { ready?; }
        ready = upstream.peek(&mut from_host) => {
            ready?;
            let first = async {
                let (bytes, kind) = read(&stream).await?;
                check(gateway, flow, &kind)?;
                // A server of HTTP/2 may be the first to speak (RFC 9113, 3.4).
                if kind == Kind::Http { Err(refuse(gateway, flow, unreadable(flow))) } else { Ok(bytes) }
            };
            return relay::relay(flow, &stream, &upstream, first).await;
        }
    }
    let (bytes, kind) = read(&stream).await?;
    if kind == Kind::Other {
        return Err(refuse(gateway, flow, unreadable(flow)));
    }
    if let Err(error) = check(gateway, flow, &kind) {
        if matches!(kind, Kind::Tls(_)) {
            tls::alert(&stream).await;
            stream.mark_complete();
        }
        return Err(error);
    }
    if kind == Kind::Http {
        let site = Site { host: flow.target.clone(), port: flow.port, termination: None };
        let upstream = Box::new(upstream.counting(flow));
        return web::serve_http1(gateway, flow, site, Replay::new(bytes, stream), Some(upstream)).await;
    }
    relay::relay(flow, &stream, &upstream, async { Ok(bytes) }).await
}

/// Reads until it is known what the connection carries. Returns all bytes read.
async fn read(stream: &TcpStream) -> io::Result<(Vec<u8>, Kind)> {
    let mut opening = Opening::default();
    let mut chunk = [0; 4096];
    stream.peek(&mut [0]).await?;
    let reading = async {
        loop {
            stream.readable().await?;
            match stream.try_read(&mut chunk) {
                Ok(0) => return Ok(opening.end()),
                Ok(length) => {
                    if let Some(kind) = opening.read(&chunk[..length]) {
                        return Ok(kind);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    };
    let kind = tokio::time::timeout(OPENING_TIMEOUT, reading).await.unwrap_or(Ok(Kind::Unreadable))?;
    Ok((opening.bytes, kind))
}

/// Decides about a connection by its first bytes, and remembers the name in them.
fn check(gateway: &Gateway, flow: &Flow, kind: &Kind) -> Result<(), Failed> {
    let decision = match kind {
        Kind::Http | Kind::Unnamed | Kind::Other => None,
        Kind::Tls(None) => unnamed(gateway, &flow.target, flow.port),
        Kind::Unreadable => Some(unreadable(flow)),
        Kind::Tls(Some(asked)) => match DomainName::lenient(asked) {
            Some(name) => {
                let decision = gateway.matcher().named(&name, flow.port);
                flow.asked.replace(Some(name));
                decision
            }
            None => Some(unreadable(flow)),
        },
    };
    decision.map_or(Ok(()), |decision| Err(refuse(gateway, flow, decision)))
}

fn unreadable(flow: &Flow) -> Decision {
    let (Flow { target, port, .. }, seconds) = (flow, OPENING_TIMEOUT.as_secs());
    Decision::deny_other_name(format!(
        "the connection to {target}:{port} is neither TLS, HTTP/1 nor SSH, or its host cannot be read within {seconds} s and \
         {} KiB; the network policy has names checked",
        MAX_OPENING >> 10
    ))
}

/// Decides about what names no host; `None` if nothing is against it.
fn unnamed(gateway: &Gateway, target: &Target, port: u16) -> Option<Decision> {
    let Target::Address(address) = target else { return None };
    gateway.matcher().unnamed(*address, port)
}

fn refuse(gateway: &Gateway, flow: &Flow, decision: Decision) -> Failed {
    gateway.note(flow, &decision);
    Failed::Denied(decision)
}

/// Decides about a host in the head of a request on a connection to an address. The text may have a port.
pub(crate) fn check_host(gateway: &Gateway, target: &Target, port: u16, asked: &str) -> Result<(), Decision> {
    let host = asked.rsplit_once(':').map_or(asked, |(host, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { host } else { asked }
    });
    // An address names no host.
    if host.is_empty() || host.parse::<std::net::Ipv4Addr>().is_ok() {
        return unnamed(gateway, target, port).map_or(Ok(()), Err);
    }
    // Some servers read a host before or after other characters.
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    match DomainName::lenient(host).filter(|_| is_plain) {
        Some(name) => gateway.matcher().named(&name, port).map_or(Ok(()), Err),
        None => Err(Decision::deny_other_name(format!(
            "a request to {target}:{port} asks for {asked}, which names no host; the network policy has names checked"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use belljar_model::NetworkSetup;

    use super::*;
    use crate::config::GatewayConfig;
    use crate::resolve::Resolver;

    fn kind(pieces: &[&[u8]]) -> Option<Kind> {
        let mut opening = Opening::default();
        pieces.iter().find_map(|piece| opening.read(piece))
    }

    #[test]
    fn hosts_of_requests_are_compared_with_deny() {
        let policy =
            r#"{"mode": "open", "allow": ["192.0.2.0/24:80"], "deny": ["evil.example", "*.evil.example"]}"#;
        let config = GatewayConfig {
            policy: serde_json::from_str(policy).unwrap(),
            setup: NetworkSetup::default(),
            authority: None,
            generation: 0,
            user: None,
            fixed_buffers: true,
            #[cfg(feature = "mutation")]
            without: Vec::new(),
        };
        let gateway = Gateway::new(&config, Resolver::default(), None);
        let target = Target::Address([192, 0, 2, 1].into());
        let is_allowed = |host: &str| check_host(&gateway, &target, 80, host).is_ok();
        for host in [
            "",
            "192.0.2.1",
            "192.0.2.1:80",
            "good.example",
            "good.example:8080",
            "good.example:",
            "a_b.example",
        ] {
            assert!(is_allowed(host), "{host}");
        }
        for host in [
            "evil.example",
            "EVIL.example.:80",
            "a.evil.example",
            "a_b.evil.example:1",
            "x@evil.example",
            "evil.example@x",
            "evil.example, x",
            "evil.example/",
            "evil.example:80:80",
            "evil。example",
            "localhost",
        ] {
            assert!(!is_allowed(host), "{host}");
        }
        // In mode open only a rule for the address allows what names no host.
        let other = Target::Address([93, 184, 216, 34].into());
        for (host, allowed) in
            [("", false), ("93.184.216.34", false), ("192.0.2.1", false), ("good.example", true)]
        {
            assert_eq!(check_host(&gateway, &other, 80, host).is_ok(), allowed, "{host}");
        }
        assert!(unnamed(&gateway, &other, 443).is_some() && unnamed(&gateway, &target, 80).is_none());
    }

    #[test]
    fn protocols_are_told_apart() {
        for http in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\r\n \r\nGET / HTTP/1.1\n",
            b"get\t/\thttp/1.1\n",
            b"X GET HTTP/1.1\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET http://evil.example/\n",
            b"GET /\x01\xff HTTP/1.1\n",
            b"SSH- / HTTP/1.1\r\n",
            b"SSH-2.0-x / HTTP/1.1\r\n",
        ] {
            assert_eq!(kind(&[http]), Some(Kind::Http), "{http:?}");
            let bytes: Vec<&[u8]> = http.chunks(1).collect();
            assert_eq!(kind(&bytes), Some(Kind::Http), "{http:?}");
        }
        for ssh in [&[&b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"[..]][..], &[b"S", b"SH-", b"2.0-x\n"]] {
            assert_eq!(kind(ssh), Some(Kind::Unnamed));
        }
        for other in [
            &b"\0\0\0\x08\x04\xd2\x16\x2f"[..],
            b"*1\r\n$4\r\nPING\r\n",
            b"EHLO x\r\n",
            b"ssh-2.0-x\r\n",
            b"GET /\n",
            // Taken for TLS or HTTP by some servers: an alert before the ClientHello, a hello of SSL 2 (RFC 5246, E.2), other
            // protocols' names, HTTP/0.9, other separators.
            b"\x15\x03\x01\0\x02\x01\x70\x16\x03\x01",
            b"\x80\x2e\x01\x03\0\0\x15\0\0\0\x10",
            b"GET / RTSP/1.0\r\n",
            b"SOURCE / ICE/1.0\r\n",
            b"GET ws://evil.example/\r\n",
            b"GET\x0b/ HTTP/1.1\r\n",
            b"\xa0GET / HTTP/1.1\r\n",
        ] {
            assert_eq!(kind(&[other]), Some(Kind::Other), "{other:?}");
        }
        for begin in [&b""[..], b"S", b"SSH-2.0", b"GET", b"GET / HTTP/1.1", b"\x16\x03\x01"] {
            assert_eq!(kind(&[begin]), None, "{begin:?}");
        }
        for unreadable in [&[22; 64][..], &b"GET /".repeat(MAX_OPENING)] {
            assert_eq!(kind(&[unreadable]), Some(Kind::Unreadable));
        }
    }
}
