//! Two keepers on one database, each with its own store.

use std::collections::HashMap;
use std::pin::pin;

use belljar_model::SandboxState::{Creating, Gone, Running, Stopping};
use belljar_store::{ListQuery, SandboxRow, StoreError};
use futures::future::{FutureExt as _, join, join_all, select};
use futures::poll;

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

/// Of two writers each, one changes sandboxes, and the other updates keys in transactions.
pub(crate) async fn states_are_in_order_beside_transactions_and_readers(fixture: Fixture) {
    const SANDBOXES: u32 = 40;
    let stores = [fixture.store().await, fixture.store().await];
    stores[0].keys().insert(&key(1)).await.unwrap();
    let lives = (0..SANDBOXES).map(|number| {
        let sandboxes = stores[usize::try_from(number % 2).unwrap()].sandboxes();
        async move {
            let mut row = sandbox(number);
            sandboxes.insert(&row).await.unwrap();
            for state in [Running, Stopping, Gone] {
                row.state = state;
                sandboxes.update(&mut row).await.unwrap();
            }
        }
    });
    let touches = async {
        for number in [0_u8, 1].into_iter().cycle() {
            let uses = [("key-1".to_owned(), time(i64::from(number)))];
            stores[usize::from(number)].keys().touch_many(&uses).await.unwrap();
        }
    };
    let reads = async {
        let rank = |state| [Creating, Running, Stopping, Gone].iter().position(|other| *other == state);
        let mut seen = HashMap::new();
        loop {
            for row in stores[0].sandboxes().list(&ListQuery::default()).await.unwrap() {
                let before = seen.insert(row.id.clone(), row.state).unwrap_or(Creating);
                assert!(rank(before) <= rank(row.state), "{row:?} after {before:?}");
            }
        }
    };
    let others = join(touches, reads);
    select(pin!(join_all(lives)), pin!(others)).await;
    let rows = stores[1].sandboxes().list(&ListQuery::default()).await.unwrap();
    assert_eq!(rows.iter().filter(|row| row.state == Gone).count(), usize::try_from(SANDBOXES).unwrap());
}

pub(crate) async fn abandoned_writes_are_whole_or_absent(fixture: Fixture) {
    let store = fixture.store().await;
    for number in 0..3 {
        store.keys().insert(&key(number)).await.unwrap();
    }
    for number in 0..60_u32 {
        // Each caller leaves after a few more steps than the one before.
        let steps = number / 2;
        let row = sandbox(number);
        let uses: Vec<_> = (0..3).map(|key| (format!("key-{key}"), time(i64::from(number)))).collect();
        {
            let (sandboxes, keys) = (store.sandboxes(), store.keys());
            let mut insert = pin!(sandboxes.insert(&row).fuse());
            let mut touch = pin!(keys.touch_many(&uses).fuse());
            for _ in 0..steps {
                let _ = (poll!(insert.as_mut()), poll!(touch.as_mut()), sandboxes.get(&row.id).await);
                tokio::task::yield_now().await;
            }
        }
        // The next caller is served, after what was begun.
        store.sandboxes().insert(&sandbox(1000 + number)).await.unwrap();
        let found = store.sandboxes().get(&row.id).await.unwrap();
        assert!(found.is_none() || found == Some(row), "{found:?}");
        let keys = store.keys().list(None, 10).await.unwrap();
        assert!(keys.windows(2).all(|pair| pair[0].last_used_at == pair[1].last_used_at), "{keys:?}");
    }
}
