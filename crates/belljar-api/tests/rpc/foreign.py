"""Uses a server with nothing but its address and a key: what there is, it asks the server."""

import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

address, key = sys.argv[1:]


class WithKey(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    def add(self, details):
        metadata = list(details.metadata or []) + [("authorization", f"Bearer {key}")]
        return details._replace(metadata=metadata)

    def intercept_unary_unary(self, continuation, details, request):
        return continuation(self.add(details), request)

    intercept_unary_stream = intercept_stream_stream = intercept_unary_unary


plain = grpc.insecure_channel(address)
channel = grpc.intercept_channel(plain, WithKey())
database = ProtoReflectionDescriptorDatabase(channel)
pool = descriptor_pool.DescriptorPool(database)


def call(service, method, metadata=(), on=channel, **fields):
    described = pool.FindServiceByName(f"belljar.v1.{service}").FindMethodByName(method)
    request = message_factory.GetMessageClass(described.input_type)(**fields)
    answer = message_factory.GetMessageClass(described.output_type)
    kind = on.unary_stream if described.server_streaming else on.unary_unary
    path = f"/belljar.v1.{service}/{method}"
    stub = kind(path, request_serializer=lambda message: message.SerializeToString(), response_deserializer=answer.FromString)
    return stub(request, metadata=metadata, timeout=30)


assert "belljar.v1.Sandboxes" in database.get_services()
made = call("Sandboxes", "Create", labels={"from": "python"})
sandbox = made.sandbox.id
assert made.sandbox.labels["from"] == "python"

events = list(call("Commands", "Exec", sandbox=sandbox, command=b"echo hello from grpc; exit 5"))
assert [event.WhichOneof("event") for event in events] == ["started", "output", "result"], events
result = events[-1].result
assert result.stdout.data == b"hello from grpc\n" and result.exit_code == 5
assert result.outcome.WhichOneof("kind") == "exited"

entries = call("Filesystem", "List", metadata=[("belljar-sandbox", sandbox)], path=b".")
assert entries is not None
content = b"".join(
    piece.data for piece in call("Filesystem", "Read", metadata=[("belljar-sandbox", sandbox)], path=b"/etc/hostname")
)
assert content.strip()

try:
    call("Sandboxes", "Get", sandbox="nobody")
    raise SystemExit("a sandbox that is not there was found")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.NOT_FOUND, error
    trailers = dict(error.trailing_metadata())
    assert b"sandbox_not_found" in trailers["grpc-status-details-bin"], trailers

try:
    call("Sandboxes", "List", on=plain)
    raise SystemExit("a stranger was let in")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error

call("Sandboxes", "Kill", sandbox=sandbox)
