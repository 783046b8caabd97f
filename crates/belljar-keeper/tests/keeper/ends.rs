//! Calls that wait for something else than approval end with their key.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belljar_engine::v1;
use belljar_keeper::{Approve, Caller, NewBudget, OnShutdown, SandboxUpdate};
use belljar_model::BudgetScope;

use crate::approvals::{approver, refusal, user, waiting, watched};
use crate::fixture::{Fixture, shell, text, until};

#[track_caller]
fn check_ended<T: std::fmt::Debug>(refused: Result<T, belljar_keeper::KeeperError>) {
    let (code, said) = refusal(refused);
    assert!(code == "policy_refused" && said.contains("before the call began"), "{code}: {said}");
}

pub(crate) async fn calls_within_a_budget_end_with_their_key(_: Fixture) {
    let faults = Arc::default();
    let fixture = Fixture::failing(&faults).await;
    let (keeper, operator) = (fixture.keeper.clone(), Caller::operator("test", "request"));
    let (agent, ann) = (watched(&fixture).await, approver(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    let exec = || {
        let (keeper, agent, id) = (keeper.clone(), agent.clone(), id.clone());
        tokio::spawn(async move { keeper.exec(&agent, &id, shell("echo ran >> ran")).await })
    };
    let asked = exec();
    let budget = NewBudget { scope: BudgetScope::Call, uses: 9, within: Duration::from_secs(600) };
    let given = Approve { note: String::new(), budget: Some(budget) };
    keeper.approve(&ann, &waiting(&fixture).await.id, given).await.unwrap();
    asked.await.unwrap().unwrap();
    exec().await.unwrap().unwrap();
    // A change of the sandbox goes on, which the next call waits for.
    let gate = faults.limits.lock().await;
    let (by, of, at) = (operator.clone(), keeper.clone(), id.clone());
    let change = SandboxUpdate { memory: Some("100m".parse().unwrap()), ..SandboxUpdate::default() };
    let changing = tokio::spawn(async move { of.update(&by, &at, change).await });
    until("it changes", async || faults.is_changing.load(Ordering::Relaxed)).await;
    let waits = exec();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    keeper.revoke_key(&operator, &agent.key).await.unwrap();
    drop(gate);
    check_ended(waits.await.unwrap());
    changing.await.unwrap().unwrap_err();
    assert_eq!(text(&fixture.sh(&operator, &id, "cat ran").await), "ran\nran\n");
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn operations_that_wait_for_a_place_end_with_their_key(fixture: Fixture) {
    const BOUND: usize = 64;
    let (keeper, operator) = (&fixture.keeper, Caller::operator("test", "request"));
    let agent = user(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    let entered = keeper.enter(&agent, &id).await.unwrap();
    let make = |name: String| v1::MakeDirRequest { path: name.into(), ..Default::default() };
    // The guest answers none of them.
    entered.hang().await.unwrap();
    let mut others: Vec<_> = (0..BOUND)
        .map(|number| Box::pin(keeper.perform_in(&operator, &entered, make(format!("d{number}")))))
        .collect();
    for other in &mut others {
        assert!(futures::poll!(tokio::task::unconstrained(other)).is_pending());
    }
    let mut operation = Box::pin(keeper.perform_in(&agent, &entered, make("ran".to_owned())));
    let mut context = Box::pin(keeper.interrupt_context(&agent, &id, "python"));
    assert!(futures::poll!(&mut operation).is_pending() && futures::poll!(&mut context).is_pending());
    let end = async {
        keeper.revoke_key(&operator, &agent.key).await.unwrap();
        keeper.pause(&operator, &id).await.unwrap();
        keeper.resume(&operator, &id, None).await.unwrap();
    };
    let all = futures::future::try_join_all(others);
    let (others, operation, context, ()) = futures::join!(all, operation, context, end);
    others.unwrap();
    check_ended(operation);
    check_ended(context);
    let stat = v1::StatRequest { path: "ran".into(), ..Default::default() };
    assert_eq!(keeper.perform(&operator, &id, stat).await.unwrap_err().code(), "path_not_found");
}
