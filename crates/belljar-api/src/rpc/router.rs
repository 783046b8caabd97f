//! The procedures, and the limits on all of them.

use std::sync::Arc;

use axum::middleware::map_request;
use belljar_engine::v1;
use belljar_proto::{DeadlinePolicy, MAX_MESSAGE_BYTES};
use connectrpc::{CompressionRegistry, ConnectRpcService, Dispatcher as _, Limits, MethodKind};
use connectrpc_reflection::Reflector;

use super::commands::Commands;
use super::guest;
use super::health::Health;
use super::sandboxes::Sandboxes;
use super::templates::Templates;
use crate::api::Shared;
use crate::extract::refuse_keys;
use crate::guard::{count_collected, count_messages};

/// Maximum memory for the elements of one message besides their content, in bytes. A few bytes on the wire can encode
/// very many empty elements.
const MAX_ELEMENT_BYTES: usize = 8 << 20;

/// Path prefixes of RPCs.
pub(super) const PREFIXES: [&str; 3] = ["/belljar.v1.", "/grpc.health.v1.", "/grpc.reflection.v1"];

/// Procedures that need no key.
pub(super) const OPEN: [&str; 1] = ["/grpc.health.v1.Health/Check"];

/// Procedures whose caller may be silent indefinitely, such as a person at a keyboard.
pub(super) const SILENT: [&str; 4] = [
    v1::PROCESS_INPUT_SPEC.procedure,
    v1::PORTS_TUNNEL_SPEC.procedure,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Procedures that end something.
pub(super) const ENDING: [&str; 6] = [
    v1::SANDBOXES_KILL_SPEC.procedure,
    v1::SANDBOXES_PAUSE_SPEC.procedure,
    v1::PROCESS_SIGNAL_SPEC.procedure,
    v1::INTERPRETER_INTERRUPT_SPEC.procedure,
    v1::INTERPRETER_REMOVE_SPEC.procedure,
    v1::SESSION_CLOSE_SPEC.procedure,
];

/// Procedures that obey the header `idempotency-key`.
const KEYED: [&str; 2] = [v1::SANDBOXES_CREATE_SPEC.procedure, v1::COMMANDS_EXEC_SPEC.procedure];

/// Returns all procedures. Each is a route of its own, so that logs distinguish them.
pub(super) fn router(shared: &Shared) -> axum::Router {
    let services = services(shared);
    let (streams, mut paths): (Vec<String>, Vec<String>) = services
        .methods()
        .map(|method| format!("/{}", method.trim_start_matches('/')))
        .partition(|path| takes_stream(&services, path));
    // Unknown procedures are answered as the protocols require.
    let unknown: std::collections::BTreeSet<String> = streams
        .iter()
        .chain(&paths)
        .filter_map(|path| path.rsplit_once('/'))
        .map(|(service, _)| format!("{service}/{{procedure}}"))
        .collect();
    paths.extend(unknown);
    let limits = Limits::default()
        .with_max_message_size(MAX_MESSAGE_BYTES)
        .with_max_request_body_size(MAX_MESSAGE_BYTES + connectrpc::envelope::HEADER_SIZE)
        .with_element_memory_limit(MAX_ELEMENT_BYTES);
    let service = ConnectRpcService::new(services)
        .with_limits(limits)
        .with_compression(CompressionRegistry::new())
        .with_deadline_policy(DeadlinePolicy::new().with_enforce_on_streams(true));
    let routes = |paths: &[String]| {
        paths.iter().fold(axum::Router::new(), |router, path| router.route_service(path, service.clone()))
    };
    let streams = routes(&streams).layer(map_request(async |request| count_messages(request)));
    // Of a call with a single message the whole body is collected, whatever it consists of.
    let router = routes(&paths).layer(map_request(async |request| count_collected(request))).merge(streams);
    refuse_keys(router, &KEYED, "only Create and Exec have one; leave it out")
}

/// Reports whether a procedure takes messages one after the other.
fn takes_stream(services: &connectrpc::Router, path: &str) -> bool {
    let found = services.lookup(path.trim_start_matches('/'));
    found.is_some_and(|found| matches!(found.kind, MethodKind::ClientStreaming | MethodKind::BidiStreaming))
}

fn services(shared: &Shared) -> connectrpc::Router {
    let shared = || shared.clone();
    let services = connectrpc::Router::new()
        .add_service(Arc::new(Sandboxes(shared())))
        .add_service(Arc::new(Commands(shared())))
        .add_service(Arc::new(Templates(shared())))
        .add_service(Arc::new(guest::Process(shared())))
        .add_service(Arc::new(guest::Filesystem(shared())))
        .add_service(Arc::new(guest::Ports(shared())))
        .add_service(Arc::new(guest::Session(shared())))
        .add_service(Arc::new(guest::Interpreter(shared())))
        .add_service(Arc::new(guest::Health(shared())));
    let names: std::collections::BTreeSet<String> = services
        .methods()
        .filter_map(|method| method.trim_start_matches('/').split_once('/'))
        .map(|(service, _)| service.to_owned())
        .collect();
    let health = Health::new(shared(), names.into_iter().collect());
    let services = services.add_service(Arc::new(connectrpc_health::HealthService::new(health)));
    let services = connectrpc_health::apply_request_limits(services, connectrpc_health::request_limits());
    match Reflector::from_descriptor_set_bytes(belljar_proto::DESCRIPTOR_SET) {
        Ok(reflector) => connectrpc_reflection::install(services, reflector),
        // The set is compiled in, and a test reads it.
        Err(error) => {
            tracing::error!(%error, "cannot read the descriptor set; reflection is disabled");
            services
        }
    }
}
