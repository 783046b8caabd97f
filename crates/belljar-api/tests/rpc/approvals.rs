//! Calls over RPC that wait for approval.

use std::sync::Arc;

use belljar_client::{Client, Credential, v1};
use belljar_engine::{CodeEvent, GuestError, ProcessEvent};
use belljar_keeper::{ApprovalInfo, Approve, Caller, ListApprovals, NewKey, Quotas};
use belljar_model::{Approval, ApprovalState, Role};
use belljar_testing::wait::until;
use parking_lot::Mutex;
use v1::__buffa::oneof::exec_event::Event;

use crate::fixture::{Fixture, cases, line, sandbox};

cases![calls_say_that_they_wait, refused_calls_do_not_run];

/// Returns a client whose calls all wait, and a person who decides.
async fn clients(fixture: &Fixture) -> (Client, Caller) {
    let operator = Caller::operator("test", "request");
    let key = |role, approval| NewKey {
        name: "test".to_owned(),
        role,
        tenant: "default".to_owned(),
        expires: None,
        quotas: Quotas::default(),
        owner: None,
        approval,
    };
    let agent = fixture.keeper.create_key(&operator, key(Role::User, Approval::Always)).await.unwrap();
    let ann = fixture.keeper.create_key(&operator, key(Role::Approver, Approval::Never)).await.unwrap();
    let ann = fixture.keeper.authenticate(&ann.key, "test", "request").await.unwrap();
    (fixture.with_key(Credential::key(agent.key)), ann)
}

/// Returns the calls that wait.
async fn pending(fixture: &Fixture, ann: &Caller) -> Vec<ApprovalInfo> {
    let query = ListApprovals { state: Some(ApprovalState::Pending), ..ListApprovals::default() };
    fixture.keeper.approvals(ann, &query).await.unwrap().items
}

/// Approves the next call that waits, once the client has been told.
async fn approve(fixture: &Fixture, ann: &Caller, told: &Mutex<Vec<String>>) -> ApprovalInfo {
    until("a call waits", async || pending(fixture, ann).await.len() == 1).await;
    let asked = pending(fixture, ann).await.remove(0);
    until("the client is told", async || told.lock().contains(&asked.id)).await;
    fixture.keeper.approve(ann, &asked.id, Approve::default()).await.unwrap();
    asked
}

async fn calls_say_that_they_wait(fixture: Fixture) {
    let (agent, ann) = clients(&fixture).await;
    let id = sandbox(&agent).await;
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&told);
    let guest = agent.guest(&id).unwrap().on_waiting(move |waiting| {
        assert!(waiting.expires_at.is_set(), "{waiting:?}");
        seen.lock().push(waiting.approval);
    });
    // A process.
    let request =
        v1::StartRequest { shell: "cat; echo out".into(), stdin: "in\n".into(), ..Default::default() };
    let (execution, asked) = futures::join!(guest.start(request), approve(&fixture, &ann, &told));
    assert_eq!(asked.request.command.unwrap().data, "cat; echo out");
    let mut execution = execution.unwrap();
    assert!(execution.id > 0 && execution.pid > 0, "{execution:?}");
    let mut output = Vec::new();
    while let Some(event) = execution.next().await.unwrap() {
        if let ProcessEvent::Output { data, .. } = event {
            output.extend_from_slice(&data);
        }
    }
    assert_eq!(output, b"in\nout\n");
    // Code.
    let request = v1::ExecuteCodeRequest {
        code: "echo code".into(),
        language: "bash".to_owned(),
        ..Default::default()
    };
    let running = async {
        let mut stream = guest.execute_code(request).await.unwrap();
        let mut events = Vec::new();
        while let Some(event) = stream.next().await.unwrap() {
            events.push(event);
        }
        events
    };
    let (events, asked) = futures::join!(running, approve(&fixture, &ann, &told));
    assert_eq!(asked.request.code.unwrap().data, "echo code");
    assert!(matches!(events[..], [CodeEvent::Started(_), .., CodeEvent::Ended(_)]), "{events:?}");
    // A command, whose stream has the event itself.
    let running = async {
        let mut events = agent.exec(line(&id, "echo yes"), None).await.unwrap();
        let mut all = Vec::new();
        while let Some(event) = events.next().await.unwrap() {
            if let Some(Event::Waiting(waiting)) = &event.event {
                told.lock().push(waiting.approval.clone());
            }
            all.extend(event.event);
        }
        all
    };
    let (events, _) = futures::join!(running, approve(&fixture, &ann, &told));
    assert!(matches!(events[..], [Event::Waiting(_), Event::Started(_), .., Event::Result(_)]), "{events:?}");
    assert_eq!(told.lock().len(), 3);
}

async fn refused_calls_do_not_run(fixture: Fixture) {
    let (agent, ann) = clients(&fixture).await;
    let id = sandbox(&agent).await;
    let guest = agent.guest(&id).unwrap().on_waiting(|_| ());
    let request = || v1::StartRequest { shell: "touch ran".into(), ..Default::default() };
    let denied = async {
        until("a call waits", async || pending(&fixture, &ann).await.len() == 1).await;
        let asked = pending(&fixture, &ann).await.remove(0);
        fixture.keeper.deny(&ann, &asked.id, "no".to_owned()).await.unwrap();
    };
    let (refused, ()) = futures::join!(guest.start(request()), denied);
    let is = |error: &GuestError, expected: &str| matches!(error, GuestError::Refused { problem: Some(problem), .. } if problem == expected);
    let error = refused.unwrap_err();
    assert!(is(&error, "not_approved") && error.to_string().ends_with(": no"), "{error:?}");
    // Later input is covered by no approval, and refused at once.
    let error = guest.start(v1::StartRequest { stdin_open: true, ..request() }).await.unwrap_err();
    assert!(is(&error, "policy_refused"), "{error:?}");
    // A client that does not know the event does not take it for something else, and its call is cancelled.
    let error = agent.guest(&id).unwrap().start(request()).await.unwrap_err();
    assert!(matches!(error, GuestError::Protocol { .. }), "{error:?}");
    until("it is cancelled", async || pending(&fixture, &ann).await.is_empty()).await;
    let found = guest.stat(std::path::Path::new("ran"), true).await;
    assert!(found.is_err_and(|error| error.is(belljar_client::ErrorCode::NotFound)));
}
