use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use belljar_store::{Durability, KeyFile, Store, StoreError, StoreUrl};

use crate::ground::Ground;
use crate::samples::sandbox;

pub(crate) async fn a_newer_schema_is_refused_by_name(ground: Ground) {
    ground.store().await.close().await;
    let columns = "version, description, success, checksum, execution_time";
    ground
        .meddle(&format!(
            "INSERT INTO _sqlx_migrations ({columns}) SELECT 999, 'later', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1"
        ))
        .await;
    match Store::open(&ground.url().await, &ground.key()).await.unwrap_err() {
        StoreError::SchemaTooNew { found: 999, known: 4, .. } => {}
        other => panic!("{other:?}"),
    }
    // The refusal leaves nothing locked.
    ground.meddle("DELETE FROM _sqlx_migrations WHERE version = 999").await;
    ground.store().await.ping().await.unwrap();
}

pub(crate) async fn an_edited_schema_is_refused(ground: Ground) {
    ground.store().await.close().await;
    ground.meddle(&format!("UPDATE _sqlx_migrations SET checksum = {}", ground.bytes("00"))).await;
    let error = Store::open(&ground.url().await, &ground.key()).await.unwrap_err();
    assert!(matches!(error, StoreError::Migrate { .. }), "{error:?}");
}

pub(crate) async fn a_store_is_opened_many_times_at_once(ground: Ground) {
    let url = ground.url().await;
    let key = ground.key();
    let stores = futures::future::join_all((0..4).map(|_| Store::open(&url, &key))).await;
    for (number, store) in (0..).zip(stores) {
        store.unwrap().sandboxes().insert(&sandbox(number)).await.unwrap();
    }
}

pub(crate) async fn rows_survive_closing(ground: Ground) {
    for (number, durability) in [(1, Durability::Process), (2, Durability::Power)] {
        let store = Store::open_with(&ground.url().await, durability, &ground.key()).await.unwrap();
        store.sandboxes().insert(&sandbox(number)).await.unwrap();
        store.close().await;
        assert!(store.ping().await.is_err());
        let again = ground.store().await;
        assert_eq!(again.sandboxes().get(&sandbox(number).id).await.unwrap(), Some(sandbox(number)));
    }
}

pub(crate) async fn files_are_their_owners_alone(ground: Ground) {
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let store = ground.store().await;
    store.sandboxes().insert(&sandbox(1)).await.unwrap();
    let dir = ground.file().parent().unwrap().to_owned();
    assert_eq!(mode(&dir), 0o700);
    let files: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The database, its log and index, its lock and what is set aside for a full disk.
    assert_eq!(files.len(), 5, "{files:?}");
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    store.close().await;
    // A mode that somebody loosened is put right, and the directory, which may be shared, is left alone.
    fs::set_permissions(ground.file(), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let _store = ground.store().await;
    assert_eq!((mode(&ground.file()), mode(&dir)), (0o600, 0o755));
}

pub(crate) async fn odd_paths_are_paths(ground: Ground) {
    for name in ["a b", "ä", "x?mode=memory", "100%", "#1", "'; --"] {
        let path = ground.dir.path().join(name).join("belljar.db");
        let store = Store::open(&StoreUrl::sqlite(&path).unwrap(), &KeyFile::at(path.with_extension("key")))
            .await
            .unwrap();
        store.sandboxes().insert(&sandbox(1)).await.unwrap();
        assert!(path.exists(), "{name}");
    }
    let file = ground.dir.path().join("plain");
    fs::write(&file, "this is not a database, but it is long enough to be looked at as one".repeat(40))
        .unwrap();
    let error = Store::open(&StoreUrl::sqlite(&file).unwrap(), &ground.key()).await.unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "{error:?}");
    let error =
        Store::open(&StoreUrl::sqlite(&file.join("below.db")).unwrap(), &ground.key()).await.unwrap_err();
    assert!(matches!(error, StoreError::File { action: "create", .. }), "{error:?}");
}
