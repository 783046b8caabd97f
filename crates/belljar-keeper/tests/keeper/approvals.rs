//! Approvals: what they allow, and each way around them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use belljar_engine::v1;
use belljar_keeper::operation::Write;
use belljar_keeper::{
    ApprovalInfo, Approve, Caller, CodeRequest, ExecRequest, KeeperError, KeyChange, ListApprovals,
    NewBudget, NewContext, NewFile, NewKey, OnShutdown, Quotas, RunEvent, SandboxUpdate, ToolCall,
    ToolResult,
};
use belljar_model::{Approval, ApprovalState, BudgetScope, Role, SandboxState, ToolFile};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, plain, shell, text, until};

pub(crate) type Result<T> = std::result::Result<T, KeeperError>;

/// Creates a key, and returns its caller.
pub(crate) async fn caller(fixture: &Fixture, role: Role, owner: Option<&str>, approval: Approval) -> Caller {
    let key = NewKey {
        name: "for a test".to_owned(),
        role,
        tenant: String::new(),
        expires: None,
        quotas: Quotas::default(),
        owner: owner.map(str::to_owned),
        approval,
    };
    let operator = Caller::operator("test", "request");
    let made = fixture.keeper.create_key(&operator, key).await.unwrap();
    fixture.keeper.authenticate(&made.key, "test", "request").await.unwrap()
}

pub(crate) async fn approver(fixture: &Fixture) -> Caller {
    caller(fixture, Role::Approver, None, Approval::Never).await
}

pub(crate) async fn user(fixture: &Fixture) -> Caller {
    caller(fixture, Role::User, None, Approval::Never).await
}

/// Returns a caller whose calls all wait.
async fn watched(fixture: &Fixture) -> Caller {
    caller(fixture, Role::User, None, Approval::Always).await
}

fn tool_file(session: bool) -> ToolFile {
    let text = format!(
        "[[tool]]\nname = 'sh'\ndescription = 'd'\nlanguages = ['bash', 'python']\ntimeout = '30s'\nsession = {session}\napproval = 'always'\n"
    );
    ToolFile::list_from_toml(&text).unwrap().remove(0)
}

pub(crate) async fn add_tool(fixture: &Fixture, session: bool) {
    let operator = Caller::operator("test", "request");
    fixture.keeper.create_tool(&operator, tool_file(session)).await.unwrap();
}

pub(crate) fn code(code: &str) -> ToolCall {
    ToolCall { code: Bytes::copy_from_slice(code.as_bytes()), ..ToolCall::default() }
}

/// Calls the tool in the background.
pub(crate) fn call(fixture: &Fixture, caller: &Caller, call: ToolCall) -> JoinHandle<Result<ToolResult>> {
    let (keeper, caller) = (fixture.keeper.clone(), caller.clone());
    tokio::spawn(async move { keeper.call_tool(&caller, "sh", call).await })
}

async fn all(fixture: &Fixture) -> Vec<ApprovalInfo> {
    let operator = Caller::operator("test", "request");
    fixture.keeper.approvals(&operator, &ListApprovals::default()).await.unwrap().items
}

pub(crate) async fn pending(fixture: &Fixture) -> Vec<ApprovalInfo> {
    let all = all(fixture).await.into_iter();
    all.filter(|one| one.state == ApprovalState::Pending).collect()
}

/// Waits until one call waits, and returns its approval.
pub(crate) async fn waiting(fixture: &Fixture) -> ApprovalInfo {
    until("a call waits", async || pending(fixture).await.len() == 1).await;
    pending(fixture).await.remove(0)
}

async fn state(fixture: &Fixture, id: &str) -> ApprovalState {
    fixture.keeper.approval(&Caller::operator("test", "request"), id).await.unwrap().state
}

pub(crate) async fn approve(fixture: &Fixture, by: &Caller, id: &str) -> Result<ApprovalInfo> {
    fixture.keeper.approve(by, id, Approve::default()).await
}

