//! Templates over RPC, from snapshots and from builds, and forks.

use belljar_client::{Client, ClientError, v1};
use belljar_model::Role;
use bytes::Bytes;
use connectrpc::Protocol;
use connectrpc::client::{ClientConfig, Http2Connection};
use v1::__buffa::oneof::fork_sandbox_response::Result as Fork;

use crate::fixture::{Fixture, cases, code, sandbox, sh};

cases![snapshot_creates_template, template_is_built_exported_and_imported, forks_are_streamed_one_by_one];

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
