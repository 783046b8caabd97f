use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_files::open_dir;
use belljar_proto::v1::FilesystemExt;
use belljar_proto::{ConnectError, Connection, ErrorCode};
use bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags};
use tempfile::TempDir;
use tokio::net::UnixStream;

use super::*;

pub(super) type Client = v1::FilesystemClient<Connection>;

/// Ends a hanging test; nothing in these tests takes that long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Starts the service on a home directory; returns the directory and a client over a real connection.
pub(super) fn start() -> (TempDir, Client) {
    start_in(tempfile::tempdir().unwrap())
}

pub(super) fn start_in(home: TempDir) -> (TempDir, Client) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let files = Arc::new(Files { home: home.path().to_owned() });
    tokio::spawn(belljar_proto::serve(theirs, files.register(connectrpc::Router::new())));
    let client = Client::new(belljar_proto::connect(ours), belljar_proto::client_config(Some(DEADLINE)));
    (home, client)
}

pub(super) fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

fn open_request(path: impl AsRef<[u8]>) -> v1::WriteOpen {
    v1::WriteOpen { path: bytes(path), ..Default::default() }
}

async fn write(client: &Client, open: v1::WriteOpen, parts: Vec<Bytes>) -> Result<v1::Entry, ConnectError> {
    let first = v1::WriteRequest { open: open.into(), ..Default::default() };
    let rest = parts.into_iter().map(|data| v1::WriteRequest { data, ..Default::default() });
    let requests: Vec<_> = std::iter::once(first).chain(rest).collect();
    let response = client.write(futures::stream::iter(requests)).await?.into_owned();
    Ok(response.entry.as_option().cloned().unwrap())
}

async fn read(client: &Client, request: v1::ReadRequest) -> Result<(v1::Entry, Vec<u8>), ConnectError> {
    let mut stream = client.read(request).await?;
    let mut data = Vec::new();
    let mut entry = None;
    while let Some(message) = stream.message::<v1::ReadResponse>().await? {
        let message = message.to_owned_message();
        if let Some(first) = message.entry.as_option() {
            assert!(entry.is_none(), "there is one entry, in the first message");
            entry = Some(first.clone());
        }
        assert!(entry.is_some() && message.data.len() <= 256 * 1024);
        data.extend_from_slice(&message.data);
    }
    match stream.error() {
        Some(error) => Err(error.clone()),
        None => Ok((entry.unwrap(), data)),
    }
}

fn at(path: impl AsRef<[u8]>) -> v1::ReadRequest {
    v1::ReadRequest { path: bytes(path), ..Default::default() }
}

async fn list(client: &Client, path: &[u8], depth: u32, limit: u32, after: &Bytes) -> v1::ListResponse {
    let request =
        v1::ListRequest { path: bytes(path), depth, limit, after: after.clone(), ..Default::default() };
    client.list(request).await.unwrap().into_owned()
}

/// Lists every path, page by page.
async fn list_all(client: &Client, path: &[u8], depth: u32, limit: u32) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    let mut after = Bytes::new();
    loop {
        let page = list(client, path, depth, limit, &after).await;
        assert!(page.entries.len() <= usize::try_from(limit).unwrap());
        paths.extend(page.entries.iter().map(|entry| entry.path.to_vec()));
        if page.next.is_empty() {
            return paths;
        }
        assert_eq!(Some(&page.next), page.entries.last().map(|entry| &entry.path));
        after = page.next;
    }
}

pub(super) fn names(dir: &Path) -> BTreeSet<Vec<u8>> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect()
}

pub(super) fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(std::fs::metadata(path).unwrap().file_type().is_fifo());
}

/// Creates nested directories, deeper than any path can express.
pub(super) fn make_deep(base: &Path, depth: usize) {
    let mut dir = open_dir(CWD, base, true).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&dir, c"d", Mode::RWXU).unwrap();
        let file = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::openat(&dir, c"f", file, Mode::RUSR).unwrap();
        dir = open_dir(std::os::fd::AsFd::as_fd(&dir), c"d", false).unwrap();
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, ConnectError>) -> ErrorCode {
    result.unwrap_err().code
}

