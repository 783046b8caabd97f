//! The host's side of a connection to a gateway. What comes from there is not trusted: a gateway reads what attackers send.

use std::io;

use belljar_model::{NetworkPolicy, NetworkRecord};
use futures::stream::{Stream, try_unfold};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::host::{Reply, Request};

/// The longest reply, in bytes: a record has a name, a rule and a sentence.
const MAX_REPLY: u64 = 64 << 10;

/// Replaces the policy of the gateway at the other end of `connection`. Connections that the new one does not allow are cut
/// at once.
///
/// # Errors
/// The gateway has ended, or does not speak this protocol.
pub async fn set_policy(connection: UnixStream, policy: &NetworkPolicy) -> io::Result<()> {
    let mut replies = ask(connection, &Request::SetPolicy { policy: policy.clone() }).await?;
    match next(&mut replies).await? {
        Some(Reply::Done) => Ok(()),
        Some(Reply::Record(_)) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The records after number `after`, as far as they are kept; with `follow` those to come as well, until the gateway ends.
///
/// # Errors
/// As [`set_policy`].
pub async fn log(
    connection: UnixStream,
    after: u64,
    follow: bool,
) -> io::Result<impl Stream<Item = io::Result<NetworkRecord>> + Send + use<>> {
    let replies = ask(connection, &Request::Log { after, follow }).await?;
    Ok(try_unfold(replies, async |mut replies| match next(&mut replies).await? {
        Some(Reply::Record(record)) => Ok(Some((record, replies))),
        Some(Reply::Done) | None => Ok(None),
    }))
}

async fn ask(mut connection: UnixStream, request: &Request) -> io::Result<BufReader<UnixStream>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    connection.write_all(&line).await?;
    Ok(BufReader::new(connection))
}

/// The next reply, or none at the end.
async fn next(replies: &mut BufReader<UnixStream>) -> io::Result<Option<Reply>> {
    let mut line = Vec::new();
    replies.take(MAX_REPLY).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
