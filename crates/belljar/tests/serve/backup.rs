//! Disaster recovery of a server with the commands of docs/operating/backup.md.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::process::Signal;

use crate::fixture::{Home, Server};
use crate::pages::{blocks, lacks, page, say};
use crate::postgres;

/// Addresses of a store, before and after it is restored.
struct Places {
    /// `--set` of the lost server, and of the next one.
    settings: [String; 2],
    /// Variables of the page's commands.
    variables: Vec<(&'static str, String)>,
}

fn serve(home: &Home, setting: &str, key: &str) -> Server {
    let mut server = home.serve(&["--set", setting]);
    if !key.is_empty() {
        key.clone_into(&mut server.key);
    }
    server
}

/// Runs a block of the page in a shell.
#[track_caller]
fn run_block(home: &Home, service: &Path, backups: &Path, places: &Places, text: &str) {
    let mut shell = home.isolated_command("/bin/sh".as_ref());
    shell.args(["-euc", text]).env("BELLJAR_HOME", service).env("BACKUPS", backups).env("KEYS", backups);
    shell.envs(places.variables.iter().map(|(name, value)| (name, value)));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Backs a running server up, stops it, and restores it in a new home.
fn back_up_and_restore(section: &str, end: &str, places: &Places) {
    let page = page("operating/backup.md");
    let keys =
        page.split("## The store's key").nth(1).and_then(|rest| rest.split("## SQLite").next()).unwrap();
    let [keep, put_back] = &blocks(keys, "sh")[..] else { panic!("one to keep the key, one to put it back") };
    let section = page.split(section).nth(1).and_then(|rest| rest.split(end).next()).unwrap();
    let [back_up, restore] = &blocks(section, "sh")[..] else { panic!("one to back up, one to restore") };
    let archives = blocks(page.split("## Snapshots").nth(1).unwrap(), "console").remove(0);
    let [pack, unpack] = &archives.lines().map(|line| line.trim_start_matches("# ")).collect::<Vec<_>>()[..]
    else {
        panic!("one to pack, one to unpack: {archives}")
    };

    let (home, backups) = (Home::new(), tempfile::tempdir().unwrap());
    let server = serve(&home, &places.settings[0], "");
    let key = server.key.clone();
    let id = server.create(r#"{"name":"lost"}"#);
    server.exec(&id, "mkdir deep && echo kept > deep/note");
    let made = server.call("POST", &format!("/v1/sandboxes/{id}/snapshot"), r#"{"name":"kept"}"#);
    assert_eq!(made.status / 100, 2, "{made:?}");
    let head = server.call("POST", "/v1/audit/verify", "{}").json()["head"].clone();
    run_block(&home, &home.path(), backups.path(), places, back_up);
    run_block(&home, &home.path(), backups.path(), places, pack);
    run_block(&home, &home.path(), backups.path(), places, keep);
    // Later changes are not in the backup.
    let late = server.call("POST", "/v1/keys", r#"{"name":"late","role":"admin"}"#).json();
    assert_eq!(server.stop(Signal::TERM), Some(0));

    let new = Home::new();
    std::fs::DirBuilder::new().mode(0o700).create(new.path()).unwrap();
    // The commands move the old database aside; a new home has none.
    let restore = restore.lines().filter(|line| !line.starts_with("mv ")).collect::<Vec<_>>().join("\n");
    run_block(&new, &new.path(), backups.path(), places, &restore);
    run_block(&new, &new.path(), backups.path(), places, unpack);
    // Without the store's key, the server does not start, and creates none.
    let refused =
        new.start(&["serve", "--listen", "127.0.0.1:0", "--set", &places.settings[1]]).err().unwrap();
    assert!(refused.stderr.contains("put the key file back"), "{refused:?}");
    run_block(&new, &new.path(), backups.path(), places, put_back);
    let server = serve(&new, &places.settings[1], &key);
    let me =
        |key: &str| crate::http::send(&server.address, "GET", "/v1/me", &[("X-API-Key", key)], "").status;
    assert_eq!((me(&key), me(late["key"].as_str().unwrap())), (200, 401));
    let known = format!("{}:{}", head["seq"], head["hash"].as_str().unwrap());
    let verify = new.belljar(&["audit", "verify", "--head", &known]).output().unwrap();
    assert!(verify.status.success(), "{verify:?}");
    let other =
        known.replace(&known[known.len() - 4..], if known.ends_with("0000") { "1111" } else { "0000" });
    let verify = new.belljar(&["audit", "verify", "--head", &other]).output().unwrap();
    assert_eq!(verify.status.code(), Some(1), "{verify:?}");
    let gone = server.call("GET", &format!("/v1/sandboxes/{id}"), "");
    assert_eq!(gone.status, 410, "{gone:?}");
    assert!(gone.body.contains("it ended while no server was running"), "{gone:?}");
    let copy = server.create(r#"{"template":"kept"}"#);
    assert_eq!(server.exec(&copy, "cat deep/note"), "kept\n");
}

#[test]
fn sqlite_store_is_restored_in_a_new_home() {
    if let Some(lack) = lacks(&["sqlite3", "tar"]) {
        return say(&lack);
    }
    let default = || "store.durability=process".to_owned();
    let places = Places { settings: [default(), default()], variables: Vec::new() };
    back_up_and_restore("## SQLite", "## PostgreSQL", &places);
}

#[test]
fn postgresql_store_is_restored_in_a_new_home() {
    if let Some(lack) = lacks(&["pg_dump", "pg_restore", "createdb", "tar"]) {
        return say(&lack);
    }
    let database = match postgres::Server::start() {
        Ok(database) => database,
        Err(why) => return say(&format!("SKIPPED: {why}")),
    };
    let (old, new) = (database.address("postgres"), database.address("restored"));
    let places = Places {
        settings: [format!("store.url={old}"), format!("store.url={new}")],
        variables: vec![
            ("URL", old),
            ("NEW_URL", new),
            ("NEW_DATABASE", "restored".to_owned()),
            ("PGHOST", database.dir().display().to_string()),
            ("PGUSER", "postgres".to_owned()),
        ],
    };
    back_up_and_restore("## PostgreSQL", "## Snapshots", &places);
}
