//! Calls by code that wait for approval: what is shown of the code, and what ends them when it, its caller or its key is gone.

use std::time::Duration;

use belljar_engine::CodeEvent;
use belljar_keeper::{
    ApprovalInfo, Approve, Caller, CodeRequest, KeyChange, ListApprovals, MAX_CALLING_CODE_BYTES, NewBudget,
    OnDisconnect, Run, RunEvent, ToolCall,
};
use belljar_model::{Approval, ApprovalState, BudgetScope, CodeExecution, Role, SandboxState};
use sha2::{Digest as _, Sha256};

use crate::approvals::{add_tool, approver, call, refusal, user, waiting};
use crate::code_tools::{printed, with_tools};
use crate::fixture::{Fixture, until};

const CALL: &str = "import belljar\n\
    try: print(belljar.tools.sh(code='echo deed')['stdout'])\n\
    except belljar.ToolError as error: print(error)";

/// Waits until a call of the code waits, and returns its approval.
async fn until_waiting(run: &mut Run<CodeEvent, CodeExecution>) -> String {
    loop {
        match run.next().await.unwrap() {
            RunEvent::Waiting(waiting) => return waiting.approval,
            RunEvent::Ended(done) => panic!("it has ended: {done:?}"),
            RunEvent::Queued | RunEvent::Progress(_) => {}
        }
    }
}

async fn approval(fixture: &Fixture, id: &str) -> ApprovalInfo {
    fixture.keeper.approval(&Caller::operator("test", "request"), id).await.unwrap()
}

/// Waits until a call is cancelled, and returns why.
async fn cancelled(fixture: &Fixture, id: &str) -> String {
    until("the call is cancelled", async || approval(fixture, id).await.state == ApprovalState::Cancelled)
        .await;
    approval(fixture, id).await.outcome.unwrap()
}

pub(crate) async fn approvals_show_it(fixture: Fixture) {
    let (agent, ann) = (user(&fixture).await, approver(&fixture).await);
    add_tool(&fixture, false).await;
    let id = fixture.create(&agent).await.id.to_string();
    let long = format!("{CALL}\n# {}", "ä".repeat(MAX_CALLING_CODE_BYTES / 2));
    let (keeper, by, at) = (fixture.keeper.clone(), agent.clone(), id.clone());
    let request = with_tools(&long, &["sh"]);
    let running = tokio::spawn(async move { keeper.run_code(&by, &at, request).await });
    let asked = waiting(&fixture).await;
    let shown = asked.request.calling_code.clone().unwrap();
    assert_eq!((shown.sandbox.as_str(), asked.request.sandbox.as_deref()), (&*id, None));
    assert_eq!((shown.context.as_str(), shown.language.as_str()), ("python", "python"));
    assert!(long.starts_with(&shown.code.data) && shown.code.data.len() + 2 > MAX_CALLING_CODE_BYTES);
    assert_eq!(shown.code_bytes, u64::try_from(long.len()).unwrap());
    assert_eq!(shown.code_sha256, hex::encode(Sha256::digest(&long)));
    until("its sandbox is frozen for it", async || {
        fixture.keeper.get(&agent, &id).await.unwrap().held_by.as_ref() == Some(&asked.id)
    })
    .await;
    // What is approved is the call: the same one from other code, and without code, is within the budget.
    let budget = NewBudget { scope: BudgetScope::Call, uses: 3, within: Duration::from_secs(600) };
    let given = Approve { note: String::new(), budget: Some(budget) };
    fixture.keeper.approve(&ann, &asked.id, given).await.unwrap();
    let done = running.await.unwrap().unwrap();
    assert_eq!((printed(&done).as_str(), done.execution), ("deed\n\n", shown.execution));
    let done = fixture.keeper.run_code(&agent, &id, with_tools(CALL, &["sh"])).await.unwrap();
    assert_eq!(printed(&done), "deed\n\n");
    let direct = ToolCall { code: "echo deed".into(), ..ToolCall::default() };
    fixture.keeper.call_tool(&agent, "sh", direct).await.unwrap();
    let operator = Caller::operator("test", "request");
    let all = fixture.keeper.approvals(&operator, &ListApprovals::default()).await.unwrap().items;
    assert!(all.iter().all(|one| one.digest == asked.digest) && all.len() == 3, "{all:?}");
    let by_code = |one: &ApprovalInfo| one.request.calling_code.as_ref().map(|code| code.code_sha256.clone());
    let mut digests: Vec<_> = all.iter().map(by_code).collect();
    digests.sort();
    let mut expected = vec![None, Some(hex::encode(Sha256::digest(CALL))), Some(shown.code_sha256.clone())];
    expected.sort();
    assert_eq!(digests, expected);
    // The log has the same of the calls, and the code's own record the same digest.
    let records = fixture.keeper.audit_records(&operator, &Default::default(), None, 1000).await.unwrap();
    let details = |action: &str| -> Vec<_> {
        let of_action = records.iter().filter(|record| record.action == action);
        of_action.map(|record| (record, serde_json::to_value(&record.details).unwrap())).collect()
    };
    let (asking, found) = details("approval.request").remove(0);
    assert_eq!(asking.sandbox.as_ref().map(|sandbox| sandbox.as_str()), Some(&*id));
    for (name, value) in [
        ("calling_sandbox", id.as_str()),
        ("calling_context", "python"),
        ("calling_execution", &shown.execution.to_string()),
        ("calling_code_sha256", &shown.code_sha256),
    ] {
        assert_eq!(found[name], value, "{found}");
    }
    let calls = details("tool.call");
    let of_code = calls.iter().filter(|(_, found)| found.get("calling_sandbox").is_some()).count();
    assert_eq!((calls.len(), of_code), (3, 2));
    assert!(
        details("code").iter().any(|(record, _)| record.code_digest.as_ref() == Some(&shown.code_sha256))
    );
}