#[tokio::test]
async fn long_file_is_read_in_full_and_in_ranges() {
    let (home, client) = start();
    let content: Vec<u8> =
        (0..20_000_000u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let parts = content.chunks(200_000).map(Bytes::copy_from_slice).collect();
    let entry = write(&client, open_request("long"), parts).await.unwrap();
    assert_eq!((entry.size, entry.mode, entry.path.as_ref()), (20_000_000, 0o644, b"long".as_slice()));
    assert_eq!(names(home.path()), BTreeSet::from([b"long".to_vec()]));

    let (entry, data) = read(&client, at("long")).await.unwrap();
    assert!(data == content);
    assert_eq!(entry.kind, v1::FileKind::FILE_KIND_FILE);
    for (offset, length, range) in [
        (0u64, 5u64, 0..5usize),
        (19_999_990, 0, 19_999_990..20_000_000),
        (1_234_567, 400_000, 1_234_567..1_634_567),
        (19_999_990, 100, 19_999_990..20_000_000),
        (20_000_000, 1, 0..0),
        (u64::MAX, 0, 0..0),
    ] {
        let (_, data) = read(&client, v1::ReadRequest { offset, length, ..at("long") }).await.unwrap();
        assert!(data == content[range], "offset {offset}, length {length}");
    }
}

#[tokio::test]
async fn growing_file_is_read_to_its_size_and_unsized_file_to_its_end() {
    let (home, client) = start();
    let path = home.path().join("grows");
    std::fs::write(&path, vec![b'x'; 1_000_000]).unwrap();
    let mut stream = client.read(at("grows")).await.unwrap();
    let mut length = 0;
    while let Some(message) = stream.message::<v1::ReadResponse>().await.unwrap() {
        length += message.to_owned_message().data.len();
        let mut file = std::fs::File::options().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, &vec![b'y'; 2_000_000]).unwrap();
    }
    assert_eq!(length, 1_000_000);
    let (entry, data) = read(&client, at("/proc/self/status")).await.unwrap();
    assert_eq!(entry.size, 0);
    assert!(data.starts_with(b"Name:"));
    std::fs::write(home.path().join("empty"), "").unwrap();
    assert_eq!(read(&client, at("empty")).await.unwrap().1, b"");
}

