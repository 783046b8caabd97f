//! Sandboxes that are frozen, and what must not stay so or run on: after failures of the engine, and of what an approval has left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belljar_keeper::{Caller, OnShutdown};
use belljar_model::{ApprovalState, SandboxState};
use belljar_store::ApprovalRow;
use jiff::Timestamp;

use crate::approvals::{add_tool, approver, call, code, recorded, refusal, state, user, waiting, watched};
use crate::fixture::{Fixture, plain, shell, text, until};

pub(crate) async fn failed_resume_leaves_it_paused(_: Fixture) {
    let (ann, faults) = (crate::fixture::user("ann"), Arc::default());
    let fixture = Fixture::failing(&faults).await;
    let keeper = &fixture.keeper;
    let id = keeper.create(&ann, plain()).await.unwrap().info.id.to_string();
    let before = keeper.pause(&ann, &id).await.unwrap();
    faults.thaw.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(refusal(keeper.resume(&ann, &id, None).await).0, "not_offered");
        let now = keeper.get(&ann, &id).await.unwrap();
        assert_eq!((now.state, now.expires_at), (SandboxState::Paused, before.expires_at));
    }
    faults.thaw.store(false, Ordering::Relaxed);
    assert_eq!(keeper.resume(&ann, &id, None).await.unwrap().state, SandboxState::Running);
    assert_eq!(text(&keeper.exec(&ann, &id, shell("echo on")).await.unwrap()), "on\n");
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn holds_of_ended_calls_are_released(_: Fixture) {
    let faults = Arc::default();
    let fixture = Fixture::failing(&faults).await;
    let keeper = fixture.keeper.clone();
    let (agent, ann) = (watched(&fixture).await, approver(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    let (by, at, running) = (agent.clone(), id.clone(), keeper.clone());
    let running = tokio::spawn(async move { running.exec(&by, &at, shell("true")).await.map(drop) });
    let asked = waiting(&fixture).await;
    faults.thaw.store(true, Ordering::Relaxed);
    keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
    running.await.unwrap().unwrap_err();
    let held = keeper.get(&agent, &id).await.unwrap();
    assert_eq!((held.state, held.held_by), (SandboxState::Paused, Some(asked.id)));
    faults.thaw.store(false, Ordering::Relaxed);
    until("it is released", async || keeper.get(&agent, &id).await.unwrap().state == SandboxState::Running)
        .await;
    assert_eq!(keeper.get(&agent, &id).await.unwrap().held_by, None);
    keeper.close(OnShutdown::Kill).await.unwrap();
}

/// As after a failure of the store when their time was over.
pub(crate) async fn overdue_approvals_are_closed(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, _ann) = (user(&fixture).await, approver(&fixture).await);
    let running = call(&fixture, &user, code("true"));
    let asked = waiting(&fixture).await;
    let approvals = fixture.store.approvals();
    let row = approvals.get(None, &asked.id).await.unwrap().unwrap();
    let past = Timestamp::now().checked_sub(Duration::from_secs(120)).unwrap();
    let closed = [
        ("apr_1", ApprovalState::Pending, ApprovalState::Expired),
        ("apr_2", ApprovalState::Approved, ApprovalState::Cancelled),
    ];
    for (id, state, _) in closed {
        let row = ApprovalRow { id: id.to_owned(), state, created_at: past, expires_at: past, ..row.clone() };
        assert!(approvals.insert(&row, 100, 100).await.unwrap());
    }
    for (id, _, expected) in closed {
        until("it is closed", async || state(&fixture, id).await == expected).await;
    }
    assert_eq!(
        (recorded(&fixture, "approval.expire").await, recorded(&fixture, "approval.cancel").await),
        (1, 1)
    );
    // One whose call still waits is not.
    assert_eq!(state(&fixture, &asked.id).await, ApprovalState::Pending);
    let operator = Caller::operator("test", "request");
    fixture.keeper.deny(&operator, &asked.id, String::new()).await.unwrap();
    running.await.unwrap().unwrap_err();
}
