//! Cases of the journal, from which records of SQLite are acknowledged.

use std::fs;
use std::path::PathBuf;

use belljar_store::{AuditError, AuditLog, AuditOptions, Store, StoreError};
use sqlx::{AnyConnection, Connection as _, Executor as _};

use crate::archive::{archive, options};
use crate::audit::{fill, open, record, verify};
use crate::fixture::Fixture;

fn journal(fixture: &Fixture) -> PathBuf {
    fixture.file().with_extension("db.audit")
}

/// Returns a copy of the database and its journal as a crash would leave them now.
async fn crashed(fixture: &Fixture) -> Fixture {
    let copy = fixture.copy().await;
    for name in ["db-wal", "db.audit"] {
        fs::copy(fixture.file().with_extension(name), copy.file().with_extension(name)).unwrap();
    }
    copy
}

/// Keeps the store from being written to until the connection is closed.
async fn blocked(fixture: &Fixture) -> AnyConnection {
    let address = fixture.address().await.replacen("sqlite:/", "sqlite:///", 1);
    let mut connection = AnyConnection::connect(&address).await.unwrap();
    connection.execute("BEGIN IMMEDIATE").await.unwrap();
    connection
}

pub(crate) async fn acknowledged_records_are_recovered(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 3).await;
    assert_eq!(verify(&log).await, "verified 3");
    let connection = blocked(&fixture).await;
    for number in 4..=8 {
        assert_eq!(log.append(record(number)).await.unwrap(), number);
    }
    let copy = crashed(&fixture).await;
    let without_journal = crashed(&fixture).await;
    connection.close().await.unwrap();
    // Reads wait for what was acknowledged.
    assert_eq!(verify(&log).await, "verified 8");

    fs::remove_file(journal(&without_journal)).unwrap();
    assert_eq!(verify(&open(&without_journal.store().await).await).await, "verified 3");

    let recovered = open(&copy.store().await).await;
    assert_eq!(verify(&recovered).await, "verified 8");
    assert_eq!(recovered.head().await.unwrap(), log.head().await.unwrap());
    assert_eq!(recovered.append(record(9)).await.unwrap(), 9);
    assert_eq!(verify(&recovered).await, "verified 9");
}

pub(crate) async fn long_log_passes_through_the_journal(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    // Four times as many as it holds.
    fill(&log, 8000).await;
    assert_eq!(verify(&log).await, "verified 8000");
    assert_eq!(fs::metadata(journal(&fixture)).unwrap().len(), 2 << 20);
    log.close().await;
    store.close().await;
    assert_eq!(verify(&open(&fixture.store().await).await).await, "verified 8000");
}

/// Fills the log up to record `last`, of which those after `stored` are in the journal only, and returns a copy as after a crash.
async fn crashed_after(fixture: &Fixture, stored: i64, last: i64) -> Fixture {
    let store = fixture.store().await;
    let log = open(&store).await;
    let first = log.head().await.unwrap().seq + 1;
    for number in first..=stored {
        log.append(record(number)).await.unwrap();
    }
    assert_eq!(verify(&log).await, format!("verified {stored}"));
    let connection = blocked(fixture).await;
    for number in stored + 1..=last {
        log.append(record(number)).await.unwrap();
    }
    let copy = crashed(fixture).await;
    connection.close().await.unwrap();
    log.close().await;
    store.close().await;
    copy
}

/// Opens a database with a journal that does not continue it.
async fn assert_put_aside(fixture: &Fixture, stored: i64) {
    let content = fs::read(journal(fixture)).unwrap();
    let log = open(&fixture.store().await).await;
    assert_eq!(verify(&log).await, format!("verified {stored}"));
    assert_eq!(log.append(record(stored + 1)).await.unwrap(), stored + 1);
    let aside = fixture.file().with_extension("db.audit-put-aside-0");
    assert!(fs::read(aside).unwrap() == content);
}

pub(crate) async fn journal_of_a_newer_database_is_put_aside(fixture: Fixture) {
    drop(crashed_after(&fixture, 3, 3).await);
    let backup = fixture.copy().await;
    drop(crashed_after(&fixture, 6, 6).await);
    let crashed = crashed_after(&fixture, 6, 9).await;
    fs::copy(journal(&crashed), journal(&backup)).unwrap();
    assert_put_aside(&backup, 3).await;
}

pub(crate) async fn journal_of_a_different_database_is_put_aside(fixture: Fixture) {
    let crashed = crashed_after(&fixture, 3, 6).await;
    let content = fs::read(journal(&crashed)).unwrap();
    // An earlier version, which knows no journal, continues the chain.
    fs::remove_file(journal(&crashed)).unwrap();
    let store = crashed.store().await;
    let log = open(&store).await;
    for number in [14, 15] {
        log.append(record(number)).await.unwrap();
    }
    log.close().await;
    store.close().await;
    fs::write(journal(&crashed), content).unwrap();
    assert_put_aside(&crashed, 5).await;
}

pub(crate) async fn truncated_journal_is_allocated_again(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 3).await;
    log.close().await;
    store.close().await;
    fs::write(journal(&fixture), b"short").unwrap();
    let log = open(&fixture.store().await).await;
    assert_eq!(log.append(record(4)).await.unwrap(), 4);
    assert_eq!(verify(&log).await, "verified 4");
    assert_eq!(fs::metadata(journal(&fixture)).unwrap().len(), 2 << 20);
}

pub(crate) async fn second_server_is_refused(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    let second: Store = fixture.store().await;
    let error = AuditLog::open(&second, AuditOptions::default()).await.unwrap_err();
    let AuditError::Store(error) = error else { panic!("{error:?}") };
    assert!(matches!(*error, StoreError::Busy { .. }), "{error:?}");
    assert!(error.to_string().contains("which another server has open"), "{error}");
    assert_eq!(log.append(record(1)).await.unwrap(), 1);
    log.close().await;
    assert_eq!(open(&second).await.append(record(2)).await.unwrap(), 2);
}

/// The journal still has frames of records that are archived.
pub(crate) async fn journal_outlives_an_archive(fixture: Fixture) {
    let store = fixture.store().await;
    let log = open(&store).await;
    fill(&log, 8).await;
    let dir = fixture.dir.path().join("archive");
    archive(&log, options(&dir, 100), 7).await;
    let connection = blocked(&fixture).await;
    for number in 9..=12 {
        log.append(record(number)).await.unwrap();
    }
    let copy = crashed(&fixture).await;
    connection.close().await.unwrap();
    assert_eq!(verify(&open(&copy.store().await).await).await, "verified 5");
    // All of them are: an older journal beside a newer database.
    let old = fs::read(journal(&fixture)).unwrap();
    fill(&log, 8).await;
    archive(&log, options(&dir, 100), 18).await;
    log.close().await;
    store.close().await;
    fs::write(journal(&fixture), old).unwrap();
    let log = open(&fixture.store().await).await;
    assert_eq!(verify(&log).await, "verified 2");
    assert!(!fixture.file().with_extension("db.audit-put-aside-0").exists());
}