#[tokio::test]
async fn only_regular_files_are_read_and_written() {
    let (home, client) = start();
    let dir = home.path();
    std::fs::create_dir(dir.join("dir")).unwrap();
    make_fifo(&dir.join("fifo"));
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    symlink("dir", dir.join("to-dir")).unwrap();
    symlink("fifo", dir.join("to-fifo")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    let before = names(dir);
    let cases: [(&str, ErrorCode, &str); 8] = [
        ("dir", ErrorCode::FailedPrecondition, "dir: is a directory"),
        ("fifo", ErrorCode::FailedPrecondition, "fifo: not a regular file"),
        ("socket", ErrorCode::FailedPrecondition, "socket: not a regular file"),
        ("to-dir", ErrorCode::FailedPrecondition, "to-dir: is a directory"),
        ("to-fifo", ErrorCode::FailedPrecondition, "to-fifo: not a regular file"),
        ("loop", ErrorCode::FailedPrecondition, "loop: is a symbolic link, or its path has too many of them"),
        ("/dev/null", ErrorCode::FailedPrecondition, "/dev/null: not a regular file"),
        ("none/x", ErrorCode::NotFound, "none/x: no such file or directory"),
    ];
    for (path, code, message) in cases {
        let error = read(&client, at(path)).await.unwrap_err();
        assert_eq!((error.code, error.message), (code, Some(format!("cannot read {message}"))));
        let mut ways = vec![open_request(path), v1::WriteOpen { append: true, ..open_request(path) }];
        ways.push(v1::WriteOpen { offset: Some(1), ..open_request(path) });
        for open in ways {
            let error = write(&client, open, vec![bytes("x")]).await.unwrap_err();
            assert_eq!((error.code, error.message), (code, Some(format!("cannot write {message}"))));
        }
    }
    assert_eq!(names(dir), before);
}

#[tokio::test]
async fn links_are_followed_unless_refused() {
    let (home, client) = start();
    let dir = home.path();
    std::fs::create_dir(dir.join("sub")).unwrap();
    std::fs::write(dir.join("sub/file"), "old").unwrap();
    std::fs::set_permissions(dir.join("sub/file"), PermissionsExt::from_mode(0o751)).unwrap();
    symlink("sub/file", dir.join("one")).unwrap();
    symlink(dir.join("one"), dir.join("two")).unwrap();
    symlink("sub/new", dir.join("dangling")).unwrap();

    assert_eq!(read(&client, at("two")).await.unwrap().1, b"old");
    let refused = read(&client, v1::ReadRequest { no_follow: true, ..at("two") }).await;
    assert_eq!(code(refused), ErrorCode::FailedPrecondition);

    let entry = write(&client, open_request("two"), vec![bytes("new")]).await.unwrap();
    assert_eq!(entry.mode, 0o751, "an existing file keeps its mode");
    assert_eq!(std::fs::read(dir.join("sub/file")).unwrap(), b"new");
    assert!(dir.join("two").is_symlink() && dir.join("one").is_symlink());
    write(&client, open_request("dangling"), vec![bytes("made")]).await.unwrap();
    assert_eq!(std::fs::read(dir.join("sub/new")).unwrap(), b"made");
    let exclusive = v1::WriteOpen { exclusive: true, ..open_request("dangling") };
    assert_eq!(code(write(&client, exclusive, vec![]).await), ErrorCode::AlreadyExists);

    let stat = |follow| v1::StatRequest { path: bytes("two"), follow, ..Default::default() };
    let link = client.stat(stat(false)).await.unwrap().into_owned().entry.as_option().cloned().unwrap();
    assert_eq!(link.kind, v1::FileKind::FILE_KIND_SYMLINK);
    assert_eq!(link.symlink_target, dir.join("one").as_os_str().as_bytes());
    let file = client.stat(stat(true)).await.unwrap().into_owned().entry.as_option().cloned().unwrap();
    let metadata = std::fs::metadata(dir.join("sub/file")).unwrap();
    assert_eq!((file.kind, file.size, file.links), (v1::FileKind::FILE_KIND_FILE.into(), 3, 1));
    assert_eq!(file.inode, metadata.ino());
    assert_eq!(file.modified_ns, metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec());
}

#[tokio::test]
async fn write_in_place_exclusively_and_with_parents() {
    let (home, client) = start();
    let dir = home.path();
    let in_place = v1::WriteOpen { offset: Some(2), ..open_request("file") };
    assert_eq!(code(write(&client, in_place.clone(), vec![]).await), ErrorCode::NotFound);
    let append = v1::WriteOpen { append: true, ..open_request("file") };
    write(&client, append.clone(), vec![bytes("abc")]).await.unwrap();
    write(&client, append.clone(), vec![bytes("de"), bytes("f")]).await.unwrap();
    write(&client, in_place.clone(), vec![bytes("X"), bytes("Y")]).await.unwrap();
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"abXYef");

    let both = v1::WriteOpen { append: true, ..in_place.clone() };
    assert_eq!(code(write(&client, both, vec![]).await), ErrorCode::InvalidArgument);
    let far = v1::WriteOpen { offset: Some(u64::MAX), ..in_place };
    assert_eq!(code(write(&client, far, vec![]).await), ErrorCode::InvalidArgument);

    let exclusive = v1::WriteOpen { exclusive: true, mode: 0o600, ..open_request("once") };
    let entry = write(&client, exclusive.clone(), vec![bytes("1")]).await.unwrap();
    assert_eq!(entry.mode, 0o600);
    assert_eq!(code(write(&client, exclusive, vec![bytes("2")]).await), ErrorCode::AlreadyExists);
    assert_eq!(std::fs::read(dir.join("once")).unwrap(), b"1");

    let deep = open_request("a/b/c/file");
    assert_eq!(code(write(&client, deep.clone(), vec![]).await), ErrorCode::NotFound);
    write(&client, v1::WriteOpen { make_parents: true, ..deep }, vec![bytes("x")]).await.unwrap();
    let through = v1::WriteOpen { make_parents: true, ..open_request("once/below") };
    assert_eq!(code(write(&client, through, vec![]).await), ErrorCode::FailedPrecondition);
    let invalid = v1::WriteOpen { mode: 0o10000, ..open_request("x") };
    assert_eq!(code(write(&client, invalid, vec![]).await), ErrorCode::InvalidArgument);
    assert_eq!(names(dir).len(), 3);
}

