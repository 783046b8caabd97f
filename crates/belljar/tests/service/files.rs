//! Attacks with paths, links, special files, names and archives through the file API (F02 to F04, F06, F08, F10 to F12, F20,
//! C11, R22).

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::client::{Answer, Client, escaped};
use crate::raw::memory_kib;
use crate::run;
use crate::server::{Home, Server};

/// Content of a file of the host that must not be visible inside.
pub(crate) const CANARY: &str = "canary-of-the-host-91c2";

/// Timeout of quick operations. The corpus demands 50 ms to ten seconds on an idle machine.
pub(crate) const QUICK_TIMEOUT: Duration = Duration::from_secs(30);

/// A world-readable and world-writable directory of the host.
pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("belljar-canary-")
            .tempdir_in("/var/tmp")
            .expect("it can be made");
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it can be opened");
        };
        open(dir.path(), 0o777);
        let canary = dir.path().join("canary");
        std::fs::write(&canary, CANARY).expect("it can be written");
        open(&canary, 0o666);
        Self { dir }
    }

    pub(crate) fn canary(&self) -> PathBuf {
        self.dir.path().join("canary")
    }

    #[track_caller]
    pub(crate) fn assert_untouched(&self, what: &str) {
        let names: Vec<_> = std::fs::read_dir(self.dir.path()).expect("it is there").flatten().collect();
        assert_eq!(names.len(), 1, "{what}: {names:?}");
        assert_eq!(std::fs::read_to_string(self.canary()).expect("it is there"), CANARY, "{what}");
    }
}

async fn start(without: Option<&'static str>) -> (Home, Server, Client) {
    let mut home = Home::new(&["sandboxes.pool=0"]);
    home.without = without;
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    (home, server, client)
}

fn content(id: &str, path: &str) -> String {
    format!("/v1/sandboxes/{id}/files/content?path={path}")
}

/// Sends every request that takes a path, and returns the responses with their requests.
async fn ask_all(client: &Client, id: &str, path: &str) -> Vec<(String, Answer)> {
    let files = format!("/v1/sandboxes/{id}/files");
    let mut answers = Vec::new();
    for (method, target) in [
        ("GET", content(id, path)),
        ("HEAD", content(id, path)),
        ("GET", format!("{files}/stat?path={path}")),
        ("GET", format!("{files}?path={path}")),
        ("GET", format!("{files}/archive?path={path}")),
        ("PUT", content(id, path)),
        ("PUT", format!("{}&append=true", content(id, path))),
        ("PUT", format!("{files}/archive?path={path}")),
        ("DELETE", format!("{files}?path={path}&recursive=true")),
    ] {
        let body = if method == "PUT" { "planted" } else { "" };
        answers
            .push((format!("{method} {target}"), client.send(client.request(method, &target), body).await));
    }
    let plain = String::from_utf8_lossy(&percent_decoded(path)).into_owned();
    for (to, body) in [
        ("search", json!({ "path": plain, "content": "canary", "hidden": true })),
        ("mkdir", json!({ "path": plain, "parents": false })),
        ("chmod", json!({ "path": plain, "mode": "0777" })),
        ("move", json!({ "from": plain, "to": "taken", "overwrite": true })),
        ("move", json!({ "from": "a.txt", "to": plain, "overwrite": true })),
    ] {
        answers.push((format!("{to} {body}"), client.post(&format!("{files}/{to}"), &body).await));
    }
    for operation in ["read", "write"] {
        let signed =
            client.post(&format!("{files}/sign"), &json!({ "path": plain, "operation": operation })).await;
        if signed.status != 201 {
            continue;
        }
        let url = signed.json()["url"].as_str().expect("it is reported").to_owned();
        let target = format!("/v1/signed/{}", url.rsplit('/').next().unwrap_or_default());
        let mut stranger = client.apart();
        stranger.key = None;
        let method = if operation == "read" { "GET" } else { "PUT" };
        let body = if method == "PUT" { "planted" } else { "" };
        answers.push((
            format!("signed {operation} {plain}"),
            stranger.send(stranger.request(method, &target), body).await,
        ));
    }
    answers
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| char::from(byte.unwrap_or(b'?')).to_digit(16);
        decoded.push(match byte {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => u8::try_from(high * 16 + low).unwrap_or(b'?'),
                _ => b'?',
            },
            byte => byte,
        });
    }
    decoded
}

