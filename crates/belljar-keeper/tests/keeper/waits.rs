//! Calls that wait for approval: what is frozen meanwhile, what ends the wait, and how many may wait.

use std::time::{Duration, Instant};

use belljar_engine::v1;
use belljar_keeper::operation::Write;
use belljar_keeper::{Approve, Caller, CodeRequest, KeyChange, OnShutdown, RunEvent, SandboxUpdate};
use belljar_model::{Approval, ApprovalState, Role, SandboxState};
use bytes::Bytes;
use futures::{StreamExt as _, stream};

use crate::approvals::{
    add_tool, all, approve, approver, call, code, output, pending, recorded, refusal, state, user, waiting,
    watched,
};
use crate::fixture::{Fixture, plain, shell, text, until};

pub(crate) async fn expiry_refuses(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let mut config = fixture.config.clone();
    config.approvals.timeout = Duration::from_millis(300);
    fixture.keeper.reconfigure(config.clone());
    let begin = Instant::now();
    let (code_of, said) = refusal(fixture.keeper.call_tool(&user, "sh", code("true")).await);
    assert_eq!(code_of, "not_approved");
    assert!(said.ends_with("is expired: nobody decided in time"), "{said}");
    assert!(begin.elapsed() >= Duration::from_millis(300));
    let over = all(&fixture).await.remove(0);
    assert_eq!(refusal(approve(&fixture, &ann, &over.id).await).0, "approval_decided");
    assert_eq!(recorded(&fixture, "approval.expire").await, 1);
    // Decisions around the deadline: what is recorded is what happens.
    for shift in 0..8 {
        let running = call(&fixture, &user, code("true"));
        let asked = waiting(&fixture).await;
        let left =
            Duration::try_from(asked.expires_at.duration_since(jiff::Timestamp::now())).unwrap_or_default();
        tokio::time::sleep(left.saturating_sub(Duration::from_millis(8 - shift))).await;
        let given = approve(&fixture, &ann, &asked.id).await;
        let ran = running.await.unwrap();
        assert_eq!(given.is_ok(), ran.is_ok(), "{given:?} {ran:?}");
        let expected = if ran.is_ok() { ApprovalState::Approved } else { ApprovalState::Expired };
        assert_eq!(state(&fixture, &asked.id).await, expected);
    }
}

pub(crate) async fn callers_that_leave_cancel(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let running = call(&fixture, &user, code("true"));
    let asked = waiting(&fixture).await;
    running.abort();
    until("it is cancelled", async || state(&fixture, &asked.id).await == ApprovalState::Cancelled).await;
    assert_eq!(refusal(approve(&fixture, &ann, &asked.id).await).0, "approval_decided");
    assert_eq!(recorded(&fixture, "approval.cancel").await, 1);
    // So does a key that is revoked while it waits, has lost its role, or has another rule.
    let operator = Caller::operator("test", "request");
    let role = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let rule = KeyChange { approval: Some(Approval::Always), ..KeyChange::default() };
    for change in [None, Some(role), Some(rule)] {
        let user = crate::approvals::user(&fixture).await;
        let running = call(&fixture, &user, code("true"));
        let asked = waiting(&fixture).await;
        match change {
            Some(change) => {
                fixture.keeper.update_key(&operator, &user.key, change).await.unwrap();
            }
            None => fixture.keeper.revoke_key(&operator, &user.key).await.unwrap(),
        }
        let (code_of, said) = refusal(running.await.unwrap());
        assert_eq!(code_of, "not_approved");
        assert!(said.contains("its key was revoked"), "{said}");
        assert_eq!(refusal(approve(&fixture, &ann, &asked.id).await).0, "approval_decided");
        assert_eq!(state(&fixture, &asked.id).await, ApprovalState::Cancelled);
    }
    assert!(fixture.keeper.is_empty());
}

