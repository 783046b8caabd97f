use belljar_model::SandboxState::Gone;
use belljar_store::{PortRow, PortVisibility, SandboxRow, StoreError};

use crate::fixture::Fixture;
use crate::samples::{id, sandbox, time};

pub(crate) async fn ports_are_published_and_withdrawn(fixture: Fixture) {
    let store = fixture.store().await;
    let row =
        |number, port, visibility| PortRow { sandbox: id(number), port, visibility, created_at: time(1) };
    let (low, high) = (row(1, 1, PortVisibility::Private), row(1, 65535, PortVisibility::Public));
    let error = store.ports().publish(&low).await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { what: "sandbox", .. }), "{error:?}");
    store.sandboxes().insert(&sandbox(1)).await.unwrap();
    store.sandboxes().insert(&sandbox(2)).await.unwrap();
    for row in [&high, &low, &row(2, 1, PortVisibility::Public)] {
        store.ports().publish(row).await.unwrap();
    }
    assert_eq!(store.ports().list(&id(1)).await.unwrap(), [low.clone(), high.clone()]);
    assert_eq!(store.ports().list_live(&sandbox(1).keeper).await.unwrap().len(), 3);
    assert_eq!(store.ports().list_live("another").await.unwrap(), []);
    assert_eq!(store.ports().get(&id(1), 1).await.unwrap(), Some(low.clone()));
    assert_eq!(store.ports().get(&id(1), 2).await.unwrap(), None);
    // Published again with another visibility, it keeps its time.
    let open = PortRow { visibility: PortVisibility::Public, created_at: time(9), ..low.clone() };
    store.ports().publish(&open).await.unwrap();
    let expected = PortRow { visibility: PortVisibility::Public, ..low };
    assert_eq!(store.ports().get(&id(1), 1).await.unwrap(), Some(expected));
    assert!(store.ports().withdraw(&id(1), 1).await.unwrap());
    assert!(!store.ports().withdraw(&id(1), 1).await.unwrap());
    assert_eq!(store.ports().list(&id(1)).await.unwrap(), [high]);
}

pub(crate) async fn ports_are_deleted_with_their_sandbox(fixture: Fixture) {
    let store = fixture.store().await;
    store
        .sandboxes()
        .insert(&SandboxRow { state: Gone, ended_at: Some(time(1)), ..sandbox(1) })
        .await
        .unwrap();
    let row = PortRow { sandbox: id(1), port: 80, visibility: PortVisibility::Public, created_at: time(1) };
    store.ports().publish(&row).await.unwrap();
    assert_eq!(store.ports().list_live(&sandbox(1).keeper).await.unwrap(), []);
    assert_eq!(store.sandboxes().forget_before(time(2)).await.unwrap(), 1);
    assert_eq!(store.ports().list(&id(1)).await.unwrap(), []);
}
