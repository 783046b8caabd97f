//! Raw bytes on a connection, which no HTTP library would send.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The response to raw bytes.
#[derive(Debug)]
pub(crate) struct Response {
    /// The first bytes received.
    pub(crate) bytes: Vec<u8>,
    /// Time until the first byte or the end of the connection.
    pub(crate) first: Duration,
}

impl Response {
    /// Returns the status of the response, or 0 if there is none.
    pub(crate) fn status(&self) -> u16 {
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Sends `head`, and then repeats `flood` until the server responds or ends the connection. Returns the response, and how many
/// bytes of `flood` the server accepted.
pub(crate) async fn flood(address: SocketAddr, head: &[u8], flood: &[u8], most: u64) -> (Response, u64) {
    let mut stream = TcpStream::connect(address).await.expect("the server is there");
    stream.write_all(head).await.expect("it takes a head");
    let begin = Instant::now();
    let (mut read, mut write) = stream.split();
    let mut sent = 0u64;
    let feeding = async {
        while !flood.is_empty() && sent < most {
            match write.write(flood).await {
                Ok(count) => sent += count as u64,
                Err(_) => break,
            }
        }
        std::future::pending::<()>().await;
    };
    let mut bytes = vec![0; 16 * 1024];
    let hearing = async {
        let count = read.read(&mut bytes).await.unwrap_or(0);
        (count, begin.elapsed())
    };
    let (count, first) = tokio::select! {
        heard = hearing => heard,
        () = feeding => (0, begin.elapsed()),
        () = tokio::time::sleep(Duration::from_secs(90)) => panic!("the server neither answers nor ends the connection"),
    };
    bytes.truncate(count);
    (Response { bytes, first }, sent)
}

/// Sends only these bytes.
pub(crate) async fn send(address: SocketAddr, bytes: &[u8]) -> Response {
    flood(address, bytes, b"", 0).await.0
}

/// Returns the private memory of a process, in KiB.
pub(crate) fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
