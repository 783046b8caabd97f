//! `belljar audit`.

use std::io::Write as _;
use std::path::PathBuf;

use belljar_client::{Method, RestBody};
use belljar_keeper::{ArchivedFile, AuditHead, AuditVerdict};
use belljar_model::parse_span;
use belljar_store::{Broken, BrokenFile, Expected, Fault, Head, Verified, verify_files};
use jiff::Timestamp;
use serde::Deserialize;
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
    // Files are verified without a server.
    if let AuditCommand::Verify { files, database: false, head } = command
        && !files.is_empty()
    {
        return verify_files_alone(files, *head);
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
            if print_records(&link, &query).await? < u64::from(*lines) {
                say_archived(&link, 1).await?;
            }
            Ok(0)
        }
        AuditCommand::Export { first } => {
            say_archived(&link, *first).await?;
            print_records(&link, &format!("?after={}", first.saturating_sub(1))).await?;
            Ok(0)
        }
        AuditCommand::Verify { files, head, .. } if files.is_empty() => verify(&link, *head).await,
        AuditCommand::Verify { files, head, .. } => verify_all(&link, files, *head).await,
        AuditCommand::Archive { before, keep, through } => {
            let kept = keep.as_deref().map(start_of_kept).transpose()?;
            archive(&link, before.or(kept), *through).await
        }
    }
}

/// Prints records as they come, and returns their number. Each is one line of ASCII.
async fn print_records(link: &Link, query: &str) -> Result<u64, Quit> {
    let path = format!("/v1/audit/export{query}");
    let mut answer = link.client.rest(Method::GET, &path, "application/x-ndjson", RestBody::Empty).await?;
    let mut stdout = std::io::stdout().lock();
    let mut lines = 0;
    while let Some(piece) = answer.next().await? {
        lines += piece.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
        stdout.write_all(&piece).and_then(|()| stdout.flush()).map_err(crate::output::write_failed)?;
    }
    Ok(lines)
}

/// The part of a page that tells where the log in the database begins.
#[derive(Deserialize)]
struct Page {
    base: AuditHead,
}

/// Returns the last archived record.
async fn base(link: &Link) -> Result<Head, Quit> {
    let page: Page = link.client.fetch("/v1/audit?limit=1").await?;
    let text = format!("{}:{}", page.base.seq, page.base.hash);
    Ok(text.parse::<Head>().map_err(anyhow::Error::msg)?)
}

/// Says that records from `first` on are archived, if they are.
async fn say_archived(link: &Link, first: u64) -> Result<(), Quit> {
    let base = base(link).await?.seq;
    if i64::try_from(first).is_ok_and(|first| first <= base) {
        say(&format!("records up to {base} are archived, and not among these"));
    }
    Ok(())
}

/// Verifies the server's log.
async fn verify(link: &Link, known: Option<Head>) -> Result<u8, Quit> {
    let verdict = request_verdict(link, known).await?;
    let is_shown = link.json(&verdict)?;
    match verdict {
        AuditVerdict::Whole { records, first, head, steps_back, .. } => {
            if !is_shown {
                print(&format!("whole: {records} records, the last one {}:{}\n", head.seq, head.hash))?;
                if first > 1 {
                    say(&format!("records up to {} are archived: verify their files too", first - 1));
                }
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

async fn request_verdict(link: &Link, known: Option<Head>) -> Result<AuditVerdict, Quit> {
    let request = json!({"head": known.map(|head| head.to_string())});
    Ok(link.client.send(Method::POST, "/v1/audit/verify", &request).await?)
}

fn verify_files_alone(paths: &[PathBuf], known: Option<Head>) -> Result<u8, Quit> {
    let Some(chain) = checked(paths, known)? else { return Ok(BROKEN) };
    let from = if chain.first > 1 { format!(" from record {} on", chain.first) } else { String::new() };
    print(&format!("whole{from}: {} records, the last one {}\n", chain.records, chain.head))?;
    if known.is_none() {
        say("records may be missing at the end: compare the last one with what the server says");
    }
    Ok(0)
}

/// Verifies files, and the server's log after them.
async fn verify_all(link: &Link, paths: &[PathBuf], known: Option<Head>) -> Result<u8, Quit> {
    let base = base(link).await?;
    let is_archived = known.is_some_and(|known| known.seq <= base.seq);
    let Some(chain) = checked(paths, known.filter(|_| is_archived))? else { return Ok(BROKEN) };
    if chain.head.seq < base.seq {
        // The ones up to the base are in no file, and not in the database either.
        let fault = Fault::Gap { last: base.seq };
        say(&format!("broken at {}", Broken { seq: chain.head.seq + 1, fault }));
        return Ok(BROKEN);
    }
    if let Some(known) = known.filter(|_| !is_archived)
        && let AuditVerdict::Broken { .. } = request_verdict(link, Some(known)).await?
    {
        return verify(link, Some(known)).await;
    }
    say(&format!("the files are whole: {} records, the last one {}", chain.records, chain.head));
    verify(link, Some(chain.head)).await
}

/// Verifies files. Says what is wrong with them, or what they lack.
fn checked(paths: &[PathBuf], known: Option<Head>) -> Result<Option<Verified>, Quit> {
    let expected = Expected { head: known, ..Expected::default() };
    match verify_files(paths, expected).map_err(anyhow::Error::new)? {
        Ok(chain) => {
            if chain.first > 1 {
                say(&format!(
                    "record {} is the first one: the ones before it are not in the files",
                    chain.first
                ));
            }
            Ok(Some(chain))
        }
        Err(BrokenFile { path, broken }) => {
            say(&format!("{}: broken at {broken}", path.display()));
            Ok(None)
        }
    }
}

/// The answer to a request to archive.
#[derive(Deserialize)]
struct Archived {
    files: Vec<ArchivedFile>,
}

async fn archive(link: &Link, before: Option<Timestamp>, through: Option<u64>) -> Result<u8, Quit> {
    let request = json!({"before": before.map(|before| before.to_string()), "through": through});
    let Archived { files } = link.client.send(Method::POST, "/v1/audit/archive", &request).await?;
    for file in &files {
        if !link.json(file)? {
            let ArchivedFile { path, first, last } = file;
            print(&format!("records {first} to {}: {}\n", last.seq, path.display()))?;
        }
    }
    if files.is_empty() {
        say("nothing to archive");
    }
    Ok(0)
}

/// Returns the time before which records are older than a time span.
fn start_of_kept(keep: &str) -> Result<Timestamp, Quit> {
    let start = parse_span(keep).and_then(|keep| Timestamp::now().checked_sub(keep).ok());
    start.ok_or_else(|| {
        Quit::Usage(format!("--keep: {keep:?} is not allowed; give a time such as 12h or 90d"))
    })
}
