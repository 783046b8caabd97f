//! Creates while memory is short, which the sandboxes of others are ended for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

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
