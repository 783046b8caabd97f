//! Calls of tools by code, which are calls of its caller like any other.

use std::time::Duration;

use belljar_engine::{CodeEvent, v1};
use belljar_keeper::{Caller, CodeRequest, CodeTools, KeyChange, OnDisconnect, Run, RunEvent, ToolCall};
use belljar_model::{Approval, ApprovalState, CodeExecution, CodeStatus, Role, SandboxState, ToolFile};

use crate::approvals::{add_tool, approve, approver, caller, refusal, user, waiting};
use crate::fixture::{Fixture, until};

/// Adds a tool whose calls do not wait.
pub(crate) async fn add_free_tool(fixture: &Fixture, name: &str, session: bool) {
    let text = format!(
        "[[tool]]\nname = '{name}'\ndescription = 'd'\nlanguages = ['python', 'bash']\ntimeout = '20s'\nsession = {session}\n"
    );
    let tool = ToolFile::list_from_toml(&text).unwrap().remove(0);
    fixture.keeper.create_tool(&Caller::operator("test", "request"), tool).await.unwrap();
}

pub(crate) fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub(crate) fn with_tools(text: &str, tools: &[&str]) -> CodeRequest {
    let tools = CodeTools { tools: names(tools), ..CodeTools::default() };
    CodeRequest { code: text.to_owned().into(), tools, ..CodeRequest::default() }
}

pub(crate) fn printed(done: &CodeExecution) -> String {
    String::from_utf8(done.stdout.decode().unwrap()).unwrap()
}

/// Reads the events of a run to its end; answers calls of functions.
async fn finish(
    fixture: &Fixture,
    by: &Caller,
    id: &str,
    mut run: Run<CodeEvent, CodeExecution>,
    answer: impl Fn(&v1::ToolCalled) -> Option<Result<&'static str, &'static str>>,
) -> (CodeExecution, Vec<String>) {
    let mut calls = Vec::new();
    let mut execution = 0;
    loop {
        match run.next().await.unwrap() {
            RunEvent::Progress(CodeEvent::Started(started)) => execution = started.execution,
            RunEvent::Progress(CodeEvent::ToolCalled(called)) => {
                calls.push(called.name.clone());
                let own = v1::AnswerRequest {
                    context: "python".to_owned(),
                    execution,
                    call: called.call,
                    ..Default::default()
                };
                let own = match answer(&called) {
                    None => continue,
                    Some(Ok(value)) => v1::AnswerRequest { value: value.into(), ..own },
                    Some(Err(error)) => v1::AnswerRequest { error: error.to_owned(), ..own },
                };
                fixture.keeper.answer_code(by, id, own).await.unwrap();
            }
            RunEvent::Ended(done) => return (done.unwrap(), calls),
            RunEvent::Queued | RunEvent::Waiting(_) | RunEvent::Progress(_) => {}
        }
    }
}

pub(crate) async fn code_calls_stored_tools(fixture: Fixture) {
    let agent = user(&fixture).await;
    add_free_tool(&fixture, "calc", false).await;
    let id = fixture.create(&agent).await.id.to_string();
    let text = "import belljar\n\
        done = belljar.tools.calc(code='print(open(\"in.txt\").read(), 6 * 7)\\nopen(\"out.txt\", \"w\").write(\"made\")', files={'in.txt': 'got'}, timeout=10)\n\
        print(done['success'], done['stdout'].strip(), done['files'][0]['path'], done['files'][0]['content']['data'])\n\
        failed = belljar.tools.calc(code='1 / 0')\n\
        print(failed['success'], failed['error']['name'])\n\
        for wrong in [dict(code='1', language='ruby'), dict(code='1', timeout=100), dict(file='x'), dict(code='1', files={'../x': ''})]:\n\
        \x20   try: belljar.tools.calc(**wrong)\n\
        \x20   except belljar.ToolError as error: print(error)\n\
        try: belljar.tools.calc(code='1')\n\
        except belljar.ToolError as error: print(error)";
    let tools = CodeTools { tools: names(&["calc@1"]), max_calls: Some(6), ..CodeTools::default() };
    let request = CodeRequest { tools, ..with_tools(text, &[]) };
    let run = fixture.keeper.stream_code(&agent, &id, request);
    let (done, calls) = finish(&fixture, &agent, &id, run, |_| None).await;
    assert_eq!(done.status, CodeStatus::Ok, "{done:?}");
    let text = printed(&done);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["True got 42 out.txt made", "False ZeroDivisionError"], "{text}");
    for (line, said) in lines[2..].iter().zip([
        "language: \"ruby\" is not one of the tool's; give python or bash",
        "timeout: 100s is not allowed; the tool allows at most 20s",
        "arguments: unknown field `file`",
        "files: \"../x\" is not allowed",
        "this execution may call tools 6 times, and has done so",
    ]) {
        assert!(line.starts_with(said), "{line:?} does not begin with {said:?}");
    }
    assert_eq!((lines.len(), calls.len()), (7, 6));
    // Each call has a record of its own, with the request of the code, whose record names the tools.
    let operator = Caller::operator("test", "request");
    let records = fixture.keeper.audit_records(&operator, &Default::default(), None, 1000).await.unwrap();
    let calls: Vec<_> = records.iter().filter(|record| record.action == "tool.call").collect();
    assert_eq!(calls.iter().filter(|record| record.outcome == "ok").count(), 2);
    assert!(
        calls
            .iter()
            .all(|record| record.request_id == agent.request_id
                && record.key_id.as_deref() == Some(&*agent.key))
    );
    let code = records.iter().find(|record| record.action == "code" && record.details.get("tools").is_some());
    assert_eq!(serde_json::to_value(&code.unwrap().details).unwrap()["tools"], "calc@1");
}

