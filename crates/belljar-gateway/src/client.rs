//! Host side of a connection to a gateway. Replies are untrusted: a gateway parses data sent by attackers.

use std::io;

use belljar_model::{NetworkPolicy, NetworkReport};
use futures::stream::{Stream, try_unfold};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::host::{Reply, Request};

/// Maximum length of a reply in bytes: a record has a name, a rule and a sentence.
const MAX_REPLY: u64 = 64 << 10;

/// Replaces the policy of the gateway at the other end of `connection`. Connections that the new policy does not allow are
/// cut at once.
///
/// # Errors
/// Fails if the gateway has exited or does not speak this protocol.
pub async fn set_policy(connection: UnixStream, policy: &NetworkPolicy) -> io::Result<()> {
    let mut replies = send(connection, &Request::SetPolicy { policy: policy.clone() }).await?;
    match next(&mut replies).await? {
        Some(Reply::Done) => Ok(()),
        Some(Reply::Record(_) | Reply::Totals(_)) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Returns the retained records after number `after`; with `follow` also future ones, and the gateway's totals, until it exits.
///
/// # Errors
/// Fails as [`set_policy`] does.
pub async fn log(
    connection: UnixStream,
    after: u64,
    follow: bool,
) -> io::Result<impl Stream<Item = io::Result<NetworkReport>> + Send + use<>> {
    let replies = send(connection, &Request::Log { after, follow }).await?;
    Ok(try_unfold(replies, async |mut replies| match next(&mut replies).await? {
        Some(Reply::Record(record)) => Ok(Some((NetworkReport::Record(record), replies))),
        Some(Reply::Totals(totals)) => Ok(Some((NetworkReport::Totals(totals), replies))),
        Some(Reply::Done) | None => Ok(None),
    }))
}

async fn send(mut connection: UnixStream, request: &Request) -> io::Result<BufReader<UnixStream>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    connection.write_all(&line).await?;
    Ok(BufReader::new(connection))
}

/// Reads the next reply; `None` at the end of the stream.
async fn next(replies: &mut BufReader<UnixStream>) -> io::Result<Option<Reply>> {
    let mut line = Vec::new();
    replies.take(MAX_REPLY).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
