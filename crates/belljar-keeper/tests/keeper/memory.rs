//! Creates while memory is short, which the sandboxes of others are ended for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_keeper::{OnShutdown, SandboxUpdate};
use belljar_testing::wait::DEADLINE;

use crate::approvals::refusal;
use crate::faults::Faults;
use crate::fixture::{Fixture, plain, until, user};

/// More than any machine has.
const MUCH: u64 = 1 << 50;

/// One whose disk is copied is busy for minutes, and all creates wait for one another here.
pub(crate) async fn busy_sandboxes_are_not_waited_for(_: Fixture) {
    let faults: Arc<Faults> = Arc::default();
    let fixture = Fixture::failing(&faults).await;
    let (keeper, ann, bob) = (&fixture.keeper, user("ann"), user("bob"));
    let (small, large) = (fixture.create(&ann).await.id, fixture.create(&ann).await.id);
    faults.memory.lock().extend([(small.clone(), MUCH), (large.clone(), 2 * MUCH)]);
    let gate = faults.limits.lock().await;
    let (of, by, at) = (keeper.clone(), ann.clone(), large.clone());
    let change = SandboxUpdate { memory: Some("100m".parse().unwrap()), ..SandboxUpdate::default() };
    let changing = tokio::spawn(async move { of.update(&by, at.as_str(), change).await });
    until("it is busy", async || faults.is_changing.load(Ordering::Relaxed)).await;
    let mut config = fixture.config.clone();
    config.head_room.memory_bytes = MUCH;
    keeper.reconfigure(config);
    let made = tokio::time::timeout(DEADLINE, keeper.create(&bob, plain())).await.unwrap();
    assert_eq!(refusal(made.map(|made| made.info.id)).0, "machine_full");
    assert_eq!(keeper.get(&ann, small.as_str()).await.unwrap_err().code(), "sandbox_gone");
    drop(gate);
    changing.await.unwrap().unwrap_err();
    keeper.get(&ann, large.as_str()).await.unwrap();
    keeper.close(OnShutdown::Kill).await.unwrap();
}

/// Eight others have to be ended, one after another.
pub(crate) async fn busy_sandboxes_are_waited_for_once(_: Fixture) {
    let faults: Arc<Faults> = Arc::default();
    let fixture = Fixture::failing(&faults).await;
    let (keeper, ann, bob) = (&fixture.keeper, user("ann"), user("bob"));
    let large = fixture.create(&ann).await.id;
    faults.memory.lock().insert(large.clone(), 2 * MUCH);
    let mut small = Vec::new();
    for _ in 0..8 {
        let id = fixture.create(&ann).await.id;
        faults.memory.lock().insert(id.clone(), MUCH / 8);
        small.push(id);
    }
    let gate = faults.limits.lock().await;
    let (of, by, at) = (keeper.clone(), ann.clone(), large.clone());
    let change = SandboxUpdate { memory: Some("100m".parse().unwrap()), ..SandboxUpdate::default() };
    let changing = tokio::spawn(async move { of.update(&by, at.as_str(), change).await });
    until("it is busy", async || faults.is_changing.load(Ordering::Relaxed)).await;
    let mut config = fixture.config.clone();
    config.head_room.memory_bytes = MUCH;
    keeper.reconfigure(config);
    let begin = Instant::now();
    let made = tokio::time::timeout(DEADLINE, keeper.create(&bob, plain())).await.unwrap();
    assert_eq!(refusal(made.map(|made| made.info.id)).0, "machine_full");
    // A second for the busy one, and five for memory that no machine has.
    assert!(begin.elapsed() < Duration::from_secs(11), "{:?}", begin.elapsed());
    for id in small {
        assert_eq!(keeper.get(&ann, id.as_str()).await.unwrap_err().code(), "sandbox_gone");
    }
    drop(gate);
    changing.await.unwrap().unwrap_err();
    keeper.close(OnShutdown::Kill).await.unwrap();
}

/// Its tenant's requests keep its lock taken, one after another.
pub(crate) async fn busy_sandboxes_are_ended_all_the_same(_: Fixture) {
    let faults: Arc<Faults> = Arc::default();
    let fixture = Fixture::failing(&faults).await;
    let (keeper, ann, bob) = (&fixture.keeper, user("ann"), user("bob"));
    let busy = fixture.create(&ann).await.id;
    faults.memory.lock().insert(busy.clone(), MUCH);
    let gate = faults.limits.lock().await;
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (keeper, ann, id) = (keeper.clone(), ann.clone(), busy.clone());
        let change = SandboxUpdate { memory: Some("100m".parse().unwrap()), ..SandboxUpdate::default() };
        requests.spawn(async move { keeper.update(&ann, id.as_str(), change).await.map(drop) });
    }
    until("it is busy", async || faults.is_changing.load(Ordering::Relaxed)).await;
    faults.is_measured.store(false, Ordering::Relaxed);
    let mut config = fixture.config.clone();
    config.head_room.memory_bytes = MUCH / 2;
    keeper.reconfigure(config);
    let making = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.create(&bob, plain()).await.map(|made| made.info.id) }
    });
    until("memory is short", async || faults.is_measured.load(Ordering::Relaxed)).await;
    drop(gate);
    // The machine does not have more for it.
    let made = tokio::time::timeout(DEADLINE, making).await.unwrap().unwrap();
    assert_eq!(refusal(made).0, "machine_full");
    assert_eq!(keeper.get(&ann, busy.as_str()).await.unwrap_err().code(), "sandbox_gone");
    requests.join_all().await;
    keeper.close(OnShutdown::Kill).await.unwrap();
}
