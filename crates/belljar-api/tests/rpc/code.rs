//! Code in contexts, over RPC.

use belljar_client::{ErrorCode, v1};
use belljar_engine::{CodeEvent, GuestClient};
use belljar_model::Role;

use crate::fixture::{Fixture, cases, sandbox, trail};

cases![large_result_is_complete, code_is_audited, invalid_requests_are_refused];

/// Reports whether this machine has what a Python context needs.
fn has_ipython() -> bool {
    let found = std::process::Command::new("python3").args(["-c", "import IPython"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIPPED: python3-ipython is not installed here");
    }
    found
}

fn request(code: &str) -> v1::ExecuteCodeRequest {
    v1::ExecuteCodeRequest { code: code.to_owned().into(), ..Default::default() }
}

async fn run(guest: &GuestClient, code: &str) -> Vec<CodeEvent> {
    let mut stream = guest.execute_code(request(code)).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await.unwrap() {
        events.push(event);
    }
    events
}

async fn large_result_is_complete(fixture: Fixture) {
    if !has_ipython() {
        return;
    }
    let user = fixture.user().await;
    let guest = user.guest(&sandbox(&user).await).unwrap();
    // Each representation is larger than the maximum message, or all are together.
    let code = "import base64\nfrom IPython.display import display\n\
                png = base64.b64encode(b'p' * 6_000_000).decode()\n\
                display({'text/plain': 'x' * 3_000_000, 'image/png': png, 'text/html': ''}, raw=True)\n'end'";
    let events = run(&guest, code).await;
    let results: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            CodeEvent::Result(result) => Some(result),
            _ => None,
        })
        .collect();
    let sizes: Vec<_> = results[0].data.iter().map(|form| (form.mime.as_str(), form.data.len())).collect();
    assert!(sizes.contains(&("text/plain", 3_000_000)), "{sizes:?}");
    assert!(sizes.contains(&("image/png", 6_000_000)), "{sizes:?}");
    assert_eq!(&results[1].data[0].data[..], b"'end'");
    let Some(CodeEvent::Ended(ended)) = events.last() else { panic!("{:?}", events.last()) };
    assert_eq!(ended.status, v1::CodeStatus::CODE_STATUS_OK);
    assert_eq!(ended.state, v1::Survival::SURVIVAL_PRESERVED);
}

async fn code_is_audited(fixture: Fixture) {
    if !has_ipython() {
        return;
    }
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    run(&guest, "1/0").await;
    let made = guest.create_context(v1::CreateContextRequest::default()).await.unwrap();
    assert!(!guest.interrupt_context(&made.id).await.unwrap());
    assert_eq!(guest.restart_context(&made.id).await.unwrap().generation, 2);
    guest.remove_context(&made.id).await.unwrap();
    assert_eq!(guest.list_contexts().await.unwrap().len(), 1);
    let mut actions = Vec::new();
    for record in trail(&fixture.admin().await, &id).await {
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        actions.push(record["action"].as_str().unwrap().to_owned());
        if record["action"] == "code" {
            assert_eq!(record["details"]["outcome"], "error", "{record}");
        }
    }
    let expected = [
        "sandbox.create",
        "code",
        "context.create",
        "context.interrupt",
        "context.restart",
        "context.remove",
    ];
    assert_eq!(actions, expected);
}

async fn invalid_requests_are_refused(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let guest = user.guest(&id).unwrap();
    let with = |change: fn(&mut v1::ExecuteCodeRequest)| {
        let mut request = request("1");
        change(&mut request);
        request
    };
    let cases = [
        (with(|request| request.code = "a\0".into()), ErrorCode::InvalidArgument),
        (with(|request| request.code = b"\xff".as_slice().into()), ErrorCode::InvalidArgument),
        (with(|request| request.language = "cobol".to_owned()), ErrorCode::InvalidArgument),
        (with(|request| request.context = "c99".to_owned()), ErrorCode::NotFound),
    ];
    for (request, code) in cases {
        let refused = match guest.execute_code(request.clone()).await {
            Ok(mut stream) => stream.next().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(refused.is(code), "{request:?}: {refused:?}");
    }
    let stranger = fixture.client("other", Role::User).await;
    let foreign = stranger.guest(&id).unwrap().list_contexts().await.unwrap_err();
    assert!(foreign.is(ErrorCode::NotFound), "{foreign:?}");
}
