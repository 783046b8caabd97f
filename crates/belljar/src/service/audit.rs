//! `belljar audit`.

use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::Path;

use belljar_client::{Method, RestBody};
use belljar_keeper::AuditVerdict;
use belljar_store::{Expected, Head, Verification, verify_export};
use serde_json::json;

use super::args::ServerArgs;
use super::build::in_path;
use super::link::Link;
use super::server_args::AuditCommand;
use super::show::print;
use crate::message::{Quit, say};

/// Exit status if the audit log is broken.
const BROKEN: u8 = 1;

/// Runs `belljar audit`.
pub(crate) async fn run(server: &ServerArgs, command: &AuditCommand) -> Result<u8, Quit> {
    // A file is verified without a server.
    if let AuditCommand::Verify { file: Some(file), head } = command {
        return verify_file(file, *head);
    }
    let link = Link::open(server).await?;
    match command {
        AuditCommand::Tail { follow, sandbox, action, lines } => {
            let mut query = format!("?last={lines}&follow={follow}");
            for (name, value) in [("sandbox", sandbox), ("action", action)] {
                if let Some(value) = value {
                    query.push_str(&format!("&{name}={}", in_path(value)));
                }
            }
            print_records(&link, &query).await?;
            Ok(0)
        }
        AuditCommand::Export { first } => {
            print_records(&link, &format!("?after={}", first.saturating_sub(1))).await?;
            Ok(0)
        }
        AuditCommand::Verify { head, .. } => verify(&link, *head).await,
    }
}

/// Prints records as they come. Each is one line of ASCII.
async fn print_records(link: &Link, query: &str) -> Result<(), Quit> {
    let path = format!("/v1/audit/export{query}");
    let mut answer = link.client.rest(Method::GET, &path, "application/x-ndjson", RestBody::Empty).await?;
    let mut stdout = std::io::stdout().lock();
    while let Some(piece) = answer.next().await? {
        stdout.write_all(&piece).and_then(|()| stdout.flush()).map_err(crate::output::write_failed)?;
    }
    Ok(())
}

async fn verify(link: &Link, known: Option<Head>) -> Result<u8, Quit> {
    let request = json!({"head": known.map(|head| head.to_string())});
    let verdict: AuditVerdict = link.client.send(Method::POST, "/v1/audit/verify", &request).await?;
    let is_shown = link.json(&verdict)?;
    match verdict {
        AuditVerdict::Whole { records, head, steps_back, .. } => {
            if !is_shown {
                print(&format!("whole: {records} records, the last one {}:{}\n", head.seq, head.hash))?;
                if steps_back > 0 {
                    say(&format!("a clock was set back {steps_back} times"));
                }
            }
            Ok(0)
        }
        AuditVerdict::Broken { seq, why, .. } => {
            if !is_shown {
                say(&format!("broken at record {seq}: {why}"));
            }
            Ok(BROKEN)
        }
    }
}

fn verify_file(path: &Path, known: Option<Head>) -> Result<u8, Quit> {
    let failed =
        |error: std::io::Error| anyhow::Error::new(error).context(format!("cannot read {}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let expected = Expected { head: known, ..Expected::default() };
    match verify_export(BufReader::new(file), expected).map_err(failed)? {
        Verification::Verified(chain) => {
            print(&format!("whole: {} records, the last one {}\n", chain.records, chain.head))?;
            if known.is_none() {
                say("records may be missing at the end: compare the last one with what the server says");
            }
            Ok(0)
        }
        Verification::Broken(broken) => {
            say(&format!("broken at {broken}"));
            Ok(BROKEN)
        }
    }
}
