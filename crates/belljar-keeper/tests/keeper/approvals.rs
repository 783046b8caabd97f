//! Approvals: what they allow, who gives them, and helpers for calls that wait for one.

use std::collections::BTreeMap;

use belljar_keeper::{
    ApprovalInfo, Approve, Caller, KeeperError, KeyChange, ListApprovals, NewKey, Quotas, ToolCall,
    ToolResult,
};
use belljar_model::{Approval, ApprovalState, Role, ToolFile};
use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, plain, until};

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
pub(crate) async fn watched(fixture: &Fixture) -> Caller {
    caller(fixture, Role::User, None, Approval::Always).await
}

pub(crate) fn tool_file(session: bool) -> ToolFile {
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

pub(crate) async fn all(fixture: &Fixture) -> Vec<ApprovalInfo> {
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

pub(crate) async fn state(fixture: &Fixture, id: &str) -> ApprovalState {
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
pub(crate) async fn recorded(fixture: &Fixture, action: &str) -> usize {
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