pub(crate) fn refusal<T: std::fmt::Debug>(refused: Result<T>) -> (&'static str, String) {
    let error = refused.unwrap_err();
    (error.code(), error.to_string())
}

pub(crate) fn output(result: &ToolResult) -> String {
    String::from_utf8(result.execution.stdout.decode().unwrap()).unwrap()
}

/// Returns the audit records of an action: outcomes with a detail.
async fn recorded(fixture: &Fixture, action: &str) -> usize {
    let operator = Caller::operator("test", "request");
    let records = fixture.keeper.audit_records(&operator, &Default::default(), None, 1000).await.unwrap();
    records.iter().filter(|record| record.action == action && record.outcome == "ok").count()
}

pub(crate) async fn approved_call_runs_once(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let files = BTreeMap::from([("in.txt".to_owned(), Bytes::from_static(b"\xff"))]);
    let first = call(&fixture, &user, ToolCall { files, ..code("echo run; wc -c < in.txt") });
    let asked = waiting(&fixture).await;
    // The person sees all of it.
    let request = &asked.request;
    assert_eq!((request.action.as_str(), request.tool.as_deref()), ("tool.call", Some("sh@1")));
    assert_eq!(request.code.as_ref().unwrap().data, "echo run; wc -c < in.txt");
    assert_eq!((request.files["in.txt"].data.as_str(), request.network.as_str()), ("/w==", "disabled"));
    assert_eq!((request.language.as_deref(), request.timeout_ms), (Some("bash"), Some(30_000)));
    assert_eq!((asked.requester.as_str(), asked.key.as_str()), (user.key.as_str(), user.key.as_str()));
    assert!(fixture.keeper.is_empty(), "nothing runs while it waits");
    let given = Approve { note: "fine".to_owned(), budget: None };
    let given = fixture.keeper.approve(&ann, &asked.id, given).await.unwrap();
    assert_eq!((given.state, given.decision.unwrap().person), (ApprovalState::Approved, ann.key.clone()));
    assert_eq!(output(&first.await.unwrap().unwrap()), "run\n1\n");
    let over = fixture.keeper.approval(&user, &asked.id).await.unwrap();
    assert_eq!((over.state, over.outcome.as_deref()), (ApprovalState::Approved, Some("ok")));
    assert!(over.started_at.is_some() && over.ended_at >= over.started_at);
    let decision = over.decision.unwrap();
    assert_eq!((decision.note.as_str(), decision.budget), ("fine", None));
    // It cannot be used or decided again: the same call waits again.
    let (code_of, said) = refusal(approve(&fixture, &ann, &asked.id).await);
    assert_eq!((code_of, said), ("approval_decided", format!("approval {} is approved already", asked.id)));
    let files = BTreeMap::from([("in.txt".to_owned(), Bytes::from_static(b"\xff"))]);
    let again = call(&fixture, &user, ToolCall { files, ..code("echo run; wc -c < in.txt") });
    let second = waiting(&fixture).await;
    assert_ne!(second.id, asked.id);
    assert_eq!(second.digest, asked.digest);
    fixture.keeper.deny(&ann, &second.id, "not again".to_owned()).await.unwrap();
    let (code_of, said) = refusal(again.await.unwrap());
    assert_eq!(code_of, "not_approved");
    assert_eq!(said, format!("approval {} is denied by {}: not again", second.id, ann.key));
    assert!(fixture.keeper.is_empty());
    // Each decision is on record, with who, why and what.
    let operator = Caller::operator("test", "request");
    let records = fixture.keeper.audit_records(&operator, &Default::default(), None, 1000).await.unwrap();
    for (action, id, note) in
        [("approval.approve", &asked.id, "fine"), ("approval.deny", &second.id, "not again")]
    {
        let found = records.iter().find(|record| record.action == action && record.outcome == "ok").unwrap();
        let details = serde_json::to_value(&found.details).unwrap();
        assert_eq!(
            (&details["approval"], &details["note"]),
            (&id.as_str().into(), &note.into()),
            "{details}"
        );
        assert_eq!(
            (&details["person"], &details["requester"]),
            (&ann.key.as_str().into(), &user.key.as_str().into())
        );
        assert_eq!(
            (found.code_digest.as_ref(), found.key_id.as_ref()),
            (Some(&asked.digest), Some(&ann.key))
        );
    }
    let ran = records.iter().find(|record| record.action == "tool.call" && record.outcome == "ok").unwrap();
    assert_eq!(serde_json::to_value(&ran.details).unwrap()["approval"], asked.id.as_str());
}

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

