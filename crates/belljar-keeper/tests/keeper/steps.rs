//! Runs of code in steps: calls that end one, and what answers them.

use std::time::Duration;

use belljar_keeper::{
    CallAnswer, Caller, CodeRequest, CodeStep, CodeTools, KeeperError, KeyChange, OnDisconnect, OnShutdown,
    RunEvent, StepEnd,
};
use belljar_model::{CodeExecution, CodeStatus, Role, SandboxState};
use bytes::Bytes;

use crate::approvals::{add_tool, approve, approver, refusal, user, waiting};
use crate::code_tools::{add_free_tool, names, printed};
use crate::fixture::{Fixture, shell, until};

const LOOKUP: &str = "import belljar\n\
    try: print(belljar.tools.lookup(city='Paris'))\n\
    except belljar.ToolError as error: print(error)";

fn in_steps(text: &str) -> CodeRequest {
    let tools = CodeTools { functions: names(&["lookup"]), steps: true, ..CodeTools::default() };
    CodeRequest { code: text.to_owned().into(), tools, ..CodeRequest::default() }
}

fn with_time(text: &str, seconds: u64) -> CodeRequest {
    let request = in_steps(text);
    let tools = CodeTools { call_timeout: Some(Duration::from_secs(seconds)), ..request.tools };
    CodeRequest { tools, ..request }
}

async fn begin(fixture: &Fixture, by: &Caller, id: &str, request: CodeRequest) -> StepEnd {
    fixture.keeper.finish_step(fixture.keeper.stream_code(by, id, request)).await.unwrap()
}

#[track_caller]
fn calls(end: StepEnd) -> CodeStep {
    match end {
        StepEnd::Calls(step) => step,
        StepEnd::Ended(done) => panic!("it has ended: {done:?}"),
    }
}

#[track_caller]
fn ended(end: StepEnd) -> CodeExecution {
    match end {
        StepEnd::Ended(done) => *done,
        StepEnd::Calls(step) => panic!("it waits: {step:?}"),
    }
}

fn result(call: &str, result: &str) -> CallAnswer {
    CallAnswer { call: call.to_owned(), answer: Ok(Bytes::copy_from_slice(result.as_bytes())) }
}

async fn go_on(fixture: &Fixture, by: &Caller, answers: Vec<CallAnswer>) -> Result<StepEnd, KeeperError> {
    let (_, run) = fixture.keeper.continue_code(by, None, answers).await?;
    fixture.keeper.finish_step(run).await
}

async fn state(fixture: &Fixture, by: &Caller, id: &str) -> SandboxState {
    fixture.keeper.get(by, id).await.unwrap().state
}

