//! The first flight of TLS: whose name the program asks for.

use std::time::Duration;

use belljar_model::DomainName;
use rustls::server::Acceptor;
use tokio::net::TcpStream;

use crate::relay;

/// The longest ClientHello, with the frames of its records. What programs send today is below 2 KiB.
const MAX_HELLO: usize = 16 << 10;

/// How long it may take to come.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// A fatal alert, access_denied (RFC 8446, 6.2), in a record of its own.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// Why a connection to port 443 does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoHello {
    #[error(
        "{name}:443 is for TLS, and the connection does not begin with it; use TLS, or ask for a rule with another port"
    )]
    NotTls { name: DomainName },
    #[error("the connection to {name}:443 sent no whole TLS ClientHello within 5 s and 16 KiB")]
    TooSlow { name: DomainName },
    #[error("the connection to {name}:443 names no server in TLS (SNI), so nobody can tell whom it is for")]
    NoName { name: DomainName },
    #[error("the connection to {name}:443 asks in TLS (SNI) for {asked}; connect to that name instead")]
    OtherName { name: DomainName, asked: String },
    #[error("the connection broke before it said anything: {0}")]
    Broken(#[from] std::io::Error),
}

/// A ClientHello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// All that has been read, which is the ClientHello and perhaps what came with it.
    pub(crate) bytes: Vec<u8>,
    /// The protocols that it offers (ALPN), the best first.
    pub(crate) protocols: Vec<Vec<u8>>,
}

/// Reads the ClientHello, and hands it back if it is for `name`.
pub(crate) async fn hello(stream: &TcpStream, name: &DomainName) -> Result<Hello, NoHello> {
    let mut bytes = Vec::new();
    let reading = tokio::time::timeout(HELLO_TIMEOUT, read_hello(stream, name, &mut bytes));
    let (asked, protocols) =
        reading.await.unwrap_or_else(|_| Err(NoHello::TooSlow { name: name.clone() }))?;
    match asked {
        None => Err(NoHello::NoName { name: name.clone() }),
        Some(asked) if asked.parse::<DomainName>().is_ok_and(|asked| asked == *name) => {
            Ok(Hello { bytes, protocols })
        }
        Some(asked) => Err(NoHello::OtherName { name: name.clone(), asked }),
    }
}

/// What a ClientHello asks for: the server's name, and the protocols that it offers.
pub(crate) type Asked = (Option<String>, Vec<Vec<u8>>);

/// A ClientHello as it comes.
#[derive(Default)]
pub(crate) struct Reader(Acceptor);

impl Reader {
    /// Takes more of it; `None` if that was not the last.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<Option<Asked>, NotTls> {
        while !bytes.is_empty() {
            self.0.read_tls(&mut bytes).map_err(|_| NotTls)?;
        }
        let Some(accepted) = self.0.accept().map_err(|_| NotTls)? else { return Ok(None) };
        let hello = accepted.client_hello();
        let protocols = hello.alpn().into_iter().flatten().map(<[u8]>::to_vec).collect();
        Ok(Some((hello.server_name().map(str::to_owned), protocols)))
    }
}

/// What does not begin as TLS does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotTls;

/// Reads until the ClientHello is whole.
async fn read_hello(stream: &TcpStream, name: &DomainName, bytes: &mut Vec<u8>) -> Result<Asked, NoHello> {
    let mut reader = Reader::default();
    let mut chunk = [0; 4096];
    while bytes.len() < MAX_HELLO {
        stream.readable().await?;
        let length = match stream.try_read(&mut chunk) {
            Ok(0) => return Err(NoHello::Broken(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        let read = &chunk[..length];
        bytes.extend_from_slice(read);
        if let Some(asked) = reader.read(read).map_err(|NotTls| NoHello::NotTls { name: name.clone() })? {
            return Ok(asked);
        }
    }
    Err(NoHello::TooSlow { name: name.clone() })
}

/// Tells a client that it may not go on.
pub(crate) async fn alert(stream: &TcpStream) {
    let _ = relay::write(stream, &ACCESS_DENIED).await;
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
    relay::drain(stream).await;
}

/// Waits for a ClientHello, as an alert before it would not be understood, and refuses it.
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
    // A record of a handshake.
    if matches!(first.await, Ok(Ok(1..))) && chunk[0] == 22 {
        alert(stream).await;
        stream.is_whole();
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

    /// What becomes of a connection that sends these chunks to `x.example`.
    async fn sent(chunks: &[&[u8]]) -> Result<Hello, NoHello> {
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
        let (hello, ()) = tokio::join!(hello(&server, &name), sending);
        hello
    }

    #[tokio::test]
    async fn a_hello_for_the_name_passes_whole_and_in_pieces() {
        let bytes = client_hello("x.example");
        assert_eq!(sent(&[&bytes]).await.unwrap().bytes, bytes);
        let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
        let hello = sent(&pieces).await.unwrap();
        assert_eq!((hello.bytes, hello.protocols), (bytes, vec![b"h2".to_vec()]));
        let other_case = client_hello("X.Example");
        assert!(sent(&[&other_case]).await.is_ok());
    }

    #[tokio::test]
    async fn another_name_none_and_no_tls_do_not() {
        let other = sent(&[&client_hello("y.example")]).await.unwrap_err();
        assert!(matches!(&other, NoHello::OtherName { asked, .. } if asked == "y.example"), "{other}");
        let none = sent(&[&client_hello("192.0.2.1")]).await.unwrap_err();
        assert!(matches!(none, NoHello::NoName { .. }), "{none}");
        for wrong in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SSH-2.0-x\r\n", &[0; 64]] {
            let error = sent(&[wrong]).await.unwrap_err();
            assert!(matches!(error, NoHello::NotTls { .. }), "{error}");
        }
        let cut = client_hello("x.example");
        let error = sent(&[&cut[..cut.len() - 1]]).await.unwrap_err();
        assert!(matches!(error, NoHello::Broken(_)), "{error}");
        assert!(sent(&[]).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_end_is_left() {
        // A record that says it is 16 KiB long, and a handshake that says it is longer.
        let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0, 0x80, 0];
        endless.resize(MAX_HELLO * 2, 0);
        let error = sent(&[&endless]).await.unwrap_err();
        assert!(matches!(error, NoHello::TooSlow { .. } | NoHello::NotTls { .. }), "{error}");
    }
}
