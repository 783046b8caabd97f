//! Calls that wait by their risk.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_keeper::{
    ApprovalFinding, Approve, Caller, CodeRequest, Command, ExecRequest, KeyChange, ListApprovals,
    ListSandboxes, Modules, NewBudget, NewContext, ScreenRequest, ToolCall,
};
use belljar_model::{Approval, BudgetScope, Role, ToolFile};
use bytes::Bytes;

use crate::approvals::{approver, call, caller, code, output, pending, refusal, user, waiting};
use crate::fixture::{Fixture, plain, shell, text, until};

/// Code of a high, a medium and a low risk, in Python.
const HIGH: &str = "import os; os.system('rm -rf /')";
const MEDIUM: &str = "import pickle; pickle.loads(pickle.dumps(1))";

fn is_high(one: &ApprovalFinding) -> bool {
    one.finding.severity.as_str() == "high"
}

async fn add_tool(fixture: &Fixture, approval: Approval) {
    let text =
        "[[tool]]\nname = 'sh'\ndescription = 'd'\nlanguages = ['python', 'bash', 'perl']\ntimeout = '30s'\n";
    let file = ToolFile { approval, ..ToolFile::list_from_toml(text).unwrap().remove(0) };
    let operator = Caller::operator("test", "request");
    match fixture.keeper.tool(&operator, "sh").await {
        Ok(_) => fixture.keeper.update_tool(&operator, "sh", file).await.unwrap(),
        Err(_) => fixture.keeper.create_tool(&operator, file).await.unwrap(),
    };
}

/// Returns the details of the newest record of an action that succeeded.
async fn details(fixture: &Fixture, action: &str) -> serde_json::Value {
    let operator = Caller::operator("test", "request");
    let records = fixture.keeper.audit_records(&operator, &Default::default(), None, 1000).await.unwrap();
    let newest = records
        .iter()
        .filter(|record| record.action == action && record.outcome == "ok")
        .max_by_key(|record| record.seq)
        .unwrap();
    serde_json::to_value(&newest.details).unwrap()
}

