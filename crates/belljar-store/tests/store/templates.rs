use belljar_store::{StoreError, TemplateKind, TemplateRow};

use crate::fixture::Fixture;
use crate::samples::{id, time};

fn template(number: i64) -> TemplateRow {
    TemplateRow {
        id: format!("t-{number}"),
        tenant: "acme".to_owned(),
        key_id: "key-1".to_owned(),
        name: None,
        kind: TemplateKind::Snapshot,
        source_sandbox: Some(id(1)),
        digest: "ab".repeat(32),
        bytes: 1 << 40,
        spec: "{}".to_owned(),
        created_at: time(number),
        note: String::new(),
        built: String::new(),
    }
}

fn named(number: i64, tenant: &str, name: &str, kind: TemplateKind) -> TemplateRow {
    TemplateRow { name: Some(name.to_owned()), tenant: tenant.to_owned(), kind, ..template(number) }
}

pub(crate) async fn template_round_trip(fixture: Fixture) {
    let store = fixture.store().await;
    let full = TemplateRow { note: "a note".to_owned(), ..named(1, "acme", "mine", TemplateKind::Snapshot) };
    let bare = TemplateRow { source_sandbox: None, ..template(2) };
    for row in [&full, &bare] {
        store.templates().insert(row).await.unwrap();
        assert_eq!(store.templates().get("acme", &row.id).await.unwrap().as_ref(), Some(row));
    }
    assert_eq!(store.templates().get("acme", "mine").await.unwrap(), Some(full.clone()));
    assert_eq!(store.templates().get("other", "mine").await.unwrap(), None);
    assert_eq!(store.templates().get("other", "t-1").await.unwrap(), None);
    let error = store.templates().insert(&full).await.unwrap_err();
    assert!(matches!(error, StoreError::Exists { .. } | StoreError::NameTaken { .. }), "{error:?}");
    let error =
        store.templates().insert(&named(3, "acme", "mine", TemplateKind::Snapshot)).await.unwrap_err();
    assert!(matches!(error, StoreError::NameTaken { what: "template", .. }), "{error:?}");
    store.templates().remove("t-1").await.unwrap();
    assert_eq!(store.templates().list(None).await.unwrap(), [bare]);
    let error = store.templates().remove("t-1").await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error:?}");
}

pub(crate) async fn own_template_takes_precedence_over_builtin(fixture: Fixture) {
    let store = fixture.store().await;
    let builtin = named(1, "", "default", TemplateKind::Builtin);
    let own = named(2, "acme", "default", TemplateKind::Snapshot);
    // A template named like the id of another does not hide that one.
    let sly = named(3, "acme", "t-1", TemplateKind::Snapshot);
    for row in [&builtin, &own, &sly] {
        store.templates().insert(row).await.unwrap();
    }
    assert_eq!(store.templates().get("acme", "default").await.unwrap(), Some(own.clone()));
    assert_eq!(store.templates().get("other", "default").await.unwrap(), Some(builtin.clone()));
    assert_eq!(store.templates().get("acme", "t-1").await.unwrap(), Some(builtin.clone()));
    assert_eq!(store.templates().list(Some("other")).await.unwrap(), std::slice::from_ref(&builtin));
    assert_eq!(store.templates().list(Some("acme")).await.unwrap(), [builtin, own, sly]);
}
