//! Every call of the server's services.

use std::path::Path;
use std::time::Duration;

use belljar_client::{Client, ClientError, ErrorCode, Method, RestBody, v1};
use belljar_keeper::{AuditVerdict, CreatedKey, Me};
use belljar_model::Role;
use belljar_testing::wait::{DEADLINE, until};
use bytes::Bytes;
use connectrpc::Protocol;
use connectrpc::client::{ClientConfig, Http2Connection};
use serde_json::json;
use v1::__buffa::oneof::command_outcome::Kind;
use v1::__buffa::oneof::exec_event::Event;
use v1::__buffa::oneof::fork_sandbox_response::Result as Fork;

use crate::fixture::{DOMAIN, Fixture, cases, code, line, sandbox, sh, text};

cases![
    sandbox_lifecycle,
    request_fields_are_applied,
    invalid_values_name_their_field,
    idempotent_create_makes_one_sandbox,
    list_is_paginated_and_filtered,
    labels_limits_and_timeout_can_be_updated,
    sandbox_is_paused_and_resumed,
    snapshot_creates_template,
    template_is_built_exported_and_imported,
    forks_are_streamed_one_by_one,
    log_is_followed_to_its_end,
    events_are_followed_and_filtered,
    metrics_report_usage,
    commands_return_a_result_with_an_outcome,
    output_is_streamed_while_it_runs,
    command_ends_with_its_stream,
    idempotent_execution_runs_once,
    background_commands_are_listed,
    ports_are_published_and_unpublished,
    signed_file_needs_no_key,
    sandbox_token_opens_only_its_sandbox,
    key_lifecycle,
    audit_log_is_read_verified_and_exported,
    server_info_is_returned,
    streams_end_when_the_server_stops,
];

fn named(sandbox: &str) -> v1::GetSandboxRequest {
    v1::GetSandboxRequest { sandbox: sandbox.to_owned(), ..Default::default() }
}

fn span(duration: Duration) -> belljar_client::MessageField<belljar_client::well_known::Duration> {
    belljar_client::well_known::Duration::from(duration).into()
}

async fn sandbox_lifecycle(fixture: Fixture) {
    let user = fixture.user().await;
    let made = user.create(v1::CreateSandboxRequest::default(), None).await.unwrap();
    assert!(!made.existing);
    let info = made.sandbox.clone();
    assert_eq!(info.state.as_known(), Some(v1::SandboxState::SANDBOX_STATE_RUNNING));
    assert_eq!(
        (info.template.as_str(), info.tenant.as_str(), info.engine.as_str()),
        ("default", "default", "local")
    );
    assert_eq!(info.host, format!("{{port}}-{}.{DOMAIN}", info.id));
    assert!(
        info.isolation.layers.iter().any(|layer| layer.name == "seccomp" && layer.state == "in_force"),
        "{info:?}"
    );
    let left = info.expires_at.seconds - info.created_at.seconds;
    assert!((299..=302).contains(&left), "{left}");
    let result = sh(&user, &info.id, "echo hello; pwd").await;
    assert_eq!(result.stdout.data, "hello\n/home/user\n");
    user.kill(v1::KillSandboxRequest { sandbox: info.id.clone(), ..Default::default() }).await.unwrap();
    assert_eq!(code(user.get(named(&info.id)).await), "sandbox_gone");
    let states = vec![v1::SandboxState::SANDBOX_STATE_GONE.into()];
    let gone = user.list(v1::ListSandboxesRequest { states, ..Default::default() }).await.unwrap();
    assert_eq!(gone.sandboxes[0].state.as_known(), Some(v1::SandboxState::SANDBOX_STATE_GONE));
    assert!(gone.sandboxes[0].ended_at.is_set() && !gone.sandboxes[0].reason.is_empty());
    assert_eq!(code(user.exec(line(&info.id, "true"), None).await.map(drop)), "sandbox_gone");
}

