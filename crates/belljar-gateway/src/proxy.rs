//! Handshake with the operator's proxy, HTTP CONNECT or SOCKS5, after which the stream belongs to the connection.

use std::io;
use std::net::Ipv4Addr;

use base64::Engine as _;
use belljar_model::{DomainName, ProxyProtocol, UpstreamProxy};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Maximum length of the head of a response to CONNECT, in bytes.
const MAX_HEAD: usize = 8 << 10;

/// Destination that a proxy connects to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    /// An address that has been checked.
    Address(Ipv4Addr),
    /// A name that the proxy resolves.
    Name(&'a DomainName),
}

impl std::fmt::Display for Destination<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Error when connecting through a proxy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("it cannot be found: {0}")]
    Unknown(String),
    #[error("it answered the CONNECT request with status {0}")]
    Status(u16),
    #[error("it wants a user name and a password that it accepts")]
    Credentials,
    #[error("it could not connect: {0}")]
    Refused(&'static str),
    #[error("it does not speak its protocol")]
    Protocol,
    #[error("the connection to it broke: {0}")]
    Broken(#[from] io::Error),
}

/// Requests a connection from the proxy at the other end of `stream`. Reads nothing past the proxy's answer.
///
/// # Errors
/// See [`ProxyError`]. There is no timeout: the caller sets one.
pub(crate) async fn request_connection<S>(
    stream: &mut S,
    proxy: &UpstreamProxy,
    to: Destination<'_>,
    port: u16,
) -> Result<(), ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match proxy.protocol() {
        ProxyProtocol::Http => http(stream, proxy.credentials(), to, port).await,
        ProxyProtocol::Socks5 => socks(stream, proxy.credentials(), to, port).await,
    }
}

async fn http<S>(
    stream: &mut S,
    credentials: Option<(&str, &str)>,
    to: Destination<'_>,
    port: u16,
) -> Result<(), ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = format!("CONNECT {to}:{port} HTTP/1.1\r\nHost: {to}:{port}\r\n");
    if let Some((user, password)) = credentials {
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        request.push_str(&format!("Proxy-Authorization: Basic {basic}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    // One byte at a time: everything after the head is for the sandbox.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD {
            return Err(ProxyError::Protocol);
        }
        head.push(stream.read_u8().await?);
    }
    match status(&head) {
        Some(200..=299) => Ok(()),
        Some(407) => Err(ProxyError::Credentials),
        Some(status) => Err(ProxyError::Status(status)),
        None => Err(ProxyError::Protocol),
    }
}

/// Parses the status of a response (RFC 9112, 4).
pub(crate) fn status(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.1 ").or_else(|| head.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, rest) = rest.split_at_checked(3)?;
    if !matches!(rest.first(), Some(b' ' | b'\r')) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

const VERSION: u8 = 5;
const NO_CREDENTIALS: u8 = 0;
const PASSWORD: u8 = 2;

async fn socks<S>(
    stream: &mut S,
    credentials: Option<(&str, &str)>,
    to: Destination<'_>,
    port: u16,
) -> Result<(), ProxyError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let method = if credentials.is_some() { PASSWORD } else { NO_CREDENTIALS };
    stream.write_all(&[VERSION, 1, method]).await?;
    match read(stream).await? {
        [VERSION, chosen] if chosen == method => {}
        [VERSION, 0xff | NO_CREDENTIALS | PASSWORD] => return Err(ProxyError::Credentials),
        _ => return Err(ProxyError::Protocol),
    }
    if let Some((user, password)) = credentials {
        let mut message = vec![1];
        push(&mut message, user.as_bytes())?;
        push(&mut message, password.as_bytes())?;
        stream.write_all(&message).await?;
        match read(stream).await? {
            [1, 0] => {}
            [1, _] => return Err(ProxyError::Credentials),
            _ => return Err(ProxyError::Protocol),
        }
    }
    // CONNECT.
    let mut request = vec![VERSION, 1, 0];
    match to {
        Destination::Address(address) => {
            request.push(1);
            request.extend(address.octets());
        }
        Destination::Name(name) => {
            request.push(3);
            push(&mut request, name.as_str().as_bytes())?;
        }
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request).await?;
    let [version, reply, _, kind] = read(stream).await?;
    if version != VERSION {
        return Err(ProxyError::Protocol);
    }
    if reply != 0 {
        return Err(ProxyError::Refused(reason(reply)));
    }
    // The address and port that the proxy connects from, which are unused.
    let address_bytes = match kind {
        1 => 4,
        3 => usize::from(stream.read_u8().await?),
        4 => 16,
        _ => return Err(ProxyError::Protocol),
    };
    let mut rest = vec![0; address_bytes + 2];
    stream.read_exact(&mut rest).await?;
    Ok(())
}

async fn read<S: AsyncRead + Unpin, const N: usize>(stream: &mut S) -> Result<[u8; N], ProxyError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Appends a length-prefixed text. Names and credentials have at most 255 bytes.
fn push(message: &mut Vec<u8>, text: &[u8]) -> Result<(), ProxyError> {
    message.push(u8::try_from(text.len()).map_err(|_| ProxyError::Protocol)?);
    message.extend(text);
    Ok(())
}