pub(crate) async fn risky_calls_of_tools_wait(fixture: Fixture) {
    add_tool(&fixture, Approval::OnRisk).await;
    let (user, ann) = (user(&fixture).await, approver(&fixture).await);
    let verdict = async |one: &ToolCall| {
        let verdict = fixture.keeper.test_tool(&user, "sh", one).await.unwrap();
        assert!(verdict.allowed, "{verdict:?}");
        format!("{}: {}", verdict.rule, verdict.reason)
    };
    // What is below runs at once, and its risk is on record.
    for (script, risk, findings, found) in [
        ("print(6*7)", "low", "0", "risk low"),
        (MEDIUM, "medium", "1", "risk medium: deserialization (code, line 1)"),
    ] {
        assert_eq!(verdict(&code(script)).await, format!("tool: the arguments are within the tool; {found}"));
        call(&fixture, &user, code(script)).await.unwrap().unwrap();
        let details = details(&fixture, "tool.call").await;
        assert_eq!((&details["risk"], &details["findings"]), (&risk.into(), &findings.into()), "{details}");
        assert_eq!(details.get("approval"), None);
    }
    let said = verdict(&code(HIGH)).await;
    let begin =
        "approval: it waits until another person approves it, by the tool's rule on-risk; risk high: ";
    assert!(said.starts_with(begin), "{said}");
    // What is not waits, and the person sees why. The findings are no part of the digest, so that a budget covers the call again.
    let running = call(&fixture, &user, code(HIGH));
    let asked = waiting(&fixture).await;
    let screening = asked.request.screening.clone().unwrap();
    assert_eq!((screening.risk.as_str(), screening.threshold.as_str()), ("high", "high"));
    assert!(screening.findings.iter().any(|one| one.part == "code" && is_high(one)));
    let operator = Caller::operator("test", "request");
    // The record follows the approval.
    let requested = loop {
        let records = fixture.keeper.audit_records(&operator, &Default::default(), None, 1000).await.unwrap();
        if let Some(record) = records.into_iter().find(|record| record.action == "approval.request") {
            break record;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(serde_json::to_value(&requested.details).unwrap()["risk"], "high");
    let budget = Some(NewBudget { scope: BudgetScope::Call, uses: 2, within: Duration::from_secs(600) });
    fixture.keeper.approve(&ann, &asked.id, Approve { note: String::new(), budget }).await.unwrap();
    running.await.unwrap().unwrap();
    call(&fixture, &user, code(HIGH)).await.unwrap().unwrap();
    let details = details(&fixture, "tool.call").await;
    assert_eq!((&details["risk"], &details["granted_by"]), (&"high".into(), &asked.id.as_str().into()));
    // So does what is hidden in a file, or cannot be read.
    let file = |path: &str, content: &'static [u8]| ToolCall {
        files: BTreeMap::from([(path.to_owned(), Bytes::from_static(content))]),
        ..code("import helper")
    };
    for (one, part, is_read) in [
        (file("helper.py", HIGH.as_bytes()), "file helper.py", true),
        (file("run", b"#!/bin/sh\nrm -rf /\n"), "file run", true),
        (file("x.pl", b"1"), "file x.pl: perl cannot be screened", false),
        (file(".bashrc", b"1"), "file .bashrc: hidden files may be run", false),
        (file("helper.py", b"\xff"), "file helper.py: it is not UTF-8", false),
        (ToolCall { language: Some("perl".to_owned()), ..code("1") }, "code: perl cannot be screened", false),
    ] {
        let running = call(&fixture, &user, one);
        let asked = waiting(&fixture).await;
        let found = asked.request.screening.unwrap();
        match is_read {
            false => assert_eq!(found.unread, [part]),
            true => assert!(found.findings.iter().any(|one| one.part == part && is_high(one)), "{found:?}"),
        }
        fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
        assert_eq!(refusal(running.await.unwrap()).0, "not_approved");
    }
    // Data does not.
    call(&fixture, &user, ToolCall { code: "print(1)".into(), ..file("in.csv", b"\xff") })
        .await
        .unwrap()
        .unwrap();
    add_tool(&fixture, Approval::OnMediumRisk).await;
    let running = call(&fixture, &user, code(MEDIUM));
    let asked = waiting(&fixture).await;
    fixture.keeper.approve(&ann, &asked.id, Approve::default()).await.unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(output(&call(&fixture, &user, code("print(1)")).await.unwrap().unwrap()), "1\n");
    // The stricter rule of the tool and the key holds.
    add_tool(&fixture, Approval::Never).await;
    for (rule, waits) in [(Approval::OnRisk, false), (Approval::OnMediumRisk, true), (Approval::Always, true)]
    {
        let agent = caller(&fixture, Role::User, None, rule).await;
        let verdict = fixture.keeper.test_tool(&agent, "sh", &code(MEDIUM)).await.unwrap();
        assert_eq!(verdict.rule == "approval", waits, "{verdict:?}");
        assert_eq!(verdict.reason.contains(&format!("by the key's rule {rule}")), waits, "{verdict:?}");
    }
}

pub(crate) async fn risky_calls_of_keys_wait(fixture: Fixture) {
    let (agent, ann) = (caller(&fixture, Role::User, None, Approval::OnRisk).await, approver(&fixture).await);
    let keeper = &fixture.keeper;
    let id = fixture.create(&agent).await.id.to_string();
    // What is below runs: commands in both forms, in the background, and code.
    assert_eq!(text(&keeper.exec(&agent, &id, shell("echo hi")).await.unwrap()), "hi\n");
    let details_of = details(&fixture, "exec").await;
    assert_eq!((&details_of["risk"], &details_of["findings"]), (&"low".into(), &"0".into()));
    let argv = |words: &[&'static str]| ExecRequest {
        command: Command::Argv(words.iter().map(|word| Bytes::from_static(word.as_bytes())).collect()),
        ..ExecRequest::default()
    };
    assert_eq!(text(&keeper.exec(&agent, &id, argv(&["echo", "a b"])).await.unwrap()), "a b\n");
    keeper.start(&agent, &id, shell("true")).await.unwrap();
    let code_of = |code: &'static str| CodeRequest { code: code.into(), ..CodeRequest::default() };
    keeper.run_code(&agent, &id, code_of("1 + 1")).await.unwrap();
    assert_eq!(details(&fixture, "code").await["risk"], "low");
    // What is not waits, and what comes with a command and cannot be read.
    let env = BTreeMap::from([("BASH_ENV".to_owned(), "x".to_owned())]);
    for (one, reason) in [
        (shell("rm -rf /"), None),
        (argv(&["rm", "-rf", "/"]), None),
        (argv(&["bash", "-c", "rm -rf /"]), None),
        (
            ExecRequest { env: env.clone(), ..shell("true") },
            Some("environment: programs may run what it has"),
        ),
        (ExecRequest { stdin: "x".into(), ..shell("bash") }, Some("input: programs may run what they read")),
        (
            ExecRequest { command: Command::Shell(Bytes::from_static(b"\xff")), ..ExecRequest::default() },
            Some("command: it is not UTF-8"),
        ),
    ] {
        let (keeper, agent, id) = (keeper.clone(), agent.clone(), id.clone());
        let running = tokio::spawn(async move { keeper.exec(&agent, &id, one).await });
        let asked = waiting(&fixture).await;
        let found = asked.request.screening.unwrap();
        match reason {
            Some(reason) => assert_eq!(found.unread, [reason]),
            None => assert!(found.findings.iter().any(is_high), "{found:?}"),
        }
        fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
        assert_eq!(refusal(running.await.unwrap()).0, "not_approved");
    }
    // Code is read in the language of its context.
    let other = user(&fixture).await;
    let new = NewContext { language: Some("bash".to_owned()), ..NewContext::default() };
    let context = keeper.create_context(&other, &id, new).await.unwrap().id;
    let in_context = |code: &'static str| CodeRequest { context: Some(context.clone()), ..code_of(code) };
    keeper.run_code(&agent, &id, in_context("x=$((1 + 1)); echo $x")).await.unwrap();
    for one in [
        in_context("rm -rf /"),
        code_of(HIGH),
        CodeRequest { env, ..code_of("1") },
        CodeRequest { context: Some("nosuch".to_owned()), ..code_of("1") },
    ] {
        let (keeper, agent, id) = (keeper.clone(), agent.clone(), id.clone());
        let running = tokio::spawn(async move { keeper.run_code(&agent, &id, one).await });
        let asked = waiting(&fixture).await;
        assert_eq!(asked.request.screening.unwrap().risk.as_str(), "high");
        fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
        assert_eq!(refusal(running.await.unwrap()).0, "not_approved");
    }
    // What cannot wait is refused, as with other rules.
    let mut request = plain();
    request.spec.env = Some(BTreeMap::from([("A".to_owned(), "b".to_owned())]));
    let (code_of, said) = refusal(keeper.create(&agent, request).await);
    assert_eq!((code_of, said.contains("cannot be screened")), ("policy_refused", true), "{said}");
    let open = ExecRequest { stdin_open: true, ..shell("cat") };
    assert_eq!(refusal(keeper.exec(&agent, &id, open).await.map(drop)).0, "policy_refused");
}

pub(crate) async fn busy_screening_makes_calls_wait(fixture: Fixture) {
    let (agent, ann) = (caller(&fixture, Role::User, None, Approval::OnRisk).await, approver(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    // Its own screenings fill the queue: each takes as long as one may.
    let slow = "x = [f(a, 'b') for a in y]\n".repeat(30_000);
    let flood: Vec<_> = (0..80)
        .map(|_| {
            let (keeper, agent, code) = (fixture.keeper.clone(), agent.clone(), slow.clone());
            tokio::spawn(async move {
                loop {
                    let (language, modules) = ("python".to_owned(), Modules::default());
                    let request = ScreenRequest { language, code: code.clone(), modules };
                    if keeper.screen(&agent, request).await.is_err() {
                        // Whoever is refused tries again, so that the queue stays full.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            })
        })
        .collect();
    // Calls that find a place in the queue run.
    let (keeper, caller, at) = (fixture.keeper.clone(), agent.clone(), id.clone());
    let running = tokio::spawn(async move {
        loop {
            if let Err(error) = keeper.exec(&caller, &at, shell("true")).await {
                return error.code();
            }
        }
    });
    let asked = waiting(&fixture).await;
    let unread = asked.request.screening.unwrap().unread;
    assert!(matches!(unread.as_slice(), [one] if one.starts_with("command: ")), "{unread:?}");
    fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
    assert_eq!(running.await.unwrap(), "not_approved");
    flood.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(pending(&fixture).await.is_empty());
}

/// Calls that wait for their screening are refused when their key has ended meanwhile.
pub(crate) async fn screened_calls_end_with_their_key(fixture: Fixture) {
    let operator = Caller::operator("test", "request");
    let id = fixture.create(&operator).await.id.to_string();
    let lower = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let wait = KeyChange { approval: Some(Approval::Always), ..KeyChange::default() };
    for change in [None, Some(lower), Some(wait)] {
        let agent = caller(&fixture, Role::User, None, Approval::OnRisk).await;
        let occupied = fixture.keeper.occupy_screenings();
        let (keeper, id) = (&fixture.keeper, id.as_str());
        let touch = CodeRequest { code: "open('ran', 'w')".into(), ..CodeRequest::default() };
        let end = async {
            until("all wait", async || occupied.waiting() == 3).await;
            match change {
                None => keeper.revoke_key(&operator, &agent.key).await.unwrap(),
                Some(change) => drop(keeper.update_key(&operator, &agent.key, change).await.unwrap()),
            }
            drop(occupied);
        };
        let (exec, start, code, ()) = futures::join!(
            async { refusal(keeper.exec(&agent, id, shell("touch ran")).await) },
            async { refusal(keeper.start(&agent, id, shell("touch ran")).await) },
            async { refusal(keeper.run_code(&agent, id, touch).await) },
            end
        );
        for (code, said) in [exec, start, code] {
            assert!(code == "policy_refused" && said.contains("before the call began"), "{code}: {said}");
        }
        assert_eq!(files(&fixture, id).await, "");
    }
}

/// Returns the files in the home directory of a sandbox.
async fn files(fixture: &Fixture, id: &str) -> String {
    let operator = Caller::operator("test", "request");
    text(&fixture.keeper.exec(&operator, id, shell("ls")).await.unwrap()).to_owned()
}

pub(crate) async fn check_that_never_answers_refuses(fixture: Fixture) {
    add_tool(&fixture, Approval::OnRisk).await;
    let (agent, _ann) =
        (caller(&fixture, Role::User, None, Approval::OnRisk).await, approver(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    let mut config = fixture.config.clone();
    config.approvals.timeout = Duration::from_millis(300);
    fixture.keeper.reconfigure(config);
    let occupied = fixture.keeper.occupy_screenings();
    let keeper = &fixture.keeper;
    let touch = CodeRequest { code: "open('ran', 'w')".into(), ..CodeRequest::default() };
    for refused in [
        refusal(keeper.exec(&agent, &id, shell("touch ran")).await),
        refusal(keeper.run_code(&agent, &id, touch).await),
        refusal(keeper.call_tool(&agent, "sh", code("1")).await),
    ] {
        assert_eq!(refused.0, "not_approved");
        assert!(refused.1.ends_with("is expired: nobody decided in time"), "{}", refused.1);
    }
    // Nobody has read them, and whoever decides sees that.
    let operator = Caller::operator("test", "request");
    let all = keeper.approvals(&operator, &ListApprovals::default()).await.unwrap().items;
    assert_eq!(all.len(), 3);
    for one in all {
        let unread = one.request.screening.unwrap().unread;
        assert!(
            matches!(unread.as_slice(), [one] if one.ends_with(": it was not screened in time")),
            "{unread:?}"
        );
    }
    assert_eq!((files(&fixture, &id).await.as_str(), occupied.waiting()), ("", 0));
}

pub(crate) async fn callers_that_leave_a_check_leave_nothing(fixture: Fixture) {
    add_tool(&fixture, Approval::OnRisk).await;
    let (agent, _ann) =
        (caller(&fixture, Role::User, None, Approval::OnRisk).await, approver(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    let occupied = fixture.keeper.occupy_screenings();
    let touch = CodeRequest { code: "open('ran', 'w')".into(), ..CodeRequest::default() };
    for way in 0..4 {
        let (keeper, agent, id, touch) = (fixture.keeper.clone(), agent.clone(), id.clone(), touch.clone());
        let running = tokio::spawn(async move {
            match way {
                0 => keeper.exec(&agent, &id, shell("touch ran")).await.map(drop),
                1 => keeper.start(&agent, &id, shell("touch ran")).await.map(drop),
                2 => keeper.run_code(&agent, &id, touch).await.map(drop),
                _ => keeper.call_tool(&agent, "sh", code("1")).await.map(drop),
            }
        });
        until("its screening waits", async || occupied.waiting() == 1).await;
        running.abort();
        until("it does not any more", async || occupied.waiting() == 0).await;
    }
    drop(occupied);
    // Whatever had gone on would have been screened before this.
    fixture.keeper.exec(&agent, &id, shell("true")).await.unwrap();
    let operator = Caller::operator("test", "request");
    assert!(fixture.keeper.approvals(&operator, &ListApprovals::default()).await.unwrap().items.is_empty());
    assert_eq!(files(&fixture, &id).await, "");
    let all = ListSandboxes { limit: 10, ..ListSandboxes::default() };
    let all = fixture.keeper.list(&operator, all).await.unwrap().items;
    assert_eq!(all.len(), 1, "{all:?}");
}
