use belljar_model::Role;
use belljar_store::{KeyRow, StoreError};

use crate::fixture::Fixture;
use crate::samples::{key, time};

pub(crate) async fn key_round_trip(fixture: Fixture) {
    let store = fixture.store().await;
    let full = KeyRow {
        role: Role::Admin,
        expires_at: Some(time(100)),
        revoked_at: Some(time(50)),
        last_used_at: Some(time(40)),
        tenant: "other".to_owned(),
        ..key(2)
    };
    store.keys().insert(&full).await.unwrap();
    store.keys().insert(&key(1)).await.unwrap();
    assert_eq!(store.keys().find_by_hash(&[2; 32]).await.unwrap(), Some(full.clone()));
    assert_eq!(store.keys().get("key-1").await.unwrap(), Some(key(1)));
    assert_eq!(store.keys().find_by_hash(&[9; 32]).await.unwrap(), None);
    assert_eq!(store.keys().list(None).await.unwrap(), [key(1), full.clone()]);
    assert_eq!(store.keys().list(Some("other")).await.unwrap(), [full]);
    for row in [key(1), KeyRow { id: "key-3".to_owned(), ..key(1) }, KeyRow { hash: [3; 32], ..key(1) }] {
        let error = store.keys().insert(&row).await.unwrap_err();
        assert!(matches!(error, StoreError::Exists { what: "key", .. }), "{error:?}");
    }
}

pub(crate) async fn second_revocation_changes_nothing(fixture: Fixture) {
    let store = fixture.store().await;
    store.keys().insert(&key(1)).await.unwrap();
    assert!(store.keys().revoke("key-1", time(7)).await.unwrap());
    assert!(!store.keys().revoke("key-1", time(8)).await.unwrap());
    assert_eq!(store.keys().get("key-1").await.unwrap().unwrap().revoked_at, Some(time(7)));
    let error = store.keys().revoke("key-2", time(8)).await.unwrap_err();
    assert_eq!(error.to_string(), "key key-2 not found");
}

pub(crate) async fn touch_many_updates_last_use(fixture: Fixture) {
    let store = fixture.store().await;
    for number in 1..4 {
        store.keys().insert(&key(number)).await.unwrap();
    }
    let uses = [("key-1", 10), ("key-3", 30), ("none", 5)].map(|(id, at)| (id.to_owned(), time(at)));
    store.keys().touch_many(&uses).await.unwrap();
    store.keys().touch_many(&[("key-3".to_owned(), time(20))]).await.unwrap();
    store.keys().touch_many(&[]).await.unwrap();
    let noted: Vec<_> =
        store.keys().list(None).await.unwrap().into_iter().map(|row| row.last_used_at).collect();
    assert_eq!(noted, [Some(time(10)), None, Some(time(30))]);
}

pub(crate) async fn count_live_skips_expired_and_revoked(fixture: Fixture) {
    let store = fixture.store().await;
    assert_eq!(store.keys().count_live(time(0)).await.unwrap(), 0);
    store.keys().insert(&key(1)).await.unwrap();
    store.keys().insert(&KeyRow { expires_at: Some(time(100)), ..key(2) }).await.unwrap();
    store.keys().insert(&KeyRow { revoked_at: Some(time(1)), ..key(3) }).await.unwrap();
    assert_eq!(store.keys().count_live(time(99)).await.unwrap(), 2);
    assert_eq!(store.keys().count_live(time(100)).await.unwrap(), 1);
}
