//! Reflection, for clients without the protocol definition, and health checks.

use std::collections::BTreeSet;

use belljar_client::ErrorCode;
use belljar_keeper::KeeperConfig;
use belljar_model::Role;
use belljar_testing::wait::{DEADLINE, until};
use connectrpc::Protocol;
use connectrpc::client::{ClientConfig, Http2Connection, SharedHttp2Connection};
use connectrpc_health::HealthClient;
use connectrpc_health::wire::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use connectrpc_reflection::ServerReflectionClient;
use connectrpc_reflection::wire::v1::server_reflection_request::MessageRequest;
use connectrpc_reflection::wire::v1::server_reflection_response::MessageResponse;
use connectrpc_reflection::wire::v1::{ServerReflectionRequest, ServerReflectionResponse};

use tokio::sync::mpsc;

use crate::access::procedures;
use crate::fixture::{Fixture, cases};

cases![
    every_service_is_described,
    reflection_needs_a_key,
    health_needs_no_key,
    health_is_watched,
    watchers_are_bounded,
];

fn connection(fixture: &Fixture) -> (SharedHttp2Connection, ClientConfig) {
    let uri: http::Uri = format!("http://{}", fixture.address).parse().unwrap();
    let config = ClientConfig::new(uri.clone()).with_protocol(Protocol::Grpc);
    (Http2Connection::lazy_plaintext(uri).shared(4), config)
}

async fn ask(
    client: &ServerReflectionClient<SharedHttp2Connection>,
    questions: Vec<MessageRequest>,
) -> Result<Vec<MessageResponse>, connectrpc::ConnectError> {
    let mut stream = client.server_reflection_info().await?;
    let mut answers = Vec::new();
    for question in questions {
        let request = ServerReflectionRequest { message_request: Some(question), ..Default::default() };
        stream.send(request).await?;
        let Some(answer) = stream.message::<ServerReflectionResponse>().await? else { break };
        answers.push(answer.to_owned_message().message_response.unwrap());
    }
    stream.close_send();
    match stream.message::<ServerReflectionResponse>().await {
        Err(error) => Err(error),
        Ok(_) => stream.error().cloned().map_or(Ok(answers), Err),
    }
}

async fn every_service_is_described(fixture: Fixture) {
    let (connection, config) = connection(&fixture);
    let config = config.with_default_header("x-api-key", fixture.key("default", Role::Read).await);
    let client = ServerReflectionClient::new(connection, config);
    let answers = ask(&client, vec![MessageRequest::ListServices(String::new())]).await.unwrap();
    let [MessageResponse::ListServicesResponse(list)] = &answers[..] else { panic!("{answers:?}") };
    let listed: BTreeSet<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    let expected: BTreeSet<String> = procedures()
        .iter()
        .filter_map(|procedure| procedure.path.trim_start_matches('/').split_once('/'))
        .map(|(service, _)| service.to_owned())
        .collect();
    for service in &expected {
        assert!(listed.contains(service.as_str()), "{service} is not in {listed:?}");
    }
    let questions =
        expected.iter().map(|service| MessageRequest::FileContainingSymbol(service.clone())).collect();
    for answer in ask(&client, questions).await.unwrap() {
        assert!(
            matches!(&answer, MessageResponse::FileDescriptorResponse(files) if !files.file_descriptor_proto.is_empty()),
            "{answer:?}"
        );
    }
    let question = MessageRequest::FileContainingSymbol("belljar.v1.Nothing".to_owned());
    let answers = ask(&client, vec![question]).await.unwrap();
    assert!(matches!(&answers[..], [MessageResponse::ErrorResponse(_)]), "{answers:?}");
}

async fn reflection_needs_a_key(fixture: Fixture) {
    let (connection, config) = connection(&fixture);
    let client = ServerReflectionClient::new(connection, config);
    let refused = ask(&client, vec![MessageRequest::ListServices(String::new())]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);
}