pub(crate) async fn nobody_approves_own_calls(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let owned = async |role, owner| caller(&fixture, role, owner, Approval::Never).await;
    let bob = owned(Role::User, Some("bob")).await;
    let (second, admin) = (owned(Role::Approver, Some("bob")).await, owned(Role::Admin, Some("bob")).await);
    // There is nobody else yet, so the call is refused at once.
    let (code_of, said) = refusal(fixture.keeper.call_tool(&bob, "sh", code("true")).await);
    assert_eq!(code_of, "not_approved");
    assert!(said.contains("create a key with the role approver"), "{said}");
    let verdict = fixture.keeper.test_tool(&bob, "sh", &code("true")).await.unwrap();
    assert_eq!((verdict.allowed, verdict.rule.as_str()), (false, "approval"));
    assert!(all(&fixture).await.is_empty());
    let ann = approver(&fixture).await;
    let verdict = fixture.keeper.test_tool(&bob, "sh", &code("true")).await.unwrap();
    assert_eq!((verdict.allowed, verdict.rule.as_str()), (true, "approval"));
    let running = call(&fixture, &bob, code("echo yes"));
    let asked = waiting(&fixture).await;
    assert_eq!(asked.requester, "bob");
    for own in [&second, &admin] {
        assert_eq!(refusal(approve(&fixture, own, &asked.id).await).0, "own_approval");
        let denied = fixture.keeper.deny(own, &asked.id, String::new()).await;
        assert_eq!(refusal(denied).0, "own_approval");
    }
    // Neither with a new owner of the deciding key that hides behind an id, nor once the calling key has the owner of another.
    let operator = Caller::operator("test", "request");
    let owner = |owner: &str| KeyChange { owner: Some(Some(owner.to_owned())), ..KeyChange::default() };
    let id_as_name = fixture.keeper.update_key(&operator, &second.key, owner(&bob.key)).await;
    assert_eq!(refusal(id_as_name).0, "invalid_field");
    let carl = caller(&fixture, Role::Approver, Some("carl"), Approval::Never).await;
    fixture.keeper.update_key(&operator, &bob.key, owner("carl")).await.unwrap();
    assert_eq!(refusal(approve(&fixture, &carl, &asked.id).await).0, "own_approval");
    // Neither do those who may only run, only read, or hold a sandbox's token.
    for role in [Role::User, Role::Read] {
        let other = owned(role, None).await;
        let refused = approve(&fixture, &other, &asked.id).await;
        assert_eq!(refusal(refused).0, "forbidden");
        // They do not even see it.
        assert_eq!(refusal(fixture.keeper.approval(&other, &asked.id).await).0, "approval_not_found");
    }
    let sandbox = fixture.create(&user(&fixture).await).await.id;
    let token = Caller { only: Some(sandbox), ..ann.clone() };
    assert_eq!(refusal(approve(&fixture, &token, &asked.id).await).0, "forbidden");
    assert_eq!(state(&fixture, &asked.id).await, ApprovalState::Pending);
    approve(&fixture, &ann, &asked.id).await.unwrap();
    assert_eq!(output(&running.await.unwrap().unwrap()), "yes\n");
    // An approver runs nothing.
    assert_eq!(refusal(fixture.keeper.create(&ann, plain()).await).0, "forbidden");
    assert_eq!(refusal(fixture.keeper.call_tool(&ann, "sh", code("true")).await).0, "forbidden");
    // Nor does anybody of another tenant see it.
    let foreign = Caller { tenant: "other".to_owned(), ..ann };
    assert_eq!(refusal(fixture.keeper.approval(&foreign, &asked.id).await).0, "approval_not_found");
    assert_eq!(refusal(approve(&fixture, &foreign, &asked.id).await).0, "approval_not_found");
}

