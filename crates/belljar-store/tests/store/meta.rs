use crate::fixture::Fixture;

pub(crate) async fn set_replaces_value(fixture: Fixture) {
    let store = fixture.store().await;
    assert_eq!(store.meta().get("a").await.unwrap(), None);
    let all_bytes: Vec<u8> = (0..=255).collect();
    for value in [all_bytes.as_slice(), b"", b"second"] {
        store.meta().set("a", value).await.unwrap();
        assert_eq!(store.meta().get("a").await.unwrap().as_deref(), Some(value));
    }
    assert_eq!(store.meta().get("A").await.unwrap(), None);
}

pub(crate) async fn server_secret_is_stable(fixture: Fixture) {
    let store = fixture.store().await;
    let secret = store.server_secret().await.unwrap();
    assert_ne!(secret, [0; 32]);
    store.close().await;
    assert_eq!(fixture.store().await.server_secret().await.unwrap(), secret);
    let text = format!("UPDATE meta SET value = {} WHERE name = 'server.secret'", fixture.bytes("00ff"));
    fixture.run_sql(&text).await;
    let error = fixture.store().await.server_secret().await.unwrap_err().to_string();
    assert!(error.starts_with("meta.") && error.contains("restore a backup"), "{error}");
}
