//! Cases of the mirror file.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use belljar_store::{
    AuditLog, AuditOptions, Expected, MirrorOptions, MirrorState, Store, Verification, verify_export,
};

use crate::audit::{export, fill, open, record};
use crate::fixture::Fixture;
use crate::wait::until;

fn path(fixture: &Fixture) -> PathBuf {
    fixture.dir.path().join("audit.jsonl")
}

async fn open_with(store: &Store, mirror: MirrorOptions) -> AuditLog {
    AuditLog::open(store, AuditOptions { mirror: Some(mirror), ..AuditOptions::default() }).await.unwrap()
}

async fn open_at(store: &Store, path: &Path) -> AuditLog {
    open_with(store, MirrorOptions::new(path)).await
}

fn verified(text: &str, expected: Expected) -> u64 {
    match verify_export(text.as_bytes(), expected).unwrap() {
        Verification::Verified(verified) => verified.records,
        Verification::Broken(broken) => panic!("{broken}"),
    }
}

fn names(fixture: &Fixture) -> Vec<String> {
    let entries = fs::read_dir(fixture.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> =
        entries.map(|name| name.into_string().unwrap()).filter(|name| name != "home").collect();
    names.sort();
    names
}

pub(crate) async fn file_equals_export(fixture: Fixture) {
    let log = open_at(&fixture.store().await, &path(&fixture)).await;
    fill(&log, 300).await;
    assert_eq!(log.flush().await.unwrap(), MirrorState::Current { seq: 300 });
    assert_eq!(fs::read_to_string(path(&fixture)).unwrap(), export(&log).await);
    assert_eq!(fs::metadata(path(&fixture)).unwrap().permissions().mode() & 0o777, 0o600);
}

pub(crate) async fn stale_file_catches_up(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open_at(&store, &path(&fixture)).await;
    fill(&log, 5).await;
    log.close().await;
    // As after a crash: records that only the database has, and a partial line.
    let log = open(&store).await;
    fill(&log, 1300).await;
    log.close().await;
    let mut file = fs::OpenOptions::new().append(true).open(path(&fixture)).unwrap();
    file.write_all(b"{\"action\":\"ex").unwrap();
    let log = open_at(&store, &path(&fixture)).await;
    assert_eq!(log.mirror(), MirrorState::Current { seq: 1305 });
    assert_eq!(fs::read_to_string(path(&fixture)).unwrap(), export(&log).await);
    // A file without any newline.
    log.close().await;
    fs::write(path(&fixture), b"{\"action\":").unwrap();
    let log = open_at(&store, &path(&fixture)).await;
    assert_eq!(fs::read_to_string(path(&fixture)).unwrap(), export(&log).await);
}

pub(crate) async fn files_rotate_at_max_size(fixture: Fixture) {
    let store = fixture.store().await;
    let options = MirrorOptions { max_bytes: 4096, keep: 3, ..MirrorOptions::new(path(&fixture)) };
    let log = open_with(&store, options.clone()).await;
    for number in 1..=100 {
        log.append(record(number)).await.unwrap();
        // Otherwise many would be written at once, after which the file is rotated.
        log.flush().await.unwrap();
    }
    let files = names(&fixture);
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files[..3].iter().all(|name| name.starts_with("audit-000")), "{files:?}");
    let read = |name: &String| fs::read_to_string(fixture.dir.path().join(name)).unwrap();
    let text: String = files.iter().map(read).collect();
    let expected = Expected { first: None, head: Some(log.head().await.unwrap()) };
    let count = verified(&text, expected);
    assert!((20..100).contains(&count), "{count}");
    // As after a crash between the rename and the first line of the new file.
    log.close().await;
    fs::rename(path(&fixture), fixture.dir.path().join(format!("audit-{:020}.jsonl", 99))).unwrap();
    let log = open_with(&store, options).await;
    log.append(record(101)).await.unwrap();
    log.flush().await.unwrap();
    assert_eq!(read(&"audit.jsonl".to_owned()).lines().count(), 1);
}

pub(crate) async fn moved_file_is_recreated(fixture: Fixture) {
    let log = open_at(&fixture.store().await, &path(&fixture)).await;
    fill(&log, 5).await;
    log.flush().await.unwrap();
    fs::rename(path(&fixture), fixture.dir.path().join("elsewhere")).unwrap();
    log.append(record(6)).await.unwrap();
    assert_eq!(log.flush().await.unwrap(), MirrorState::Current { seq: 6 });
    let text = fs::read_to_string(path(&fixture)).unwrap();
    assert_eq!(verified(&text, Expected { first: Some(6), head: Some(log.head().await.unwrap()) }), 1);
    fs::remove_file(path(&fixture)).unwrap();
    log.append(record(7)).await.unwrap();
    assert_eq!(log.flush().await.unwrap(), MirrorState::Current { seq: 7 });
    assert_eq!(fs::read_to_string(path(&fixture)).unwrap().lines().count(), 1);
}