pub(crate) async fn one_of_several_decisions_wins(fixture: Fixture) {
    add_tool(&fixture, false).await;
    let user = user(&fixture).await;
    let mut deciders = Vec::new();
    for _ in 0..6 {
        deciders.push(approver(&fixture).await);
    }
    for round in 0..6 {
        let running = call(&fixture, &user, code("echo yes"));
        let asked = waiting(&fixture).await;
        let deciding = deciders.iter().enumerate().map(|(index, by)| {
            let (keeper, by, id) = (fixture.keeper.clone(), by.clone(), asked.id.clone());
            tokio::spawn(async move {
                match (index + round) % 2 {
                    0 => keeper.approve(&by, &id, Approve::default()).await,
                    _ => keeper.deny(&by, &id, String::new()).await,
                }
            })
        });
        let decided = futures::future::join_all(deciding).await;
        let won: Vec<_> = decided.iter().filter_map(|done| done.as_ref().unwrap().as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "{decided:?}");
        let lost = decided.iter().filter_map(|done| done.as_ref().unwrap().as_ref().err());
        assert!(lost.into_iter().all(|error| error.code() == "approval_decided"));
        assert_eq!(running.await.unwrap().is_ok(), won[0].state == ApprovalState::Approved);
    }
    assert_eq!(recorded(&fixture, "approval.approve").await + recorded(&fixture, "approval.deny").await, 6);
}

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
    // So does a key that has lost its role, or is revoked while it waits.
    let operator = Caller::operator("test", "request");
    for lose_role in [true, false] {
        let running = call(&fixture, &user, code("true"));
        let asked = waiting(&fixture).await;
        let change = |role| KeyChange { role: Some(role), ..KeyChange::default() };
        match lose_role {
            true => {
                fixture.keeper.update_key(&operator, &user.key, change(Role::Read)).await.unwrap();
            }
            false => fixture.keeper.revoke_key(&operator, &user.key).await.unwrap(),
        }
        let (code_of, said) = refusal(running.await.unwrap());
        assert_eq!(code_of, "not_approved");
        assert!(said.contains("its key was revoked"), "{said}");
        assert_eq!(refusal(approve(&fixture, &ann, &asked.id).await).0, "approval_decided");
        if lose_role {
            fixture.keeper.update_key(&operator, &user.key, change(Role::User)).await.unwrap();
        }
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
    let rename = async |from: &str, to: &str| {
        let text = format!(
            "import sqlite3; sqlite3.connect({file:?}, timeout=60, isolation_level=None).execute('alter table {from} rename to {to}')"
        );
        // Not on this thread: a write of the keeper that has begun could not end, and would lock the database.
        let run = move || std::process::Command::new("python3").args(["-c", &text]).status();
        assert!(tokio::task::spawn_blocking(run).await.unwrap().unwrap().success());
    };
    rename("keys", "away").await;
    assert_eq!(refusal(keeper.call_tool(&user, "sh", code("echo 2")).await).0, "store_failed");
    rename("away", "keys").await;
    assert_eq!(output(&keeper.call_tool(&user, "sh", code("echo 3")).await.unwrap()), "3\n");
    let given = keeper.approval(&ann, &asked.id).await.unwrap();
    // The call that failed has used nothing.
    assert_eq!((given.state, given.decision.unwrap().budget.unwrap().used), (ApprovalState::Approved, 2));
    keeper.close(OnShutdown::Kill).await.unwrap();
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
