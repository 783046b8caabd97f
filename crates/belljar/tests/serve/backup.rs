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

/// Runs `belljar backup` or `restore`, and returns its messages.
#[track_caller]
fn run(home: &Home, args: &[&str]) -> Result<String, String> {
    let output = home.belljar(args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    match output.status.code() {
        Some(0) => Ok(stderr),
        Some(125) => Err(stderr),
        other => panic!("{args:?}: {other:?}: {stderr}"),
    }
}

#[test]
fn one_file_restores_a_server_in_a_new_home() {
    let (home, backups) = (Home::new(), tempfile::tempdir().unwrap());
    let file = |name: &str| backups.path().join(name).to_str().unwrap().to_owned();
    let refused = run(&home, &["backup", &file("none")]).unwrap_err();
    assert!(refused.contains("is no database of a server"), "{refused}");
    let server = home.serve(&[]);
    let key = server.key.clone();
    let id = server.create(r#"{"name":"lost"}"#);
    server.exec(&id, "mkdir deep && echo kept > deep/note");
    let made = server.call("POST", &format!("/v1/sandboxes/{id}/snapshot"), r#"{"name":"kept"}"#);
    assert_eq!(made.status / 100, 2, "{made:?}");
    let head = server.call("POST", "/v1/audit/verify", "{}").json()["head"].clone();

    // While the server runs, and without its key.
    let told = run(&home, &["backup", &file("first")]).unwrap();
    assert!(told.contains("2 files, ") && told.contains("not in it: the store's key"), "{told}");
    assert!(run(&home, &["backup", &file("first")]).unwrap_err().contains("give another name"));
    let refused = home.belljar(&["backup", "-"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("is not written to standard output"),
        "{refused:?}"
    );
    let inside = home.path().join("backup");
    assert!(run(&home, &["backup", inside.to_str().unwrap()]).unwrap_err().contains("is in the home"));
    assert_eq!(run(&home, &["backup", "-q", "--with-key", &file("second")]).unwrap(), "");
    let names: Vec<_> = backups.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing else is left: {names:?}");
    assert!(run(&home, &["restore", &file("first")]).unwrap_err().contains("another server"));
    let late = server.call("POST", "/v1/keys", r#"{"name":"late","role":"admin"}"#).json();
    assert_eq!(server.stop(Signal::TERM), Some(0));

    // A home with data is not overwritten, and a new one needs the key.
    assert!(run(&home, &["restore", &file("first")]).unwrap_err().contains("give --replace"));
    let new = Home::new();
    std::fs::DirBuilder::new().mode(0o700).create(new.path()).unwrap();
    assert!(run(&new, &["restore", &file("first")]).unwrap_err().contains("put the key of that server back"));
    std::fs::write(new.path().join("store.key"), [7; 32]).unwrap();
    assert!(run(&new, &["restore", &file("first")]).unwrap_err().contains("cannot be used with"));
    assert!(run(&new, &["restore", &file("second")]).unwrap_err().contains("is not the key in the backup"));
    std::fs::remove_file(new.path().join("store.key")).unwrap();
    let left: Vec<_> = new.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["serve.lock"], "what was refused has changed nothing");
    run(&new, &["restore", &file("second")]).unwrap();
    let told = run(&home, &["restore", "--replace", &file("first")]).unwrap();
    assert!(told.contains("belljar.db.old") && told.contains("templates.old"), "{told}");

    for home in [&home, &new] {
        let server = home.serve(&[]);
        let me =
            |key: &str| crate::http::send(&server.address, "GET", "/v1/me", &[("X-API-Key", key)], "").status;
        assert_eq!((me(&key), me(late["key"].as_str().unwrap())), (200, 401));
        let known = format!("{}:{}", head["seq"], head["hash"].as_str().unwrap());
        let verify = home.belljar(&["audit", "verify", "--head", &known]).output().unwrap();
        assert!(verify.status.success(), "{verify:?}");
        let mut server = server;
        server.key.clone_from(&key);
        let copy = server.create(r#"{"template":"kept"}"#);
        assert_eq!(server.exec(&copy, "cat deep/note"), "kept\n");
    }
}

#[test]
fn broken_backups_change_nothing() {
    let (home, backups) = (Home::new(), tempfile::tempdir().unwrap());
    let path = backups.path().join("good");
    let server = home.serve(&[]);
    run(&home, &["backup", "--with-key", path.to_str().unwrap()]).unwrap();
    drop(server);
    let good = std::fs::read(&path).unwrap();
    let list = good.windows(11).rposition(|window| window == b"backup.json").unwrap();
    let change = |at: usize| {
        let mut changed = good.clone();
        changed[at] ^= 1;
        changed
    };
    let other = |name: &str, kind: tar::EntryType| {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        if kind.is_symlink() {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        tar.append(&header, std::io::empty()).unwrap();
        tar.into_inner().unwrap()
    };
    let regular = tar::EntryType::Regular;
    for (name, content, why) in [
        ("empty", Vec::new(), "its end is missing"),
        ("text", vec![b'x'; 4096], "is no backup"),
        ("cut", good[..good.len() / 2].to_vec(), "is no backup"),
        ("without its list", good[..list].to_vec(), "its end is missing"),
        ("changed", change(4096), "is not what was put into it"),
        ("outside", other("../x", regular), "which no backup has"),
        ("absolute", other("/etc/x", regular), "which no backup has"),
        ("elsewhere", other("launcher/x", regular), "which no backup has"),
        ("link", other("templates/x", tar::EntryType::Symlink), "which no backup has"),
    ] {
        let new = Home::new();
        std::fs::write(&path, content).unwrap();
        let refused = run(&new, &["restore", path.to_str().unwrap()]).unwrap_err();
        assert!(refused.contains(why), "{name}: {refused}");
        let left: Vec<_> = new.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["serve.lock"], "{name}");
    }
}

#[test]
fn store_elsewhere_is_said() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("backup.tar");
    let url = "store.url=postgres://x@localhost/x";
    let refused = run(&home, &["backup", to.to_str().unwrap(), "--set", url]).unwrap_err();
    assert!(refused.contains("use pg_dump"), "{refused}");
}
