//! Sandboxes that are frozen, and what must not stay so or run on: after failures of the engine, and of what an approval has left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belljar_keeper::{Caller, CreateSandbox, Lifetime, OnShutdown};
use belljar_model::{ApprovalState, SandboxState};
use belljar_store::ApprovalRow;
use jiff::Timestamp;

use crate::approvals::{add_tool, approver, call, code, recorded, refusal, state, user, waiting, watched};
use crate::faults::Faults;
use crate::fixture::{Fixture, plain, rename, shell, text, until};

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

/// The store fails, too, so that nobody knows any more that it is not to run.
pub(crate) async fn deadlines_hold_after_failed_pauses_and_resumes(_: Fixture) {
    let (ann, faults) = (crate::fixture::user("ann"), Arc::<Faults>::default());
    let (fixture, file) = Fixture::in_file_with(faults.engines()).await;
    let keeper = &fixture.keeper;
    for is_resume in [false, true] {
        let lifetime = Lifetime { timeout: Duration::from_secs(4), ..Lifetime::default() };
        let made = keeper.create(&ann, CreateSandbox { lifetime, ..plain() }).await.unwrap();
        let id = made.info.id.to_string();
        if is_resume {
            faults.freeze.store(false, Ordering::Relaxed);
            keeper.pause(&ann, &id).await.unwrap();
        }
        faults.freeze.store(!is_resume, Ordering::Relaxed);
        faults.thaw.store(is_resume, Ordering::Relaxed);
        let gate = faults.change.lock().await;
        let (keeper, by, at) = (keeper.clone(), ann.clone(), id.clone());
        let changing = tokio::spawn(async move {
            match is_resume {
                true => keeper.resume(&by, &at, None).await,
                false => keeper.pause(&by, &at).await,
            }
        });
        let written = if is_resume { SandboxState::Running } else { SandboxState::Paused };
        let keeper = &fixture.keeper;
        until("it is written", async || keeper.get(&ann, &id).await.unwrap().state == written).await;
        rename(&file, "sandboxes", "away").await;
        drop(gate);
        assert_eq!(refusal(changing.await.unwrap()).0, "not_offered");
        rename(&file, "away", "sandboxes").await;
        until("its time is over", async || keeper.get(&ann, &id).await.is_err()).await;
        assert_eq!(refusal(keeper.get(&ann, &id).await).0, "sandbox_gone");
    }
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
