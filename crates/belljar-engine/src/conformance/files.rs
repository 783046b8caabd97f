//! Files: writing, reading, attributes, listing, moving, removing, watching.

use std::path::Path;
use std::time::Duration;

use belljar_proto::{ErrorCode, v1};
use bytes::Bytes;

use super::case::{Case, Checked, Stop, cases, ensure, equal, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::sh;
use super::streams::pattern;
use crate::client::{GuestClient, Watch};

pub(super) const CASES: &[Case] = cases![
    file_is_written_and_read [],
    file_mode_and_owner_are_right [],
    file_ranges_are_read [],
    file_is_written_in_place [],
    file_exclusive_write_refuses_existing_files [],
    file_of_20_mb_goes_in_and_out [],
    file_entries_have_their_kind [],
    directories_are_created [],
    directory_listing_is_ordered_and_deep [],
    directory_listing_comes_in_pages [],
    files_are_moved [],
    files_are_removed [],
    changes_are_watched [],
    missing_files_are_refused [],
];

/// Reads a range of a file.
pub(super) async fn read(guest: &GuestClient, path: &str, offset: u64, length: u64) -> Checked<Vec<u8>> {
    let mut download = guest.read(path.as_ref(), offset, length, false).await?;
    let mut content = Vec::new();
    while let Some(piece) = download.next().await? {
        content.extend_from_slice(&piece);
    }
    Ok(content)
}

fn open(path: &str) -> v1::WriteOpen {
    v1::WriteOpen { path: Bytes::copy_from_slice(path.as_bytes()), ..Default::default() }
}

async fn put(guest: &GuestClient, path: &str, content: &'static str) -> Checked {
    guest.write(path.as_ref(), 0o644, Bytes::from_static(content.as_bytes())).await?;
    Ok(())
}

async fn file_is_written_and_read(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let entry = guest.write("a/b/c.txt".as_ref(), 0o640, Bytes::from_static(b"one\0\xff")).await?;
    equal!((entry.size, entry.mode), (5, 0o640));
    equal!(read(guest, "a/b/c.txt", 0, 0).await?, b"one\0\xff");
    // The path is relative to the home directory, so the absolute path works too; programs see the file as well.
    let whole = sandbox.home.join("a/b/c.txt").display().to_string();
    equal!(read(guest, &whole, 0, 0).await?, b"one\0\xff");
    equal!(sh(&sandbox, "cat a/b/c.txt").await?.expect_success()?.stdout, b"one\0\xff");
    // A second write replaces it.
    put(guest, "a/b/c.txt", "longer than before").await?;
    equal!(read(guest, "a/b/c.txt", 0, 0).await?, b"longer than before");
    put(guest, "empty", "").await?;
    equal!(read(guest, "empty", 0, 0).await?, b"");
    context.stop(sandbox).await
}

async fn file_mode_and_owner_are_right(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    guest.write("tool".as_ref(), 0o755, Bytes::from_static(b"#!/bin/sh\necho ran\n")).await?;
    guest.write("secret".as_ref(), 0o600, Bytes::from_static(b"x")).await?;
    guest.write("usual".as_ref(), 0, Bytes::from_static(b"x")).await?;
    let finished =
        sh(&sandbox, "./tool; stat -c '%a %u %g' tool secret usual; id -u; id -g").await?.expect_success()?;
    let text = finished.text();
    let lines: Vec<&str> = text.lines().collect();
    ensure!(lines.len() == 6, "it wrote {text:?}");
    let owner = format!("{} {}", lines[4], lines[5]);
    for (line, mode) in lines[1..4].iter().zip(["755", "600", "644"]) {
        equal!(**line, format!("{mode} {owner}"));
    }
    context.stop(sandbox).await
}

async fn file_ranges_are_read(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    put(guest, "digits", "0123456789").await?;
    let cases =
        [(0, 0, "0123456789"), (3, 0, "3456789"), (3, 4, "3456"), (8, 100, "89"), (10, 0, ""), (99, 5, "")];
    for (offset, length, expected) in cases {
        equal!(read(guest, "digits", offset, length).await?, expected.as_bytes());
    }
    let download = guest.read("digits".as_ref(), 3, 4, false).await?;
    equal!(download.entry.size, 10);
    context.stop(sandbox).await
}

async fn file_is_written_in_place(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    put(guest, "file", "0123456789").await?;
    let inode = guest.stat("file".as_ref(), true).await?.inode;
    let append = v1::WriteOpen { append: true, ..open("file") };
    guest.write_from(append, b"ab".as_slice()).await?;
    let middle = v1::WriteOpen { offset: Some(2), ..open("file") };
    guest.write_from(middle, b"XY".as_slice()).await?;
    equal!(read(guest, "file", 0, 0).await?, b"01XY456789ab");
    equal!(guest.stat("file".as_ref(), true).await?.inode, inode);
    let missing = v1::WriteOpen { offset: Some(0), ..open("not-there") };
    expect_refused(guest.write_from(missing, b"x".as_slice()).await, ErrorCode::NotFound, &["not-there"])?;
    context.stop(sandbox).await
}

async fn file_exclusive_write_refuses_existing_files(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let new = || v1::WriteOpen { exclusive: true, ..open("once") };
    guest.write_from(new(), b"first".as_slice()).await?;
    expect_refused(guest.write_from(new(), b"second".as_slice()).await, ErrorCode::AlreadyExists, &["once"])?;
    equal!(read(guest, "once", 0, 0).await?, b"first");
    context.stop(sandbox).await
}

async fn file_of_20_mb_goes_in_and_out(context: &Context) -> Checked {
    const SIZE: usize = 20_000_000;
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let entry = guest.write_from(open("big"), std::io::Cursor::new(pattern(SIZE))).await?;
    equal!(entry.size, SIZE as u64);
    let content = read(guest, "big", 0, 0).await?;
    ensure!(content == pattern(SIZE), "{} bytes were read, not unchanged", content.len());
    equal!(read(guest, "big", 19_999_000, 500).await?, pattern(SIZE)[19_999_000..19_999_500]);
    context.stop(sandbox).await
}

async fn file_entries_have_their_kind(context: &Context) -> Checked {
    use v1::FileKind as Kind;
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    put(guest, "file", "12345").await?;
    let line = "mkdir dir && ln -s file link && ln -s nowhere lost && mkfifo fifo && ln file hard && touch -d @1000000000 file";
    sh(&sandbox, line).await?.expect_success()?;
    let cases = [
        ("file", false, Kind::FILE_KIND_FILE),
        ("dir", false, Kind::FILE_KIND_DIRECTORY),
        ("link", false, Kind::FILE_KIND_SYMLINK),
        ("link", true, Kind::FILE_KIND_FILE),
        ("lost", false, Kind::FILE_KIND_SYMLINK),
        ("fifo", false, Kind::FILE_KIND_FIFO),
        ("/dev/null", false, Kind::FILE_KIND_DEVICE),
    ];
    for (path, follow, kind) in cases {
        let entry = guest.stat(path.as_ref(), follow).await?;
        equal!((path, entry.kind.as_known()), (path, Some(kind)));
    }
    let file = guest.stat("file".as_ref(), false).await?;
    equal!((file.size, file.links, file.modified_ns), (5, 2, 1_000_000_000_000_000_000));
    ensure!(file.changed_ns > file.modified_ns && file.inode > 0, "its entry is {file:?}");
    equal!(guest.stat("link".as_ref(), false).await?.symlink_target, Bytes::from_static(b"file"));
    expect_refused(guest.stat("lost".as_ref(), true).await, ErrorCode::NotFound, &["lost"])?;
    context.stop(sandbox).await
}

async fn directories_are_created(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    guest.make_dir("one".as_ref(), false).await?;
    expect_refused(guest.make_dir("one".as_ref(), false).await, ErrorCode::AlreadyExists, &["one"])?;
    expect_refused(guest.make_dir("x/y/z".as_ref(), false).await, ErrorCode::NotFound, &["x/y/z"])?;
    let entry = guest.make_dir("x/y/z".as_ref(), true).await?;
    equal!((entry.kind.as_known(), entry.mode), (Some(v1::FileKind::FILE_KIND_DIRECTORY), 0o755));
    guest.make_dir("x/y/z".as_ref(), true).await?;
    put(guest, "file", "").await?;
    expect_refused(
        guest.make_dir("file/below".as_ref(), true).await,
        ErrorCode::FailedPrecondition,
        &["file"],
    )?;
    context.stop(sandbox).await
}

fn names(entries: &[v1::Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect()
}

async fn directory_listing_is_ordered_and_deep(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for path in ["tree/b", "tree/a/2", "tree/a/1/deep", "tree/a.x", "tree/c/.hidden"] {
        put(guest, path, "x").await?;
    }
    guest.make_dir("tree/empty".as_ref(), false).await?;
    let list =
        async |depth| Checked::Ok(names(&guest.list("tree".as_ref(), depth, 0, Bytes::new()).await?.0));
    equal!(list(0).await?, ["a", "a.x", "b", "c", "empty"]);
    equal!(list(1).await?, list(0).await?);
    let mut all = list(64).await?;
    equal!(list(3).await?, all);
    let given = all.clone();
    all.sort();
    equal!(given, all);
    equal!(all, ["a", "a.x", "a/1", "a/1/deep", "a/2", "b", "c", "c/.hidden", "empty"]);
    // A link to a directory is listed but not entered.
    sh(&sandbox, "ln -s / tree/out").await?.expect_success()?;
    ensure!(!list(64).await?.iter().any(|name| name.starts_with("out/")), "a link was followed");
    expect_refused(
        guest.list("tree/b".as_ref(), 1, 0, Bytes::new()).await,
        ErrorCode::FailedPrecondition,
        &["tree/b"],
    )?;
    context.stop(sandbox).await
}

async fn directory_listing_comes_in_pages(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(&sandbox, "mkdir many many/dir && cd many && for i in $(seq 57); do : > f$i; : > dir/f$i; done")
        .await?
        .expect_success()?;
    let (whole, next) = guest.list("many".as_ref(), 2, 0, Bytes::new()).await?;
    equal!((whole.len(), next), (115, None));
    let (mut pages, mut after, mut turns) = (Vec::new(), Bytes::new(), 0);
    loop {
        let (entries, next) = guest.list("many".as_ref(), 2, 10, after).await?;
        ensure!(entries.len() <= 10, "a page of 10 has {} entries", entries.len());
        pages.extend(names(&entries));
        turns += 1;
        match next {
            Some(next) => after = next,
            None => break,
        }
        ensure!(turns < 100, "the pages never end");
    }
    equal!(pages, names(&whole));
    context.stop(sandbox).await
}

async fn files_are_moved(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    put(guest, "from", "a").await?;
    put(guest, "there", "b").await?;
    let (from, there) = (Path::new("from"), Path::new("there"));
    expect_refused(guest.rename(from, there, false).await, ErrorCode::AlreadyExists, &["there"])?;
    equal!(read(guest, "there", 0, 0).await?, b"b");
    guest.rename(from, there, true).await?;
    equal!(read(guest, "there", 0, 0).await?, b"a");
    expect_refused(guest.stat(from, false).await, ErrorCode::NotFound, &["from"])?;
    expect_refused(guest.rename(from, there, true).await, ErrorCode::NotFound, &["from"])?;
    guest.make_dir("dir/in".as_ref(), true).await?;
    guest.rename("dir".as_ref(), "moved".as_ref(), false).await?;
    guest.stat("moved/in".as_ref(), false).await?;
    context.stop(sandbox).await
}

async fn files_are_removed(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    sh(&sandbox, "mkdir -p full/a/b empty outside; touch full/a/b/c outside/keep; ln -s ../outside full/link; mkfifo fifo")
        .await?
        .expect_success()?;
    guest.remove("empty".as_ref(), false).await?;
    guest.remove("fifo".as_ref(), false).await?;
    expect_refused(guest.remove("full".as_ref(), false).await, ErrorCode::FailedPrecondition, &["full"])?;
    guest.remove("full".as_ref(), true).await?;
    expect_refused(guest.stat("full".as_ref(), false).await, ErrorCode::NotFound, &["full"])?;
    // The target of a link inside is kept.
    guest.stat("outside/keep".as_ref(), false).await?;
    expect_refused(guest.remove("full".as_ref(), true).await, ErrorCode::NotFound, &["full"])?;
    context.stop(sandbox).await
}

async fn changes_are_watched(context: &Context) -> Checked {
    use v1::WatchKind as Kind;
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    guest.make_dir("seen/below".as_ref(), true).await?;
    let mut flat = watch(guest, "seen", false).await?;
    let mut deep = watch(guest, "seen", true).await?;
    sh(&sandbox, "cd seen; echo x > new; echo y > below/new; mv new old; mkdir fresh; echo z > fresh/file; rm old; rmdir -p nothing 2>/dev/null; touch last").await?;
    let events = events_until(&mut flat, &["last"]).await?;
    for expected in [
        (Kind::WATCH_KIND_CREATED, "new"),
        (Kind::WATCH_KIND_REMOVED, "old"),
        (Kind::WATCH_KIND_CREATED, "fresh"),
    ] {
        ensure!(events.contains(&(expected.0, expected.1.to_owned())), "{expected:?} is not in {events:?}");
    }
    ensure!(
        !events.iter().any(|(_, path)| path.contains('/')),
        "a non-recursive watch reported deep events: {events:?}"
    );
    let moved = [Kind::WATCH_KIND_MOVED_FROM, Kind::WATCH_KIND_MOVED_TO];
    for (kind, path) in moved.into_iter().zip(["new", "old"]) {
        ensure!(events.contains(&(kind, path.to_owned())), "{kind:?} of {path} is not in {events:?}");
    }
    // Files created in a new directory before it had a watch may be reported after later ones.
    let events = events_until(&mut deep, &["last", "below/new", "fresh/file"]).await?;
    for path in ["below/new", "fresh/file"] {
        let first = events.iter().find(|(_, seen)| seen == path);
        ensure!(
            first.is_some_and(|(kind, _)| *kind == Kind::WATCH_KIND_CREATED),
            "{path} is not created in {events:?}"
        );
    }
    put(guest, "seen/uploaded", "x").await?;
    let events = events_until(&mut flat, &["uploaded"]).await?;
    ensure!(!events.is_empty(), "an upload was not seen");
    expect_refused(
        guest.watch("nowhere".as_ref(), false).await.map(|_| ()),
        ErrorCode::NotFound,
        &["nowhere"],
    )
    .or(watch_fails(guest, "nowhere").await)?;
    context.stop(sandbox).await
}

async fn watch_fails(guest: &GuestClient, path: &str) -> Checked {
    let mut watch = guest.watch(path.as_ref(), false).await?;
    expect_refused(watch.next().await, ErrorCode::NotFound, &[path])
}

async fn watch(guest: &GuestClient, path: &str, recursive: bool) -> Checked<Watch> {
    let mut watch = guest.watch(path.as_ref(), recursive).await?;
    let first = within("the beginning of a watch", Duration::from_secs(10), watch.next()).await??;
    let kind = first.and_then(|event| event.kind.as_known());
    equal!(kind, Some(v1::WatchKind::WATCH_KIND_READY));
    Ok(watch)
}

/// Reads events until each of `expected` has appeared in one.
async fn events_until(watch: &mut Watch, expected: &[&str]) -> Checked<Vec<(v1::WatchKind, String)>> {
    let mut events: Vec<(v1::WatchKind, String)> = Vec::new();
    while let Some(missing) = expected.iter().find(|path| !events.iter().any(|(_, seen)| seen == *path)) {
        let next = within(&format!("the event of {missing}"), Duration::from_secs(10), watch.next()).await;
        let Some(event) =
            next.map_err(|_| Stop::Failed(format!("{missing} was not seen after {events:?}")))??
        else {
            return Err(Stop::Failed(format!("the watch ended after {events:?}")));
        };
        let path = String::from_utf8_lossy(&event.path).into_owned();
        events.push((event.kind.as_known().unwrap_or_default(), path));
    }
    Ok(events)
}

async fn missing_files_are_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let missing = guest.read("missing".as_ref(), 0, 0, false).await.map(|_| ());
    expect_refused(missing, ErrorCode::NotFound, &["missing"])?;
    expect_refused(guest.stat("missing".as_ref(), true).await, ErrorCode::NotFound, &["missing"])?;
    for path in ["", "a\0b"] {
        expect_refused(guest.stat(path.as_ref(), true).await, ErrorCode::InvalidArgument, &["path"])?;
        let written = guest.write(path.as_ref(), 0, Bytes::new()).await;
        expect_refused(written, ErrorCode::InvalidArgument, &["path"])?;
    }
    let open = v1::WriteOpen { mode: 0o10000, ..open("x") };
    expect_refused(guest.write_from(open, b"".as_slice()).await, ErrorCode::InvalidArgument, &["mode"])?;
    context.stop(sandbox).await
}
