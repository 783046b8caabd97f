//! Bytes on a connection, as no library would send them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What came of sending something.
#[derive(Debug)]
pub(crate) struct Heard {
    /// The first bytes that came.
    pub(crate) bytes: Vec<u8>,
    /// Until the first byte came, or the end.
    pub(crate) first: Duration,
}

impl Heard {
    /// The status of an answer, 0 if there is none.
    pub(crate) fn status(&self) -> u16 {
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Sends these bytes, and then more and more of `flood` until the server answers or ends the connection. Returns what it
/// said, and how many bytes it let in.
pub(crate) async fn flood(address: SocketAddr, head: &[u8], flood: &[u8], most: u64) -> (Heard, u64) {
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
    (Heard { bytes, first }, sent)
}

/// Sends these bytes and nothing more.
pub(crate) async fn send(address: SocketAddr, bytes: &[u8]) -> Heard {
    flood(address, bytes, b"", 0).await.0
}

/// The memory of a process that is its own, in KiB.
pub(crate) fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