/// Whatever the code had been for, nothing of it waits when it is gone, and the record says why.
pub(crate) async fn its_calls_end_with_it(fixture: Fixture) {
    let agent = user(&fixture).await;
    let _ann = approver(&fixture).await;
    add_tool(&fixture, false).await;
    let id = fixture.create(&agent).await.id.to_string();
    let state = async || fixture.keeper.get(&agent, &id).await.unwrap().state;
    let start = |on_disconnect| {
        let request = CodeRequest { on_disconnect, ..with_tools(CALL, &["sh"]) };
        fixture.keeper.stream_code(&agent, &id, request)
    };
    // Its caller leaves, and it is to end then.
    let mut run = start(OnDisconnect::Kill);
    let call = until_waiting(&mut run).await;
    drop(run);
    let why = cancelled(&fixture, &call).await;
    assert!(why.ends_with("the caller of the code that made it disconnected"), "{why}");
    until("the sandbox is resumed", async || state().await == SandboxState::Running).await;
    // It may go on without its caller: then it is itself the caller.
    let mut run = start(OnDisconnect::Continue);
    let call = until_waiting(&mut run).await;
    drop(run);
    until("the sandbox is frozen", async || state().await == SandboxState::Paused).await;
    assert_eq!(approval(&fixture, &call).await.state, ApprovalState::Pending);
    // Its sandbox ends.
    fixture.keeper.kill(&agent, &id).await.unwrap();
    let why = cancelled(&fixture, &call).await;
    assert!(why.ends_with("the sandbox of the code that made it has ended, or was lost"), "{why}");
}

/// A call that waits ends with its key, whoever makes it.
pub(crate) async fn calls_end_with_their_key(fixture: Fixture) {
    let operator = Caller::operator("test", "request");
    let _ann = approver(&fixture).await;
    add_tool(&fixture, false).await;
    let lower = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let expire = KeyChange { expires: Some(Some(Duration::ZERO)), ..KeyChange::default() };
    let ask = KeyChange { approval: Some(Approval::Always), ..KeyChange::default() };
    for change in [None, Some(lower), Some(expire), Some(ask)] {
        let agent = user(&fixture).await;
        let id = fixture.create(&agent).await.id.to_string();
        let mut run = fixture.keeper.stream_code(&agent, &id, with_tools(CALL, &["sh"]));
        let of_code = until_waiting(&mut run).await;
        let direct = ToolCall { code: "echo deed".into(), ..ToolCall::default() };
        let direct = call(&fixture, &agent, direct);
        match change {
            None => fixture.keeper.revoke_key(&operator, &agent.key).await.unwrap(),
            Some(change) => drop(fixture.keeper.update_key(&operator, &agent.key, change).await.unwrap()),
        }
        let why = cancelled(&fixture, &of_code).await;
        assert!(why.ends_with("its key was revoked, has expired or was changed while it waited"), "{why}");
        let (code, said) = refusal(direct.await.unwrap().map(drop));
        assert!(["not_approved", "forbidden", "policy_refused"].contains(&code), "{code}: {said}");
        // The code gets that as an error, and goes on.
        let done = loop {
            if let RunEvent::Ended(done) = run.next().await.unwrap() {
                break done.unwrap();
            }
        };
        assert!(printed(&done).contains("its key was revoked"), "{}", printed(&done));
        fixture.keeper.kill(&operator, &id).await.unwrap();
    }
}