pub(crate) async fn calls_end_steps(fixture: Fixture) {
    let agent = user(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    let text = "import belljar\n\
        print('before')\n\
        found = belljar.tools.lookup(city='Paris')\n\
        try: belljar.tools.lookup(city='Lyon')\n\
        except belljar.ToolError as error: print(found['people'], error)";
    let first = calls(begin(&fixture, &agent, &id, in_steps(text)).await);
    assert_eq!(
        (first.sandbox.as_str(), first.context.as_str(), first.language.as_str()),
        (&*id, "python", "python")
    );
    let [call] = first.calls.as_slice() else { panic!("{first:?}") };
    assert_eq!((call.name.as_str(), &call.arguments[..]), ("lookup", &b"{\"city\":\"Paris\"}"[..]));
    // Frozen for the call, and nothing else resumes it.
    let info = fixture.keeper.get(&agent, &id).await.unwrap();
    assert_eq!((info.state, info.held_by.as_deref()), (SandboxState::Paused, Some(call.id.as_str())));
    let (code, said) = refusal(fixture.keeper.resume(&agent, &id, None).await);
    let way = format!("answer the call {} of its code with tool_results", call.id);
    assert!(code == "wrong_state" && said.contains(&way), "{said}");
    assert_eq!(refusal(fixture.keeper.exec(&agent, &id, shell("true")).await).0, "wrong_state");
    let second = go_on(&fixture, &agent, vec![result(&call.id, "{\"people\": 2.1}")]).await.unwrap();
    let second = calls(second);
    assert_eq!((second.execution, second.calls.len()), (first.execution, 1));
    let no = CallAnswer { call: second.calls[0].id.clone(), answer: Err("no such city".to_owned()) };
    let done = ended(go_on(&fixture, &agent, vec![no]).await.unwrap());
    assert_eq!((done.status, printed(&done).as_str()), (CodeStatus::Ok, "before\n2.1 no such city\n"));
    assert_eq!(state(&fixture, &agent, &id).await, SandboxState::Running);
    // Code that calls nothing has one step.
    assert_eq!(printed(&ended(begin(&fixture, &agent, &id, in_steps("print(1)")).await)), "1\n");
}

/// Calls that code makes together end a step together, after those of stored tools.
pub(crate) async fn tools_and_functions_share_a_run(fixture: Fixture) {
    let (agent, ann) = (user(&fixture).await, approver(&fixture).await);
    add_free_tool(&fixture, "calc", false).await;
    add_tool(&fixture, false).await;
    let id = fixture.create(&agent).await.id.to_string();
    let text = "const all = await Promise.all([belljar.tools.lookup({ n: 1 }), belljar.tools.calc({ code: 'print(6 * 7)', language: 'python' }),\n\
        belljar.tools.lookup({ n: 2 }), belljar.tools.sh({ code: 'echo deed', language: 'bash' })]);\n\
        console.log(all[0], all[1].stdout.trim(), all[2], all[3].stdout.trim());";
    let request = in_steps(text);
    let tools = CodeTools { tools: names(&["calc", "sh"]), ..request.tools };
    let request = CodeRequest { tools, language: Some("javascript".to_owned()), ..request };
    let approving = async {
        let asked = waiting(&fixture).await;
        approve(&fixture, &ann, &asked.id).await.unwrap();
    };
    let run = fixture.keeper.stream_code(&agent, &id, request);
    let (step, ()) = futures::join!(fixture.keeper.finish_step(run), approving);
    let step = calls(step.unwrap());
    let [one, two] = step.calls.as_slice() else { panic!("{step:?}") };
    let (code, said) = refusal(go_on(&fixture, &agent, vec![result(&one.id, "1")]).await);
    assert!(code == "invalid_field" && said.contains(&two.id), "{said}");
    let done = ended(
        go_on(&fixture, &agent, vec![result(&two.id, "\"b\""), result(&one.id, "\"a\"")]).await.unwrap(),
    );
    assert_eq!(printed(&done), "a 42 b deed\n", "{done:?}");
}

/// Calls that code makes together end a step together, 16 at a time, however long they and their answers are.
pub(crate) async fn calls_made_together_end_a_step(fixture: Fixture) {
    let agent = user(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    for (count, bytes, answer, most, steps) in [
        (12, 30_000, 30_000, 100, vec![12]),
        (20, 250_000, 900_000, 100, vec![16, 4]),
        (40, 10, 10, 100, vec![16, 16, 8]),
        // The others are refused.
        (20, 10, 10, 10, vec![10]),
    ] {
        let text = format!(
            "const all = await Promise.allSettled([...Array({count}).keys()].map((n) => belljar.tools.lookup({{ n, x: 'y'.repeat({bytes}) }})));\n\
             console.log(all.filter((one) => one.value?.length === {answer}).length, all.filter((one) => /10 times/.test(one.reason?.message)).length)"
        );
        let request = in_steps(&text);
        let tools = CodeTools { max_calls: Some(most), ..request.tools };
        let request = CodeRequest { tools, language: Some("javascript".to_owned()), ..request };
        let mut end = begin(&fixture, &agent, &id, request).await;
        let mut seen = Vec::new();
        let done = loop {
            let step = match end {
                StepEnd::Ended(done) => break *done,
                StepEnd::Calls(step) => step,
            };
            seen.push(step.calls.len());
            let value = format!("\"{}\"", "z".repeat(answer));
            let answers = step.calls.iter().map(|call| result(&call.id, &value)).collect();
            end = go_on(&fixture, &agent, answers).await.unwrap();
        };
        let answered: usize = steps.iter().sum();
        assert_eq!((done.status, seen), (CodeStatus::Ok, steps), "{done:?}");
        assert_eq!(printed(&done), format!("{answered} {}\n", count - answered));
    }
}

pub(crate) async fn calls_wait_for_their_time(fixture: Fixture) {
    let agent = user(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    let now = jiff::Timestamp::now();
    let step = calls(begin(&fixture, &agent, &id, in_steps(LOOKUP)).await);
    let wait = Duration::try_from(step.expires_at.duration_since(now)).unwrap();
    assert!((Duration::from_secs(600)..Duration::from_secs(700)).contains(&wait), "{wait:?}");
    let done = ended(go_on(&fixture, &agent, vec![result(&step.calls[0].id, "5")]).await.unwrap());
    assert_eq!(printed(&done), "5\n");
    // Then the code goes on with an error, without its caller, and so do its later calls.
    let text = format!(
        "{LOOKUP}\ntry: belljar.tools.lookup()\nexcept belljar.ToolError as error: open('why', 'w').write(str(error))"
    );
    let step = calls(begin(&fixture, &agent, &id, with_time(&text, 1)).await);
    until("the code goes on", async || {
        state(&fixture, &agent, &id).await == SandboxState::Running
            && fixture.sh(&agent, &id, "cat why").await.exit_code == Some(0)
    })
    .await;
    let said = fixture.keeper.exec(&agent, &id, shell("cat why")).await.unwrap();
    assert!(crate::fixture::text(&said).contains("has not answered"), "{said:?}");
    let (code, said) = refusal(go_on(&fixture, &agent, vec![result(&step.calls[0].id, "5")]).await);
    assert!(code == "call_closed" && said.contains("its time was over"), "{said}");
    // Or is interrupted, if it is to end with its caller.
    let request = CodeRequest {
        on_disconnect: OnDisconnect::Kill,
        ..with_time(
            "import belljar\ntry: belljar.tools.lookup()\nfinally:\n    import time; time.sleep(600)",
            1,
        )
    };
    calls(begin(&fixture, &agent, &id, request).await);
    let next = CodeRequest { code: "print('free')".into(), ..CodeRequest::default() };
    until("the sandbox goes on", async || state(&fixture, &agent, &id).await == SandboxState::Running).await;
    assert_eq!(printed(&fixture.keeper.run_code(&agent, &id, next).await.unwrap()), "free\n");
}

pub(crate) async fn answers_are_of_the_run_and_its_key(fixture: Fixture) {
    let (agent, other) = (user(&fixture).await, user(&fixture).await);
    let id = fixture.create(&agent).await.id.to_string();
    let elsewhere = fixture.create(&agent).await.id.to_string();
    let step = calls(begin(&fixture, &agent, &id, in_steps(LOOKUP)).await);
    let call = &step.calls[0].id;
    let answer = || vec![result(call, "5")];
    assert_eq!(refusal(go_on(&fixture, &other, answer()).await).0, "call_not_found");
    let wrong_place = fixture.keeper.continue_code(&agent, Some(&elsewhere), answer()).await;
    assert_eq!(refusal(wrong_place.map(drop)).0, "call_not_found");
    assert_eq!(refusal(go_on(&fixture, &agent, vec![result("call_x", "5")]).await).0, "call_not_found");
    assert_eq!(refusal(go_on(&fixture, &agent, Vec::new()).await).0, "invalid_field");
    assert_eq!(refusal(go_on(&fixture, &agent, vec![result(call, "{")]).await).0, "invalid_field");
    // None of them has answered it.
    let done = ended(go_on(&fixture, &agent, answer()).await.unwrap());
    assert_eq!(printed(&done), "5\n");
    assert_eq!(refusal(go_on(&fixture, &agent, answer()).await).0, "call_closed");
    // Without something to call, or a key whose calls wait, there are no steps.
    let none = CodeTools { steps: true, ..CodeTools::default() };
    let none = CodeRequest { tools: none, ..in_steps("1") };
    assert_eq!(refusal(fixture.keeper.run_code(&agent, &id, none).await).0, "invalid_field");
}

/// A step ends with its key at once, and its code gets the reason.
pub(crate) async fn steps_end_with_their_key(fixture: Fixture) {
    let operator = Caller::operator("test", "request");
    let text = "import belljar\n\
        try: belljar.tools.lookup()\n\
        except belljar.ToolError as error: open('why', 'w').write(str(error))";
    let lower = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let expire = KeyChange { expires: Some(Some(Duration::ZERO)), ..KeyChange::default() };
    for change in [None, Some(lower), Some(expire)] {
        let agent = user(&fixture).await;
        let id = fixture.create(&agent).await.id.to_string();
        let step = calls(begin(&fixture, &agent, &id, with_time(text, 3600)).await);
        match change {
            None => fixture.keeper.revoke_key(&operator, &agent.key).await.unwrap(),
            Some(change) => drop(fixture.keeper.update_key(&operator, &agent.key, change).await.unwrap()),
        }
        until("the code goes on", async || {
            state(&fixture, &operator, &id).await == SandboxState::Running
                && fixture.sh(&operator, &id, "cat why").await.exit_code == Some(0)
        })
        .await;
        let said = fixture.sh(&operator, &id, "cat why").await;
        assert!(crate::fixture::text(&said).contains("its key was revoked or changed"), "{said:?}");
        let (code, said) = refusal(go_on(&fixture, &agent, vec![result(&step.calls[0].id, "5")]).await);
        assert!(code == "call_closed" && said.contains("its key was revoked or changed"), "{said}");
        fixture.keeper.kill(&operator, &id).await.unwrap();
    }
}

pub(crate) async fn code_that_waits_ends_with_its_key(fixture: Fixture) {
    let operator = Caller::operator("test", "request");
    let lower = KeyChange { role: Some(Role::Read), ..KeyChange::default() };
    let expire = KeyChange { expires: Some(Some(Duration::ZERO)), ..KeyChange::default() };
    let code = |text: &str, on_disconnect| CodeRequest {
        code: text.to_owned().into(),
        language: Some("bash".to_owned()),
        on_disconnect,
        ..CodeRequest::default()
    };
    let id = fixture.create(&user(&fixture).await).await.id.to_string();
    for (change, then) in [
        (None, OnDisconnect::Continue),
        (Some(lower), OnDisconnect::Kill),
        (Some(expire), OnDisconnect::Continue),
    ] {
        let agent = user(&fixture).await;
        let mut first = fixture.keeper.stream_code(
            &operator,
            &id,
            code("until test -e go; do sleep 0.02; done; rm go", OnDisconnect::Continue),
        );
        while !matches!(first.next().await.unwrap(), RunEvent::Progress(_)) {}
        let mut second = fixture.keeper.stream_code(&agent, &id, code("touch ran", then));
        assert!(matches!(second.next().await.unwrap(), RunEvent::Queued));
        match change {
            None => fixture.keeper.revoke_key(&operator, &agent.key).await.unwrap(),
            Some(change) => drop(fixture.keeper.update_key(&operator, &agent.key, change).await.unwrap()),
        }
        let Some(RunEvent::Ended(refused)) = second.next().await else { panic!("it goes on") };
        let (code_of, said) = refusal(refused);
        assert!(code_of == "policy_refused" && said.contains("before the call began"), "{code_of}: {said}");
        fixture.sh(&operator, &id, "touch go").await;
        while first.next().await.is_some() {}
        // What comes after it runs.
        let after =
            fixture.keeper.run_code(&operator, &id, code("ls", OnDisconnect::Continue)).await.unwrap();
        assert!(!printed(&after).contains("ran"), "{after:?}");
    }
}

pub(crate) async fn runs_end_while_calls_wait(fixture: Fixture) {
    let agent = user(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    let step = calls(begin(&fixture, &agent, &id, in_steps(LOOKUP)).await);
    fixture.keeper.kill(&agent, &id).await.unwrap();
    let answer = || vec![result(&step.calls[0].id, "5")];
    let (code, said) = refusal(fixture.keeper.continue_code(&agent, Some(&id), answer()).await.map(drop));
    assert_eq!(code, "sandbox_gone", "{said}");
    let done = ended(go_on(&fixture, &agent, answer()).await.unwrap());
    assert_eq!(done.status, CodeStatus::Died, "{done:?}");
    // A caller that leaves before it has the calls.
    let id = fixture.create(&agent).await.id.to_string();
    let mut run = fixture.keeper.stream_code(&agent, &id, in_steps(LOOKUP));
    while run.next().await.is_some() {}
    drop(run);
    until("the sandbox goes on", async || state(&fixture, &agent, &id).await == SandboxState::Running).await;
}

pub(crate) async fn contexts_wait_one_after_the_other(fixture: Fixture) {
    let agent = user(&fixture).await;
    let id = fixture.create(&agent).await.id.to_string();
    let second = fixture.keeper.create_context(&agent, &id, Default::default()).await.unwrap().id;
    let gate = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n";
    let request = |context: Option<&str>| CodeRequest {
        context: context.map(str::to_owned),
        ..in_steps(&format!("{gate}{LOOKUP}"))
    };
    let start = |context| {
        let (keeper, run) =
            (fixture.keeper.clone(), fixture.keeper.stream_code(&agent, &id, request(context)));
        tokio::spawn(async move { keeper.finish_step(run).await })
    };
    let (mut one, mut two) = (start(None), start(Some(&second)));
    fixture.sh(&agent, &id, "touch go").await;
    let (first, other) = tokio::select! { step = &mut one => (step, two), step = &mut two => (step, one) };
    let first = calls(first.unwrap().unwrap());
    ended(go_on(&fixture, &agent, vec![result(&first.calls[0].id, "1")]).await.unwrap());
    let last = calls(other.await.unwrap().unwrap());
    let done = ended(go_on(&fixture, &agent, vec![result(&last.calls[0].id, "2")]).await.unwrap());
    assert_eq!(printed(&done), "2\n");
}

/// A server that ends lets go what waits.
pub(crate) async fn holds_end_with_their_server(fixture: Fixture) {
    let other = fixture.reopen(|config| config.name = "other".to_owned()).await;
    let agent = user(&fixture).await;
    let id = other.create(&agent, crate::fixture::plain()).await.unwrap().info.id.to_string();
    let run = other.stream_code(&agent, &id, in_steps(LOOKUP));
    let step = calls(other.finish_step(run).await.unwrap());
    assert_eq!(other.get(&agent, &id).await.unwrap().state, SandboxState::Paused);
    other.close(OnShutdown::Keep).await.unwrap();
    assert_eq!(other.get(&agent, &id).await.unwrap().state, SandboxState::Running);
    let answer = || vec![result(&step.calls[0].id, "5")];
    let (code, said) = refusal(other.continue_code(&agent, None, answer()).await.map(drop));
    assert!(code == "call_closed" && said.contains("the server ended"), "{said}");
    // Another one has not given the call.
    let (code, said) = refusal(fixture.keeper.continue_code(&agent, None, answer()).await.map(drop));
    assert!(code == "call_closed" && said.contains("was restarted"), "{said}");
    // Its records are closed already.
    let _ = other.close(OnShutdown::Kill).await;
}
