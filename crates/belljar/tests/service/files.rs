//! Attacks with paths and links through the file API (F02 to F04, F06), and the file systems of the host that a sandbox keeps.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::client::{Answer, Client, escaped};
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

pub(crate) async fn start(without: Option<&'static str>) -> (Home, Server, Client) {
    let mut home = Home::new(&["sandboxes.pool=0"]);
    home.without = without;
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    (home, server, client)
}

pub(crate) fn content(id: &str, path: &str) -> String {
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