async fn request_fields_are_applied(fixture: Fixture) {
    let user = fixture.user().await;
    let request = v1::CreateSandboxRequest {
        name: "mine".to_owned(),
        timeout: span(Duration::from_secs(90)),
        idle_timeout: span(Duration::from_secs(30)),
        on_timeout: v1::TimeoutAction::TIMEOUT_ACTION_PAUSE.into(),
        auto_resume: Some(false),
        labels: [("job".to_owned(), "42".to_owned())].into_iter().collect(),
        env: [("COLOUR".to_owned(), "blue".to_owned())].into_iter().collect(),
        limits: v1::SandboxLimits {
            memory_bytes: Some(256 << 20),
            cpus: Some(0.5),
            pids: Some(64),
            timeout: span(Duration::from_millis(7500)),
            ..Default::default()
        }
        .into(),
        hostname: "here".to_owned(),
        files: vec![v1::NewSandboxFile {
            path: "bin/run.sh".into(),
            mode: 0o755,
            content: "#!/bin/sh\necho \"$COLOUR $(hostname)\"\n".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let info = user.create(request.clone(), None).await.unwrap().sandbox.clone();
    assert_eq!(info.name, "mine");
    assert_eq!(info.labels.get("job").map(String::as_str), Some("42"));
    assert_eq!(
        (info.limits.memory_bytes, info.limits.cpus, info.limits.pids),
        (Some(256 << 20), Some(0.5), Some(64))
    );
    assert_eq!(info.limits.timeout.clone(), span(Duration::from_millis(7500)));
    assert_eq!(info.idle_timeout.clone(), span(Duration::from_secs(30)));
    assert_eq!(info.on_timeout.as_known(), Some(v1::TimeoutAction::TIMEOUT_ACTION_PAUSE));
    assert!(!info.auto_resume);
    assert_eq!(sh(&user, "mine", "./bin/run.sh").await.stdout.data, "blue here\n");

    assert_eq!(code(user.create(request.clone(), None).await), "name_taken");
    let again = v1::CreateSandboxRequest { return_existing: true, ..request };
    let again = user.create(again, None).await.unwrap();
    assert!(again.existing);
    assert_eq!(again.sandbox.id, info.id);
}

async fn invalid_values_name_their_field(fixture: Fixture) {
    type Change = fn(&mut v1::CreateSandboxRequest);
    let user = fixture.user().await;
    let cases: &[(&str, &str, Change)] = &[
        ("invalid_field", "name", |request| request.name = "NO".to_owned()),
        ("invalid_field", "timeout", |request| request.timeout = span(Duration::from_secs(1_000_000))),
        ("invalid_field", "timeout", |request| {
            request.timeout =
                belljar_client::well_known::Duration { seconds: -1, ..Default::default() }.into();
        }),
        ("invalid_field", "on_timeout", |request| request.on_timeout = 77.into()),
        ("invalid_field", "labels", |request| {
            request.labels = [(String::new(), String::new())].into_iter().collect();
        }),
        ("invalid_field", "limits.memory", |request| {
            request.limits = v1::SandboxLimits { memory_bytes: Some(1), ..Default::default() }.into();
        }),
        ("invalid_field", "limits.cpus", |request| {
            request.limits = v1::SandboxLimits { cpus: Some(f64::NAN), ..Default::default() }.into();
        }),
        ("invalid_field", "network", |request| request.network = "open-sesame".to_owned()),
        ("invalid_field", "files[0].path", |request| request.files = vec![v1::NewSandboxFile::default()]),
        ("template_not_found", "", |request| request.template = "nothing-of-this-name".to_owned()),
        ("policy_refused", "mounts", |request| request.mounts = vec!["/etc:/mnt".to_owned()]),
    ];
    for (wanted, field, change) in cases {
        let mut request = v1::CreateSandboxRequest::default();
        change(&mut request);
        match user.create(request, None).await {
            Err(belljar_client::ClientError::Refused { code, field: found, request_id, message, .. }) => {
                assert_eq!(
                    (code.as_str(), found.as_deref().unwrap_or_default()),
                    (*wanted, *field),
                    "{message}"
                );
                assert!(!request_id.is_empty());
            }
            other => panic!("{wanted} {field}: {other:?}"),
        }
    }
    assert!(user.list(v1::ListSandboxesRequest::default()).await.unwrap().sandboxes.is_empty());
}

async fn idempotent_create_makes_one_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let request = v1::CreateSandboxRequest::default();
    let first = user.create(request.clone(), Some("job-1")).await.unwrap();
    let again = user.create(request.clone(), Some("job-1")).await.unwrap();
    assert_eq!(first.sandbox.id, again.sandbox.id);
    assert!(again.existing);
    let other = v1::CreateSandboxRequest { hostname: "other".to_owned(), ..request };
    assert_eq!(code(user.create(other, Some("job-1")).await), "idempotency_mismatch");
    assert_eq!(
        code(user.create(v1::CreateSandboxRequest::default(), Some("no spaces")).await),
        "invalid_field"
    );
}

async fn list_is_paginated_and_filtered(fixture: Fixture) {
    let user = fixture.user().await;
    let mut ids = Vec::new();
    for number in 0..3 {
        let labels = [("n".to_owned(), (number % 2).to_string())].into_iter().collect();
        let request = v1::CreateSandboxRequest { labels, ..Default::default() };
        ids.push(user.create(request, None).await.unwrap().sandbox.id.clone());
    }
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let request = v1::ListSandboxesRequest { limit: 2, cursor, ascending: true, ..Default::default() };
        let page = user.list(request).await.unwrap();
        assert!(page.sandboxes.len() <= 2);
        found.extend(page.sandboxes.iter().map(|info| info.id.clone()));
        cursor = page.next_cursor.clone();
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(found, ids);
    let labels = [("n".to_owned(), "0".to_owned())].into_iter().collect();
    let even = user.list(v1::ListSandboxesRequest { labels, ..Default::default() }).await.unwrap();
    assert_eq!(even.sandboxes.len(), 2);
    let states = vec![v1::SandboxState::SANDBOX_STATE_PAUSED.into()];
    let paused = user.list(v1::ListSandboxesRequest { states, ..Default::default() }).await.unwrap();
    assert!(paused.sandboxes.is_empty());
    let too_many = v1::ListSandboxesRequest { limit: 101, ..Default::default() };
    assert_eq!(code(user.list(too_many).await), "invalid_field");
    let other = fixture.client("other", Role::User).await;
    assert!(other.list(v1::ListSandboxesRequest::default()).await.unwrap().sandboxes.is_empty());
}

async fn labels_limits_and_timeout_can_be_updated(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let change = v1::UpdateSandboxRequest {
        sandbox: id.clone(),
        set_labels: [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]
            .into_iter()
            .collect(),
        limits: v1::SandboxLimits { pids: Some(40), ..Default::default() }.into(),
        idle_timeout: span(Duration::from_secs(60)),
        auto_resume: Some(false),
        ..Default::default()
    };
    let info = user.update(change).await.unwrap();
    assert_eq!((info.labels.len(), info.limits.pids, info.auto_resume), (2, Some(40), false));
    let change = v1::UpdateSandboxRequest {
        sandbox: id.clone(),
        remove_labels: vec!["a".to_owned()],
        idle_timeout: span(Duration::ZERO),
        ..Default::default()
    };
    let info = user.update(change).await.unwrap();
    assert_eq!(info.labels.keys().collect::<Vec<_>>(), ["b"]);
    assert!(!info.idle_timeout.is_set());
    let fixed = v1::UpdateSandboxRequest {
        sandbox: id.clone(),
        limits: v1::SandboxLimits { disk_bytes: Some(1 << 30), ..Default::default() }.into(),
        ..Default::default()
    };
    assert_eq!(code(user.update(fixed).await), "invalid_field");
    let request = |timeout| v1::SetTimeoutRequest { sandbox: id.clone(), timeout, ..Default::default() };
    let info = user.set_timeout(request(span(Duration::from_secs(1000)))).await.unwrap();
    assert!(info.expires_at.seconds - info.created_at.seconds > 900);
    assert_eq!(code(user.set_timeout(request(Default::default())).await), "invalid_field");
    user.set_timeout(request(span(Duration::ZERO))).await.unwrap();
    until("the sandbox is gone", || async { code(user.get(named(&id)).await) == "sandbox_gone" }).await;
}

async fn sandbox_is_paused_and_resumed(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let pause = v1::PauseSandboxRequest { sandbox: id.clone(), ..Default::default() };
    let info = user.pause(pause.clone()).await.unwrap();
    assert_eq!(info.state.as_known(), Some(v1::SandboxState::SANDBOX_STATE_PAUSED));
    assert!(info.paused_at.is_set() && !info.expires_at.is_set());
    assert_eq!(code(user.pause(pause).await), "wrong_state");
    let ports = v1::ListPublishedPortsRequest { sandbox: id.clone(), ..Default::default() };
    assert!(user.list_ports(ports).await.unwrap().listening.is_empty());
    assert_eq!(
        user.get(named(&id)).await.unwrap().state.as_known(),
        Some(v1::SandboxState::SANDBOX_STATE_PAUSED)
    );
    let resume = v1::ResumeSandboxRequest { sandbox: id.clone(), ..Default::default() };
    let info = user.resume(resume).await.unwrap();
    assert_eq!(info.state.as_known(), Some(v1::SandboxState::SANDBOX_STATE_RUNNING));
    assert_eq!(sh(&user, &id, "echo on").await.stdout.data, "on\n");
}

async fn snapshot_creates_template(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "echo kept > note").await;
    let request = v1::SnapshotSandboxRequest {
        sandbox: id,
        name: "base".to_owned(),
        note: "with a note".to_owned(),
        ..Default::default()
    };
    let template = user.snapshot(request).await.unwrap();
    assert_eq!(
        (template.name.as_str(), template.note.as_str(), template.digest.len()),
        ("base", "with a note", 64)
    );
    assert_eq!(template.kind.as_known(), Some(v1::TemplateKind::TEMPLATE_KIND_SNAPSHOT));
    let all = user.templates(v1::ListTemplatesRequest::default()).await.unwrap();
    assert_eq!(all.templates.len(), 2);
    let get = v1::GetTemplateRequest { template: "base".to_owned(), ..Default::default() };
    assert_eq!(user.template(get.clone()).await.unwrap().id, template.id);
    let request = v1::CreateSandboxRequest { template: "base".to_owned(), ..Default::default() };
    let copy = user.create(request, None).await.unwrap().sandbox.id.clone();
    assert_eq!(sh(&user, &copy, "cat note").await.stdout.data, "kept\n");
    let remove = v1::RemoveTemplateRequest { template: "base".to_owned(), ..Default::default() };
    user.remove_template(remove.clone()).await.unwrap();
    assert_eq!(code(user.template(get).await), "template_not_found");
    assert_eq!(code(user.remove_template(remove).await), "template_not_found");
}

/// Runs a build, and returns its events in words and its result.
async fn build(
    client: &Client,
    request: v1::BuildTemplateRequest,
) -> (Vec<String>, Result<v1::TemplateInfo, ClientError>) {
    use v1::__buffa::oneof::build_template_event::Event;
    let mut progress = Vec::new();
    let mut events = match client.build_template(request).await {
        Ok(events) => events,
        Err(error) => return (progress, Err(error)),
    };
    loop {
        match events.next().await.map(|event| event.and_then(|event| event.event)) {
            Ok(Some(Event::Template(info))) => {
                assert!(events.next().await.unwrap().is_none());
                return (progress, Ok(*info));
            }
            Ok(Some(Event::Step(step))) => {
                progress.push(format!("{}/{} {} {}", step.number, step.total, step.kind, step.cached));
            }
            Ok(Some(Event::Log(log))) => progress.push(format!("{} {}", log.number, log.line)),
            Ok(Some(Event::Layer(layer))) => {
                assert_eq!((layer.digest.len(), layer.bytes > 0), (64, true));
                progress.push(format!("{} layer", layer.number));
            }
            Ok(Some(Event::Packing(_) | Event::Queued(_))) => {}
            Ok(None) => panic!("the stream has no end: {progress:?}"),
            Err(error) => return (progress, Err(error)),
        }
    }
}

async fn template_is_built_exported_and_imported(fixture: Fixture) {
    let (admin, user) = (fixture.client("acme", Role::Admin).await, fixture.client("acme", Role::User).await);
    let request = v1::BuildTemplateRequest {
        definition:
            "name = \"one\"\nbase = \"host\"\n[[step]]\ncopy = { from = \"a.txt\", to = \"/opt/template/a.txt\" }\n\
                     [[step]]\nrun = \"echo hello; cp /opt/template/a.txt /opt/template/b.txt\"\n"
                .to_owned(),
        files: vec![v1::BuildTemplateFile {
            path: "a.txt".to_owned(),
            content: Bytes::from_static(b"of the build\n"),
            mode: 0o600,
            ..Default::default()
        }],
        ..Default::default()
    };
    let (progress, built) = build(&admin, request.clone()).await;
    let built = built.unwrap();
    let all = ["1/2 copy false", "1 layer", "2/2 run false", "2 hello", "2 layer"];
    assert_eq!(progress, all);
    assert_eq!(built.kind.as_known(), Some(v1::TemplateKind::TEMPLATE_KIND_BUILT));
    assert_eq!((built.name.as_str(), built.base.as_str(), built.digest.len()), ("one", "host", 64));
    let (progress, again) = build(&admin, request.clone()).await;
    assert_eq!(
        (progress, again.unwrap().digest),
        (vec!["1/2 copy true".to_owned(), "2/2 run true".to_owned()], built.digest.clone())
    );
    // Users of a template may not build it, and errors have a code.
    assert_eq!(code(build(&user, request.clone()).await.1), "forbidden");
    let mut wrong = request.clone();
    wrong.files[0].path = "../a.txt".to_owned();
    let error = build(&admin, wrong).await.1.unwrap_err();
    assert!(error.to_string().contains("files[0].path"), "{error}");
    let failing = v1::BuildTemplateRequest {
        definition: "name = \"bad\"\nbase = \"host\"\n[[step]]\nrun = \"echo why; exit 3\"\n".to_owned(),
        ..Default::default()
    };
    let (progress, failed) = build(&admin, failing).await;
    assert_eq!(progress, ["1/1 run false", "1 why"]);
    assert_eq!(code(failed), "build_failed");

    let export = v1::ExportTemplateRequest { template: "one".to_owned(), ..Default::default() };
    let mut file = Vec::new();
    let mut pieces = user.export_template(export).await.unwrap();
    while let Some(piece) = pieces.next().await.unwrap() {
        file.extend_from_slice(&piece.data);
    }
    let importing = async |role: Role, file: Vec<u8>| {
        let uri: http::Uri = format!("http://{}", fixture.address).parse().unwrap();
        let config = ClientConfig::new(uri.clone())
            .with_protocol(Protocol::Grpc)
            .with_default_header("x-api-key", fixture.key("acme", role).await);
        let client = v1::TemplatesClient::new(Http2Connection::lazy_plaintext(uri).shared(4), config);
        let mut messages = vec![v1::ImportTemplateRequest { name: "two".to_owned(), ..Default::default() }];
        messages.extend(file.chunks(100_000).map(|piece| v1::ImportTemplateRequest {
            data: Bytes::copy_from_slice(piece),
            ..Default::default()
        }));
        client.import(connectrpc::stream_iter(messages)).await.map(|info| info.into_owned())
    };
    assert!(importing(Role::User, file.clone()).await.is_err());
    let cut = importing(Role::Admin, file[..file.len() - 1].to_vec()).await.unwrap_err();
    assert!(cut.message.as_deref().unwrap_or_default().contains("bundle"), "{cut}");
    let two = importing(Role::Admin, file).await.unwrap();
    assert_eq!((two.name.as_str(), two.kind.as_known()), ("two", built.kind.as_known()));
    let request = v1::CreateSandboxRequest { template: "two".to_owned(), ..Default::default() };
    let made = user.create(request, None).await.unwrap().sandbox.id.clone();
    let said = sh(&user, &made, "cat /opt/template/b.txt").await;
    assert_eq!(said.stdout.data, "of the build\n", "{said:?}");
    // A caller who may not build may not remove built templates.
    let remove = |name: &str| v1::RemoveTemplateRequest { template: name.to_owned(), ..Default::default() };
    assert_eq!(code(user.remove_template(remove("one")).await), "forbidden");
    admin.remove_template(remove("one")).await.unwrap();
}

async fn forks_are_streamed_one_by_one(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "echo mine > note").await;
    let request = v1::ForkSandboxRequest { sandbox: id.clone(), count: 3, ..Default::default() };
    let mut forks = user.fork(request).await.unwrap();
    let mut ids = Vec::new();
    while let Some(fork) = forks.next().await.unwrap() {
        match fork.result {
            Some(Fork::Sandbox(info)) => ids.push(info.id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ids.len(), 3);
    for fork in ids {
        assert_ne!(fork, id);
        assert_eq!(sh(&user, &fork, "cat note").await.stdout.data, "mine\n");
    }
    let request = v1::ForkSandboxRequest { sandbox: id, count: 21, ..Default::default() };
    assert_eq!(code(user.fork(request).await.map(drop)), "invalid_field");
}

async fn log_is_followed_to_its_end(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "true").await;
    let request = v1::SandboxLogsRequest { sandbox: id.clone(), follow: true, ..Default::default() };
    let mut log = user.logs(request).await.unwrap();
    let mut events = Vec::new();
    let mut after = 0;
    while let Some(entry) = tokio::time::timeout(DEADLINE, log.next()).await.unwrap().unwrap() {
        assert!(entry.seq > after);
        after = entry.seq;
        if entry.event == "exited" {
            user.kill(v1::KillSandboxRequest { sandbox: id.clone(), ..Default::default() }).await.unwrap();
        }
        events.push(entry.event);
    }
    assert!(events.iter().any(|event| event == "created"), "{events:?}");
    assert!(events.iter().any(|event| event == "exec"), "{events:?}");
    let none = v1::SandboxLogsRequest { sandbox: "no-such-one".to_owned(), ..Default::default() };
    assert_eq!(code(user.logs(none).await.unwrap().next().await), "sandbox_not_found");
}

async fn events_are_followed_and_filtered(fixture: Fixture) {
    let user = fixture.user().await;
    let request = v1::EventsRequest { follow: true, kinds: vec!["process".to_owned()], ..Default::default() };
    let mut followed = user.events(request).await.unwrap();
    let id = sandbox(&user).await;
    sh(&user, &id, "exit 3").await;
    let mut next = async || tokio::time::timeout(DEADLINE, followed.next()).await.unwrap().unwrap().unwrap();
    let (started, exited) = (next().await, next().await);
    assert_eq!((started.kind.as_str(), exited.kind.as_str()), ("process.started", "process.exited"));
    assert_eq!((started.sandbox.as_str(), started.process), (id.as_str(), exited.process));
    assert_eq!(exited.detail, "exit code 3");
    assert!(exited.at.seconds > 0 && exited.tenant == "default");

    let kept = async |request| {
        let mut events = user.events(request).await.unwrap();
        let mut kinds = Vec::new();
        while let Some(event) = tokio::time::timeout(DEADLINE, events.next()).await.unwrap().unwrap() {
            kinds.push(event.kind);
        }
        kinds
    };
    let of_it = v1::EventsRequest { sandbox: id.clone(), ..Default::default() };
    assert_eq!(kept(of_it.clone()).await, ["sandbox.created", "process.started", "process.exited"]);
    let after = v1::EventsRequest { after: started.id, ..of_it.clone() };
    assert_eq!(kept(after).await, ["process.exited"]);
    let earlier = v1::EventsRequest { after: "00000000-1".to_owned(), ..of_it };
    assert_eq!(kept(earlier).await, ["missed", "sandbox.created", "process.started", "process.exited"]);
    for wrong in [
        v1::EventsRequest { sandbox: "a_name".to_owned(), ..Default::default() },
        v1::EventsRequest { after: "7".to_owned(), ..Default::default() },
    ] {
        assert_eq!(code(user.events(wrong).await.unwrap().next().await), "invalid_field");
    }
}

async fn metrics_report_usage(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "head -c 1000000 /dev/zero > zeros").await;
    let metrics =
        user.metrics(v1::SandboxMetricsRequest { sandbox: id, ..Default::default() }).await.unwrap();
    assert!(
        metrics.memory_bytes.is_some_and(|bytes| bytes > 0 && bytes < metrics.memory_limit_bytes),
        "{metrics:?}"
    );
    assert!(metrics.disks.iter().any(|disk| disk.bytes_used >= 1_000_000), "{metrics:?}");
    assert!(metrics.pids_limit > 0 && metrics.cpus > 0.0 && metrics.at.seconds > 0);
}

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

