//! Reloading the configuration of a running server.

use rustix::process::Signal;

use crate::fixture::{Home, Server, eventually};
use crate::http::send;

const FIRST: &str =
    "[server]\nlisten = ['127.0.0.1:0']\n[sandboxes]\non_exit = 'end'\npool = 0\nmax_sandboxes = 5\n";

fn server(home: &Home) -> Server {
    home.configure(FIRST);
    home.start(&["serve"]).unwrap_or_else(|refused| panic!("{refused:?}"))
}

fn pool_size(server: &Server) -> Option<String> {
    server.metric("belljar_pool_size")
}

#[test]
fn reload_keeps_sandboxes_and_connections() {
    let home = Home::new();
    let server = server(&home);
    let id = server.create("{}");
    server.exec(&id, "echo kept > note");
    let host = [("Host", "box.example"), ("X-API-Key", server.key.as_str())];
    assert_eq!(send(&server.address, "GET", "/v1/me", &host, "").status, 403);
    assert_eq!(pool_size(&server).as_deref(), Some("0"));
    // A request is in flight meanwhile.
    let (key, address, path) =
        (server.key.clone(), server.address.clone(), format!("/v1/sandboxes/{id}/exec"));
    let waiting = std::thread::spawn(move || {
        let body = r#"{"command":"while ! test -e go; do sleep 0.02; done; echo went"}"#;
        send(&address, "POST", &path, &[("X-API-Key", &key)], body)
    });
    home.configure(
        "[server]\nlisten = ['127.0.0.1:1']\nallowed_hosts = ['box.example']\n\
         [sandboxes]\npool = 2\nmax_sandboxes = 1\nmax_timeout = '10m'\n[quotas]\nsandboxes = 3\n[log]\nlevel = 'warn'\n",
    );
    server.signal(Signal::HUP);
    server.await_log("these changes need a restart");
    let log = server.log();
    assert!(log.contains("changed=\"server.listen\""), "{log}");
    assert_eq!(send(&server.address, "GET", "/v1/me", &host, "").status, 200);
    eventually(|| match pool_size(&server).as_deref() {
        Some("2") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let full = server.call("POST", "/v1/sandboxes", "{}");
    assert_eq!((full.status, full.json()["code"].as_str()), (503, Some("machine_full")), "{full:?}");
    let long = server.call("POST", &format!("/v1/sandboxes/{id}/timeout"), r#"{"timeout":"20m"}"#);
    assert_eq!((long.status, long.json()["field"].as_str()), (400, Some("timeout")), "{long:?}");
    let made = server.call("POST", "/v1/keys", r#"{"name":"n","role":"user"}"#);
    assert_eq!((made.status, made.json()["quotas"]["sandboxes"].as_u64()), (201, Some(3)), "{made:?}");
    assert_eq!(server.exec(&id, "touch go; cat note"), "kept\n");
    let went = waiting.join().unwrap();
    assert_eq!((went.status, went.json()["stdout"]["data"].as_str()), (200, Some("went\n")), "{went:?}");
    // The level is now `warn`, so requests are no longer logged.
    let lines = server.log().matches("/v1/me").count();
    server.call("GET", "/v1/me", "");
    assert_eq!(server.log().matches("/v1/me").count(), lines);
}

#[test]
fn invalid_file_changes_nothing() {
    let home = Home::new();
    let server = server(&home);
    home.configure("[sandboxes]\npool = 3\nmax_sandbox = 1\n");
    server.signal(Signal::HUP);
    server.await_log("the configuration is unchanged");
    assert!(server.log().contains("belljar.toml:3:1: "), "{}", server.log());
    assert_eq!(pool_size(&server).as_deref(), Some("0"));
    home.configure(&FIRST.replace("pool = 0", "pool = 1"));
    server.signal(Signal::HUP);
    server.await_log("changed=\"sandboxes.pool\"");
    assert_eq!(pool_size(&server).as_deref(), Some("1"));
    // The server keeps serving.
    assert_eq!(server.call("GET", "/health", "").status, 200);
}

const MANY: &str = "[server]\nlisten = ['127.0.0.1:0']\n[sandboxes]\non_exit = 'end'\npool = 0\n";

#[test]
fn default_timeout_is_the_configured_one() {
    let home = Home::new();
    home.configure(&format!("{MANY}default_timeout = '90s'\n"));
    let server = home.start(&["serve"]).unwrap_or_else(|refused| panic!("{refused:?}"));
    let life = |body: &str| {
        let made = server.call("POST", "/v1/sandboxes", body).json();
        let time = |field: &str| made[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        time("expires_at").duration_since(time("started_at")).as_millis()
    };
    let about = |found: i128, seconds: i128| assert!((found - seconds * 1000).abs() < 2000, "{found} ms");
    about(life("{}"), 90);
    about(life(r#"{"timeout":"20s"}"#), 20);
    home.configure(&format!("{MANY}default_timeout = '45s'\n"));
    server.signal(Signal::HUP);
    eventually(|| {
        let found = life("{}");
        if (found - 45_000).abs() < 2000 { Ok(()) } else { Err(format!("{found} ms")) }
    });
}
