//! Attacks with archives through the file API (C11, R22).

use serde_json::{Value, json};

#[cfg(feature = "mutation")]
use crate::files::OLD_ROOT;
use crate::files::{Host, content, start};
use crate::raw::memory_kib;
use crate::run;

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