#[tokio::test]
async fn aborted_upload_leaves_nothing() {
    let (home, client) = start();
    std::fs::write(home.path().join("kept"), "old").unwrap();
    let (sender, receiver) = tokio::sync::mpsc::channel::<v1::WriteRequest>(4);
    let requests = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|message| (message, receiver))
    });
    let upload = tokio::spawn({
        let client = client.clone();
        async move { client.write(requests).await.map(|response| response.into_owned()) }
    });
    let open =
        v1::WriteRequest { open: open_request("kept").into(), data: bytes("new"), ..Default::default() };
    sender.send(open).await.unwrap();
    wait_until(|| names(home.path()).len() == 2).await;
    assert_eq!(std::fs::read(home.path().join("kept")).unwrap(), b"old");
    upload.abort();
    wait_until(|| names(home.path()).len() == 1).await;

    let second = v1::WriteRequest { open: open_request("again").into(), ..Default::default() };
    let requests = futures::stream::iter([second.clone(), second]);
    assert_eq!(client.write(requests).await.unwrap_err().code, ErrorCode::InvalidArgument);
    wait_until(|| names(home.path()).len() == 1).await;
    assert_eq!(std::fs::read(home.path().join("kept")).unwrap(), b"old");
}

/// Waits for a condition that other tasks cause.
async fn wait_until(condition: impl Fn() -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.unwrap();
}

#[tokio::test]
async fn names_may_be_any_bytes() {
    let (home, client) = start();
    for name in [b"new\nline".as_slice(), b"\xff\xfe", "ü €".as_bytes(), b"-rf *"] {
        write(&client, open_request(name), vec![bytes(name)]).await.unwrap();
        assert_eq!(read(&client, at(name)).await.unwrap().1, name);
    }
    let expected: Vec<Vec<u8>> = names(home.path()).into_iter().collect();
    assert_eq!(list_all(&client, b".", 1, 3).await, expected);
    for path in [b"".as_slice(), b"a\0b", &[b'a'; 4097], &[b'a'; 256]] {
        assert_eq!(code(read(&client, at(path)).await), ErrorCode::InvalidArgument);
        assert_eq!(code(write(&client, open_request(path), vec![]).await), ErrorCode::InvalidArgument);
    }
}

#[tokio::test]
async fn pages_are_complete_sorted_and_without_duplicates() {
    let (home, client) = start();
    let mut expected = BTreeSet::new();
    for outer in ["a", "a-", "a.b", "a0", "b", "zz"] {
        std::fs::create_dir(home.path().join(outer)).unwrap();
        expected.insert(outer.as_bytes().to_vec());
        for inner in 0..40 {
            let name = format!("{outer}/{inner}");
            std::fs::create_dir(home.path().join(&name)).unwrap();
            expected.insert(name.clone().into_bytes());
            std::fs::write(home.path().join(&name).join("x"), "").unwrap();
            expected.insert(format!("{name}/x").into_bytes());
        }
    }
    symlink(".", home.path().join("round")).unwrap();
    expected.insert(b"round".to_vec());
    let all: Vec<Vec<u8>> = expected.iter().cloned().collect();
    for limit in [1, 7, 100, 10_000] {
        assert_eq!(list_all(&client, b".", 64, limit).await, all, "limit {limit}");
    }
    let shallow: Vec<Vec<u8>> = all.iter().filter(|path| !path.contains(&b'/')).cloned().collect();
    assert_eq!(list_all(&client, b"round", 1, 2).await, shallow);
    for (depth, limit) in [(65, 0), (0, 10_001)] {
        let request = v1::ListRequest { path: bytes("."), depth, limit, ..Default::default() };
        assert_eq!(client.list(request).await.unwrap_err().code, ErrorCode::InvalidArgument);
    }
    let request = v1::ListRequest { path: bytes("a/0/x"), ..Default::default() };
    assert_eq!(client.list(request).await.unwrap_err().code, ErrorCode::FailedPrecondition);
}

