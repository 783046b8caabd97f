//! What the host asks of a gateway: one request a connection, answered with lines of JSON.

use std::rc::Rc;

use belljar_model::{NetworkPolicy, NetworkRecord};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::gateway::Gateway;

/// The longest request, in bytes: a policy of as many rules as there may be fits.
const MAX_REQUEST: u64 = 8 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Replaces the policy. Connections that the new one does not allow are cut.
    SetPolicy {
        /// The new one.
        policy: NetworkPolicy,
    },
    /// The records after number `after`, as far as they are kept; with `follow` those to come as well.
    Log {
        /// The number of the last record that is known.
        after: u64,
        /// Whether to go on.
        follow: bool,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// It is done.
    Done,
    /// A line of the log.
    Record(NetworkRecord),
}

/// Answers the request of one connection.
pub(crate) async fn serve(gateway: Rc<Gateway>, stream: UnixStream) {
    // A host that has gone is told nothing.
    let _ = answer(&gateway, stream).await;
}

async fn answer(gateway: &Gateway, stream: UnixStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    (&mut stream).take(MAX_REQUEST).read_until(b'\n', &mut line).await?;
    let mut stream = stream.into_inner();
    match serde_json::from_slice(&line)? {
        Request::SetPolicy { policy } => {
            gateway.set_policy(&policy);
            say(&mut stream, &Reply::Done).await
        }
        Request::Log { after, follow } => {
            let mut last = after;
            loop {
                for record in gateway.log.after(last) {
                    last = record.number;
                    say(&mut stream, &Reply::Record(NetworkRecord::clone(&record))).await?;
                }
                if !follow || gateway.log.is_closed() {
                    return say(&mut stream, &Reply::Done).await;
                }
                let mut byte = [0; 1];
                tokio::select! {
                    () = gateway.log.grown(last) => {}
                    // The host says nothing more until it goes.
                    _ = stream.read(&mut byte) => return Ok(()),
                }
            }
        }
    }
}

async fn say(stream: &mut UnixStream, reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line).await
}