async fn ports_are_published_and_unpublished(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let publish =
        |port| v1::PublishPortRequest { sandbox: id.clone(), port, public: true, ..Default::default() };
    let port = user.publish_port(publish(8000)).await.unwrap();
    assert_eq!((port.port, port.public), (8000, true));
    assert_eq!(port.host, format!("8000-{id}.{DOMAIN}"));
    assert_eq!(port.path, format!("/v1/sandboxes/{id}/ports/8000/proxy/"));
    assert_eq!(code(user.publish_port(publish(0)).await), "invalid_field");
    assert_eq!(code(user.publish_port(publish(65536)).await), "invalid_field");
    let list = v1::ListPublishedPortsRequest { sandbox: id.clone(), ..Default::default() };
    assert_eq!(user.list_ports(list.clone()).await.unwrap().ports.len(), 1);
    let token = v1::IssuePortTokenRequest { sandbox: id.clone(), port: 8000, ..Default::default() };
    let token = user.issue_port_token(token).await.unwrap();
    assert!(!token.token.is_empty() && token.expires_at.seconds > 0);
    let unpublish = v1::UnpublishPortRequest { sandbox: id.clone(), port: 8000, ..Default::default() };
    user.unpublish_port(unpublish.clone()).await.unwrap();
    assert!(user.list_ports(list).await.unwrap().ports.is_empty());
    assert_eq!(code(user.unpublish_port(unpublish).await.map(drop)), "not_found");
}

