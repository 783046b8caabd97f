//! Commands over RPC: their output and outcome, and what ends them.

use std::path::Path;
use std::time::Duration;

use belljar_client::v1;
use belljar_keeper::Me;
use belljar_testing::wait::{DEADLINE, until};
use v1::__buffa::oneof::command_outcome::Kind;
use v1::__buffa::oneof::exec_event::Event;

use crate::fixture::{Fixture, cases, code, line, sandbox, sh, span};

cases![
    commands_return_a_result_with_an_outcome,
    output_is_streamed_while_it_runs,
    command_ends_with_its_stream,
    idempotent_execution_runs_once,
    background_commands_are_listed,
    streams_end_when_the_server_stops,
];

async fn commands_return_a_result_with_an_outcome(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let result = sh(&user, &id, "echo out; echo err >&2; exit 3").await;
    assert_eq!((result.stdout.data.clone(), result.stderr.data.clone()), ("out\n".into(), "err\n".into()));
    assert_eq!(result.exit_code, Some(3));
    assert!(matches!(result.outcome.kind.clone(), Some(Kind::Exited(exited)) if exited.code == 3));
    let result = sh(&user, &id, "kill -SEGV $$").await;
    assert!(
        matches!(result.outcome.kind.clone(), Some(Kind::Signalled(end)) if end.name == "SIGSEGV"),
        "{result:?}"
    );

    let mut slow = line(&id, "sleep 100");
    slow.timeout = span(Duration::from_millis(300));
    let mut events = user.exec(slow, None).await.unwrap();
    let mut last = None;
    while let Some(event) = events.next().await.unwrap() {
        last = event.event;
    }
    let Some(Event::Result(result)) = last else { panic!("{last:?}") };
    assert!(matches!(result.outcome.kind, Some(Kind::TimedOut(_))), "{result:?}");
    assert!(!result.hint.is_empty());

    let mut loud = line(&id, "yes | head -c 1000000");
    (loud.output_bytes, loud.result_only) = (10_000, true);
    let mut events = user.exec(loud, None).await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        seen.push(event.event.unwrap());
    }
    assert!(matches!(seen[..], [Event::Started(_), Event::Result(_)]), "{}", seen.len());
    let Some(Event::Result(result)) = seen.pop() else { panic!() };
    assert!(result.stdout.truncated && result.stdout.data.len() <= 10_000);
    assert_eq!(result.stdout.total_bytes, 1_000_000);
    let kept = u64::try_from(result.stdout.data.len()).unwrap();
    assert_eq!(result.stdout.omitted_bytes, 1_000_000 - kept);

    let mut argv = v1::ExecRequest { sandbox: id.clone(), ..Default::default() };
    argv.argv = vec!["cat".into(), "-".into()];
    (argv.stdin, argv.cwd) = ("fed".into(), "/tmp".into());
    let mut events = user.exec(argv, None).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        if let Some(Event::Output(piece)) = event.event {
            output.extend_from_slice(&piece.data);
        }
    }
    assert_eq!(output, b"fed");
    for (field, change) in [
        ("command", (|request| request.command = Default::default()) as fn(&mut v1::ExecRequest)),
        ("argv", |request| request.argv = vec!["true".into()]),
        ("stdin_open", |request| request.stdin_open = true),
        ("output_bytes", |request| request.output_bytes = 99_999_999_999_999),
        ("stdin", |request| request.stdin = vec![0; (1 << 20) + 1].into()),
        ("terminal.rows", |request| request.terminal = v1::Terminal::default().into()),
        ("env", |request| request.env = [("A=B".to_owned(), String::new())].into_iter().collect()),
    ] {
        let mut request = line(&id, "true");
        change(&mut request);
        match user.exec(request, None).await.map(drop) {
            Err(belljar_client::ClientError::Refused { field: Some(found), .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

async fn output_is_streamed_while_it_runs(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let mut events = user
        .exec(line(&id, "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"), None)
        .await
        .unwrap();
    let files = user.guest(&id).unwrap();
    let (mut output, mut process) = (Vec::new(), 0);
    while let Some(event) = tokio::time::timeout(DEADLINE, events.next()).await.unwrap().unwrap() {
        match event.event.unwrap() {
            Event::Started(started) => process = started.process,
            Event::Output(piece) => {
                assert_eq!(piece.offset, u64::try_from(output.len()).unwrap());
                output.extend_from_slice(&piece.data);
                if output == b"first\n" {
                    files.write(Path::new("go"), 0o644, Default::default()).await.unwrap();
                }
            }
            Event::Result(result) => assert_eq!(result.process, process),
            Event::Waiting(waiting) => panic!("{waiting:?}"),
        }
    }
    assert_eq!(output, b"first\nsecond\n");
}

async fn command_ends_with_its_stream(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let mut events = user.exec(line(&id, "sleep 1000"), None).await.unwrap();
    assert!(matches!(events.next().await.unwrap().unwrap().event, Some(Event::Started(_))));
    drop(events);
    let guest = user.guest(&id).unwrap();
    until("the command has ended", || async {
        guest.list_processes().await.unwrap().iter().all(|process| !process.running)
    })
    .await;
}

async fn idempotent_execution_runs_once(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    for _ in 0..2 {
        let mut events = user.exec(line(&id, "echo x >> count; wc -l < count"), Some("run-1")).await.unwrap();
        let mut result = None;
        while let Some(event) = events.next().await.unwrap() {
            if let Some(Event::Result(end)) = event.event {
                result = Some(end);
            }
        }
        assert_eq!(result.unwrap().stdout.data, "1\n");
    }
}

async fn background_commands_are_listed(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let mut request = line(&id, "cat");
    request.stdin_open = true;
    let started = user.start(request).await.unwrap();
    let guest = user.guest(&id).unwrap();
    let mut attached = guest.attach(started.process, [0, 0, 0]).await.unwrap();
    guest.feed(started.process, &b"in and out"[..], true).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = attached.next().await.unwrap() {
        match event {
            belljar_engine::ProcessEvent::Output { data, .. } => output.extend_from_slice(&data),
            belljar_engine::ProcessEvent::Exited(exited) => assert_eq!(exited.code, 0),
            belljar_engine::ProcessEvent::Started { .. } => {}
        }
    }
    assert_eq!(output, b"in and out");
}

async fn streams_end_when_the_server_stops(mut fixture: Fixture) {
    let user = fixture.user().await.without_retries();
    let id = sandbox(&user).await;
    let mut events = user.exec(line(&id, "sleep 1000"), None).await.unwrap();
    assert!(matches!(events.next().await.unwrap().unwrap().event, Some(Event::Started(_))));
    let (ended, ()) = tokio::join!(events.next(), async {
        fixture.stop();
        fixture.stopped().await;
    });
    assert_eq!(code(ended), "shutting_down");
    assert!(matches!(user.fetch::<Me>("/v1/me").await, Err(belljar_client::ClientError::Unreachable { .. })));
}