#[tokio::test]
async fn long_names_reduce_the_page_size() {
    let (home, client) = start();
    let mut dir = home.path().to_owned();
    for _ in 0..12 {
        dir = dir.join("d".repeat(250));
    }
    std::fs::create_dir_all(&dir).unwrap();
    for index in 0..1500 {
        std::fs::write(dir.join(format!("{index}")), "").unwrap();
    }
    let page = list(&client, b".", 64, 0, &Bytes::new()).await;
    assert!(page.entries.len() < 1000 && !page.next.is_empty());
    assert_eq!(list_all(&client, b".", 64, 10_000).await.len(), 12 + 1500);
}

#[tokio::test]
async fn deep_and_wide_trees_are_listed_and_removed() {
    // In memory, because a disk is slow at creating and removing this many files.
    let (home, client) = start_in(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
    let tree = home.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    make_deep(&tree, 10_000);
    for index in 0..3000 {
        std::fs::create_dir_all(tree.join(format!("wide{}/{index}", index % 3))).unwrap();
    }
    let outside = home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "").unwrap();
    symlink(&outside, tree.join("link")).unwrap();
    std::fs::set_permissions(tree.join("wide0"), PermissionsExt::from_mode(0o000)).unwrap();
    assert_eq!(
        list_all(&client, b"tree", 64, 1000).await.len(),
        2 * 64 + 4 + if is_root() { 3000 } else { 2000 }
    );

    let remove =
        |path: &str, recursive| v1::RemoveRequest { path: bytes(path), recursive, ..Default::default() };
    assert_eq!(client.remove(remove("tree", false)).await.unwrap_err().code, ErrorCode::FailedPrecondition);
    client.remove(remove("tree", true)).await.unwrap();
    assert_eq!(names(home.path()), BTreeSet::from([b"outside".to_vec()]));
    assert!(outside.join("kept").exists());
    assert_eq!(client.remove(remove("tree", true)).await.unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(client.remove(remove("/", true)).await.unwrap_err().code, ErrorCode::InvalidArgument);
    symlink("outside", home.path().join("link")).unwrap();
    client.remove(remove("link", true)).await.unwrap();
    client.remove(remove("outside/kept", false)).await.unwrap();
    client.remove(remove("outside/", false)).await.unwrap();
    assert_eq!(names(home.path()).len(), 0);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn directories_are_created_and_files_moved() {
    let (home, client) = start();
    let make = |path: &str, parents, mode| v1::MakeDirRequest {
        path: bytes(path),
        parents,
        mode,
        ..Default::default()
    };
    assert_eq!(client.make_dir(make("a/b", false, 0)).await.unwrap_err().code, ErrorCode::NotFound);
    let entry = client.make_dir(make("a/b/", true, 0o777)).await.unwrap().into_owned();
    assert_eq!(entry.entry.as_option().unwrap().mode, 0o777);
    client.make_dir(make("a/b", true, 0)).await.unwrap();
    client.make_dir(make(".", true, 0)).await.unwrap();
    assert_eq!(client.make_dir(make("a/b", false, 0)).await.unwrap_err().code, ErrorCode::AlreadyExists);
    std::fs::write(home.path().join("file"), "1").unwrap();
    assert_eq!(client.make_dir(make("file", true, 0)).await.unwrap_err().code, ErrorCode::AlreadyExists);

    let go = |from: &str, to: &str, overwrite| v1::MoveRequest {
        from: bytes(from),
        to: bytes(to),
        overwrite,
        ..Default::default()
    };
    std::fs::write(home.path().join("other"), "2").unwrap();
    assert_eq!(client.r#move(go("file", "other", false)).await.unwrap_err().code, ErrorCode::AlreadyExists);
    assert_eq!(client.r#move(go("none", "x", false)).await.unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(client.r#move(go("a", "a/b/c", false)).await.unwrap_err().code, ErrorCode::FailedPrecondition);
    let moved = client.r#move(go("file", "other", true)).await.unwrap().into_owned();
    assert_eq!(moved.entry.as_option().unwrap().path, b"other".as_slice());
    assert_eq!(std::fs::read(home.path().join("other")).unwrap(), b"1");
    client.r#move(go("a", "c", false)).await.unwrap();
    assert!(home.path().join("c/b").is_dir() && !home.path().join("a").exists());
}

async fn search(
    client: &Client,
    request: v1::SearchRequest,
) -> Result<(Vec<v1::SearchMatch>, v1::SearchSummary), ConnectError> {
    let mut stream = client.search(request).await?;
    let mut found = Vec::new();
    while let Some(message) = stream.message::<v1::SearchMatch>().await? {
        found.push(message.to_owned_message());
    }
    if let Some(error) = stream.error() {
        return Err(error.clone());
    }
    let summary = found.pop().unwrap().summary.into_option().expect("the last message is the summary");
    found.sort_by_key(|found| (found.path.clone(), found.line_number));
    Ok((found, summary))
}

fn content(text: &str) -> v1::SearchRequest {
    v1::SearchRequest { path: bytes("."), content: bytes(text), ..Default::default() }
}

#[tokio::test]
async fn search_finds_names_and_lines() {
    let (home, client) = start();
    std::fs::create_dir_all(home.path().join("src/.git")).unwrap();
    std::fs::write(home.path().join("src/a.rs"), "one\n  Needle here\n\nneedle, needle").unwrap();
    std::fs::write(home.path().join("src/b.txt"), b"no\nNEEDLE\xff\n").unwrap();
    std::fs::write(home.path().join("src/.git/c.rs"), "needle").unwrap();
    std::fs::write(home.path().join("binary"), b"needle\0").unwrap();
    std::fs::write(home.path().join("large"), "needle".repeat(1000)).unwrap();
    symlink("/etc", home.path().join("etc")).unwrap();
    symlink("src/a.rs", home.path().join("link")).unwrap();
    make_fifo(&home.path().join("fifo"));

    let at = |found: &[v1::SearchMatch]| -> Vec<(String, u64, u64)> {
        found
            .iter()
            .map(|found| (String::from_utf8(found.path.to_vec()).unwrap(), found.line_number, found.column))
            .collect()
    };
    let hit = |path: &str, line, column| (path.to_owned(), line, column);
    let small = |mut request: v1::SearchRequest| {
        request.max_file_bytes = 1000;
        request
    };
    let (found, summary) = search(&client, small(content("needle"))).await.unwrap();
    assert_eq!(at(&found), [hit("src/a.rs", 4, 1)]);
    assert_eq!(found[0].line, b"needle, needle".as_slice());
    assert_eq!(
        (summary.searched, summary.skipped, summary.more),
        (3, 2, false),
        "binary and large files are skipped"
    );
    let (found, _) =
        search(&client, small(v1::SearchRequest { ignore_case: true, ..content("needle") })).await.unwrap();
    assert_eq!(at(&found), [hit("src/a.rs", 2, 3), hit("src/a.rs", 4, 1), hit("src/b.txt", 2, 1)]);
    let (found, _) = search(
        &client,
        small(v1::SearchRequest {
            regex: true,
            name_glob: bytes("*.rs"),
            include_hidden: true,
            ..content("^n.*e$|Ne..le")
        }),
    )
    .await
    .unwrap();
    assert_eq!(at(&found), [hit("src/.git/c.rs", 1, 1), hit("src/a.rs", 2, 3), hit("src/a.rs", 4, 1)]);
    let (found, _) =
        search(&client, v1::SearchRequest { path: bytes("src/a.rs"), ..content("Needle") }).await.unwrap();
    assert_eq!(at(&found), [hit("", 2, 3)]);

    let names =
        |glob: &str| v1::SearchRequest { path: bytes("."), name_glob: bytes(glob), ..Default::default() };
    let (found, _) = search(&client, names("*")).await.unwrap();
    let paths: Vec<_> = at(&found).into_iter().map(|hit| hit.0).collect();
    assert_eq!(paths, ["binary", "etc", "fifo", "large", "link", "src", "src/a.rs", "src/b.txt"]);
    let (found, summary) = search(&client, v1::SearchRequest { max_results: 2, ..names("*") }).await.unwrap();
    assert_eq!((found.len(), summary.more), (2, true));
    let (found, summary) = search(&client, v1::SearchRequest { max_results: 8, ..names("*") }).await.unwrap();
    assert_eq!((found.len(), summary.more), (8, false));

    for (request, code) in [
        (v1::SearchRequest { path: bytes("none"), ..Default::default() }, ErrorCode::NotFound),
        (v1::SearchRequest { path: bytes("fifo"), ..Default::default() }, ErrorCode::FailedPrecondition),
        (names("["), ErrorCode::InvalidArgument),
        (v1::SearchRequest { max_results: 10_001, ..names("*") }, ErrorCode::InvalidArgument),
        (content("a\nb"), ErrorCode::InvalidArgument),
        (content(&"x".repeat(1025)), ErrorCode::InvalidArgument),
        (v1::SearchRequest { regex: true, ..content("(") }, ErrorCode::InvalidArgument),
        (v1::SearchRequest { regex: true, ..content("((a{100}){100}){100}") }, ErrorCode::InvalidArgument),
    ] {
        assert_eq!(search(&client, request.clone()).await.unwrap_err().code, code, "{request:?}");
    }
}

#[tokio::test]
async fn search_bounds_long_lines_and_many_matches() {
    let (home, client) = start();
    let line = format!("{}needle\n", "x".repeat(300_000));
    std::fs::write(
        home.path().join("long"),
        format!("{line}needle\n{line}{}\nneedle", "needle".repeat(1000)),
    )
    .unwrap();
    let (found, _) = search(&client, content("needle")).await.unwrap();
    let lines: Vec<_> = found.iter().map(|found| (found.line_number, found.line.len())).collect();
    assert_eq!(lines, [(2, 6), (4, 1024), (5, 6)], "a line is searched in its first 64 KiB or more");
    std::fs::write(home.path().join("many"), "a\n".repeat(20_000)).unwrap();
    let (found, summary) =
        search(&client, v1::SearchRequest { max_results: 10_000, ..content("a") }).await.unwrap();
    assert_eq!((found.len(), summary.more), (10_000, true));
    // An expression with exponential backtracking in other engines.
    std::fs::write(home.path().join("many"), "a".repeat(20_000)).unwrap();
    let begin = std::time::Instant::now();
    let (found, _) =
        search(&client, v1::SearchRequest { regex: true, ..content("(a*)*(a|aa)*b") }).await.unwrap();
    assert!(found.is_empty() && begin.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn modes_and_times_are_set() {
    let (home, client) = start();
    std::fs::write(home.path().join("file"), "x").unwrap();
    std::fs::create_dir(home.path().join("dir")).unwrap();
    symlink("file", home.path().join("link")).unwrap();
    make_fifo(&home.path().join("fifo"));
    let set = |path: &str, mode: u32, follow| v1::SetModeRequest {
        path: bytes(path),
        mode: Some(mode),
        follow,
        ..Default::default()
    };
    let mode = |name: &str| home.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
    for (path, bits) in
        [("file", 0o755), ("file", 0), ("file", 0o600), ("dir", 0o1777), ("dir", 0o700), ("fifo", 0o640)]
    {
        let entry = client.set_mode(set(path, bits, false)).await.unwrap().into_owned();
        assert_eq!((entry.entry.as_option().unwrap().mode, mode(path)), (bits, bits), "{path}");
    }
    client.set_mode(set("link", 0o750, true)).await.unwrap();
    assert_eq!(mode("file"), 0o750);
    assert_eq!(
        client.set_mode(set("link", 0o777, false)).await.unwrap_err().code,
        ErrorCode::FailedPrecondition
    );
    assert_eq!(
        client.set_mode(set("file", 0o10_000, false)).await.unwrap_err().code,
        ErrorCode::InvalidArgument
    );
    assert_eq!(client.set_mode(set("none", 0o777, false)).await.unwrap_err().code, ErrorCode::NotFound);
    for time in [1_500_000_001i64, -1, 0] {
        let request =
            v1::SetModeRequest { path: bytes("file"), modified_ns: Some(time), ..Default::default() };
        let entry = client.set_mode(request).await.unwrap().into_owned();
        assert_eq!(entry.entry.as_option().unwrap().modified_ns, time);
        assert_eq!(mode("file"), 0o750);
    }
    let request = v1::SetModeRequest { path: bytes("link"), modified_ns: Some(7), ..Default::default() };
    client.set_mode(request).await.unwrap();
    assert_eq!(home.path().join("link").symlink_metadata().unwrap().mtime_nsec(), 7);
    assert_eq!(home.path().join("file").metadata().unwrap().mtime_nsec(), 0);
    let stat = v1::StatRequest { path: bytes("file"), ..Default::default() };
    let entry = client.stat(stat).await.unwrap().into_owned().entry.into_option().unwrap();
    let metadata = home.path().join("file").metadata().unwrap();
    assert_eq!(entry.accessed_ns, metadata.atime() * 1_000_000_000 + metadata.atime_nsec());
}

#[tokio::test]
async fn attributes_can_be_changed_without_writing() {
    let (home, client) = start();
    std::fs::write(home.path().join("file"), "x").unwrap();
    std::fs::create_dir(home.path().join("dir")).unwrap();
    symlink("file", home.path().join("link")).unwrap();
    if rustix::fs::setxattr(home.path(), "user.x", b"", rustix::fs::XattrFlags::empty()).is_err() {
        println!(
            "SKIPPED attributes_can_be_changed_without_writing: the file system has no extended attributes"
        );
        return;
    }
    let set = |path: &str, mode, value: &str| v1::SetModeRequest {
        path: bytes(path),
        mode,
        attributes: [("own.a".to_owned(), bytes(value))].into_iter().collect(),
        ..Default::default()
    };
    for path in ["file", "dir"] {
        for (mode, value) in [(None, "1"), (Some(0o500), "2")] {
            client.set_mode(set(path, mode, value)).await.unwrap();
            let stat =
                v1::StatRequest { path: bytes(path), attributes: "own.".to_owned(), ..Default::default() };
            let entry = client.stat(stat).await.unwrap().into_owned().entry.into_option().unwrap();
            assert_eq!(entry.attributes.get("own.a"), Some(&bytes(value)), "{path}");
            assert!(mode.is_none_or(|mode| entry.mode == mode), "{path}: {:o}", entry.mode);
        }
    }
    // A symbolic link has no attributes, and is not followed.
    let refused = client.set_mode(set("link", None, "3")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    assert_eq!(client.set_mode(set("none", None, "3")).await.unwrap_err().code, ErrorCode::NotFound);
}

#[tokio::test]
async fn attributes_are_written_and_returned_on_request() {
    let (home, client) = start();
    let attributes = [("own.a".to_owned(), bytes("1")), ("other".to_owned(), bytes("2"))];
    let open = v1::WriteOpen { attributes: attributes.into_iter().collect(), ..open_request("a") };
    match write(&client, open, vec![bytes("x")]).await {
        Ok(_) => {}
        // The file system of this machine does not support attributes.
        Err(_)
            if rustix::fs::setxattr(home.path(), "user.x", b"", rustix::fs::XattrFlags::empty()).is_err() =>
        {
            return;
        }
        Err(error) => panic!("{error}"),
    }
    let names = |entry: &v1::Entry| entry.attributes.keys().cloned().collect::<Vec<_>>();
    let stat = async |attributes: &str| {
        let request =
            v1::StatRequest { path: bytes("a"), attributes: attributes.into(), ..Default::default() };
        client.stat(request).await.unwrap().into_owned().entry.as_option().cloned().unwrap()
    };
    assert_eq!(names(&stat("own.").await), ["own.a"]);
    assert!(names(&stat("").await).is_empty());
    let request = v1::ListRequest { path: bytes("."), attributes: "own.".into(), ..Default::default() };
    let listed = client.list(request).await.unwrap().into_owned();
    assert_eq!(listed.entries[0].attributes["own.a"], bytes("1"));
    // A rewritten file has the attributes of the last write; a write in place allows none.
    write(&client, open_request("a"), vec![]).await.unwrap();
    assert!(names(&stat("own.").await).is_empty());
    let attributes = [("own.a".to_owned(), bytes("1"))].into_iter().collect();
    let open = v1::WriteOpen { append: true, attributes, ..open_request("a") };
    assert_eq!(write(&client, open, vec![]).await.unwrap_err().code, ErrorCode::InvalidArgument);
}
