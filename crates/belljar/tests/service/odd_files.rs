//! Attacks with special files, odd names, deep and wide trees, and files that change, through the file API (F08, F10 to F12, F20).

use std::time::Instant;

use bytes::Bytes;
use serde_json::json;

use crate::client::{Answer, escaped};
use crate::files::{QUICK_TIMEOUT, content, start};
use crate::raw::memory_kib;
use crate::run;

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
