//! Approved commands that go on by themselves.

use belljar_engine::{ProcessEvent, v1};
use belljar_keeper::{Caller, RunEvent, SandboxUpdate};
use belljar_model::{Approval, ApprovalState, Role};

use crate::approvals::{approve, approver, caller, pending, refusal, user, waiting};
use crate::fixture::{Fixture, shell, until};

fn pids() -> SandboxUpdate {
    SandboxUpdate { pids: Some("50".parse().unwrap()), ..SandboxUpdate::default() }
}

/// Waits until the end of an approved call is on record, and returns its outcome.
async fn outcome(fixture: &Fixture, ann: &Caller, id: &str) -> String {
    let get = async || fixture.keeper.approval(ann, id).await.unwrap();
    until("its end is on record", async || get().await.ended_at.is_some()).await;
    get().await.outcome.unwrap()
}

pub(crate) async fn background_commands_keep_their_sandbox(fixture: Fixture) {
    let keeper = &fixture.keeper;
    let (ann, other) = (approver(&fixture).await, user(&fixture).await);
    let agent = caller(&fixture, Role::User, None, Approval::Always).await;
    let id = fixture.create(&agent).await.id.to_string();
    let start = |line: &'static str| {
        let (own, agent, id) = (keeper.clone(), agent.clone(), id.clone());
        tokio::spawn(async move { own.start(&agent, &id, shell(line)).await })
    };
    let starting = start("until [ -e go ]; do sleep 0.01; done; exit 3");
    let asked = waiting(&fixture).await;
    approve(&fixture, &ann, &asked.id).await.unwrap();
    let started = starting.await.unwrap().unwrap();
    assert!(started.process > 0);
    // It has begun, and is not over: what was shown with it stays as it was.
    let runs = keeper.approval(&ann, &asked.id).await.unwrap();
    assert_eq!((runs.state, runs.ended_at, runs.outcome), (ApprovalState::Approved, None, None));
    let operator = Caller::operator("test", "request");
    for caller in [&other, &operator] {
        let (code, said) = refusal(keeper.update(caller, &id, pids()).await);
        assert!(code == "policy_refused" && said.contains("were shown"), "{said}");
    }
    keeper.exec(&other, &id, shell("touch go")).await.unwrap();
    assert_eq!(outcome(&fixture, &ann, &asked.id).await, "exited");
    keeper.update(&other, &id, pids()).await.unwrap();
    // So does the end of its sandbox end it.
    let starting = start("sleep 1000");
    let asked = waiting(&fixture).await;
    approve(&fixture, &ann, &asked.id).await.unwrap();
    starting.await.unwrap().unwrap();
    keeper.kill(&other, &id).await.unwrap();
    outcome(&fixture, &ann, &asked.id).await;
}

pub(crate) async fn started_processes_wait(fixture: Fixture) {
    let keeper = &fixture.keeper;
    let (ann, other) = (approver(&fixture).await, user(&fixture).await);
    let agent = caller(&fixture, Role::User, None, Approval::Always).await;
    let id = fixture.create(&agent).await.id.to_string();
    let entered = keeper.enter(&agent, &id).await.unwrap();
    let script = || v1::InlineFile {
        path: "x.sh".into(),
        data: "cat; until [ -e go ]; do sleep 0.01; done".into(),
        ..Default::default()
    };
    let request = || v1::StartRequest {
        argv: ["sh", "x.sh"].map(Into::into).to_vec(),
        env: vec![v1::EnvVar { name: "A".into(), value: "b".into(), ..Default::default() }],
        stdin: "in\n".into(),
        files: vec![script()],
        ..Default::default()
    };
    let mut run = keeper.stream_start(&agent, &entered, request());
    let Some(RunEvent::Waiting(wait)) = run.next().await else { panic!("it does not wait") };
    let asked = waiting(&fixture).await;
    assert_eq!(asked.id, wait.approval);
    // The person sees all of it.
    let shown = &asked.request;
    let argv: Vec<_> = shown.argv.iter().flatten().map(|word| word.data.as_str()).collect();
    assert_eq!((shown.action.as_str(), argv), ("exec.start", vec!["sh", "x.sh"]));
    assert_eq!((shown.env["A"].as_str(), shown.stdin.as_ref().unwrap().data.as_str()), ("b", "in\n"));
    assert!(shown.files["x.sh"].data.starts_with("cat; "), "{shown:?}");
    approve(&fixture, &ann, &asked.id).await.unwrap();
    let mut opened = loop {
        match run.next().await {
            Some(RunEvent::Ended(opened)) => break opened.unwrap(),
            Some(_) => {}
            None => panic!("it has no end"),
        }
    };
    let Some(ProcessEvent::Output { data, .. }) = opened.next().await.unwrap() else { panic!("no output") };
    assert_eq!(&data[..], b"in\n");
    assert_eq!(refusal(keeper.update(&other, &id, pids()).await).0, "policy_refused");
    keeper.exec(&other, &id, shell("touch go")).await.unwrap();
    while !matches!(opened.next().await.unwrap(), Some(ProcessEvent::Exited(_))) {}
    assert_eq!(outcome(&fixture, &ann, &asked.id).await, "exited");
    keeper.update(&other, &id, pids()).await.unwrap();
    // With the sandbox as it is now.
    let entered = keeper.enter(&agent, &id).await.unwrap();
    // What nobody could read or see does not even wait.
    for (change, field) in [
        (v1::StartRequest { stdin_open: true, ..request() }, "stdin_open"),
        (v1::StartRequest { files: vec![v1::InlineFile { mode: 0o755, ..script() }], ..request() }, "files"),
        (
            v1::StartRequest {
                files: vec![v1::InlineFile { path: b"\xff"[..].into(), ..script() }],
                ..request()
            },
            "files",
        ),
        (
            v1::StartRequest {
                env: vec![v1::EnvVar { name: "A".into(), value: b"\xff"[..].into(), ..Default::default() }],
                ..request()
            },
            "env",
        ),
    ] {
        let (_, said) = refusal(keeper.start_process(&agent, &entered, change).await.map(drop));
        assert!(said.starts_with(field), "{field}: {said}");
    }
    // One that is denied, or whose caller leaves, does not run.
    let mut run = keeper.stream_start(&agent, &entered, request());
    let Some(RunEvent::Waiting(wait)) = run.next().await else { panic!("it does not wait") };
    keeper.deny(&ann, &wait.approval, "no".to_owned()).await.unwrap();
    let Some(RunEvent::Ended(Err(denied))) = run.next().await else { panic!("it runs") };
    assert_eq!(denied.code(), "not_approved");
    let mut run = keeper.stream_start(&agent, &entered, request());
    let Some(RunEvent::Waiting(_)) = run.next().await else { panic!("it does not wait") };
    drop(run);
    until("it is cancelled", async || pending(&fixture).await.is_empty()).await;
}
