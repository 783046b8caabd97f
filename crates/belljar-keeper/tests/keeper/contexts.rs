//! Acting on contexts, and code that waits for its interpreter.

use std::collections::BTreeMap;

use belljar_engine::{CodeEvent, v1};
use belljar_keeper::{AuditFilter, Caller, CodeRequest, NewContext, OnDisconnect, RunEvent};

use crate::approvals::{refusal, user};
use crate::code_tools::printed;
use crate::fixture::{Fixture, until};

fn in_context(code: &str, context: &str) -> CodeRequest {
    CodeRequest {
        code: code.to_owned().into(),
        context: Some(context.to_owned()),
        on_disconnect: OnDisconnect::Continue,
        ..CodeRequest::default()
    }
}

/// What the guest was asked for is on record if the caller disconnects, and such callers cannot exceed the bound of a sandbox.
pub(crate) async fn cancelled_calls_are_audited_and_bounded(fixture: Fixture) {
    const BOUND: usize = 64;
    let ann = crate::fixture::user("ann");
    let id = fixture.create(&ann).await.id.to_string();
    let keeper = &fixture.keeper;
    let operator = Caller::operator("test", "request");
    let records = async |action: &str| {
        let filter = AuditFilter { action: Some(action.to_owned()), ..AuditFilter::default() };
        keeper.audit_records(&operator, &filter, Some(0), 1000).await.unwrap().len()
    };
    let new = || NewContext { language: Some("bash".to_owned()), ..NewContext::default() };
    let name = keeper.create_context(&ann, &id, new()).await.unwrap().id;
    // No other task runs before the first await below, so none of them can have ended.
    for _ in 0..BOUND + 6 {
        let call = tokio::task::unconstrained(keeper.interrupt_context(&ann, &id, &name));
        assert!(futures::poll!(Box::pin(call)).is_pending());
    }
    until("what was begun is on record", async || records("context.interrupt").await == BOUND).await;
    assert!(futures::poll!(Box::pin(keeper.create_context(&ann, &id, new()))).is_pending());
    until("the other one is made", async || records("context.create").await == 2).await;
    assert!(futures::poll!(Box::pin(keeper.restart_context(&ann, &id, &name))).is_pending());
    until("it is restarted", async || records("context.restart").await == 1).await;
    assert!(futures::poll!(Box::pin(keeper.remove_context(&ann, &id, &name))).is_pending());
    until("it is removed", async || records("context.remove").await == 1).await;
    assert!(keeper.contexts(&ann, &id).await.unwrap().iter().all(|one| one.id != name));
    assert_eq!(records("context.interrupt").await, BOUND);
}

pub(crate) async fn withdrawn_code_does_not_begin(fixture: Fixture) {
    let (keeper, operator) = (&fixture.keeper, Caller::operator("test", "request"));
    let agent = user(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    // Its interpreter starts once there is `go`.
    let slow = "mkdir bin; cd bin; printf '#!/bin/sh\\ntouch ~/starting; until [ -e ~/go ]; do sleep 0.01; done\\n\
         exec /usr/bin/python3 \"$@\"\\n' > python3; chmod +x python3; touch ~/go; pwd";
    let made = fixture.sh(&operator, &id, slow).await;
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", crate::fixture::text(&made).trim());
    let env = BTreeMap::from([("PATH".to_owned(), path)]);
    let new = NewContext { language: Some("python".to_owned()), env, ..NewContext::default() };
    let context = keeper.create_context(&operator, &id, new).await.unwrap().id;
    let lose = "import os; os.system('rm -f go starting'); os._exit(3)";
    keeper.run_code(&operator, &id, in_context(lose, &context)).await.unwrap();
    let mut withdrawn = keeper.stream_code(&agent, &id, in_context("open('ran', 'w')", &context));
    assert!(matches!(withdrawn.next().await.unwrap(), RunEvent::Queued));
    let stat = || v1::StatRequest { path: "starting".into(), ..Default::default() };
    until("it starts", async || keeper.perform(&operator, &id, stat()).await.is_ok()).await;
    keeper.revoke_key(&operator, &agent.key).await.unwrap();
    let Some(RunEvent::Ended(refused)) = withdrawn.next().await else { panic!("it goes on") };
    let (code_of, said) = refusal(refused);
    assert!(code_of == "policy_refused" && said.contains("before the call began"), "{code_of}: {said}");
    fixture.sh(&operator, &id, "touch go").await;
    // What comes after it learns why the interpreter is a new one.
    let list = in_context("import os; print(sorted(os.listdir()))", &context);
    let mut after = keeper.stream_code(&operator, &id, list);
    let (mut rebuilt, mut done) = (String::new(), None);
    while let Some(event) = after.next().await {
        match event {
            RunEvent::Progress(CodeEvent::Started(started)) => rebuilt = started.rebuilt,
            RunEvent::Ended(ended) => done = Some(ended.unwrap()),
            _ => {}
        }
    }
    assert_eq!(printed(&done.unwrap()).trim(), "['bin', 'go', 'starting']");
    assert!(!rebuilt.is_empty());
}