async fn signed_file_needs_no_key(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "echo signed > a.txt").await;
    let mut request = v1::SignFileRequest { sandbox: id, path: "a.txt".into(), ..Default::default() };
    assert_eq!(code(user.sign_file(request.clone()).await), "invalid_field");
    request.operation = v1::SignedOperation::SIGNED_OPERATION_READ.into();
    let signed = user.sign_file(request).await.unwrap();
    let answer = crate::wire::http(&fixture, "GET", &signed.path, &[], &[]).await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, b"signed\n".as_ref()));
}

async fn sandbox_token_opens_only_its_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let (id, other) = (sandbox(&user).await, sandbox(&user).await);
    let issue = v1::IssueTokenRequest { sandbox: id.clone(), ..Default::default() };
    let token = user.issue_token(issue).await.unwrap().token.clone();
    let inside = fixture.with_key(belljar_client::Credential::key(token));
    assert_eq!(sh(&inside, &id, "echo in").await.stdout.data, "in\n");
    inside.guest(&id).unwrap().list_processes().await.unwrap();
    assert_eq!(code(inside.fetch::<Me>("/v1/me").await), "forbidden");
    assert_eq!(code(inside.get(named(&other)).await), "sandbox_not_found");
    let refused = inside.guest(&other).unwrap().list_processes().await.unwrap_err();
    assert!(refused.is(ErrorCode::NotFound), "{refused:?}");
    assert_eq!(code(inside.create(v1::CreateSandboxRequest::default(), None).await), "forbidden");
    assert_eq!(code(inside.list(v1::ListSandboxesRequest::default()).await), "forbidden");
    let kill = v1::KillSandboxRequest { sandbox: id, ..Default::default() };
    assert_eq!(code(inside.kill(kill).await), "forbidden");
}

