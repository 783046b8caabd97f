//! What there is, as clients ask that know nothing, and health as probes ask.

use std::collections::BTreeSet;

use belljar_client::ErrorCode;
use belljar_model::Role;
use connectrpc::Protocol;
use connectrpc::client::{ClientConfig, Http2Connection, SharedHttp2Connection};
use connectrpc_health::HealthClient;
use connectrpc_health::wire::{HealthCheckRequest, ServingStatus};
use connectrpc_reflection::ServerReflectionClient;
use connectrpc_reflection::wire::v1::server_reflection_request::MessageRequest;
use connectrpc_reflection::wire::v1::server_reflection_response::MessageResponse;
use connectrpc_reflection::wire::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::access::procedures;
use crate::world::{World, cases};

cases![every_service_is_described, reflection_needs_a_key, health_needs_no_key];

fn connection(world: &World) -> (SharedHttp2Connection, ClientConfig) {
    let uri: http::Uri = format!("http://{}", world.address).parse().unwrap();
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

async fn every_service_is_described(world: World) {
    let (connection, config) = connection(&world);
    let config = config.with_default_header("x-api-key", world.key("default", Role::Read).await);
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

async fn reflection_needs_a_key(world: World) {
    let (connection, config) = connection(&world);
    let client = ServerReflectionClient::new(connection, config);
    let refused = ask(&client, vec![MessageRequest::ListServices(String::new())]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);
}

async fn health_needs_no_key(world: World) {
    let (connection, config) = connection(&world);
    let client = HealthClient::new(connection, config);
    for service in ["", "belljar.v1.Sandboxes"] {
        let request = HealthCheckRequest { service: service.to_owned(), ..Default::default() };
        let answer = client.check(request).await.unwrap().into_owned();
        assert_eq!(answer.status.as_known(), Some(ServingStatus::SERVING), "{service}");
    }
    let request = HealthCheckRequest { service: "belljar.v1.Nothing".to_owned(), ..Default::default() };
    assert_eq!(client.check(request).await.unwrap_err().code, ErrorCode::NotFound);
}
