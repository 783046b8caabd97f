use belljar_store::{RegistryLoginRow, SecretValue, StoreError};

use crate::fixture::Fixture;
use crate::samples::time;

fn login(registry: &str, account: &str) -> RegistryLoginRow {
    RegistryLoginRow {
        tenant: "acme".to_owned(),
        registry: registry.to_owned(),
        account: account.to_owned(),
        key_id: "key-1".to_owned(),
        created_at: time(1),
    }
}

pub(crate) async fn logins_are_of_one_tenant_and_registry(fixture: Fixture) {
    let store = fixture.store().await;
    let logins = store.registry_logins();
    let password = |text: &str| SecretValue(text.to_owned());
    let (first, second) = (login("ghcr.io", "bob"), login("quay.io", "ann"));
    for row in [&second, &login("ghcr.io", "old"), &first] {
        logins.put(row, &password(&format!("of {}", row.account))).await.unwrap();
    }
    assert_eq!(logins.list("acme").await.unwrap(), [first.clone(), second.clone()]);
    assert_eq!(logins.get("acme", "ghcr.io").await.unwrap(), Some((first, password("of bob"))));
    assert_eq!(logins.get("other", "ghcr.io").await.unwrap(), None);
    assert_eq!(logins.list("other").await.unwrap(), []);
    assert!(!logins.remove("other", "ghcr.io").await.unwrap());
    // A password opens in its own row alone.
    let of_first = "(SELECT password FROM registry_logins WHERE registry = 'ghcr.io')";
    fixture
        .run_sql(&format!("UPDATE registry_logins SET password = {of_first} WHERE registry = 'quay.io'"))
        .await;
    let error = logins.get("acme", "quay.io").await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    assert!(logins.remove("acme", "ghcr.io").await.unwrap());
    assert!(!logins.remove("acme", "ghcr.io").await.unwrap());
}