pub(crate) async fn only_what_was_offered_is_called(fixture: Fixture) {
    let agent = user(&fixture).await;
    add_free_tool(&fixture, "calc", false).await;
    add_free_tool(&fixture, "other", false).await;
    let id = fixture.create(&agent).await.id.to_string();
    // Around the kernel, too.
    let text = "import belljar\n\
        try: belljar.tools._call('other', {'code': '1'})\n\
        except belljar.ToolError as error: print(error)";
    let done = fixture.keeper.run_code(&agent, &id, with_tools(text, &["calc"])).await.unwrap();
    assert_eq!(printed(&done), "this execution may not call \"other\"\n");
    let refused =
        async |by: &Caller, request: CodeRequest| refusal(fixture.keeper.run_code(by, &id, request).await);
    assert_eq!(refused(&agent, with_tools("1", &["nosuch"])).await.0, "tool_not_found");
    assert!(refused(&agent, with_tools("1", &["calc", "calc@1"])).await.1.contains("given twice"));
    let both = CodeTools { tools: names(&["calc"]), functions: names(&["calc"]), ..CodeTools::default() };
    assert!(
        refused(&agent, CodeRequest { tools: both, ..with_tools("1", &[]) }).await.1.contains("given twice")
    );
    let bash = CodeRequest { language: Some("bash".to_owned()), ..with_tools("true", &["calc"]) };
    let (code, said) = refused(&agent, bash).await;
    assert!(code == "invalid_field" && said.contains("contexts of bash cannot call any"), "{code}: {said}");
    // Nobody may call by code what they may not call themselves.
    let watched = caller(&fixture, Role::User, None, Approval::Always).await;
    let functions = CodeTools { functions: names(&["lookup"]), ..CodeTools::default() };
    let (code, said) = refused(&watched, CodeRequest { tools: functions, ..with_tools("1", &[]) }).await;
    assert!(code == "not_allowed" || said.contains("covers no later input"), "{code}: {said}");
}

pub(crate) async fn callers_answer_functions(fixture: Fixture) {
    let agent = user(&fixture).await;
    add_free_tool(&fixture, "calc", false).await;
    let id = fixture.create(&agent).await.id.to_string();
    let text = "import belljar\n\
        found = belljar.tools.lookup(name='Ada')\n\
        try: belljar.tools.fail()\n\
        except belljar.ToolError as error: why = str(error)\n\
        print(found, why, belljar.tools.calc(code='print(found)', files={'a': found['city']})['error']['name'])";
    let tools =
        CodeTools { functions: names(&["lookup", "fail"]), tools: names(&["calc"]), ..CodeTools::default() };
    let request = CodeRequest { tools, ..with_tools(text, &[]) };
    let run = fixture.keeper.stream_code(&agent, &id, request);
    let answer = |called: &v1::ToolCalled| match called.name.as_str() {
        "lookup" => Some(Ok("{\"city\": \"London\"}")),
        "fail" => Some(Err("no such thing")),
        _ => None,
    };
    let (done, calls) = finish(&fixture, &agent, &id, run, answer).await;
    assert_eq!(printed(&done), "{'city': 'London'} no such thing NameError\n", "{done:?}");
    assert_eq!(calls, ["lookup", "fail", "calc"]);
    // Nobody answers in time.
    let tools = CodeTools { functions: names(&["lookup"]), ..CodeTools::default() };
    let timeout = Some(Duration::from_millis(500));
    let request = CodeRequest { tools, timeout, ..with_tools("import belljar\nbelljar.tools.lookup()", &[]) };
    let (done, _) =
        finish(&fixture, &agent, &id, fixture.keeper.stream_code(&agent, &id, request), |_| None).await;
    assert_eq!(done.status, CodeStatus::TimedOut, "{done:?}");
    let hint = done.hint.unwrap();
    assert!(hint.ends_with("The time that its functions take to answer counts."), "{hint}");
}