pub(crate) async fn sandbox_is_frozen_while_a_call_waits(fixture: Fixture) {
    let (agent, ann) = (watched(&fixture).await, approver(&fixture).await);
    let other = user(&fixture).await;
    let mut request = plain();
    request.lifetime.auto_resume = true;
    let id = fixture.keeper.create(&agent, request).await.unwrap().info.id.to_string();
    // Of another key, which needs no approval, and goes on while nobody waits.
    let line = "while true; do date +%s%N > beat; sleep 0.02; done";
    let started = fixture.keeper.start(&other, &id, shell(line)).await.unwrap();
    assert!(started.process > 0);
    let mut run = fixture.keeper.stream_exec(&agent, &id, shell("cat beat; echo done"));
    let Some(RunEvent::Waiting(wait)) = run.next().await else { panic!("it does not wait") };
    let asked = waiting(&fixture).await;
    assert_eq!(
        (asked.id.as_str(), asked.request.sandbox.as_deref()),
        (wait.approval.as_str(), Some(id.as_str()))
    );
    assert_eq!(asked.request.command.as_ref().unwrap().data, "cat beat; echo done");
    assert_eq!(fixture.keeper.get(&other, &id).await.unwrap().state, SandboxState::Paused);
    // Nothing uses or resumes it: neither a use, nor a request, whoever makes it.
    let operator = Caller::operator("test", "request");
    let write = || {
        let open = v1::WriteOpen { path: "beat".into(), ..Default::default() };
        Write::new(open, stream::iter([Ok(Bytes::from_static(b"forged"))]).boxed())
    };
    for caller in [&other, &operator] {
        let (code_of, said) = refusal(fixture.keeper.resume(caller, &id, None).await);
        assert_eq!(code_of, "wrong_state");
        let advice = format!(
            "released by a decision about the call that waits in it: belljar approval show {}",
            asked.id
        );
        assert!(said.ends_with(&advice), "{said}");
        assert_eq!(refusal(fixture.keeper.perform(caller, &id, write()).await).0, "wrong_state");
        assert_eq!(refusal(fixture.keeper.exec(caller, &id, shell("true")).await.map(drop)).0, "wrong_state");
        let network = serde_json::from_str("{\"mode\": \"open\"}").unwrap();
        let update = SandboxUpdate { network: Some(network), ..SandboxUpdate::default() };
        assert!(fixture.keeper.update(caller, &id, update).await.is_err());
    }
    approve(&fixture, &ann, &asked.id).await.unwrap();
    let mut ended = None;
    while let Some(event) = run.next().await {
        if let RunEvent::Ended(result) = event {
            ended = Some(result.unwrap());
        }
    }
    assert!(text(&ended.unwrap()).ends_with("done\n"));
    assert_eq!(fixture.keeper.get(&other, &id).await.unwrap().state, SandboxState::Running);
    // Code waits in the same way, and a refusal releases the sandbox, too.
    let code_request = CodeRequest { code: "print(6*7)".into(), ..CodeRequest::default() };
    let (keeper, caller, at) = (fixture.keeper.clone(), agent.clone(), id.clone());
    let running = tokio::spawn(async move { keeper.run_code(&caller, &at, code_request).await });
    let asked = waiting(&fixture).await;
    fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
    assert_eq!(refusal(running.await.unwrap()).0, "not_approved");
    assert_eq!(fixture.keeper.get(&other, &id).await.unwrap().state, SandboxState::Running);
    // The end of the sandbox ends the wait.
    let (keeper, caller, at) = (fixture.keeper.clone(), agent.clone(), id.clone());
    let running = tokio::spawn(async move { keeper.exec(&caller, &at, shell("true")).await.map(drop) });
    let asked = waiting(&fixture).await;
    fixture.keeper.kill(&other, &id).await.unwrap();
    assert_eq!(refusal(running.await.unwrap()).0, "sandbox_gone");
    assert_eq!(state(&fixture, &asked.id).await, ApprovalState::Cancelled);
    assert_eq!(refusal(approve(&fixture, &ann, &asked.id).await).0, "approval_decided");
}

pub(crate) async fn sessions_wait_in_their_sandbox(fixture: Fixture) {
    add_tool(&fixture, true).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    for expected in ["1\n", "2\n"] {
        let running = call(&fixture, &user, code("x=$((x + 1)); echo $x"));
        let asked = waiting(&fixture).await;
        let sandbox = asked.request.sandbox.clone().unwrap();
        until("it is frozen", async || {
            fixture.keeper.get(&user, &sandbox).await.unwrap().state == SandboxState::Paused
        })
        .await;
        approve(&fixture, &ann, &asked.id).await.unwrap();
        assert_eq!(output(&running.await.unwrap().unwrap()), expected);
    }
}

/// It waits longer than the interval at which its key is checked.
pub(crate) async fn approved_calls_wait_for_their_turn(fixture: Fixture) {
    add_tool(&fixture, true).await;
    let (agent, ann) = (watched(&fixture).await, approver(&fixture).await);
    let first = call(&fixture, &agent, code("touch begun; sleep 6; touch first"));
    let asked = waiting(&fixture).await;
    approve(&fixture, &ann, &asked.id).await.unwrap();
    let sandbox = asked.request.sandbox.unwrap();
    let begun = || v1::StatRequest { path: "begun".into(), ..Default::default() };
    until("it runs", async || fixture.keeper.perform(&agent, &sandbox, begun()).await.is_ok()).await;
    let second = call(&fixture, &agent, code("ls"));
    approve(&fixture, &ann, &waiting(&fixture).await.id).await.unwrap();
    assert_eq!(output(&second.await.unwrap().unwrap()), "begun\nfirst\n");
    first.await.unwrap().unwrap();
}

