//! Two keepers on one database, each with its own store.

use belljar_model::SandboxState::Running;
use belljar_store::{SandboxRow, StoreError};
use futures::future::join_all;

use crate::fixture::Fixture;
use crate::samples::{id, key, sandbox, time};

pub(crate) async fn concurrent_inserts_take_name_once(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let tries = (0..40_u32).map(|number| {
        let store = &stores[usize::try_from(number % 2).unwrap()];
        async move {
            store.sandboxes().insert(&SandboxRow { name: Some("one".to_owned()), ..sandbox(number) }).await
        }
    });
    let results = join_all(tries).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    for error in results.into_iter().filter_map(Result::err) {
        assert!(matches!(error, StoreError::NameTaken { .. }), "{error:?}");
    }
}

pub(crate) async fn one_concurrent_update_wins(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    stores[0].sandboxes().insert(&sandbox(1)).await.unwrap();
    for round in 1..20 {
        let tries = stores.iter().enumerate().map(|(keeper, store)| async move {
            let keeper = format!("keeper-{keeper}");
            let mut row = SandboxRow { keeper, state: Running, generation: round, ..sandbox(1) };
            store.sandboxes().update(&mut row).await.map(|()| row)
        });
        let results = join_all(tries).await;
        let mut winners = results.iter().flatten();
        let winner = winners.next().unwrap();
        assert_eq!(winners.next(), None);
        assert_eq!(stores[0].sandboxes().get(&id(1)).await.unwrap().as_ref(), Some(winner));
    }
}

pub(crate) async fn concurrent_callers_get_same_secret(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let secrets = join_all(stores.iter().cycle().take(16).map(belljar_store::Store::server_secret)).await;
    let secrets: Vec<_> = secrets.into_iter().map(Result::unwrap).collect();
    assert!(secrets.windows(2).all(|pair| pair[0] == pair[1]));
}

pub(crate) async fn touch_many_in_any_order_does_not_deadlock(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    for number in 0..20 {
        stores[0].keys().insert(&key(number)).await.unwrap();
    }
    let forwards: Vec<_> = (0..20).map(|number| (format!("key-{number}"), time(number))).collect();
    let backwards: Vec<_> = forwards.iter().rev().cloned().collect();
    for _ in 0..10 {
        let [a, b] = &stores;
        let (first, second) =
            futures::future::join(a.keys().touch_many(&forwards), b.keys().touch_many(&backwards)).await;
        first.unwrap();
        second.unwrap();
    }
}