/// What the key of the code may not do any more, its code does not do either.
pub(crate) async fn code_calls_as_its_key_may_now(fixture: Fixture) {
    let operator = Caller::operator("test", "request");
    add_free_tool(&fixture, "calc", false).await;
    let text = "import belljar\n\
        for turn in range(2):\n\
        \x20   try: print(belljar.tools.calc(code='1')['success'])\n\
        \x20   except belljar.ToolError as error: print(error)\n\
        \x20   belljar.tools.pause()";
    let lower = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let ask = KeyChange { approval: Some(Approval::Always), ..KeyChange::default() };
    for (change, expected) in [
        (Some(lower), "tool.call needs a key with the role user"),
        (Some(ask), "the call needs approval"),
        (None, "key: it was revoked"),
    ] {
        let agent = user(&fixture).await;
        let id = fixture.create(&agent).await.id.to_string();
        let tools =
            CodeTools { functions: names(&["pause"]), tools: names(&["calc"]), ..CodeTools::default() };
        let request = CodeRequest { tools, ..with_tools(text, &[]) };
        let mut run = fixture.keeper.stream_code(&agent, &id, request);
        let mut execution = 0;
        let done = loop {
            match run.next().await.unwrap() {
                RunEvent::Progress(CodeEvent::Started(started)) => execution = started.execution,
                RunEvent::Progress(CodeEvent::ToolCalled(called)) if called.name == "pause" => {
                    match &change {
                        Some(change) => {
                            drop(
                                fixture
                                    .keeper
                                    .update_key(&operator, &agent.key, change.clone())
                                    .await
                                    .unwrap(),
                            );
                        }
                        None => {
                            let _ = fixture.keeper.revoke_key(&operator, &agent.key).await;
                        }
                    }
                    let (context, call, value) = ("python".to_owned(), called.call, "null".into());
                    let answer = v1::AnswerRequest { context, execution, call, value, ..Default::default() };
                    fixture.keeper.answer_code(&operator, &id, answer).await.unwrap();
                }
                RunEvent::Ended(done) => break done.unwrap(),
                RunEvent::Queued | RunEvent::Waiting(_) | RunEvent::Progress(_) => {}
            }
        };
        let text = printed(&done);
        let (first, second) = text.split_once('\n').unwrap();
        assert_eq!(first, "True", "{text}");
        assert!(second.contains(expected), "{second:?} does not contain {expected:?}");
    }
}

/// A call of a stored tool is answered by the server alone.
pub(crate) async fn tools_are_not_answered_by_others(fixture: Fixture) {
    let agent = user(&fixture).await;
    add_free_tool(&fixture, "calc", false).await;
    let id = fixture.create(&agent).await.id.to_string();
    let text = "import belljar\nprint(belljar.tools.calc(code='print(\"real\")')['stdout'])";
    let mut run = fixture.keeper.stream_code(&agent, &id, with_tools(text, &["calc"]));
    let mut execution = 0;
    let done = loop {
        match run.next().await.unwrap() {
            RunEvent::Progress(CodeEvent::Started(started)) => execution = started.execution,
            RunEvent::Progress(CodeEvent::ToolCalled(called)) => {
                let forged = v1::AnswerRequest {
                    context: "python".to_owned(),
                    execution,
                    call: called.call,
                    value: "{\"stdout\": \"forged\"}".into(),
                    of_tool: true,
                    ..Default::default()
                };
                let (_, said) = refusal(fixture.keeper.answer_code(&agent, &id, forged).await);
                assert!(said.contains("does not wait") || said.contains("one of a stored tool"), "{said}");
            }
            RunEvent::Ended(done) => break done.unwrap(),
            RunEvent::Queued | RunEvent::Waiting(_) | RunEvent::Progress(_) => {}
        }
    };
    assert_eq!(printed(&done), "real\n\n");
}