async fn key_lifecycle(fixture: Fixture) {
    let (admin, user) = (fixture.admin().await, fixture.user().await);
    let request = json!({
        "name": "ci", "role": "read", "tenant": "team", "expires": "1h", "quotas": {"sandboxes": 2},
    });
    let make = |client: Client| {
        let request = request.clone();
        async move { client.send::<CreatedKey>(Method::POST, "/v1/keys", &request).await }
    };
    assert_eq!(code(make(user).await), "forbidden");
    let made = make(admin.clone()).await.unwrap();
    assert!(made.key.starts_with("bj_") && made.key.starts_with(&made.info.hint) && made.info.hint.len() > 3);
    let reader = fixture.with_key(belljar_client::Credential::key(made.key.clone()));
    let me: Me = reader.fetch("/v1/me").await.unwrap();
    assert_eq!((me.tenant.as_str(), me.role, me.quotas.sandboxes), ("team", Role::Read, Some(2)));
    assert_eq!(code(reader.create(v1::CreateSandboxRequest::default(), None).await), "forbidden");
    let keys: serde_json::Value = admin.fetch("/v1/keys").await.unwrap();
    let mut keys = keys["keys"].as_array().unwrap().iter();
    assert!(keys.any(|key| key["id"] == made.info.id && key["name"] == "ci" && key.get("key").is_none()));
    let revoke = |id: &str| {
        let (admin, path) = (admin.clone(), format!("/v1/keys/{id}"));
        async move { admin.value::<()>(Method::DELETE, &path, RestBody::Empty).await }
    };
    revoke(&made.info.id).await.unwrap();
    assert_eq!(code(reader.fetch::<Me>("/v1/me").await), "unauthenticated");
    assert_eq!(code(revoke("none").await), "key_not_found");
}

