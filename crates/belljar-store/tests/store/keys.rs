use belljar_model::{Approval, Role};
use belljar_store::{KeyRow, KeyUpdate, StoreError};

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
        owner: Some("ann".to_owned()),
        approval: Approval::Always,
        ..key(2)
    };
    store.keys().insert(&full).await.unwrap();
    store.keys().insert(&key(1)).await.unwrap();
    assert_eq!(store.keys().find_by_hash(&[2; 32]).await.unwrap(), Some(full.clone()));
    assert_eq!(store.keys().get("key-1").await.unwrap(), Some(key(1)));
    assert_eq!(store.keys().find_by_hash(&[9; 32]).await.unwrap(), None);
    assert_eq!(store.keys().list(None, 9).await.unwrap(), [key(1), full.clone()]);
    assert_eq!(store.keys().list(None, 1).await.unwrap(), [key(1)]);
    let first = key(1);
    assert_eq!(store.keys().list(Some((first.created_at, &first.id)), 9).await.unwrap(), [full]);
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

pub(crate) async fn changes_of_different_fields_all_apply(fixture: Fixture) {
    let store = fixture.store().await;
    store.keys().insert(&KeyRow { role: Role::Admin, ..key(1) }).await.unwrap();
    // None of them writes what it has not been given, however they interleave.
    let lowered = KeyUpdate { role: Some(Role::User), ..KeyUpdate::default() };
    let renamed = KeyUpdate { name: Some("other".to_owned()), ..KeyUpdate::default() };
    let ended = KeyUpdate { expires_at: Some(Some(time(9))), ..KeyUpdate::default() };
    for change in [lowered, renamed, ended] {
        store.keys().update("key-1", change).await.unwrap();
    }
    let name = "other".to_owned();
    let expected = KeyRow { role: Role::User, name, expires_at: Some(time(9)), ..key(1) };
    assert_eq!(store.keys().get("key-1").await.unwrap(), Some(expected.clone()));
    let endless = KeyUpdate {
        expires_at: Some(None),
        quotas: Some("{}".to_owned()),
        owner: Some(Some("ann".to_owned())),
        approval: Some(Approval::Always),
        ..KeyUpdate::default()
    };
    let owner = Some("ann".to_owned());
    let expected =
        KeyRow { expires_at: None, quotas: "{}".to_owned(), owner, approval: Approval::Always, ..expected };
    assert_eq!(store.keys().update("key-1", endless).await.unwrap(), expected);
    assert_eq!(store.keys().update("key-1", KeyUpdate::default()).await.unwrap(), expected);
    store.keys().revoke("key-1", time(7)).await.unwrap();
    for id in ["key-1", "key-2"] {
        let error = store.keys().update(id, KeyUpdate::default()).await.unwrap_err();
        assert!(matches!(error, StoreError::NotFound { .. }), "{error:?}");
    }
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
        store.keys().list(None, 9).await.unwrap().into_iter().map(|row| row.last_used_at).collect();
    assert_eq!(noted, [Some(time(10)), None, Some(time(30))]);
}

pub(crate) async fn tenants_of_expired_and_revoked_keys_are_not_live(fixture: Fixture) {
    let store = fixture.store().await;
    let tenants = async |at| store.keys().live_tenants(time(at)).await.unwrap();
    let both = |first: &str, last: &str| Some((first.to_owned(), last.to_owned()));
    assert_eq!(tenants(0).await, None);
    let of = |tenant: &str, number| KeyRow { tenant: tenant.to_owned(), ..key(number) };
    store.keys().insert(&KeyRow { expires_at: Some(time(100)), ..of("b", 1) }).await.unwrap();
    store.keys().insert(&KeyRow { revoked_at: Some(time(1)), ..of("a", 2) }).await.unwrap();
    assert_eq!((tenants(99).await, tenants(100).await), (both("b", "b"), None));
    store.keys().insert(&of("d", 3)).await.unwrap();
    store.keys().insert(&of("c", 4)).await.unwrap();
    assert_eq!((tenants(99).await, tenants(100).await), (both("b", "d"), both("c", "d")));
    let is_live = async |tenant, at| store.keys().is_live_tenant(tenant, time(at)).await.unwrap();
    assert_eq!(
        (is_live("b", 99).await, is_live("b", 100).await, is_live("a", 0).await),
        (true, false, false)
    );
    assert!(is_live("c", 100).await);
}
