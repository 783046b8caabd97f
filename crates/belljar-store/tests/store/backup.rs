use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use belljar_store::{ListQuery, Order, Store, StoreError, StoreUrl};

use crate::audit::{fill, open, record, verify};
use crate::fixture::{Backend, Fixture};
use crate::samples::{key, sandbox};

async fn prepare(store: &Store) {
    store.keys().insert(&key(1)).await.unwrap();
    store.sandboxes().insert(&sandbox(0)).await.unwrap();
    let log = open(store).await;
    fill(&log, 10).await;
    log.close().await;
}

/// Checks that everything is there, and that the audit log continues.
async fn check_restored(store: &Store, secret: [u8; 32], records: i64) {
    assert_eq!(store.server_secret().await.unwrap(), secret);
    assert_eq!(store.keys().find_by_hash(&[1; 32]).await.unwrap(), Some(key(1)));
    let log = open(store).await;
    assert_eq!(verify(&log).await, format!("verified {records}"));
    assert_eq!(log.append(record(records)).await.unwrap(), records + 1);
}

pub(crate) async fn backup_is_consistent_during_writes(fixture: Fixture) {
    let store = fixture.store().await;
    prepare(&store).await;
    let to = fixture.dir.path().join("it's a backup.db");
    let secret = store.server_secret().await.unwrap();
    let log = open(&store).await;
    let stop = tokio::sync::Notify::new();
    let write = async {
        let mut number = 1;
        loop {
            store.sandboxes().insert(&sandbox(number)).await.unwrap();
            log.append(record(i64::from(number))).await.unwrap();
            number += 1;
            if number > 50 {
                stop.notify_one();
            }
        }
    };
    let copy = async {
        stop.notified().await;
        store.backup(&to).await.unwrap();
    };
    // Writes continue until the copy is complete.
    futures::future::select(Box::pin(write), Box::pin(copy)).await;
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);

    let copy = Store::open(&StoreUrl::sqlite(&to).unwrap(), &fixture.key()).await.unwrap();
    let query = ListQuery { order: Order::OldestFirst, limit: 1_000_000, ..ListQuery::default() };
    let rows = copy.sandboxes().list(&query).await.unwrap();
    assert!(rows.len() > 50, "{}", rows.len());
    // A later write is in the copy only if all earlier ones are.
    for (number, row) in (0..).zip(&rows) {
        assert_eq!(*row, sandbox(number));
    }
    let records = open(&copy).await.head().await.unwrap().seq;
    let rows = i64::try_from(rows.len()).unwrap();
    // With SQLite, those acknowledged during the copy may be missing.
    assert!((59..=rows + 9).contains(&records), "{records} records of {rows} sandboxes");
    check_restored(&copy, secret, records).await;
}

pub(crate) async fn backup_does_not_overwrite(fixture: Fixture) {
    let store = fixture.store().await;
    prepare(&store).await;
    let to = fixture.dir.path().join("there");
    fs::write(&to, "mine").unwrap();
    let error = store.backup(&to).await.unwrap_err();
    assert!(matches!(error, StoreError::File { action: "create", .. }), "{error:?}");
    assert_eq!(fs::read_to_string(&to).unwrap(), "mine");
    let error = store.backup(Path::new("/proc/none/there")).await.unwrap_err();
    assert!(matches!(error, StoreError::File { action: "create", .. }), "{error:?}");
}

/// Runs the commands of docs/operating/backup.md.
pub(crate) async fn documented_backup_and_restore_work(fixture: Fixture) {
    let page = include_str!("../../../../docs/operating/backup.md");
    let (section, end) = match fixture.backend {
        Backend::Sqlite => ("## SQLite", "## PostgreSQL"),
        Backend::Postgres => ("## PostgreSQL", "## Snapshots"),
    };
    let section = page.split(section).nth(1).and_then(|rest| rest.split(end).next()).unwrap();
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let (commands, needed): (Vec<_>, &[&str]) = (
        blocks.collect(),
        match fixture.backend {
            Backend::Sqlite => &["sqlite3"],
            Backend::Postgres => &["pg_dump", "pg_restore", "createdb"],
        },
    );
    assert_eq!(commands.len(), 2, "one to back up, one to restore");
    let has = |name: &&str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|dir| dir.join(name).exists())
    };
    let store = fixture.store().await;
    prepare(&store).await;
    let secret = store.server_secret().await.unwrap();
    if let Some(lacking) = needed.iter().find(|name| !has(name)) {
        println!("SKIPPED the documented backup: {lacking} is not installed");
        return;
    }
    let address = fixture.address().await;
    let restored = match fixture.backend {
        Backend::Sqlite => format!("sqlite:{}", fixture.file().display()),
        Backend::Postgres => address.replacen("/case_", "/restored_case_", 1),
    };
    let run = |text: &str| {
        let status = Command::new("/bin/sh")
            .args(["-euc", text])
            .env("BELLJAR_HOME", fixture.file().parent().unwrap())
            .env("BACKUPS", fixture.dir.path())
            .env("URL", &address)
            .env("NEW_URL", &restored)
            .env("NEW_DATABASE", restored.split(['/', '?']).nth(3).unwrap())
            .env(
                "PGHOST",
                address.split("host=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default(),
            )
            .env("PGUSER", "postgres")
            .status()
            .unwrap();
        assert!(status.success(), "{text}");
    };
    run(commands[0]);
    // Writes after the backup are not in it. The server is stopped before the restore.
    open(&store).await.append(record(99)).await.unwrap();
    store.close().await;
    run(commands[1]);
    let store = Store::open(&restored.parse().unwrap(), &fixture.key()).await.unwrap();
    check_restored(&store, secret, 10).await;
}

pub(crate) async fn postgres_backup_refers_to_pg_dump(fixture: Fixture) {
    let error = fixture.store().await.backup(&fixture.dir.path().join("copy")).await.unwrap_err();
    assert_eq!(error.to_string(), "a backup of a store in PostgreSQL is not done by Belljar; use pg_dump");
}