pub(crate) async fn restart_closes_what_was_open(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    // One that waits, one that runs, and one that is over.
    let over = call(&fixture, &user, code("true"));
    let over_id = waiting(&fixture).await.id;
    approve(&fixture, &ann, &over_id).await.unwrap();
    over.await.unwrap().unwrap();
    let runs = call(&fixture, &user, code("sleep 600"));
    let runs_id = waiting(&fixture).await.id;
    approve(&fixture, &ann, &runs_id).await.unwrap();
    until("it runs", async || fixture.keeper.approval(&ann, &runs_id).await.unwrap().started_at.is_some())
        .await;
    let waits = call(&fixture, &user, code("true"));
    let waits_id = waiting(&fixture).await.id;
    let denied = call(&fixture, &user, code("true"));
    until("another waits", async || pending(&fixture).await.len() == 2).await;
    let denied_id = pending(&fixture).await.into_iter().find(|one| one.id != waits_id).unwrap().id;
    fixture.keeper.deny(&ann, &denied_id, String::new()).await.unwrap();
    denied.await.unwrap().unwrap_err();
    // The next server of that name finds them, as after a crash of this one.
    let next = fixture.reopen(|_| {}).await;
    let state = async |id: &str| next.approval(&ann, id).await.unwrap().state;
    assert_eq!(state(&over_id).await, ApprovalState::Approved);
    assert_eq!(state(&runs_id).await, ApprovalState::OutcomeUnknown);
    assert_eq!(state(&waits_id).await, ApprovalState::Cancelled);
    assert_eq!(state(&denied_id).await, ApprovalState::Denied);
    let (code_of, said) = refusal(next.approve(&ann, &waits_id, Approve::default()).await);
    assert_eq!((code_of, said), ("approval_decided", format!("approval {waits_id} is cancelled already")));
    assert_eq!(refusal(next.approve(&ann, &runs_id, Approve::default()).await).0, "approval_decided");
    // The call that still waits in the earlier process does not run.
    assert_eq!(refusal(waits.await.unwrap()).0, "not_approved");
    runs.abort();
    next.close(OnShutdown::Keep).await.unwrap();
}

pub(crate) async fn shutdown_refuses_what_waits(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let other = fixture.reopen(|config| config.name = "other".to_owned()).await;
    let (keeper, caller) = (other.clone(), user.clone());
    let running = tokio::spawn(async move { keeper.call_tool(&caller, "sh", code("true")).await });
    let asked = waiting(&fixture).await;
    // A decision that another server takes is noticed, too.
    fixture.keeper.deny(&ann, &asked.id, "no".to_owned()).await.unwrap();
    assert_eq!(refusal(running.await.unwrap()).0, "not_approved");
    let (keeper, caller) = (other.clone(), user.clone());
    let running = tokio::spawn(async move { keeper.call_tool(&caller, "sh", code("true")).await });
    let asked = waiting(&fixture).await;
    other.close(OnShutdown::Keep).await.unwrap();
    assert_eq!(refusal(running.await.unwrap()).0, "shutting_down");
    assert_eq!(state(&fixture, &asked.id).await, ApprovalState::Cancelled);
}

pub(crate) async fn waiting_calls_are_bounded(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (other, third) = (user(&fixture).await, user(&fixture).await);
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let mut config = fixture.config.clone();
    config.approvals.max_pending = 2;
    fixture.keeper.reconfigure(config);
    // One person has half of the places, whatever key is used.
    let mut running = vec![call(&fixture, &user, code("true"))];
    until("it waits", async || pending(&fixture).await.len() == 1).await;
    let full = |refused: (&'static str, String)| {
        assert_eq!(refused.0, "quota_exceeded");
        assert!(refused.1.contains("approvals: 1 of 1"), "{}", refused.1);
    };
    full(refusal(fixture.keeper.call_tool(&user, "sh", code("true")).await));
    running.push(call(&fixture, &other, code("true")));
    until("both wait", async || pending(&fixture).await.len() == 2).await;
    full(refusal(fixture.keeper.call_tool(&third, "sh", code("true")).await));
    for one in pending(&fixture).await {
        fixture.keeper.deny(&ann, &one.id, String::new()).await.unwrap();
    }
    futures::future::join_all(running).await;
    let long = code(&"#".repeat(belljar_keeper::MAX_APPROVAL_BYTES));
    let (code_of, said) = refusal(fixture.keeper.call_tool(&user, "sh", long).await);
    assert_eq!(code_of, "invalid_field");
    assert!(said.contains("may have at most 262144"), "{said}");
}
