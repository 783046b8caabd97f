//! Sandboxes over RPC: their life, fields, lists and changes, and their log, events and metrics.

use std::time::Duration;

use belljar_client::v1;
use belljar_model::Role;
use belljar_testing::wait::{DEADLINE, until};

use crate::fixture::{DOMAIN, Fixture, cases, code, line, named, sandbox, sh, span};
use crate::wire::http;

cases![
    sandbox_lifecycle,
    request_fields_are_applied,
    invalid_values_name_their_field,
    idempotent_create_makes_one_sandbox,
    keys_that_would_not_be_obeyed_are_refused,
    list_is_paginated_and_filtered,
    labels_limits_and_timeout_can_be_updated,
    sandbox_is_paused_and_resumed,
    log_is_followed_to_its_end,
    events_are_followed_and_filtered,
    metrics_report_usage,
];

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

async fn keys_that_would_not_be_obeyed_are_refused(fixture: Fixture) {
    let key = fixture.key("default", Role::User).await;
    let bearer = format!("Bearer {key}");
    let procedures = [
        "Sandboxes/Snapshot",
        "Sandboxes/Fork",
        "Sandboxes/PublishPort",
        "Sandboxes/IssueToken",
        "Commands/Start",
        "Templates/Build",
    ];
    for procedure in procedures {
        for content_type in ["application/json", "application/proto"] {
            let headers = [
                ("content-type", content_type),
                ("authorization", bearer.as_str()),
                ("idempotency-key", "once"),
            ];
            let path = format!("/belljar.v1.{procedure}");
            let answer = http(&fixture, "POST", &path, &headers, b"{}").await;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(text.contains("only Create and Exec have one"), "{procedure}: {text}");
        }
    }
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