#[test]
fn f02_no_spelling_of_a_path_escapes() {
    if crate::skipped("F02") {
        return;
    }
    run(async {
        let host = Host::new();
        let (home, server, client) = start(None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        client.sh(&id, "echo inside > a.txt").await;
        let canary = host.canary().display().to_string();
        let relative = canary.trim_start_matches('/');
        let up = |step: &str| format!("{}{relative}", step.repeat(12));
        let spellings = [
            canary.clone(),
            format!("{OLD_ROOT}{canary}"),
            format!("//{canary}"),
            format!("/.{canary}"),
            up("../"),
            up("%2e%2e/"),
            up("..%2f"),
            up("%2e%2e%2f"),
            up("%252e%252e%252f"),
            up("..%252f"),
            up("....//"),
            up(".../"),
            up("..%5c"),
            up("..%c0%af"),
            up("..%ef%bc%8f"),
            up("a.txt/../../"),
            format!("/proc/self/root{canary}"),
            format!("/proc/1/root{canary}"),
            format!("/proc/self/cwd/{}", up("../")),
            format!("/proc/1/cwd/{}", up("../")),
            format!("/dev/fd/../../..{canary}"),
            escaped(canary.as_bytes()),
        ];
        for path in &spellings {
            for (what, answer) in ask_all(&client, &id, path).await {
                assert!(!answer.text().contains(CANARY), "{what}: {answer:?}");
                assert!(!answer.status.is_server_error(), "{what}: {answer:?}");
            }
            host.assert_untouched(path);
            client.sh(&id, "rm -rf -- \"$PWD\"/* 2>/dev/null; echo inside > a.txt").await;
        }
        for name in ["../../x", "/tmp/x", "..%2fx", "a/../../x"] {
            let part = format!(
                "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\nplanted\r\n--b--\r\n"
            );
            let request = client.request("POST", &format!("/v1/sandboxes/{id}/files/upload?path=in"));
            let answer =
                client.send(request.header("content-type", "multipart/form-data; boundary=b"), part).await;
            let is_literal = answer.status == 200 && name == "..%2fx";
            assert!(answer.status == 400 || is_literal, "{name}: {answer:?}");
        }
        assert_eq!(client.sh(&id, "ls -d /tmp/x /home/x /x 2>/dev/null; true").await, "");
        assert_eq!(client.get(&content(&id, "a.txt")).await.text(), "inside\n");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Where the host's tree would be inside if it were not detached. A build for tests keeps it on demand.
pub(crate) const OLD_ROOT: &str = "/old-root";

/// Creates links to the host in the sandbox.
async fn plant_links(client: &Client, id: &str, host: &Host, root: &str) {
    let (canary, dir) = (host.canary(), host.dir.path());
    let line = format!(
        "ln -s {0} leaf; ln -s {1} through; ln -s /proc/self/root{0} root; ln -s /proc/1/cwd/../..{0} cwd; mkdir -p d; \
         ln -s ../through d/deep; ln -s leaf chain; ln -s loop loop; ln -s /proc/self/fd/3 fd",
        format_args!("{root}{}", canary.display()),
        format_args!("{root}{}", dir.display())
    );
    client.sh(id, &line).await;
}

#[test]
fn f03_f04_f06_links_do_not_reach_the_host() {
    if crate::skipped("F03, F04, F06") {
        return;
    }
    run(async {
        let host = Host::new();
        let (home, server, client) = start(None).await;
        let paths = [
            "leaf",
            "chain",
            "root",
            "cwd",
            "loop",
            "fd",
            "through/canary",
            "through/new",
            "d/deep/canary",
            "d/deep/new",
        ];
        for path in paths {
            let id = client.sandbox(&json!({ "timeout": 3600 })).await;
            plant_links(&client, &id, &host, if path.contains("new") { OLD_ROOT } else { "" }).await;
            for (what, answer) in ask_all(&client, &id, path).await {
                assert!(!answer.text().contains(CANARY), "{what}: {answer:?}");
                assert!(!answer.status.is_server_error(), "{what}: {answer:?}");
            }
            host.assert_untouched(path);
            assert_eq!(client.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status, 204);
        }
        // Archives and forks keep links as links.
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        plant_links(&client, &id, &host, "").await;
        let packed = client.get(&format!("/v1/sandboxes/{id}/files/archive?path=.")).await;
        assert_eq!(packed.status, 200, "{packed:?}");
        assert!(!packed.text().contains(CANARY), "the archive has what a link leads to");
        let fork = client.post(&format!("/v1/sandboxes/{id}/fork"), &json!({ "count": 1 })).await.json();
        let fork = fork["sandboxes"][0]["sandbox"]["id"].as_str().expect("it was made").to_owned();
        assert_eq!(
            client.sh(&fork, "readlink leaf; test -e leaf || echo nothing").await,
            format!("{}\nnothing\n", host.canary().display())
        );
        // Control: a link within the sandbox is followed.
        client.sh(&id, "echo near > near; ln -s near link").await;
        assert_eq!(client.get(&content(&id, "link")).await.text(), "near\n");
        host.assert_untouched("all of it");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn f02_f03_f04_without_pivot_root_paths_escape() {
    if crate::skipped("F02, F03, F04") {
        return;
    }
    run(async {
        let host = Host::new();
        let (home, server, client) = start(Some("pivot")).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let path = format!("{OLD_ROOT}{}", host.canary().display());
        let read = client.get(&content(&id, &path)).await;
        assert_eq!(read.text(), CANARY, "F02: {read:?}");
        plant_links(&client, &id, &host, OLD_ROOT).await;
        for link in ["leaf", "through/canary"] {
            let read = client.get(&content(&id, link)).await;
            assert_eq!(read.text(), CANARY, "F03, F04: {link} {read:?}");
        }
        let written = client.send(client.request("PUT", &content(&id, "through/new")), "planted").await;
        assert_eq!(written.status, 200, "{written:?}");
        assert!(host.dir.path().join("new").exists(), "nothing was planted");
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn f08_special_files_do_not_block() {
    if crate::skipped("F08") {
        return;
    }
    run(async {
        let (home, server, client) = start(None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        client
            .sh(&id, "mkfifo fifo; mkdir dir; ln -s fifo tofifo; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"")
            .await;
        // More concurrent requests than the guest can have threads, so that hanging ones would be noticed.
        let mut asked = Vec::new();
        for round in 0..10 {
            for path in
                ["fifo", "tofifo", "sock", "dir", "/dev/zero", "/dev/null", "/dev/tty", "/proc/self/mem", "."]
            {
                let client = client.apart();
                let target = content(&id, path);
                asked.push(async move {
                    let begin = Instant::now();
                    let mut request = client.request("GET", &target);
                    if round % 2 == 1 {
                        request = request.header("range", "bytes=0-9");
                    }
                    (path, client.send(request, "").await, begin.elapsed())
                });
            }
        }
        for (path, answer, took) in futures::future::join_all(asked).await {
            let status = answer.status.as_u16();
            assert!(matches!(status, 403 | 404 | 409), "{path}: {answer:?}");
            assert!(answer.code() == "not_regular" || status != 409, "{path}: {answer:?}");
            assert!(took < QUICK_TIMEOUT, "{path}: {took:?}");
        }
        for path in ["fifo", "sock", "dir", "/dev/zero"] {
            for more in ["", "&append=true"] {
                let answer =
                    client.send(client.request("PUT", &format!("{}{more}", content(&id, path))), "x").await;
                assert!(matches!(answer.status.as_u16(), 400 | 403 | 409), "{path}{more}: {answer:?}");
            }
        }
        let begin = Instant::now();
        let packed = client.get(&format!("/v1/sandboxes/{id}/files/archive?path=.")).await;
        assert_eq!(packed.status, 200, "{packed:?}");
        let searched =
            client.post(&format!("/v1/sandboxes/{id}/files/search"), &json!({ "content": "x" })).await;
        assert_eq!(searched.status, 200, "{searched:?}");
        assert!(begin.elapsed() < QUICK_TIMEOUT, "{:?}", begin.elapsed());
        assert_eq!(client.sh(&id, "echo lives").await, "lives\n");
        crate::crash::shut_down(server, &home).await;
    });
}

/// File names that are not UTF-8, with their base64 as a query value.
const NON_UTF8: &[(&str, &[u8])] = &[("%2FyAtLfw%3D", b"\xff \x2d\x2d\xfc"), ("gIEK", b"\x80\x81\n")];

#[test]
fn f10_file_names_of_any_bytes_round_trip() {
    if crate::skipped("F10") {
        return;
    }
    run(async {
        let (home, server, client) = start(None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let long = "n".repeat(255);
        let names = [
            "new\nline",
            "\u{1}\u{7f}\u{1b}[31m",
            "\u{202e}txt.exe",
            "-rf",
            "--",
            long.as_str(),
            "ends ",
            "ends.",
            " begins",
            "\"quo'te\"",
            "a;b",
            "a%20b",
            "%",
            "\\",
            "semi; filename=\"x\"",
            "\r\nX-Injected: 1",
            "ä\u{308}",
            "*",
            "~",
            "$HOME",
            "`id`",
            "\u{feff}",
        ];
        for name in names {
            let path = content(&id, &escaped(name.as_bytes()));
            let put = client.send(client.request("PUT", &path), name.to_owned()).await;
            assert_eq!((put.status.as_u16(), &put.json()["path"]), (200, &json!(name)), "{put:?}");
            assert_content(&client.get(&path).await, name.as_bytes());
        }
        for (base64, name) in NON_UTF8 {
            let path = format!("/v1/sandboxes/{id}/files/content?path_base64={base64}");
            let put = client.send(client.request("PUT", &path), name.to_vec()).await;
            assert_eq!(put.status, 200, "{put:?}");
            assert_content(&client.get(&path).await, name);
        }
        let listed = client.get(&format!("/v1/sandboxes/{id}/files")).await.json();
        let entries = listed["entries"].as_array().expect("a list");
        assert_eq!(entries.len(), names.len() + NON_UTF8.len(), "{listed}");
        for name in names {
            assert!(entries.iter().any(|entry| entry["path"] == *name), "{name:?}");
        }
        // Round trip as an archive, and as a fork.
        let packed = client.get(&format!("/v1/sandboxes/{id}/files/archive?path=.")).await;
        let to = client.sandbox(&json!({ "timeout": 3600 })).await;
        let put = client.request("PUT", &format!("/v1/sandboxes/{to}/files/archive?path=."));
        assert_eq!(client.send(put, packed.body.clone()).await.status, 200);
        let fork = client.post(&format!("/v1/sandboxes/{id}/fork"), &json!({ "count": 1 })).await.json();
        let fork = fork["sandboxes"][0]["sandbox"]["id"].as_str().expect("it was made").to_owned();
        let look = "find . -type f -exec cksum {} + | LC_ALL=C sort | cksum";
        let there = client.sh(&id, look).await;
        for copy in [&to, &fork] {
            assert_eq!(client.sh(copy, look).await, there);
        }
        crate::crash::shut_down(server, &home).await;
    });
}

/// Checks that a file has its content, and that its name cannot inject a header.
#[track_caller]
fn assert_content(answer: &Answer, bytes: &[u8]) {
    assert_eq!((answer.status.as_u16(), answer.body.as_ref()), (200, bytes), "{answer:?}");
    let disposition = answer.headers.get("content-disposition").expect("it has one").as_bytes();
    assert!(disposition.iter().all(|byte| (0x20..0x7f).contains(byte)), "{answer:?}");
    assert!(!answer.headers.contains_key("x-injected"), "{answer:?}");
}

const DEEP: &str =
    "import os\nfor n in range(5000):\n os.mkdir('d'); os.chdir('d')\nopen('end','w').write('deep')";

#[test]
fn f11_deep_trees_are_listed_packed_copied_and_removed() {
    if crate::skipped("F11") {
        return;
    }
    run(async {
        let (home, server, client) = start(None).await;
        let id =
            client.sandbox(&json!({ "timeout": 3600, "limits": { "disk": "256m", "memory": "512m" } })).await;
        client.send(client.request("PUT", &content(&id, "deep.py")), DEEP).await;
        client.sh(&id, "mkdir t && cd t && python3 ../deep.py").await;
        let files = format!("/v1/sandboxes/{id}/files");
        let timed = async |what: &str, method: &str, target: &str| {
            let begin = Instant::now();
            let answer = client.call(method, target).await;
            assert!(begin.elapsed() < QUICK_TIMEOUT, "{what}: {:?}", begin.elapsed());
            assert!(!answer.status.is_server_error(), "{what}: {answer:?}");
            answer
        };
        let listed = timed("list", "GET", &format!("{files}?path=t&depth=64")).await;
        assert_eq!(listed.json()["entries"].as_array().map(Vec::len), Some(64), "{listed:?}");
        // Longer than any path that the kernel accepts.
        let path = format!("t{}/end", "/d".repeat(5000));
        timed("a path that is too long", "GET", &content(&id, &path)).await.assert(400, "invalid_field");
        let packed = timed("pack", "GET", &format!("{files}/archive?path=t")).await;
        assert_eq!(packed.status, 200);
        let to =
            client.sandbox(&json!({ "timeout": 3600, "limits": { "disk": "256m", "memory": "512m" } })).await;
        let begin = Instant::now();
        let put = client.request("PUT", &format!("/v1/sandboxes/{to}/files/archive?path=t"));
        let unpacked = client.send(put, packed.body.clone()).await;
        assert_eq!(unpacked.status, 200, "{unpacked:?}");
        assert!(begin.elapsed() < QUICK_TIMEOUT, "unpack: {:?}", begin.elapsed());
        assert_eq!(client.sh(&to, "find t -type d | wc -l; find t -name end | wc -l").await, "5001\n1\n");
        let snapshot = client.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({ "name": "deep" })).await;
        assert_eq!(snapshot.status, 201, "{snapshot:?}");
        let begin = Instant::now();
        let found = client.post(&format!("{files}/search"), &json!({ "path": "t", "content": "deep" })).await;
        assert!(
            found.status == 200 && begin.elapsed() < QUICK_TIMEOUT,
            "search: {:?} {found:?}",
            begin.elapsed()
        );
        assert_eq!(timed("remove", "DELETE", &format!("{files}?path=t&recursive=true")).await.status, 204);
        assert_eq!(client.sh(&id, "ls").await, "deep.py\n");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Number of files in the wide directory.
const WIDE: usize = 30_000;

#[test]
fn f12_wide_directories_are_paginated() {
    if crate::skipped("F12") {
        return;
    }
    run(async {
        let (home, server, client) = start(None).await;
        let limits = json!({ "disk": "512m", "memory": "1g" });
        let id = client.sandbox(&json!({ "timeout": 3600, "limits": limits })).await;
        client
            .sh(&id, &format!("mkdir w; cd w; python3 -c \"for n in range({WIDE}): open('f%06d' % n, 'w')\""))
            .await;
        let before = memory_kib(server.pid());
        let (mut names, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = client.get(&format!("/v1/sandboxes/{id}/files?path=w&limit=1000{cursor}")).await;
            assert_eq!(page.status, 200, "{page:?}");
            let page = page.json();
            let entries = page["entries"].as_array().expect("a list");
            assert!(entries.len() <= 1000, "a page of {}", entries.len());
            names.extend(entries.iter().filter_map(|entry| entry["path"].as_str().map(str::to_owned)));
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let expected: Vec<String> = (0..WIDE).map(|number| format!("f{number:06}")).collect();
        assert!(names == expected, "{} names, from {:?} to {:?}", names.len(), names.first(), names.last());
        for limit in ["0", "10001", "-1", "1e9"] {
            client
                .get(&format!("/v1/sandboxes/{id}/files?path=w&limit={limit}"))
                .await
                .assert(400, "invalid_field");
        }
        let grown = memory_kib(server.pid()).saturating_sub(before);
        assert!(grown < 64 * 1024, "the server's memory grew by {grown} KiB");
        let removed = client.call("DELETE", &format!("/v1/sandboxes/{id}/files?path=w&recursive=true")).await;
        assert_eq!(removed.status, 204, "{removed:?}");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Keeps changing a file of `A`: truncated, replaced by one of `B`, by a link to secret content, by a directory.
const RESTLESS: &str = r"
import os, time
size = 3 << 20
while True:
    open('f', 'wb').write(b'A' * size)
    os.truncate('f', 10)
    os.truncate('f', size)
    open('g', 'wb').write(b'B' * size)
    os.rename('g', 'f')
    os.symlink('/proc/self/environ', 'l'); os.rename('l', 'f')
    os.remove('f')
    os.mkdir('f'); os.rmdir('f')
";

#[test]
fn f20_changing_file_never_yields_other_bytes() {
    if crate::skipped("F20") {
        return;
    }
    run(async {
        let (home, server, client) = start(None).await;
        let body = json!({ "timeout": 3600, "limits": { "disk": "64m" }, "env": { "OTHER": "other-bytes" } });
        let id = client.sandbox(&body).await;
        client.send(client.request("PUT", &content(&id, "restless.py")), RESTLESS).await;
        let started = client
            .post(&format!("/v1/sandboxes/{id}/processes"), &json!({ "argv": ["python3", "restless.py"] }))
            .await;
        assert_eq!(started.status, 201, "{started:?}");
        let (mut whole, mut cut, mut refused) = (0, 0, 0);
        for round in 0..120 {
            let client = client.apart();
            let mut request = client.request("GET", &content(&id, "f"));
            if round % 3 == 0 {
                request = request.header("range", "bytes=1048576-2097151");
            }
            match client.try_send(request, Bytes::new()).await {
                Ok(answer) if answer.status.is_success() => {
                    let only = |allowed: &[u8]| answer.body.iter().all(|byte| allowed.contains(byte));
                    let is_environment = answer.body.windows(6).any(|window| window == b"OTHER=");
                    assert!(
                        only(b"A\0") || only(b"B") || is_environment,
                        "bytes of another file: {:?}",
                        answer.body.slice(..answer.body.len().min(99))
                    );
                    let announced: Option<usize> = answer.header("content-length").parse().ok();
                    assert!(
                        announced.is_none_or(|length| length == answer.body.len()),
                        "{:?}",
                        answer.headers
                    );
                    whole += 1;
                }
                Ok(answer) => {
                    assert!(matches!(answer.status.as_u16(), 403 | 404 | 409 | 416), "{answer:?}");
                    refused += 1;
                }
                // The file became shorter than announced: the connection ends, and nothing is padded.
                Err(_) => cut += 1,
            }
        }
        crate::say(&format!("F20: {whole} whole, {cut} cut off, {refused} refused"));
        assert!(whole > 0, "no download was complete");
        // Concurrent uploads are complete or refused; the final content is one of them.
        let up = content(&id, "up");
        let bodies: Vec<Bytes> = (0..8u8).map(|number| vec![b'a' + number; 1 << 20].into()).collect();
        let uploads = bodies.iter().map(|body| {
            let client = client.apart();
            let request = client.request("PUT", &up);
            let body = body.clone();
            async move { client.send(request, body).await }
        });
        for answer in futures::future::join_all(uploads).await {
            assert!(matches!(answer.status.as_u16(), 200 | 409), "{answer:?}");
        }
        let found = client.get(&up).await;
        assert!(bodies.contains(&found.body), "{} bytes of several uploads", found.body.len());
        assert_eq!(client.sh(&id, "ls -a | grep -c '^\\.belljar' || true").await, "0\n");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Builds an entry of an archive (ustar): type, name, mode, link target, content.
pub(crate) fn entry(kind: u8, name: &str, mode: u32, link: &str, content: &[u8]) -> Vec<u8> {
    let mut head = vec![0u8; 512];
    let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(157, link);
    put(257, "ustar\u{0}00");
    head[156] = kind;
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    head.extend_from_slice(content);
    head.resize(head.len().next_multiple_of(512), 0);
    head
}

pub(crate) fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = entries.concat();
    whole.resize(whole.len() + 1024, 0);
    whole
}

#[test]
fn c11_archives_stay_in_their_directory() {
    if crate::skipped("C11") {
        return;
    }
    run(async {
        let host = Host::new();
        let (home, server, client) = start(None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let (dir, canary) = (host.dir.path().display().to_string(), host.canary().display().to_string());
        let file = |name: &str| entry(b'0', name, 0o644, "", b"planted");
        let link = |name: &str, to: &str| entry(b'2', name, 0o777, to, b"");
        let attacks: Vec<(&str, Vec<Vec<u8>>)> = vec![
            ("climbing", vec![file("../../planted")]),
            ("climbing in the middle", vec![file("a/../../planted")]),
            ("absolute", vec![file("/tmp/planted")]),
            ("a link to a directory outside, and through it", vec![link("d", &dir), file("d/planted")]),
            ("a link up, and through it", vec![link("d", "../.."), file("d/planted")]),
            ("a link to a file, and onto it", vec![link("f", &canary), file("f")]),
            ("a hard link to a file outside", vec![entry(b'1', "h", 0o644, &canary, b""), file("h")]),
            ("a hard link that climbs", vec![entry(b'1', "h", 0o644, "../../etc/passwd", b"")]),
            (
                "a hard link onto a link",
                vec![link("l", &canary), entry(b'1', "h", 0o644, "l", b""), file("h")],
            ),
            ("a device", vec![entry(b'4', "disk", 0o666, "", b"")]),
            ("a character device", vec![entry(b'3', "null", 0o666, "", b"")]),
            (
                "a name that is a link first and a directory then",
                vec![link("x", &dir), entry(b'5', "x", 0o755, "", b""), file("x/planted")],
            ),
            ("/dev as a link", vec![link("dev", "/dev"), file("dev/shm/planted")]),
            (
                "a size beyond the end",
                vec![{
                    let mut long = entry(b'0', "long", 0o644, "", b"");
                    long[124..135].copy_from_slice(b"77777777777");
                    long
                }],
            ),
            (
                "a name in a header that says another",
                vec![entry(b'x', "pax", 0o644, "", b"30 path=../../../tmp/planted\n0\n"), file("innocent")],
            ),
        ];
        for (what, entries) in &attacks {
            let put = client.request("PUT", &format!("/v1/sandboxes/{id}/files/archive?path=in"));
            let answer = client.send(put, archive(entries)).await;
            assert!(!answer.status.is_server_error(), "{what}: {answer:?}");
            host.assert_untouched(what);
            let outside = client.sh(&id, "find / -xdev -name planted -not -path '*/in/*' 2>/dev/null; ls -A | grep -vx in || true; find in -type b -o -type c 2>/dev/null || true").await;
            assert_eq!(outside, "", "{what}");
            client.sh(&id, "rm -rf in").await;
        }
        // Set-user-id and set-group-id bits are dropped.
        let put = client.request("PUT", &format!("/v1/sandboxes/{id}/files/archive?path=in"));
        let answer = client.send(put, archive(&[entry(b'0', "su", 0o6755, "", b"#!/bin/sh\n")])).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(client.sh(&id, "stat -c %a in/su").await, "755\n");
        host.assert_untouched("all of it");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c11_without_pivot_root_an_archive_reaches_the_host() {
    if crate::skipped("C11") {
        return;
    }
    run(async {
        let host = Host::new();
        let (home, server, client) = start(Some("pivot")).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let at = format!("{OLD_ROOT}{}", host.dir.path().display());
        let put = client.request("PUT", &format!("/v1/sandboxes/{id}/files/archive?path={at}"));
        let answer = client.send(put, archive(&[entry(b'0', "planted", 0o644, "", b"planted")])).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(host.dir.path().join("planted").exists(), "nothing was planted");
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn r22_archive_bombs_are_refused_and_leave_nothing() {
    if crate::skipped("R22") {
        return;
    }
    run(async {
        let (home, server, client) = start(None).await;
        let maker = client.sandbox(&json!({ "timeout": 3600, "limits": { "disk": "64m" } })).await;
        client.sh(&maker, "mkdir s; truncate -s 200M s/zeros; tar czf bomb.tar.gz -C s zeros").await;
        let bomb = client.get(&content(&maker, "bomb.tar.gz")).await.body;
        assert!(bomb.len() < 1 << 20, "it has {} bytes itself", bomb.len());
        let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "disk": "32m" } })).await;
        let before = memory_kib(server.pid());
        for _ in 0..3 {
            let put = client.request("PUT", &format!("/v1/sandboxes/{id}/files/archive?path=in"));
            let answer = client.send(put, bomb.clone()).await;
            assert!(matches!(answer.status.as_u16(), 400 | 409 | 413), "{answer:?}");
            assert_eq!(client.sh(&id, "ls -A; find . -name zeros").await, "", "a part of it stays");
        }
        let many: Vec<Vec<u8>> =
            (0..60_000).map(|number| entry(b'0', &format!("f{number}"), 0o644, "", b"")).collect();
        let put = client.request("PUT", &format!("/v1/sandboxes/{id}/files/archive?path=in"));
        let answer = client.send(put, archive(&many)).await;
        assert!(matches!(answer.status.as_u16(), 200 | 400 | 409 | 413), "{answer:?}");
        let left: Value =
            client.sh(&id, "find . -name 'f*' | wc -l").await.trim().parse().unwrap_or_default();
        assert_eq!(left, if answer.status == 200 { 60_000 } else { 0 }, "{answer:?}");
        let grown = memory_kib(server.pid()).saturating_sub(before);
        assert!(grown < 96 * 1024, "the server's memory grew by {grown} KiB");
        crate::crash::shut_down(server, &home).await;
    });
}

/// A file system that was mounted on the host when a sandbox began, and is unmounted later, is free then: neither the sandbox
/// nor the processes that hold it keep a copy of the host's mounts.
#[test]
fn unmounted_file_system_is_kept_by_no_process() {
    if crate::skipped("mounts") {
        return;
    }
    run(async {
        let (home, server, client) = start(None).await;
        let dir = home.tmp().join("mounted");
        std::fs::create_dir(&dir).expect("a directory can be made");
        let command = |program: &str, arguments: &[&str]| {
            let done = std::process::Command::new(program).args(arguments).arg(&dir).status();
            done.is_ok_and(|status| status.success())
        };
        if !command("mount", &["-t", "tmpfs", "kept"]) {
            return crate::say("SKIPPED mounts: this machine does not let root mount a file system");
        }
        let id = client.sandbox(&json!({ "timeout": 600 })).await;
        assert_eq!(client.sh(&id, "echo here").await, "here\n");
        let (_, launcher) = home.launcher().expect("it holds the sandbox");
        let own: Vec<u32> = crate::server::descendants(launcher).chain([launcher, server.pid()]).collect();
        assert!(own.len() >= 4, "{own:?}");
        let keepers = || -> Vec<u32> {
            let keeps = |pid: &u32| {
                let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
                mounts.contains("/mounted ")
            };
            own.iter().copied().filter(keeps).collect()
        };
        assert!(keepers().contains(&launcher), "the test shows nothing");
        assert!(command("umount", &[]), "it is in use");
        assert_eq!(keepers(), Vec::<u32>::new());
    });
}
