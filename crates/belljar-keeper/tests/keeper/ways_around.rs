//! Ways around approvals: another call than the one that was shown, a sandbox or a template that changes, and other operations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belljar_engine::v1;
use belljar_keeper::operation::Write;
use belljar_keeper::{
    Approve, Caller, CodeRequest, ExecRequest, KeyChange, NewBudget, NewContext, NewFile, RunEvent,
    SandboxUpdate, ToolCall,
};
use belljar_model::{Approval, BudgetScope, Role, ToolFile};
use bytes::Bytes;
use futures::{StreamExt as _, stream};

use crate::approvals::{
    add_tool, approve, approver, call, caller, code, output, pending, refusal, tool_file, user, waiting,
    watched,
};
use crate::fixture::{Fixture, plain, shell, until};

pub(crate) async fn changed_call_is_another(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let file =
        |name: &str, content: &'static [u8]| BTreeMap::from([(name.to_owned(), Bytes::from_static(content))]);
    let mut digests = BTreeSet::new();
    let calls = [
        code("true"),
        code("true "),
        ToolCall { language: Some("python".to_owned()), ..code("true") },
        ToolCall { timeout: Some(Duration::from_secs(29)), ..code("true") },
        ToolCall { files: file("a", b"1"), ..code("true") },
        ToolCall { files: file("a", b"2"), ..code("true") },
        ToolCall { files: file("b", b"1"), ..code("true") },
    ];
    for one in calls {
        let running = call(&fixture, &user, one);
        let asked = waiting(&fixture).await;
        assert!(digests.insert(asked.digest.clone()), "{asked:?}");
        fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
        running.await.unwrap().unwrap_err();
    }
    // So is that of a new version, and of another policy.
    let operator = Caller::operator("test", "request");
    let mut file = tool_file(false);
    file.limits.pids = Some("50".parse().unwrap());
    fixture.keeper.update_tool(&operator, "sh", file).await.unwrap();
    let running = call(&fixture, &user, code("true"));
    let asked = waiting(&fixture).await;
    assert!(digests.insert(asked.digest.clone()));
    fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
    running.await.unwrap().unwrap_err();
    // Commands: each argument, the environment, the input and the directory count.
    let agent = watched(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    let env = |value: &str| BTreeMap::from([("BASH_ENV".to_owned(), value.to_owned())]);
    let argv = |words: &[&'static str]| {
        belljar_keeper::Command::Argv(words.iter().map(|word| Bytes::from_static(word.as_bytes())).collect())
    };
    let commands = [
        shell("true"),
        ExecRequest { env: env("a"), ..shell("true") },
        ExecRequest { env: env("b"), ..shell("true") },
        ExecRequest { stdin: "x".into(), ..shell("true") },
        ExecRequest { cwd: Some("/".into()), ..shell("true") },
        ExecRequest { timeout: Some(Duration::from_secs(5)), ..shell("true") },
        ExecRequest { command: argv(&["true"]), ..ExecRequest::default() },
        ExecRequest { command: argv(&["a b"]), ..ExecRequest::default() },
        ExecRequest { command: argv(&["a", "b"]), ..ExecRequest::default() },
    ];
    for one in commands {
        let (keeper, agent, id) = (fixture.keeper.clone(), agent.clone(), id.clone());
        let running = tokio::spawn(async move { keeper.exec(&agent, &id, one).await });
        let asked = waiting(&fixture).await;
        assert!(digests.insert(asked.digest.clone()), "{asked:?}");
        fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
        running.await.unwrap().unwrap_err();
    }
}

pub(crate) async fn keys_that_wait_have_no_way_around(fixture: Fixture) {
    let (agent, ann) = (watched(&fixture).await, approver(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    let keeper = &fixture.keeper;
    let refused = |(code_of, said): (&'static str, String)| {
        assert_eq!(code_of, "policy_refused", "{said}");
        assert!(said.contains("wait for approval"), "{said}");
    };
    refused(refusal(keeper.start(&agent, &id, ExecRequest { stdin_open: true, ..shell("sh") }).await));
    refused(refusal(
        keeper.exec(&agent, &id, ExecRequest { stdin_open: true, ..shell("sh") }).await.map(drop),
    ));
    let code_request = CodeRequest { code: "input()".into(), allow_input: true, ..CodeRequest::default() };
    refused(refusal(keeper.run_code(&agent, &id, code_request).await));
    refused(refusal(keeper.perform(&agent, &id, v1::SessionOpen::default()).await.map(drop)));
    refused(refusal(keeper.perform(&agent, &id, v1::StartRequest::default()).await.map(drop)));
    refused(refusal(keeper.perform(&agent, &id, v1::MakeDirRequest::default()).await.map(drop)));
    let open = v1::WriteOpen { path: ".bashrc".into(), ..Default::default() };
    let write = Write::new(open, stream::iter([Ok(Bytes::from_static(b"x"))]).boxed());
    refused(refusal(keeper.perform(&agent, &id, write).await));
    refused(refusal(keeper.create_context(&agent, &id, NewContext::default()).await));
    let file = NewFile { path: ".bashrc".into(), mode: 0o644, content: "x".into() };
    refused(refusal(
        keeper.create(&agent, belljar_keeper::CreateSandbox { files: vec![file], ..plain() }).await,
    ));
    // The token of a sandbox is that of its key.
    let token = keeper.issue_access_token(&agent, &id).await.unwrap();
    let holder = keeper.authenticate(&token, "test", "request").await.unwrap();
    refused(refusal(keeper.perform(&holder, &id, v1::StartRequest::default()).await.map(drop)));
    let (background, holder_id) = (keeper.clone(), id.clone());
    let starting =
        tokio::spawn(async move { background.start(&holder, &holder_id, shell("touch ran")).await });
    let asked = waiting(&fixture).await;
    assert_eq!((asked.requester.as_str(), asked.request.action.as_str()), (agent.key.as_str(), "exec.start"));
    approve(&fixture, &ann, &asked.id).await.unwrap();
    starting.await.unwrap().unwrap();
    // The environment of a sandbox is shown.
    let mut request = plain();
    request.spec.env = Some(BTreeMap::from([("BASH_ENV".to_owned(), "$(id)".to_owned())]));
    let with_env = keeper.create(&agent, request).await.unwrap().info.id.to_string();
    let run = keeper.stream_exec(&agent, &with_env, shell("true"));
    let mut run = Box::pin(run);
    let Some(RunEvent::Waiting(_)) = run.next().await else { panic!("it does not wait") };
    let asked = waiting(&fixture).await;
    assert_eq!(asked.request.env["BASH_ENV"], "$(id)");
    drop(run);
    until("it is cancelled", async || pending(&fixture).await.is_empty()).await;
    // Looking is allowed, and calls of tools without the rule wait, too.
    assert!(
        keeper
            .perform(&agent, &id, v1::ListRequest { path: ".".into(), depth: 1, ..Default::default() })
            .await
            .is_ok()
    );
    let operator = Caller::operator("test", "request");
    let file = ToolFile { approval: Approval::Never, ..tool_file(false) };
    keeper.create_tool(&operator, file).await.unwrap();
    let running = call(&fixture, &agent, code("true"));
    waiting(&fixture).await;
    running.abort();
    // A key that could create others cannot have the rule.
    let change =
        KeyChange { approval: Some(Approval::Always), role: Some(Role::Admin), ..KeyChange::default() };
    assert_eq!(refusal(keeper.update_key(&operator, &agent.key, change).await).0, "invalid_field");
    let change = KeyChange { role: Some(Role::Admin), ..KeyChange::default() };
    assert_eq!(refusal(keeper.update_key(&operator, &agent.key, change).await).0, "invalid_field");
}

pub(crate) async fn sandboxes_stay_as_they_were_shown(fixture: Fixture) {
    let (agent, ann, other) = (watched(&fixture).await, approver(&fixture).await, user(&fixture).await);
    let keeper = &fixture.keeper;
    let id = fixture.create(&agent).await.id.to_string();
    let update = |text: &str| SandboxUpdate {
        network: Some(serde_json::from_str(text).unwrap()),
        ..SandboxUpdate::default()
    };
    let open = || update("{\"mode\": \"whitelist\", \"allow\": [\"example.com:443\"]}");
    let pids = || SandboxUpdate { pids: Some("50".parse().unwrap()), ..SandboxUpdate::default() };
    // Not by the key that waits, at any time; by nobody while the call runs.
    for change in [open(), pids()] {
        let (code_of, said) = refusal(keeper.update(&agent, &id, change).await);
        assert!(code_of == "policy_refused" && said.contains("wait for approval"), "{said}");
    }
    let (at, caller, own) = (id.clone(), agent.clone(), keeper.clone());
    let running =
        tokio::spawn(
            async move { own.exec(&caller, &at, shell("until [ -e go ]; do sleep 0.01; done")).await },
        );
    let asked = waiting(&fixture).await;
    approve(&fixture, &ann, &asked.id).await.unwrap();
    until("it runs", async || keeper.approval(&ann, &asked.id).await.unwrap().started_at.is_some()).await;
    let operator = Caller::operator("test", "request");
    for caller in [&other, &operator] {
        let (code_of, said) = refusal(keeper.update(caller, &id, pids()).await);
        assert!(code_of == "policy_refused" && said.contains("were shown"), "{said}");
    }
    let label =
        SandboxUpdate { labels: [("a".to_owned(), Some("b".to_owned()))].into(), ..SandboxUpdate::default() };
    keeper.update(&other, &id, label).await.unwrap();
    keeper.exec(&other, &id, shell("touch go")).await.unwrap();
    running.await.unwrap().unwrap();
    keeper.update(&other, &id, pids()).await.unwrap();
}

pub(crate) async fn templates_stay_as_they_were_shown(fixture: Fixture) {
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let operator = Caller::operator("test", "request");
    // What a tool starts from is an administrator's to name.
    let admin = caller(&fixture, Role::Admin, None, Approval::Never).await;
    let keeper = &fixture.keeper;
    let keep = async |word: &str| {
        let id = fixture.create(&user).await.id.to_string();
        keeper.exec(&user, &id, shell(&format!("echo {word} > word"))).await.unwrap();
        let named = belljar_keeper::SnapshotRequest { name: Some("mine".parse().unwrap()), note: None };
        keeper.snapshot(&admin, &id, named).await.unwrap().id
    };
    let first = keep("first").await;
    let file = ToolFile { template: Some("mine".to_owned()), ..tool_file(false) };
    keeper.create_tool(&operator, file).await.unwrap();
    let running = call(&fixture, &user, code("cat word"));
    let asked = waiting(&fixture).await;
    assert_eq!((asked.request.template.as_str(), asked.request.template_id.as_ref()), ("mine", Some(&first)));
    keeper.remove_template(&admin, "mine").await.unwrap();
    let second = keep("second").await;
    approve(&fixture, &ann, &asked.id).await.unwrap();
    assert_eq!(refusal(running.await.unwrap()).0, "template_not_found");
    // Nor does it run when its tool is gone.
    let file = ToolFile { template: Some("mine".to_owned()), ..tool_file(false) };
    let running = call(&fixture, &user, code("cat word"));
    let asked = waiting(&fixture).await;
    keeper.remove_tool(&operator, &file.name).await.unwrap();
    approve(&fixture, &ann, &asked.id).await.unwrap();
    let (refused, reason) = refusal(running.await.unwrap());
    assert!(refused == "not_approved" && reason.contains("its tool was removed"), "{reason}");
    keeper.create_tool(&operator, file.clone()).await.unwrap();
    // Nor when it was changed, unless the call names its version.
    let running = call(&fixture, &user, code("cat word"));
    let asked = waiting(&fixture).await;
    let changed = ToolFile { description: "changed".to_owned(), ..file.clone() };
    keeper.update_tool(&operator, "sh", changed).await.unwrap();
    approve(&fixture, &ann, &asked.id).await.unwrap();
    let (refused, reason) = refusal(running.await.unwrap());
    assert!(refused == "not_approved" && reason.contains("its tool was changed"), "{reason}");
    let named = keeper.tool(&operator, "sh").await.unwrap().version - 1;
    let (own, caller) = (keeper.clone(), user.clone());
    let running =
        tokio::spawn(async move { own.call_tool(&caller, &format!("sh@{named}"), code("cat word")).await });
    let asked = waiting(&fixture).await;
    approve(&fixture, &ann, &asked.id).await.unwrap();
    assert_eq!(output(&running.await.unwrap().unwrap()), "second\n");
    keeper.update_tool(&operator, "sh", file).await.unwrap();
    // Nor does a budget cover it.
    let budget = || Some(NewBudget { scope: BudgetScope::Tool, uses: 9, within: Duration::from_secs(600) });
    let running = call(&fixture, &user, code("cat word"));
    let asked = waiting(&fixture).await;
    assert_eq!(asked.request.template_id.as_ref(), Some(&second));
    keeper.approve(&ann, &asked.id, Approve { note: String::new(), budget: budget() }).await.unwrap();
    assert_eq!(output(&running.await.unwrap().unwrap()), "second\n");
    assert_eq!(output(&call(&fixture, &user, code("cat word")).await.unwrap().unwrap()), "second\n");
    keeper.remove_template(&admin, "mine").await.unwrap();
    keep("third").await;
    let running = call(&fixture, &user, code("cat word"));
    let asked = waiting(&fixture).await;
    // A budget is worth what its giver is.
    keeper.approve(&ann, &asked.id, Approve { note: String::new(), budget: budget() }).await.unwrap();
    running.await.unwrap().unwrap();
    keeper.revoke_key(&operator, &ann.key).await.unwrap();
    let bob = approver(&fixture).await;
    let running = call(&fixture, &user, code("cat word"));
    let asked = waiting(&fixture).await;
    approve(&fixture, &bob, &asked.id).await.unwrap();
    assert_eq!(output(&running.await.unwrap().unwrap()), "third\n");
}