async fn health_needs_no_key(fixture: Fixture) {
    let (connection, config) = connection(&fixture);
    let client = HealthClient::new(connection, config);
    for service in ["", "belljar.v1.Sandboxes"] {
        let request = HealthCheckRequest { service: service.to_owned(), ..Default::default() };
        let answer = client.check(request).await.unwrap().into_owned();
        assert_eq!(answer.status.as_known(), Some(ServingStatus::SERVING), "{service}");
    }
    let request = HealthCheckRequest { service: "belljar.v1.Nothing".to_owned(), ..Default::default() };
    assert_eq!(client.check(request).await.unwrap_err().code, ErrorCode::NotFound);
}

/// A watching probe gets each change and the end of the server, and without a key nothing.
async fn health_is_watched(mut fixture: Fixture) {
    let (shared, config) = connection(&fixture);
    let stranger = HealthClient::new(shared.clone(), config.clone());
    let refused = watch(&stranger, "").await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);
    let config = config.with_default_header("x-api-key", fixture.key("default", Role::Read).await);
    let client = HealthClient::new(shared, config);
    assert_eq!(watch(&client, "belljar.v1.Nothing").await.err().unwrap().code, ErrorCode::NotFound);
    let mut health = watch(&client, "belljar.v1.Sandboxes").await.unwrap();
    assert_eq!(health.0, ServingStatus::SERVING);
    // A full machine cannot create sandboxes.
    let room = |bytes| {
        let mut config = KeeperConfig::new(fixture.dir.path().to_owned());
        config.pool = 0;
        config.head_room.memory_bytes = bytes;
        fixture.keeper.reconfigure(config);
    };
    room(u64::MAX);
    assert_eq!(next(&mut health.1).await, Some(ServingStatus::NOT_SERVING));
    room(0);
    assert_eq!(next(&mut health.1).await, Some(ServingStatus::SERVING));
    fixture.stop();
    fixture.stopped().await;
    assert_eq!(next(&mut health.1).await, Some(ServingStatus::NOT_SERVING));
    assert_eq!(next(&mut health.1).await, None);
}

async fn watchers_are_bounded(fixture: Fixture) {
    let (shared, config) = connection(&fixture);
    let config = config.with_default_header("x-api-key", fixture.key("default", Role::Read).await);
    let client = HealthClient::new(shared, config);
    let mut watching = Vec::new();
    for _ in 0..64 {
        watching.push(watch(&client, "").await.unwrap());
    }
    assert_eq!(watch(&client, "").await.err().unwrap().code, ErrorCode::ResourceExhausted);
    let answer = client.check(HealthCheckRequest::default()).await.unwrap().into_owned();
    assert_eq!(answer.status.as_known(), Some(ServingStatus::SERVING));
    // A disconnected watcher releases its slot.
    drop(watching);
    until("there is room again", || async { watch(&client, "").await.is_ok() }).await;
}

type Statuses = mpsc::UnboundedReceiver<ServingStatus>;

/// Starts to watch, and returns the first status and the stream of the following ones.
async fn watch(
    client: &HealthClient<SharedHttp2Connection>,
    service: &str,
) -> Result<(ServingStatus, Statuses), connectrpc::ConnectError> {
    let request = HealthCheckRequest { service: service.to_owned(), ..Default::default() };
    let mut stream = client.watch(request).await?;
    let status = |answer: &HealthCheckResponse| answer.status.as_known().unwrap();
    let first = match stream.message::<HealthCheckResponse>().await? {
        Some(answer) => status(&answer.to_owned_message()),
        None => return Err(stream.error().cloned().unwrap()),
    };
    let (sender, statuses) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                message = stream.message::<HealthCheckResponse>() => {
                    let Ok(Some(answer)) = message else { break };
                    let _ = sender.send(status(&answer.to_owned_message()));
                }
                // The stream ends when its receiver is dropped.
                () = sender.closed() => break,
            }
        }
    });
    Ok((first, statuses))
}

/// Returns the next status; `None` when the stream has ended.
async fn next(statuses: &mut Statuses) -> Option<ServingStatus> {
    tokio::time::timeout(DEADLINE, statuses.recv()).await.unwrap()
}
