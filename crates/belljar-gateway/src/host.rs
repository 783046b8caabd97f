//! Requests of the host to a gateway: one request per connection, answered with lines of JSON.

use std::rc::Rc;
use std::time::Duration;

use belljar_model::{NetworkPolicy, NetworkRecord, NetworkTotals};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::gateway::Gateway;

/// Maximum length of a request in bytes: a policy with the maximum number of rules fits.
const MAX_REQUEST: u64 = 8 << 20;

/// Interval of the totals while connections are open: what a gateway that ends unexpectedly has transferred since the last ones is in
/// no total. Source: docs/audit.md.
const TOTALS_INTERVAL: Duration = Duration::from_secs(1);

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Replaces the policy. Connections that the new one does not allow are cut.
    SetPolicy {
        /// The new policy.
        policy: NetworkPolicy,
    },
    /// Returns the retained records after number `after`; with `follow` also future ones, and the totals.
    Log {
        /// Number of the last record that the host has.
        after: u64,
        /// Whether to keep sending new records.
        follow: bool,
    },
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// The request is complete.
    Done,
    /// A line of the log.
    Record(NetworkRecord),
    /// The gateway's totals so far.
    Totals(NetworkTotals),
}

/// Answers the request of one connection.
pub(crate) async fn serve(gateway: Rc<Gateway>, stream: UnixStream) {
    // The host may have closed the connection.
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
            send(&mut stream, &Reply::Done).await
        }
        Request::Log { after, follow } => {
            let mut last = after;
            let mut totals = None;
            loop {
                for record in gateway.log.after(last) {
                    last = record.number;
                    send(&mut stream, &Reply::Record(NetworkRecord::clone(&record))).await?;
                }
                let now = gateway.totals();
                if follow && totals != Some(now) {
                    totals = Some(now);
                    send(&mut stream, &Reply::Totals(now)).await?;
                }
                if !follow || gateway.log.is_closed() {
                    return send(&mut stream, &Reply::Done).await;
                }
                let mut byte = [0; 1];
                tokio::select! {
                    () = gateway.log.wait_after(last) => {}
                    () = tokio::time::sleep(TOTALS_INTERVAL), if now.open > 0 => {}
                    // The host sends nothing more; a read returns when it closes the connection.
                    _ = stream.read(&mut byte) => return Ok(()),
                }
            }
        }
    }
}

async fn send(stream: &mut UnixStream, reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line).await
}