pub(crate) async fn calls_of_code_wait_for_approval(fixture: Fixture) {
    let (agent, ann) = (user(&fixture).await, approver(&fixture).await);
    add_tool(&fixture, false).await;
    let id = fixture.create(&agent).await.id.to_string();
    let text = "import belljar\n\
        try: print(belljar.tools.sh(code='echo deed')['stdout'])\n\
        except belljar.ToolError as error: print(error)";
    let state = async || fixture.keeper.get(&agent, &id).await.unwrap().state;
    let start = || fixture.keeper.stream_code(&agent, &id, with_tools(text, &["sh"]));
    let until_waiting = async |run: &mut Run<CodeEvent, CodeExecution>| loop {
        match run.next().await.unwrap() {
            RunEvent::Waiting(waiting) => break waiting.approval,
            RunEvent::Ended(done) => panic!("it has ended: {done:?}"),
            RunEvent::Queued | RunEvent::Progress(_) => {}
        }
    };
    // Approved: the sandbox of the code is frozen meanwhile.
    let mut run = start();
    let approval = until_waiting(&mut run).await;
    let asked = waiting(&fixture).await;
    assert_eq!((&asked.id, asked.request.tool.as_deref()), (&approval, Some("sh@1")));
    assert_eq!(asked.request.code.as_ref().unwrap().data, "echo deed");
    assert_eq!(state().await, SandboxState::Paused);
    approve(&fixture, &ann, &approval).await.unwrap();
    let (done, _) = finish(&fixture, &agent, &id, run, |_| None).await;
    assert_eq!(printed(&done), "deed\n\n");
    assert_eq!(state().await, SandboxState::Running);
    // Denied: an error in the code.
    let mut run = start();
    let approval = until_waiting(&mut run).await;
    fixture.keeper.deny(&ann, &approval, "not now".to_owned()).await.unwrap();
    let (done, _) = finish(&fixture, &agent, &id, run, |_| None).await;
    assert!(printed(&done).contains("not now"), "{}", printed(&done));
    // Its caller leaves: nothing waits any more, and the sandbox goes on.
    let request = CodeRequest { on_disconnect: OnDisconnect::Kill, ..with_tools(text, &["sh"]) };
    let mut run = fixture.keeper.stream_code(&agent, &id, request);
    let approval = until_waiting(&mut run).await;
    drop(run);
    let operator = Caller::operator("test", "request");
    until("the call is cancelled", async || {
        fixture.keeper.approval(&operator, &approval).await.unwrap().state == ApprovalState::Cancelled
    })
    .await;
    until("the sandbox is resumed", async || state().await == SandboxState::Running).await;
    // What code may call is part of what is approved of it.
    let watched = caller(&fixture, Role::User, None, Approval::Always).await;
    let (keeper, by, at) = (fixture.keeper.clone(), watched.clone(), id.clone());
    let running = tokio::spawn(async move { keeper.run_code(&by, &at, with_tools("1", &["sh"])).await });
    let asked = waiting(&fixture).await;
    assert_eq!(asked.request.tools, ["sh@1"]);
    fixture.keeper.deny(&ann, &asked.id, String::new()).await.unwrap();
    assert_eq!(refusal(running.await.unwrap()).0, "not_approved");
}

pub(crate) async fn sessions_are_not_called_from_themselves(fixture: Fixture) {
    let agent = user(&fixture).await;
    add_free_tool(&fixture, "kept", true).await;
    let call = |text: &str| ToolCall {
        code: text.to_owned().into(),
        language: None,
        timeout: None,
        files: Default::default(),
    };
    let session = fixture.keeper.call_tool(&agent, "kept", call("x = 5")).await.unwrap().sandbox;
    let text = "import belljar\n\
        try: print(belljar.tools.kept(code='print(x)')['stdout'])\n\
        except belljar.ToolError as error: print(error)";
    let done = fixture.keeper.run_code(&agent, &session, with_tools(text, &["kept"])).await.unwrap();
    let said = printed(&done);
    assert!(said.contains("is the session of kept@1, and code in it cannot call that"), "{said}");
    // From another sandbox it is a call like any other.
    let id = fixture.create(&agent).await.id.to_string();
    let done = fixture.keeper.run_code(&agent, &id, with_tools(text, &["kept"])).await.unwrap();
    assert_eq!(printed(&done), "5\n\n");
}