async fn audit_log_is_read_verified_and_exported(fixture: Fixture) {
    let (admin, user) = (fixture.admin().await, fixture.user().await);
    let id = sandbox(&user).await;
    let path = format!("/v1/audit/export?follow=true&sandbox={id}");
    let follow = async |client: &Client| {
        client.rest(Method::GET, &path, "application/x-ndjson", RestBody::Empty).await
    };
    assert_eq!(code(follow(&user).await.map(drop)), "forbidden");
    let mut following = follow(&admin).await.unwrap();
    // New events are streamed.
    sh(&user, &id, "true").await;
    user.guest(&id).unwrap().write(Path::new("a"), 0o644, "b".into()).await.unwrap();
    let mut seen = String::new();
    while seen.lines().count() < 3 || !seen.ends_with('\n') {
        let piece = tokio::time::timeout(DEADLINE, following.next()).await.unwrap().unwrap().unwrap();
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
    for (line, action) in seen.lines().zip(["sandbox.create", "exec", "file.write"]) {
        assert!(line.contains(&format!("\"{action}\"")) && line.contains(&id), "{line}");
    }

    let verify = async |head: Option<String>| {
        admin.send::<AuditVerdict>(Method::POST, "/v1/audit/verify", &json!({"head": head})).await
    };
    let AuditVerdict::Whole { records, head, .. } = verify(None).await.unwrap() else {
        panic!("it is whole")
    };
    assert!(records >= 3 && head.hash.len() == 64, "{records} {head:?}");
    let exported = admin.rest(Method::GET, "/v1/audit/export", "application/x-ndjson", RestBody::Empty).await;
    let lines = text(exported.unwrap()).await;
    for (line, seq) in lines.lines().zip(1..) {
        assert_eq!(serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"], seq);
    }
    assert!(lines.lines().count() as u64 >= records);
    assert!(matches!(
        verify(Some(format!("{}:{}", head.seq, head.hash))).await,
        Ok(AuditVerdict::Whole { .. })
    ));
    let other = verify(Some(format!("{}:{}", head.seq, "07".repeat(32)))).await;
    assert!(matches!(other, Ok(AuditVerdict::Broken { ok: false, .. })), "{other:?}");
    assert_eq!(code(verify(Some("1".to_owned())).await), "invalid_field");
}

async fn server_info_is_returned(fixture: Fixture) {
    let nobody = fixture.with_key(belljar_client::Credential::None);
    let version: serde_json::Value = nobody.fetch("/version").await.unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(code(nobody.fetch::<Me>("/v1/me").await), "unauthenticated");
    let user = fixture.user().await;
    sandbox(&user).await;
    let me: Me = user.fetch("/v1/me").await.unwrap();
    assert_eq!((me.usage.sandboxes, me.role), (1, Role::User));
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
