//! `belljar audit`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use belljar_client::v1;
use belljar_store::{Expected, Head, Verification, verify_export};

use super::args::{AuditCommand, ServerArgs};
use super::link::Link;
use super::show::print;
use crate::message::{Quit, say, without_controls};

/// How many records the server gives to whoever does not say from where on.
const SERVERS_OWN: usize = 100;

/// The status of a trail that does not hold.
const BROKEN: u8 = 1;

/// Does what was asked for about the audit trail.
pub(crate) async fn run(server: &ServerArgs, command: &AuditCommand) -> Result<u8, Quit> {
    // A file is checked without any server.
    if let AuditCommand::Verify { file: Some(file), head } = command {
        return verify_file(file, *head);
    }
    let link = Link::open(server).await?;
    match command {
        AuditCommand::Tail { follow, sandbox, action, lines } => {
            let filter = v1::AuditRecordFilter {
                sandbox: sandbox.clone().unwrap_or_default(),
                action: action.clone().unwrap_or_default(),
                ..Default::default()
            };
            tail(&link, filter, *lines, *follow).await?;
            Ok(0)
        }
        AuditCommand::Export { first } => {
            let request = v1::ExportAuditRequest { first: *first, ..Default::default() };
            lines_of(link.client.export_audit(request).await?).await?;
            Ok(0)
        }
        AuditCommand::Verify { head, .. } => verify(&link, *head).await,
    }
}

/// Prints the last records, and if asked for those that come.
async fn tail(link: &Link, filter: v1::AuditRecordFilter, lines: u32, follow: bool) -> Result<(), Quit> {
    let lines = usize::try_from(lines)?;
    let mut request = v1::TailAuditRequest {
        filter: filter.into(),
        // Without a number the server gives the last hundred.
        after: (lines > SERVERS_OWN).then_some(0),
        no_follow: true,
        ..Default::default()
    };
    let mut records = link.client.tail_audit(request.clone()).await?;
    let mut last = VecDeque::new();
    let mut seen = 0;
    while let Some(record) = records.next().await? {
        seen = record.seq;
        last.push_back(record);
        if last.len() > lines {
            last.pop_front();
        }
    }
    for record in last {
        show(&record)?;
    }
    if follow {
        (request.after, request.no_follow) = (Some(seen), false);
        lines_of(link.client.tail_audit(request).await?).await?;
    }
    Ok(())
}

fn show(record: &v1::AuditRecordLine) -> Result<(), Quit> {
    print(&format!("{}\n", without_controls(&record.json)))
}

async fn lines_of(mut records: belljar_client::Messages<v1::AuditRecordLine>) -> Result<(), Quit> {
    while let Some(record) = records.next().await? {
        show(&record)?;
    }
    Ok(())
}

async fn verify(link: &Link, known: Option<Head>) -> Result<u8, Quit> {
    let mut request = v1::VerifyAuditRequest::default();
    if let Some(known) = known {
        let head = v1::AuditHead {
            seq: known.seq.unsigned_abs(),
            hash: known.hash.to_vec().into(),
            ..Default::default()
        };
        request.known = head.into();
    }
    let found = link.client.verify_audit(request).await?;
    if !link.json(&found)? {
        if found.whole {
            let head = found.head.into_option().unwrap_or_default();
            print(&format!(
                "whole: {} records, the last one {}:{}\n",
                found.records,
                head.seq,
                hex(&head.hash)
            ))?;
            if found.steps_back > 0 {
                say(&format!("a clock was set back {} times", found.steps_back));
            }
        } else {
            say(&format!("broken at record {}: {}", found.broken_seq, found.why));
        }
    }
    Ok(if found.whole { 0 } else { BROKEN })
}

fn verify_file(path: &Path, known: Option<Head>) -> Result<u8, Quit> {
    let failed =
        |error: std::io::Error| anyhow::Error::new(error).context(format!("cannot read {}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let expected = Expected { head: known, ..Expected::default() };
    match verify_export(BufReader::new(file), expected).map_err(failed)? {
        Verification::Verified(chain) => {
            let head = chain.head;
            print(&format!(
                "whole: {} records, the last one {}:{}\n",
                chain.records,
                head.seq,
                hex(&head.hash)
            ))?;
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