pub(crate) async fn file_of_another_database_is_put_aside(fixture: Fixture) {
    let other = Store::in_memory().await.unwrap();
    let log = open_at(&other, &path(&fixture)).await;
    fill(&log, 9).await;
    log.flush().await.unwrap();
    log.close().await;
    let foreign = fs::read_to_string(path(&fixture)).unwrap();

    // A store with fewer records, as after a restore: the file continues after them.
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 4).await;
    log.close().await;
    let log = open_at(&store, &path(&fixture)).await;
    log.append(record(5)).await.unwrap();
    assert_eq!(log.flush().await.unwrap(), MirrorState::Current { seq: 5 });
    assert_eq!(fs::read_to_string(fixture.dir.path().join("audit-put-aside-0.jsonl")).unwrap(), foreign);
    let text = fs::read_to_string(path(&fixture)).unwrap();
    assert_eq!(verified(&text, Expected { first: Some(5), head: Some(log.head().await.unwrap()) }), 1);
    log.close().await;
    // A file without any record is put aside too, and the new file starts at record 1.
    fs::write(path(&fixture), "what is this?\n").unwrap();
    let log = open_at(&store, &path(&fixture)).await;
    assert_eq!(fs::read_to_string(path(&fixture)).unwrap(), export(&log).await);
    assert_eq!(
        fs::read_to_string(fixture.dir.path().join("audit-put-aside-1.jsonl")).unwrap(),
        "what is this?\n"
    );
}

pub(crate) async fn only_one_process_writes_the_file(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let first = open_at(&stores[0], &path(&fixture)).await;
    let second = open_at(&stores[1], &path(&fixture)).await;
    assert_eq!(second.mirror(), MirrorState::Elsewhere);
    for number in 0..20 {
        first.append(record(number)).await.unwrap();
        second.append(record(number)).await.unwrap();
    }
    first.append(record(41)).await.unwrap();
    assert_eq!(first.flush().await.unwrap(), MirrorState::Current { seq: 41 });
    assert_eq!(fs::read_to_string(path(&fixture)).unwrap(), export(&first).await);
    // When the first one closes, the other takes over.
    first.close().await;
    second.append(record(42)).await.unwrap();
    until("the other takes over", || second.mirror() == MirrorState::Current { seq: 42 }).await;
    assert_eq!(fs::read_to_string(path(&fixture)).unwrap(), export(&second).await);
}

pub(crate) async fn each_keeper_writes_a_complete_file(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let paths = ["a.jsonl", "b.jsonl"].map(|name| fixture.dir.path().join(name));
    let logs = [open_at(&stores[0], &paths[0]).await, open_at(&stores[1], &paths[1]).await];
    futures::future::join(fill(&logs[0], 200), fill(&logs[1], 200)).await;
    let expected = Expected { first: Some(1), head: Some(logs[0].head().await.unwrap()) };
    for (log, path) in logs.iter().zip(&paths) {
        assert_eq!(log.flush().await.unwrap(), MirrorState::Current { seq: 400 });
        assert_eq!(verified(&fs::read_to_string(path).unwrap(), expected), 400);
    }
}

pub(crate) async fn unwritable_file_is_reported(fixture: Fixture) {
    let store = fixture.store().await;
    let missing = fixture.dir.path().join("missing/audit.jsonl");
    let options = AuditOptions { mirror: Some(MirrorOptions::new(&missing)), ..AuditOptions::default() };
    let error = AuditLog::open(&store, options).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open {}", missing.display()));
    // Later the database continues, and the file follows when it can.
    let dir = fixture.dir.path().join("there");
    fs::create_dir(&dir).unwrap();
    let log = open_at(&store, &dir.join("audit.jsonl")).await;
    fs::rename(&dir, fixture.dir.path().join("gone")).unwrap();
    assert_eq!(log.append(record(1)).await.unwrap(), 1);
    let state = log.flush().await.unwrap();
    assert!(
        matches!(&state, MirrorState::Behind { next: 1, reason } if reason.contains("No such file")),
        "{state:?}"
    );
    fs::rename(fixture.dir.path().join("gone"), &dir).unwrap();
    until("the file is complete again", || log.mirror() == MirrorState::Current { seq: 1 }).await;
    assert_eq!(fs::read_to_string(dir.join("audit.jsonl")).unwrap(), export(&log).await);
}