/// Describes a reply code (RFC 1928, 6).
fn reason(reply: u8) -> &'static str {
    match reply {
        2 => "its rules do not allow it",
        3 => "the network is unreachable",
        4 => "the host is unreachable",
        5 => "the connection was refused",
        6 => "the time to live expired",
        7 => "the command is not supported",
        8 => "the address type is not supported",
        _ => "it failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the handshake with a proxy that sends `answer`. Returns the result, the request and the unread rest of the answer.
    async fn handshake(
        proxy: &str,
        to: Destination<'_>,
        answer: &[u8],
    ) -> (Result<(), String>, Vec<u8>, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(64 << 10);
        theirs.write_all(answer).await.unwrap();
        theirs.shutdown().await.unwrap();
        let done = request_connection(&mut ours, &proxy.parse().unwrap(), to, 443)
            .await
            .map_err(|error| error.to_string());
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.unwrap();
        drop(ours);
        let mut request = Vec::new();
        theirs.read_to_end(&mut request).await.unwrap();
        (done, request, rest)
    }

    const ADDRESS: Destination<'_> = Destination::Address(Ipv4Addr::new(192, 0, 2, 7));

    #[tokio::test]
    async fn http_proxy_handshake() {
        let answer = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nbanner";
        let (done, request, rest) = handshake("http://p.example:1", ADDRESS, answer).await;
        assert_eq!((done, rest.as_slice()), (Ok(()), &b"banner"[..]));
        assert_eq!(request, b"CONNECT 192.0.2.7:443 HTTP/1.1\r\nHost: 192.0.2.7:443\r\n\r\n");
        let name = "x.example".parse().unwrap();
        let (done, request, _) =
            handshake("http://a:b%20c@p.example:1", Destination::Name(&name), answer).await;
        assert_eq!(done, Ok(()));
        let request = String::from_utf8(request).unwrap();
        let expected = "CONNECT x.example:443 HTTP/1.1\r\nHost: x.example:443\r\nProxy-Authorization: Basic YTpiIGM=\r\n\r\n";
        assert_eq!(request, expected);
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(MAX_HEAD));
        for (answer, expected_error) in [
            (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], "it wants a user name"),
            (b"HTTP/1.0 503 \r\n\r\n", "status 503"),
            (b"HTTP/1.1 2000 OK\r\n\r\n", "does not speak"),
            (b"HTTP/2 200 OK\r\n\r\n", "does not speak"),
            (b"SSH-2.0\r\n\r\n", "does not speak"),
            (b"HTTP/1.1 200 OK\r\nX: ", "broke"),
            (b"", "broke"),
            (long.as_bytes(), "does not speak"),
        ] {
            let (done, _, _) = handshake("http://p.example:1", ADDRESS, answer).await;
            assert!(done.as_ref().unwrap_err().contains(expected_error), "{expected_error}: {done:?}");
        }
    }

    #[tokio::test]
    async fn socks_proxy_handshake() {
        let answer = b"\x05\x00\x05\x00\x00\x01\x01\x02\x03\x04\x00\x09banner";
        let (done, request, rest) = handshake("socks5://p.example:1", ADDRESS, answer).await;
        assert_eq!((done, rest.as_slice()), (Ok(()), &b"banner"[..]));
        assert_eq!(request, b"\x05\x01\x00\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb");
        let name = "x.example".parse().unwrap();
        let answer = b"\x05\x02\x01\x00\x05\x00\x00\x03\x01a\x00\x09banner";
        let (done, request, rest) =
            handshake("socks5://me:hush@p.example:1", Destination::Name(&name), answer).await;
        assert_eq!((done, rest.as_slice()), (Ok(()), &b"banner"[..]));
        assert_eq!(request, b"\x05\x01\x02\x01\x02me\x04hush\x05\x01\x00\x03\x09x.example\x01\xbb");
        for (proxy, answer, expected_error) in [
            ("socks5://p.example:1", &b"\x05\xff"[..], "it wants a user name"),
            ("socks5://p.example:1", b"\x05\x02", "it wants a user name"),
            ("socks5://a:b@p.example:1", b"\x05\x02\x01\x01", "it wants a user name"),
            ("socks5://p.example:1", b"\x04\x00", "does not speak"),
            ("socks5://p.example:1", b"\x05\x00\x05\x02\x00\x01", "its rules do not allow it"),
            ("socks5://p.example:1", b"\x05\x00\x05\xee\x00\x01", "it failed"),
            ("socks5://p.example:1", b"\x05\x00\x05\x00\x00\x07", "does not speak"),
            ("socks5://p.example:1", b"\x05\x00\x05\x00\x00\x03\xffabc", "broke"),
            ("socks5://p.example:1", b"\x05", "broke"),
        ] {
            let (done, _, _) = handshake(proxy, ADDRESS, answer).await;
            assert!(done.as_ref().unwrap_err().contains(expected_error), "{expected_error}: {done:?}");
        }
    }
}
