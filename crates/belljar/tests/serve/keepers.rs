//! Several servers on one PostgreSQL store, each with a home and sandboxes of its own.

use rustix::process::Signal;

use crate::fixture::{Home, Refused, Server};
use crate::postgres;

fn start(home: &Home, url: &str, keeper: &str, on_exit: &str) -> Result<Server, Refused> {
    let (url, keeper) = (format!("store.url={url}"), format!("store.keeper={keeper}"));
    let listen = ["serve", "--listen", "127.0.0.1:0", "--pool", "0", "--on-exit", on_exit];
    home.start(&[&listen[..], &["--set", &url, "--set", &keeper]].concat())
}

fn up(home: &Home, url: &str, keeper: &str, on_exit: &str, key: &str) -> Server {
    let mut server = start(home, url, keeper, on_exit).unwrap_or_else(|refused| panic!("{refused:?}"));
    if !key.is_empty() {
        assert_eq!(server.key, "", "there is a key already");
        key.clone_into(&mut server.key);
    }
    server
}

/// Copies the store's key to the home of another server.
fn share_key(from: &Home, to: &Home) {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to.path()).unwrap();
    std::fs::copy(from.path().join("store.key"), to.path().join("store.key")).unwrap();
}

/// Starts a database server, or prints why the test is skipped.
fn database(test: &str) -> Option<postgres::Server> {
    match postgres::Server::start() {
        Ok(database) => Some(database),
        Err(why) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {why}");
            None
        }
    }
}

#[test]
fn keepers_share_keys_and_audit_but_not_sandboxes() {
    let Some(database) = database("keepers") else { return };
    let url = database.address("postgres");
    let (home, other_home) = (Home::new(), Home::new());
    let one = up(&home, &url, "one", "keep", "");
    let key = one.key.clone();
    // Without the store's key, a second server does not start.
    let refused = start(&other_home, &url, "two", "end").err().unwrap();
    assert!(refused.stderr.contains("put the key file back"), "{refused:?}");
    share_key(&home, &other_home);
    let two = up(&other_home, &url, "two", "end", &key);
    let kept = one.create(r#"{"name":"of-one"}"#);
    one.exec(&kept, "echo kept > note");
    let own = two.create(r#"{"name":"of-two"}"#);
    // Names are shared by both servers; a sandbox can only be used through its own server.
    let taken = two.call("POST", "/v1/sandboxes", r#"{"name":"of-one"}"#);
    assert_eq!((taken.status, taken.json()["code"].as_str()), (409, Some("name_taken")), "{taken:?}");
    let elsewhere = two.call("GET", &format!("/v1/sandboxes/{kept}"), "");
    assert_eq!(
        (elsewhere.status, elsewhere.json()["code"].as_str()),
        (404, Some("sandbox_not_found")),
        "{elsewhere:?}"
    );
    assert!(elsewhere.body.contains("it is one of the server \\\"one\\\""), "{elsewhere:?}");
    let listed = two.call("GET", "/v1/sandboxes", "").json();
    assert_eq!(listed["sandboxes"].as_array().map(Vec::len), Some(2), "{listed}");
    // A restart of one server does not affect the other.
    assert_eq!(one.stop(Signal::TERM), Some(0));
    assert_eq!(two.exec(&own, "echo still"), "still\n");
    let one = up(&home, &url, "one", "end", &key);
    assert_eq!(one.exec(&kept, "cat note"), "kept\n");
    assert_eq!(two.exec(&own, "echo still"), "still\n");
    // A key revoked by one server is rejected by the other.
    let made = one.call("POST", "/v1/keys", r#"{"name":"n","role":"user"}"#).json();
    let secret = made["key"].as_str().unwrap_or_default().to_owned();
    let ask = |server: &Server| {
        crate::http::send(&server.address, "GET", "/v1/me", &[("X-API-Key", &secret)], "").status
    };
    assert_eq!((ask(&one), ask(&two)), (200, 200), "{made}");
    let id = made["id"].as_str().unwrap();
    assert_eq!(one.call("DELETE", &format!("/v1/keys/{id}"), "").status / 100, 2);
    assert_eq!(ask(&one), 401);
    crate::fixture::eventually(|| match ask(&two) {
        401 => Ok(()),
        status => Err(format!("{status} with a key that is revoked")),
    });
    // The audit log is a single chain, and valid when checked by either server.
    for server in [&one, &two] {
        let verified = server.call("POST", "/v1/audit/verify", "{}");
        assert_eq!((verified.status, verified.json()["ok"].as_bool()), (200, Some(true)), "{verified:?}");
    }
}

#[test]
fn servers_with_the_same_name_cannot_share_a_store() {
    let Some(database) = database("keepers") else { return };
    let url = database.address("postgres");
    let (home, other_home) = (Home::new(), Home::new());
    let one = up(&home, &url, "local", "keep", "");
    let (key, kept) = (one.key.clone(), one.create("{}"));
    share_key(&home, &other_home);
    let refused = start(&other_home, &url, "local", "end").err().unwrap();
    assert_eq!(refused.status, Some(125), "{refused:?}");
    assert!(
        refused.stderr.contains(r#"another server that shares this store is called "local""#),
        "{refused:?}"
    );
    assert_eq!(one.exec(&kept, "echo still"), "still\n");
    // A killed server frees its name at once.
    one.stop(Signal::KILL);
    let one = up(&home, &url, "local", "end", &key);
    assert_eq!(one.exec(&kept, "echo still"), "still\n");
}
