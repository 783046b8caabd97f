use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use belljar_store::{Durability, KeyFile, Store, StoreError, StoreUrl};

use crate::fixture::Fixture;
use crate::samples::sandbox;

pub(crate) async fn newer_schema_is_refused(fixture: Fixture) {
    fixture.store().await.close().await;
    let columns = "version, description, success, checksum, execution_time";
    fixture
        .run_sql(&format!(
            "INSERT INTO _sqlx_migrations ({columns}) SELECT 999, 'later', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1"
        ))
        .await;
    match Store::open(&fixture.url().await, &fixture.key()).await.unwrap_err() {
        StoreError::SchemaTooNew { found: 999, known: 17, .. } => {}
        other => panic!("{other:?}"),
    }
    // The refusal leaves nothing locked.
    fixture.run_sql("DELETE FROM _sqlx_migrations WHERE version = 999").await;
    fixture.store().await.ping().await.unwrap();
}

pub(crate) async fn edited_migration_is_refused(fixture: Fixture) {
    fixture.store().await.close().await;
    fixture.run_sql(&format!("UPDATE _sqlx_migrations SET checksum = {}", fixture.bytes("00"))).await;
    let error = Store::open(&fixture.url().await, &fixture.key()).await.unwrap_err();
    assert!(matches!(error, StoreError::Migrate { .. }), "{error:?}");
}

pub(crate) async fn concurrent_opens_succeed(fixture: Fixture) {
    let url = fixture.url().await;
    let key = fixture.key();
    let stores = futures::future::join_all((0..4).map(|_| Store::open(&url, &key))).await;
    for (number, store) in (0..).zip(stores) {
        store.unwrap().sandboxes().insert(&sandbox(number)).await.unwrap();
    }
}

pub(crate) async fn rows_survive_close(fixture: Fixture) {
    for (number, durability) in [(1, Durability::Process), (2, Durability::Power)] {
        let store = Store::open_with(&fixture.url().await, durability, &fixture.key()).await.unwrap();
        store.sandboxes().insert(&sandbox(number)).await.unwrap();
        store.close().await;
        assert!(store.ping().await.is_err());
        let again = fixture.store().await;
        assert_eq!(again.sandboxes().get(&sandbox(number).id).await.unwrap(), Some(sandbox(number)));
    }
}

pub(crate) async fn files_are_private_to_their_owner(fixture: Fixture) {
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let store = fixture.store().await;
    store.sandboxes().insert(&sandbox(1)).await.unwrap();
    let dir = fixture.file().parent().unwrap().to_owned();
    assert_eq!(mode(&dir), 0o700);
    let files: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The database, its log and index, its lock and the disk reserve.
    assert_eq!(files.len(), 5, "{files:?}");
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    store.close().await;
    // A loosened mode is corrected, and the directory, which may be shared, is left alone.
    fs::set_permissions(fixture.file(), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let _store = fixture.store().await;
    assert_eq!((mode(&fixture.file()), mode(&dir)), (0o600, 0o755));
}

pub(crate) async fn special_characters_in_paths(fixture: Fixture) {
    for name in ["a b", "ä", "x?mode=memory", "100%", "#1", "'; --"] {
        let path = fixture.dir.path().join(name).join("belljar.db");
        let store = Store::open(&StoreUrl::sqlite(&path).unwrap(), &KeyFile::at(path.with_extension("key")))
            .await
            .unwrap();
        store.sandboxes().insert(&sandbox(1)).await.unwrap();
        assert!(path.exists(), "{name}");
    }
    let file = fixture.dir.path().join("plain");
    fs::write(&file, "this is not a database, but it is long enough to be looked at as one".repeat(40))
        .unwrap();
    let error = Store::open(&StoreUrl::sqlite(&file).unwrap(), &fixture.key()).await.unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "{error:?}");
    let error =
        Store::open(&StoreUrl::sqlite(&file.join("below.db")).unwrap(), &fixture.key()).await.unwrap_err();
    assert!(matches!(error, StoreError::File { action: "create", .. }), "{error:?}");
}
