//! TLS ClientHello of a connection: reads the server name that the program asks for (SNI).

use std::time::Duration;

use belljar_model::DomainName;
use rustls::server::Acceptor;
use tokio::net::TcpStream;

use crate::relay;

/// Maximum length of a ClientHello in bytes, including its record headers. Programs send less than 2 KiB today.
const MAX_HELLO: usize = 16 << 10;

/// Timeout for receiving the ClientHello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Record with the fatal alert access_denied (RFC 8446, 6.2).
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// Error that ends a connection to port 443 at its ClientHello.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelloError {
    #[error(
        "{name}:443 is for TLS, and the connection does not begin with it; use TLS, or add a rule with another port"
    )]
    NotTls { name: DomainName },
    #[error("the connection to {name}:443 sent no complete TLS ClientHello within 5 s and 16 KiB")]
    TooSlow { name: DomainName },
    #[error("the connection to {name}:443 names no server in TLS (SNI), so its destination is unknown")]
    NoName { name: DomainName },
    #[error("the connection to {name}:443 asks in TLS (SNI) for {asked}; connect to that name instead")]
    OtherName { name: DomainName, asked: String },
    #[error("the connection broke before the TLS ClientHello: {0}")]
    Broken(#[from] std::io::Error),
}

/// A ClientHello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// All bytes read so far: the ClientHello, and possibly bytes after it.
    pub(crate) bytes: Vec<u8>,
    /// The protocols that the client offers (ALPN), the preferred one first.
    pub(crate) protocols: Vec<Vec<u8>>,
}

/// Reads the ClientHello and returns it if it is for `name`.
pub(crate) async fn read_client_hello(stream: &TcpStream, name: &DomainName) -> Result<Hello, HelloError> {
    let mut bytes = Vec::new();
    let reading = tokio::time::timeout(HELLO_TIMEOUT, read_until_complete(stream, name, &mut bytes));
    let (asked, protocols) =
        reading.await.unwrap_or_else(|_| Err(HelloError::TooSlow { name: name.clone() }))?;
    match asked {
        None => Err(HelloError::NoName { name: name.clone() }),
        Some(asked) if asked.parse::<DomainName>().is_ok_and(|asked| asked == *name) => {
            Ok(Hello { bytes, protocols })
        }
        Some(asked) => Err(HelloError::OtherName { name: name.clone(), asked }),
    }
}

/// Server name and offered protocols of a ClientHello.
pub(crate) type ServerNameAndProtocols = (Option<String>, Vec<Vec<u8>>);

/// Incremental parser of a ClientHello.
#[derive(Default)]
pub(crate) struct Reader(Acceptor);

impl Reader {
    /// Parses more bytes; `None` if the ClientHello is still incomplete.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<Option<ServerNameAndProtocols>, NotTls> {
        while !bytes.is_empty() {
            self.0.read_tls(&mut bytes).map_err(|_| NotTls)?;
        }
        let Some(accepted) = self.0.accept().map_err(|_| NotTls)? else { return Ok(None) };
        let hello = accepted.client_hello();
        let protocols = hello.alpn().into_iter().flatten().map(<[u8]>::to_vec).collect();
        Ok(Some((hello.server_name().map(str::to_owned), protocols)))
    }
}

/// Error for bytes that do not begin with a TLS handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotTls;

/// Reads until the ClientHello is complete.
async fn read_until_complete(
    stream: &TcpStream,
    name: &DomainName,
    bytes: &mut Vec<u8>,
) -> Result<ServerNameAndProtocols, HelloError> {
    let mut reader = Reader::default();
    let mut chunk = [0; 4096];
    while bytes.len() < MAX_HELLO {
        stream.readable().await?;
        let length = match stream.try_read(&mut chunk) {
            Ok(0) => return Err(HelloError::Broken(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        let read = &chunk[..length];
        bytes.extend_from_slice(read);
        if let Some(asked) = reader.read(read).map_err(|NotTls| HelloError::NotTls { name: name.clone() })? {
            return Ok(asked);
        }
    }
    Err(HelloError::TooSlow { name: name.clone() })
}

/// Refuses a client with an alert.
pub(crate) async fn alert(stream: &TcpStream) {
    let _ = relay::write(stream, &ACCESS_DENIED).await;
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
    relay::drain(stream).await;
}

/// Waits for a ClientHello, as clients would not understand an alert before it, and refuses it.
pub(crate) async fn refuse(stream: &relay::Resets) {
    let mut chunk = [0; 4096];
    let first = tokio::time::timeout(HELLO_TIMEOUT, async {
        loop {
            stream.readable().await?;
            match stream.try_read(&mut chunk) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    });
    // The content type of a handshake record.
    if matches!(first.await, Ok(Ok(1..))) && chunk[0] == 22 {
        alert(stream).await;
        stream.mark_complete();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    /// A ClientHello for `name`, as rustls writes it.
    fn client_hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(rustls::RootCertStore::empty());
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// Sends these chunks over a connection to `x.example` and returns how the gateway reads them.
    async fn send(chunks: &[&[u8]]) -> Result<Hello, HelloError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let name = "x.example".parse().unwrap();
        let sending = async {
            for chunk in chunks {
                if client.write_all(chunk).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let _ = client.shutdown().await;
        };
        let (hello, ()) = tokio::join!(read_client_hello(&server, &name), sending);
        hello
    }

    #[tokio::test]
    async fn matching_client_hello_passes_whole_and_in_pieces() {
        let bytes = client_hello("x.example");
        assert_eq!(send(&[&bytes]).await.unwrap().bytes, bytes);
        let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
        let hello = send(&pieces).await.unwrap();
        assert_eq!((hello.bytes, hello.protocols), (bytes, vec![b"h2".to_vec()]));
        let other_case = client_hello("X.Example");
        assert!(send(&[&other_case]).await.is_ok());
    }

    #[tokio::test]
    async fn other_name_no_name_and_no_tls_are_refused() {
        let other = send(&[&client_hello("y.example")]).await.unwrap_err();
        assert!(matches!(&other, HelloError::OtherName { asked, .. } if asked == "y.example"), "{other}");
        let none = send(&[&client_hello("192.0.2.1")]).await.unwrap_err();
        assert!(matches!(none, HelloError::NoName { .. }), "{none}");
        for wrong in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SSH-2.0-x\r\n", &[0; 64]] {
            let error = send(&[wrong]).await.unwrap_err();
            assert!(matches!(error, HelloError::NotTls { .. }), "{error}");
        }
        let cut = client_hello("x.example");
        let error = send(&[&cut[..cut.len() - 1]]).await.unwrap_err();
        assert!(matches!(error, HelloError::Broken(_)), "{error}");
        assert!(send(&[]).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn endless_client_hello_is_refused() {
        // A record that says it is 16 KiB long, and a handshake that says it is longer.
        let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0, 0x80, 0];
        endless.resize(MAX_HELLO * 2, 0);
        let error = send(&[&endless]).await.unwrap_err();
        assert!(matches!(error, HelloError::TooSlow { .. } | HelloError::NotTls { .. }), "{error}");
    }
}
