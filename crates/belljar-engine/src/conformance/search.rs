//! Searching, and setting modes and times, of hostile files.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Case, Checked, cases, ensure, equal, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{check_usable, py, sh, shell};
use crate::client::{GuestClient, GuestError};

pub(super) const CASES: &[Case] = cases![
    search_finds_lines_and_names [],
    search_does_not_hang_or_follow_links [],
    search_is_bounded [],
    modes_and_times_are_set [],
];

fn request(glob: &str, content: &str) -> v1::SearchRequest {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    v1::SearchRequest {
        path: bytes("."),
        name_glob: bytes(glob),
        content: bytes(content),
        ..Default::default()
    }
}

async fn search(
    guest: &GuestClient,
    request: v1::SearchRequest,
) -> Checked<(Vec<v1::SearchMatch>, v1::SearchSummary)> {
    let searching = async {
        let mut search = guest.search(request).await?;
        let mut found = Vec::new();
        while let Some(next) = search.next().await? {
            found.push(next);
        }
        found.sort_by_key(|found| (found.path.clone(), found.line_number));
        Ok::<_, GuestError>((found, search.summary().cloned().unwrap_or_default()))
    };
    Ok(within("searching", Duration::from_secs(30), searching).await??)
}

async fn search_finds_lines_and_names(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = "
import os
os.makedirs('src/deep/.hidden')
open('src/a.py', 'w').write('import os\\n\\ndef main():\\n    return os.getpid()\\n')
open('src/deep/b.py', 'w').write('x = 1\\ndef Main(): pass')
open('src/deep/.hidden/c.py', 'w').write('def main(): pass')
open(b'src/\\xff.py', 'w').write('def main(): pass')
os.symlink('src', 'link')
";
    py(&sandbox, code).await?;
    let hits = |found: &[v1::SearchMatch]| -> Vec<(Vec<u8>, u64, u64)> {
        found.iter().map(|hit| (hit.path.to_vec(), hit.line_number, hit.column)).collect()
    };
    let hit = |path: &[u8], line, column| (path.to_vec(), line, column);
    let (found, _) = search(guest, request("*.py", "def main")).await?;
    equal!(hits(&found), [hit(b"src/a.py", 3, 1), hit(b"src/\xff.py", 1, 1)]);
    let expression = v1::SearchRequest {
        regex: true,
        ignore_case: true,
        include_hidden: true,
        ..request("src/deep/**", r"main\(\)")
    };
    let (found, _) = search(guest, expression).await?;
    equal!(hits(&found), [hit(b"src/deep/.hidden/c.py", 1, 5), hit(b"src/deep/b.py", 2, 5)]);
    let (found, _) = search(guest, request("*e*", "")).await?;
    let names: Vec<&[u8]> = found.iter().map(|hit| hit.path.as_ref()).collect();
    equal!(names, [b"src/deep".as_slice()]);
    context.stop(sandbox).await
}

async fn search_does_not_hang_or_follow_links(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let canary = context.scratch().join("found-canary");
    std::fs::write(&canary, "word-of-the-host")?;
    let line = format!(
        "mkfifo fifo held; ln -s / root; ln -s . round; ln -s {} canary; mkdir closed; echo x > closed/x; chmod 0 closed; echo word > plain",
        canary.display()
    );
    sh(&sandbox, &line).await?.expect_success()?;
    let writer = guest.start(shell("exec sleep 1000 3<> held")).await?;
    let (found, summary) = search(guest, request("", "word")).await?;
    equal!(found.iter().map(|hit| hit.path.as_ref()).collect::<Vec<_>>(), [b"plain".as_slice()]);
    equal!((summary.searched, summary.skipped), (1, 1));
    let result =
        guest.search(v1::SearchRequest { path: Bytes::from_static(b"held"), ..request("", "x") }).await;
    expect_refused(first_message(result).await, ErrorCode::FailedPrecondition, &["held"])?;
    guest.signal(writer.id, 9, false).await?;
    sh(&sandbox, "chmod 700 closed").await?.expect_success()?;
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

/// Returns the outcome of a search, whose refusal may arrive in place of its first message.
async fn first_message(result: Result<crate::client::Search, GuestError>) -> Result<(), GuestError> {
    result?.next().await.map(|_| ())
}

async fn search_is_bounded(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let code = "
open('lines', 'w').write('a\\n' * 100000)
open('long', 'w').write('a' * 3000000)
open('zeros', 'wb').truncate(100 << 20)
";
    py(&sandbox, code).await?;
    let (found, summary) =
        search(guest, v1::SearchRequest { max_results: 50, ..request("lines", "a") }).await?;
    equal!((found.len(), summary.more), (50, true));
    let (found, summary) = search(guest, request("", "a")).await?;
    ensure!(found.iter().all(|hit| hit.line.len() <= 1024), "a line is longer than 1 KiB");
    equal!((found.len(), summary.more), (1000, true));
    let (found, summary) = search(guest, request("zeros", "a")).await?;
    equal!((found.len(), summary.skipped), (0, 1));
    // Expressions that take other regex engines exponential time, or much memory.
    let slow = v1::SearchRequest { regex: true, ..request("long", "(a*)*(a|aa)*b") };
    equal!(search(guest, slow).await?.0.len(), 0);
    let large = v1::SearchRequest { regex: true, ..request("", "((a{100}){100}){100}") };
    expect_refused(first_message(guest.search(large).await).await, ErrorCode::InvalidArgument, &["content"])?;
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn modes_and_times_are_set(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(&sandbox, "echo 'echo ran' > script; ln -s script link; ln -s /etc/passwd out")
        .await?
        .expect_success()?;
    let set = |path: &'static str, mode| v1::SetModeRequest {
        path: Bytes::from_static(path.as_bytes()),
        mode: Some(mode),
        modified_ns: Some(1_000_000_000_000_000_007),
        ..Default::default()
    };
    let entry = guest.set_mode(set("script", 0o750)).await?;
    equal!((entry.mode, entry.modified_ns), (0o750, 1_000_000_000_000_000_007));
    equal!(
        sh(&sandbox, "./script; stat -c '%a %Y' script").await?.expect_success()?.text(),
        "ran\n750 1000000000"
    );
    expect_refused(
        guest.set_mode(set("link", 0o700)).await,
        ErrorCode::FailedPrecondition,
        &["link", "follow"],
    )?;
    let follow = v1::SetModeRequest { follow: true, ..set("link", 0o700) };
    equal!(guest.set_mode(follow).await?.mode, 0o700);
    for path in ["out", "/etc/passwd", "/usr/bin/env"] {
        let result = guest.set_mode(v1::SetModeRequest { follow: true, ..set(path, 0o777) }).await;
        ensure!(matches!(result, Err(GuestError::Refused { .. })), "{path}: {result:?}");
    }
    expect_refused(guest.set_mode(set("none", 0o700)).await, ErrorCode::NotFound, &["none"])?;
    context.stop(sandbox).await
}
