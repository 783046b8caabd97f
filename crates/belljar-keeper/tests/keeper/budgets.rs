//! Budgets: approvals that cover further calls, and where they end.

use std::time::Duration;

use belljar_keeper::{Approve, Caller, NewBudget, OnShutdown, RunEvent};
use belljar_model::{ApprovalState, BudgetScope, ToolFile};

use crate::approvals::{
    add_tool, all, approver, call, code, output, pending, refusal, tool_file, user, waiting, watched,
};
use crate::fixture::{Fixture, rename, shell, until};

pub(crate) async fn budgets_end_at_their_edge(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, other, ann) = (user(&fixture).await, user(&fixture).await, approver(&fixture).await);
    let budget = |scope, uses, within| Approve {
        note: String::new(),
        budget: Some(NewBudget { scope, uses, within: Duration::from_secs(within) }),
    };
    // Three calls in all: of five more at the same time, two run.
    let first = call(&fixture, &user, code("echo yes"));
    let asked = waiting(&fixture).await;
    fixture.keeper.approve(&ann, &asked.id, budget(BudgetScope::Call, 3, 600)).await.unwrap();
    first.await.unwrap().unwrap();
    let more: Vec<_> = (0..5).map(|_| call(&fixture, &user, code("echo yes"))).collect();
    until("three wait, and two have run", async || {
        let ran =
            all(&fixture).await.into_iter().filter(|one| one.granted_by.is_some() && one.ended_at.is_some());
        (pending(&fixture).await.len(), ran.count()) == (3, 2)
    })
    .await;
    let info = fixture.keeper.approval(&ann, &asked.id).await.unwrap();
    let given = info.decision.unwrap().budget.unwrap();
    assert_eq!((given.uses, given.used), (3, 3));
    for one in pending(&fixture).await {
        fixture.keeper.deny(&ann, &one.id, String::new()).await.unwrap();
    }
    let ended = futures::future::join_all(more).await;
    assert_eq!(ended.iter().filter(|done| done.as_ref().unwrap().is_ok()).count(), 2);
    // A budget for the call covers no other code, and nobody else; one for the tool covers other code of the same version.
    let next = async |caller: &Caller, line: &str| {
        let running = call(&fixture, caller, code(line));
        let result = tokio::select! {
            () = async { drop(waiting(&fixture).await) } => None,
            ran = async { until("it has run", async || running.is_finished()).await } => Some(ran),
        };
        match result {
            Some(()) => {
                running.await.unwrap().unwrap();
                true
            }
            None => {
                let asked = waiting(&fixture).await;
                fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
                assert_eq!(refusal(running.await.unwrap()).0, "not_approved");
                false
            }
        }
    };
    for (scope, own, others) in [(BudgetScope::Call, true, false), (BudgetScope::Tool, true, true)] {
        let running = call(&fixture, &user, code("echo a"));
        let asked = waiting(&fixture).await;
        fixture.keeper.approve(&ann, &asked.id, budget(scope, 10, 600)).await.unwrap();
        running.await.unwrap().unwrap();
        assert_eq!(next(&user, "echo a").await, own, "{scope}");
        assert_eq!(next(&user, "echo b").await, others, "{scope}");
        assert!(!next(&other, "echo a").await, "{scope}");
        // A refusal ends it.
        let (ended, id) = (fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap(), &asked.id);
        assert_eq!((ended.state, &ended.id), (ApprovalState::Approved, id));
        assert!(!next(&user, "echo a").await, "{scope}");
        assert_eq!(refusal(fixture.keeper.deny(&ann, id, String::new()).await).0, "approval_decided");
    }
    // Nor does it cover another version, or what comes after its time.
    let running = call(&fixture, &user, code("echo a"));
    let asked = waiting(&fixture).await;
    fixture.keeper.approve(&ann, &asked.id, budget(BudgetScope::Tool, 10, 600)).await.unwrap();
    running.await.unwrap().unwrap();
    let operator = Caller::operator("test", "request");
    fixture
        .keeper
        .update_tool(&operator, "sh", ToolFile { description: "new".to_owned(), ..tool_file(false) })
        .await
        .unwrap();
    assert!(!next(&user, "echo a").await);
    let running = call(&fixture, &user, code("echo a"));
    let asked = waiting(&fixture).await;
    let short = fixture.keeper.approve(&ann, &asked.id, budget(BudgetScope::Tool, 10, 1)).await.unwrap();
    running.await.unwrap().unwrap();
    let end = short.decision.unwrap().budget.unwrap().until;
    until("its time is over", async || jiff::Timestamp::now() >= end).await;
    assert!(!next(&user, "echo a").await);
    // Sizes are bounded, and a command has no tool.
    let running = call(&fixture, &user, code("echo a"));
    let asked = waiting(&fixture).await;
    for wrong in [
        budget(BudgetScope::Call, 1, 60),
        budget(BudgetScope::Call, 1001, 60),
        budget(BudgetScope::Call, 2, 0),
        budget(BudgetScope::Call, 2, 24 * 3600 + 1),
        Approve { note: "x".repeat(1025), budget: None },
        Approve { note: "\u{1b}[2J".to_owned(), budget: None },
    ] {
        assert_eq!(refusal(fixture.keeper.approve(&ann, &asked.id, wrong).await).0, "invalid_field");
    }
    running.abort();
    until("it is cancelled", async || pending(&fixture).await.is_empty()).await;
    let agent = watched(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    let mut run = fixture.keeper.stream_exec(&agent, &id, shell("true"));
    let Some(RunEvent::Waiting(wait)) = run.next().await else { panic!("it does not wait") };
    let tool = fixture.keeper.approve(&ann, &wait.approval, budget(BudgetScope::Tool, 2, 60)).await;
    assert_eq!(refusal(tool).0, "invalid_field");
}

/// A budget whose giver's key cannot be looked up is neither used nor ended.
pub(crate) async fn budgets_survive_failures_of_the_store(_: Fixture) {
    let (fixture, file) = Fixture::in_file().await;
    let keeper = &fixture.keeper;
    add_tool(&fixture, false).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let budget = NewBudget { scope: BudgetScope::Tool, uses: 9, within: Duration::from_secs(600) };
    let running = call(&fixture, &user, code("echo 1"));
    let asked = waiting(&fixture).await;
    keeper.approve(&ann, &asked.id, Approve { note: String::new(), budget: Some(budget) }).await.unwrap();
    running.await.unwrap().unwrap();
    rename(&file, "keys", "away").await;
    assert_eq!(refusal(keeper.call_tool(&user, "sh", code("echo 2")).await).0, "store_failed");
    rename(&file, "away", "keys").await;
    assert_eq!(output(&keeper.call_tool(&user, "sh", code("echo 3")).await.unwrap()), "3\n");
    let given = keeper.approval(&ann, &asked.id).await.unwrap();
    // The call that failed has used nothing.
    assert_eq!((given.state, given.decision.unwrap().budget.unwrap().used), (ApprovalState::Approved, 2));
    keeper.close(OnShutdown::Kill).await.unwrap();
}
