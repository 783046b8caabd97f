use belljar_store::{StoreError, VolumeRow};

use crate::fixture::Fixture;
use crate::samples::{id, time};

fn volume(number: u32, tenant: &str, name: &str) -> VolumeRow {
    VolumeRow {
        id: id(number),
        tenant: tenant.to_owned(),
        key_id: "key-1".to_owned(),
        keeper: "keeper-1".to_owned(),
        name: name.to_owned(),
        bytes: 1 << 40,
        created_at: time(i64::from(number)),
    }
}

pub(crate) async fn volume_belongs_to_its_tenant(fixture: Fixture) {
    let store = fixture.store().await;
    let (mine, theirs) = (volume(1, "acme", "data"), volume(2, "other", "data"));
    for row in [&mine, &theirs] {
        store.volumes().insert(row).await.unwrap();
    }
    let of = async |tenant, text: &str| store.volumes().get(tenant, text).await.unwrap();
    for text in ["data", mine.id.as_str()] {
        assert_eq!(of(Some("acme"), text).await.as_ref(), Some(&mine));
    }
    assert_eq!(of(Some("other"), "data").await.as_ref(), Some(&theirs));
    assert_eq!(of(Some("other"), mine.id.as_str()).await, None);
    assert_eq!((of(None, mine.id.as_str()).await.as_ref(), of(None, "data").await), (Some(&mine), None));
    let error = store.volumes().insert(&volume(3, "acme", "data")).await.unwrap_err();
    assert!(matches!(error, StoreError::NameTaken { what: "volume", .. }), "{error:?}");
    let error = store.volumes().insert(&volume(1, "acme", "more")).await.unwrap_err();
    assert!(matches!(error, StoreError::Exists { what: "volume", .. }), "{error:?}");
    store.volumes().insert(&volume(3, "acme", "Data")).await.unwrap();
    let list = store.volumes().list(Some("acme")).await.unwrap();
    assert_eq!(list.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["data", "Data"]);
    store.volumes().remove(&mine.id).await.unwrap();
    let error = store.volumes().remove(&mine.id).await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error:?}");
    assert_eq!(store.volumes().list(None).await.unwrap().len(), 2);
}
