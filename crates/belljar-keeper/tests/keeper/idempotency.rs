//! What has begun with an idempotency key is not run again, however it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_keeper::{CodeRequest, ExecEvent, ExecRequest, Idempotency, OnShutdown, RunEvent};
use belljar_model::ApprovalState;
use belljar_testing::wait::DEADLINE;

use crate::approvals::{approve, approver, refusal, waiting, watched};
use crate::fixture::{Fixture, plain, rename, shell, text, until, user};

fn once(key: &str) -> Option<Idempotency> {
    Some(Idempotency { key: key.to_owned(), request_digest: [1; 32] })
}

pub(crate) async fn commands_that_began_are_not_run_again(_: Fixture) {
    let (ann, faults) = (user("ann"), Arc::default());
    let fixture = Fixture::failing(&faults).await;
    let keeper = &fixture.keeper;
    let id = keeper.create(&ann, plain()).await.unwrap().info.id.to_string();
    let request = || ExecRequest { idempotency: once("a"), ..shell("sleep 1000") };
    let mut run = keeper.stream_exec(&ann, &id, request());
    let Some(RunEvent::Progress(ExecEvent::Started { .. })) = run.next().await else { panic!("no start") };
    // Its guest is lost, and the engine does not know more.
    faults.stopped.store(true, Ordering::Relaxed);
    keeper.enter(&ann, &id).await.unwrap().crash();
    let Some(RunEvent::Ended(Err(lost))) = run.next().await else { panic!("it has an end") };
    assert_eq!(lost.code(), "not_offered", "{lost}");
    let again = refusal(keeper.exec(&ann, &id, request()).await);
    assert_eq!(again.0, "execution_interrupted", "{}", again.1);
    faults.stopped.store(false, Ordering::Relaxed);
    keeper.close(OnShutdown::Kill).await.unwrap();
}

pub(crate) async fn lost_records_do_not_run_it_again(_: Fixture) {
    let (fixture, file) = Fixture::in_file().await;
    let keeper = &fixture.keeper;
    let (agent, ann) = (watched(&fixture).await, approver(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    let until_told = "until [ -e over ]; do sleep 0.01; done; echo ran >> ran";
    let mut approved = Vec::new();
    for is_code in [false, true] {
        let run = || {
            let (keeper, agent, id) = (keeper.clone(), agent.clone(), id.clone());
            async move {
                if is_code {
                    let code = format!("import os; os.system('{until_told}')").into();
                    let request = CodeRequest { code, idempotency: once("code"), ..CodeRequest::default() };
                    return keeper.run_code(&agent, &id, request).await.map(drop);
                }
                let request = ExecRequest { idempotency: once("command"), ..shell(until_told) };
                keeper.exec(&agent, &id, request).await.map(drop)
            }
        };
        let running = tokio::spawn(run());
        let asked = waiting(&fixture).await;
        approve(&fixture, &ann, &asked.id).await.unwrap();
        until("it runs", async || keeper.approval(&ann, &asked.id).await.unwrap().started_at.is_some()).await;
        // Its end cannot be recorded.
        rename(&file, "approvals", "away").await;
        fixture.sh(&user("default"), &id, "touch over").await;
        assert_eq!(refusal(running.await.unwrap()).0, "store_failed");
        rename(&file, "away", "approvals").await;
        // Another one would wait for approval.
        let again = refusal(tokio::time::timeout(DEADLINE, run()).await.unwrap());
        assert_eq!(again.0, "execution_interrupted", "{}", again.1);
        fixture.sh(&user("default"), &id, "cat ran; rm over ran").await;
        approved.push(asked.id);
    }
    for id in approved {
        until("its end is recorded", async || keeper.approval(&ann, &id).await.unwrap().ended_at.is_some())
            .await;
        let ended = keeper.approval(&ann, &id).await.unwrap();
        assert_eq!(ended.state, ApprovalState::Approved, "{ended:?}");
    }
    keeper.close(OnShutdown::Kill).await.unwrap();
}

/// The store fails for a time, and then tells what became of them.
pub(crate) async fn ends_that_could_not_be_stored_are_stored_later(_: Fixture) {
    let (fixture, file) = Fixture::in_file().await;
    let keeper = &fixture.keeper;
    let (default, agent, ann) = (user("default"), watched(&fixture).await, approver(&fixture).await);
    let id = fixture.create(&default).await.id.to_string();
    // One has run.
    let until_told = "until [ -e over ]; do sleep 0.01; done; echo ran >> ran";
    let request = || ExecRequest { idempotency: once("ran"), ..shell(until_told) };
    let mut run = keeper.stream_exec(&default, &id, request());
    let Some(RunEvent::Progress(ExecEvent::Started { .. })) = run.next().await else { panic!("no start") };
    rename(&file, "idempotency", "away").await;
    fixture.sh(&default, &id, "touch over").await;
    let Some(RunEvent::Ended(Err(lost))) = run.next().await else { panic!("it has an end") };
    assert_eq!(lost.code(), "store_failed", "{lost}");
    assert_eq!(refusal(keeper.exec(&default, &id, request()).await).0, "store_failed");
    rename(&file, "away", "idempotency").await;
    for _ in 0..2 {
        let again = refusal(keeper.exec(&default, &id, request()).await);
        assert_eq!(again.0, "execution_interrupted", "{}", again.1);
    }
    assert_eq!(text(&fixture.sh(&default, &id, "cat ran").await), "ran\n");
    // One has not, and is sent again.
    let asking = || {
        let (keeper, agent, id) = (keeper.clone(), agent.clone(), id.clone());
        let request = ExecRequest { idempotency: once("denied"), ..shell("echo fine") };
        tokio::spawn(async move { keeper.exec(&agent, &id, request).await })
    };
    let denied = asking();
    let asked = waiting(&fixture).await;
    rename(&file, "idempotency", "away").await;
    keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
    assert_eq!(refusal(denied.await.unwrap()).0, "not_approved");
    rename(&file, "away", "idempotency").await;
    let again = asking();
    approve(&fixture, &ann, &waiting(&fixture).await.id).await.unwrap();
    assert_eq!(text(&again.await.unwrap().unwrap()), "fine\n");
    keeper.close(OnShutdown::Kill).await.unwrap();
}
