use belljar_store::{Claim, Claimed, Store, StoreError};
use futures::future::join_all;

use crate::fixture::Fixture;
use crate::samples::time;
use crate::wait::until;

fn claim(key: &str, at: i64) -> Claim<'_> {
    Claim {
        scope: "acme/create",
        key,
        request: [1; 32],
        owner: "keeper-1",
        now: time(at),
        expires_at: time(at + 100),
    }
}

async fn claimed(store: &Store, claim: Claim<'_>) -> Claimed {
    store.idempotency().claim(&claim).await.unwrap()
}

pub(crate) async fn request_is_answered_once(fixture: Fixture) {
    let store = fixture.store().await;
    assert_eq!(claimed(&store, claim("a", 0)).await, Claimed::New);
    assert_eq!(claimed(&store, claim("a", 1)).await, Claimed::Running);
    let other = Claim { request: [2; 32], ..claim("a", 1) };
    assert_eq!(claimed(&store, other.clone()).await, Claimed::Mismatch);
    assert_eq!(claimed(&store, Claim { scope: "other/create", ..other.clone() }).await, Claimed::New);
    let answer: Vec<u8> = (0..=255).collect();
    store.idempotency().finish("keeper-1", "acme/create", "a", &answer).await.unwrap();
    assert_eq!(claimed(&store, claim("a", 99)).await, Claimed::Done { response: answer.clone() });
    assert_eq!(claimed(&store, Claim { request: [2; 32], ..claim("a", 99) }).await, Claimed::Mismatch);
    // A stored answer is not overwritten.
    let error = store.idempotency().finish("keeper-1", "acme/create", "a", b"again").await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error:?}");
    store.idempotency().abandon("keeper-1", "acme/create", "a").await.unwrap();
    assert_eq!(claimed(&store, claim("a", 99)).await, Claimed::Done { response: answer });
    // The answer expires.
    assert_eq!(claimed(&store, Claim { now: time(100), ..other }).await, Claimed::New);
}

/// As when a claim has expired, and another keeper has claimed the same request since.
pub(crate) async fn claims_of_others_are_not_settled(fixture: Fixture) {
    let store = fixture.store().await;
    assert_eq!(claimed(&store, claim("a", 0)).await, Claimed::New);
    let later = Claim { owner: "keeper-2", ..claim("a", 100) };
    assert_eq!(claimed(&store, later.clone()).await, Claimed::New);
    let refused = store.idempotency().finish("keeper-1", "acme/create", "a", b"old").await.unwrap_err();
    assert!(matches!(refused, StoreError::NotFound { .. }), "{refused:?}");
    store.idempotency().abandon("keeper-1", "acme/create", "a").await.unwrap();
    assert_eq!(claimed(&store, later.clone()).await, Claimed::Running);
    store.idempotency().finish("keeper-2", "acme/create", "a", b"new").await.unwrap();
    assert_eq!(claimed(&store, later).await, Claimed::Done { response: b"new".to_vec() });
}

pub(crate) async fn newest_answers_are_kept(fixture: Fixture) {
    let store = fixture.store().await;
    for (at, key) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let at = i64::try_from(at).unwrap();
        assert_eq!(claimed(&store, claim(key, at)).await, Claimed::New);
        assert_eq!(claimed(&store, Claim { scope: "other/create", ..claim(key, at) }).await, Claimed::New);
        if key != "a" {
            store.idempotency().finish("keeper-1", "acme/create", key, b"done").await.unwrap();
        }
    }
    store.idempotency().forget_older("acme/create", 2).await.unwrap();
    // A request in progress has no answer, and stays.
    assert_eq!(claimed(&store, claim("a", 9)).await, Claimed::Running);
    assert_eq!(claimed(&store, claim("b", 9)).await, Claimed::New);
    for key in ["c", "d"] {
        assert_eq!(claimed(&store, claim(key, 9)).await, Claimed::Done { response: b"done".to_vec() });
    }
    assert_eq!(claimed(&store, Claim { scope: "other/create", ..claim("b", 9) }).await, Claimed::Running);
}

pub(crate) async fn database_file_shrinks(fixture: Fixture) {
    let store = fixture.store().await;
    let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
    for key in &keys {
        assert_eq!(claimed(&store, claim(key, 0)).await, Claimed::New);
        store.idempotency().finish("keeper-1", "acme/create", key, &[b'x'; 64 << 10]).await.unwrap();
    }
    let size = || std::fs::metadata(fixture.file()).unwrap().len();
    until("it is in the file", || size() > 4 << 20).await;
    assert_eq!(store.idempotency().forget_expired(time(200)).await.unwrap(), 100);
    store.shrink().await.unwrap();
    until("it has shrunk", || size() < 1 << 20).await;
}

pub(crate) async fn claims_are_abandoned(fixture: Fixture) {
    let store = fixture.store().await;
    for key in ["a", "b", "c"] {
        assert_eq!(claimed(&store, claim(key, 0)).await, Claimed::New);
    }
    store.idempotency().finish("keeper-1", "acme/create", "c", b"").await.unwrap();
    assert_eq!(claimed(&store, Claim { owner: "keeper-2", ..claim("d", 0) }).await, Claimed::New);
    store.idempotency().abandon("keeper-1", "acme/create", "a").await.unwrap();
    assert_eq!(claimed(&store, claim("a", 1)).await, Claimed::New);
    // As when the keeper restarts after a crash.
    assert_eq!(store.idempotency().abandon_all("keeper-1").await.unwrap(), 2);
    assert_eq!(claimed(&store, claim("b", 1)).await, Claimed::New);
    assert_eq!(claimed(&store, claim("c", 1)).await, Claimed::Done { response: Vec::new() });
    assert_eq!(claimed(&store, claim("d", 1)).await, Claimed::Running);
    assert_eq!(store.idempotency().count_expired(time(100)).await.unwrap(), 2);
    assert_eq!(store.idempotency().forget_expired(time(100)).await.unwrap(), 2);
    assert_eq!(claimed(&store, claim("d", 100)).await, Claimed::New);
}

pub(crate) async fn one_concurrent_claim_wins(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    for round in 0..10 {
        let key = format!("key-{round}");
        let claims = (0..20).map(|number| {
            let (store, key) = (&stores[number % 2], &key);
            async move { claimed(store, claim(key, 0)).await }
        });
        let results = join_all(claims).await;
        assert_eq!(results.iter().filter(|result| **result == Claimed::New).count(), 1);
        assert_eq!(results.iter().filter(|result| **result == Claimed::Running).count(), 19);
    }
}

/// Whatever the interleaving of claims and abandons, at most one worker has the claim at a time.
pub(crate) async fn claims_race_with_abandon(fixture: Fixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let working = std::cell::Cell::new(0);
    let done = std::cell::Cell::new(0);
    let workers = (0..8).map(|number| {
        let (store, working, done) = (&stores[number % 2], &working, &done);
        async move {
            for _ in 0..25 {
                if claimed(store, claim("one", 0)).await == Claimed::New {
                    working.set(working.get() + 1);
                    assert_eq!(working.get(), 1);
                    done.set(done.get() + 1);
                    tokio::task::yield_now().await;
                    working.set(working.get() - 1);
                    store.idempotency().abandon("keeper-1", "acme/create", "one").await.unwrap();
                }
            }
        }
    });
    join_all(workers).await;
    assert!(done.get() > 0);
}
