use std::collections::BTreeMap;

use belljar_model::SecretScope;
use belljar_store::{SecretChange, SecretRow, SecretValue, StoreError};
use futures::future::join_all;

use crate::fixture::Fixture;
use crate::samples::{secret, time};

fn value(text: &str) -> SecretValue {
    SecretValue(text.to_owned())
}

pub(crate) async fn secret_round_trip(fixture: Fixture) {
    let store = fixture.store().await;
    let secrets = store.secrets();
    let row = secret("key");
    assert!(secrets.insert(&row, &value("first"), 9).await.unwrap());
    for name in ["key", "sec_key"] {
        assert_eq!(secrets.get("acme", name).await.unwrap(), Some(row.clone()));
    }
    assert_eq!(secrets.value("acme", "key").await.unwrap(), Some(value("first")));
    let key_id = "key-2";
    let none = SecretChange { key_id, ..SecretChange::default() };
    let changed =
        SecretRow { version: 2, updated_at: time(2), key_id: Some(key_id.to_owned()), ..row.clone() };
    let updated = secrets.set_value("acme", "sec_key", &value("second"), none, time(2)).await.unwrap();
    assert_eq!(updated, Some(changed.clone()));
    let metadata = BTreeMap::new();
    // The header is replaced with the hosts.
    let scope = SecretScope::new(&["a.example".to_owned()], None).unwrap();
    let changed = SecretRow {
        version: 3,
        updated_at: time(3),
        metadata: metadata.clone(),
        scope: scope.clone(),
        ..changed
    };
    let change = SecretChange { metadata: Some(&metadata), scope: Some(&scope), key_id };
    let updated = secrets.set_value("acme", "sec_key", &value("third"), change, time(3)).await.unwrap();
    assert_eq!(updated, Some(changed));
    assert_eq!(secrets.value("acme", "key").await.unwrap(), Some(value("third")));
    assert_eq!(secrets.set_value("acme", "none", &value("x"), none, time(4)).await.unwrap(), None);
    assert!(secrets.remove("acme", "sec_key").await.unwrap());
    assert!(!secrets.remove("acme", "sec_key").await.unwrap());
    assert_eq!(secrets.get("acme", "key").await.unwrap(), None);
    assert_eq!(secrets.value("acme", "key").await.unwrap(), None);
    assert!(!format!("{:?}", value("hunter2")).contains("hunter2"));
}

pub(crate) async fn secrets_of_other_tenants_are_not_found(fixture: Fixture) {
    let store = fixture.store().await;
    let secrets = store.secrets();
    secrets.insert(&secret("key"), &value("mine"), 9).await.unwrap();
    assert_eq!(secrets.get("other", "sec_key").await.unwrap(), None);
    assert_eq!(secrets.value("other", "key").await.unwrap(), None);
    assert_eq!(secrets.list("other", "", 9).await.unwrap(), []);
    let change = SecretChange::default();
    let set = secrets.set_value("other", "sec_key", &value("theirs"), change, time(2)).await;
    assert_eq!(set.unwrap(), None);
    assert!(!secrets.remove("other", "sec_key").await.unwrap());
    assert_eq!(secrets.value("acme", "key").await.unwrap(), Some(value("mine")));
    // Names and the number of secrets are counted for each tenant.
    let theirs = SecretRow { id: "sec_theirs".to_owned(), tenant: "other".to_owned(), ..secret("key") };
    assert!(secrets.insert(&theirs, &value("theirs"), 1).await.unwrap());
    assert_eq!(secrets.value("acme", "key").await.unwrap(), Some(value("mine")));
}

pub(crate) async fn secrets_are_listed_by_name(fixture: Fixture) {
    let store = fixture.store().await;
    let secrets = store.secrets();
    for name in ["c", "a", "b"] {
        secrets.insert(&secret(name), &value("x"), 9).await.unwrap();
    }
    assert_eq!(secrets.list("acme", "", 2).await.unwrap(), [secret("a"), secret("b")]);
    assert_eq!(secrets.list("acme", "b", 2).await.unwrap(), [secret("c")]);
}

pub(crate) async fn secret_names_and_numbers_are_bounded(fixture: Fixture) {
    let store = fixture.store().await;
    let secrets = store.secrets();
    assert!(secrets.insert(&secret("a"), &value("x"), 2).await.unwrap());
    let same = SecretRow { id: "sec_same".to_owned(), ..secret("a") };
    let error = secrets.insert(&same, &value("x"), 2).await.unwrap_err();
    assert!(matches!(error, StoreError::NameTaken { what: "secret", .. }), "{error:?}");
    assert!(secrets.insert(&secret("b"), &value("x"), 2).await.unwrap());
    assert!(!secrets.insert(&secret("c"), &value("x"), 2).await.unwrap());
    let metadata = BTreeMap::from([("key".to_owned(), "\0".to_owned())]);
    let error = secrets.insert(&SecretRow { metadata, ..secret("d") }, &value("x"), 9).await.unwrap_err();
    assert!(matches!(error, StoreError::Nul { .. }), "{error:?}");
}

pub(crate) async fn concurrent_inserts_of_a_secret_take_its_name_once(fixture: Fixture) {
    let store = fixture.store().await;
    let rows = (0..8).map(|number| SecretRow { id: format!("sec_{number}"), ..secret("key") });
    let inserting = rows.map(|row| {
        let secrets = store.secrets();
        async move { secrets.insert(&row, &value("x"), 9).await }
    });
    let inserted = join_all(inserting).await;
    assert_eq!(inserted.iter().filter(|result| matches!(result, Ok(true))).count(), 1, "{inserted:?}");
    let taken = |result: &&Result<bool, StoreError>| matches!(result, Err(StoreError::NameTaken { .. }));
    assert_eq!(inserted.iter().filter(taken).count(), 7, "{inserted:?}");
}
