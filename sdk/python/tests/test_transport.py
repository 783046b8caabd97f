"""Retries, errors and secrets, with a network that fails on request. No server is needed."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import traceback
from typing import Any, Callable, Dict, List

import httpx
import pytest
from lifted import Lifted

import belljar
import belljar._async._io
import belljar._sync._io
from belljar import errors

pytestmark = pytest.mark.asyncio

KEY = "bj_" + "5e" * 32
INFO: Dict[str, Any] = {
    "id": "abcdefghij0123456789",
    "name": None,
    "state": "running",
    "template": "default",
    "created_at": "2026-11-21T15:04:05.123456Z",
}
RESULT: Dict[str, Any] = {
    "schema": 1,
    "process": 1,
    "outcome": {"kind": "exited", "code": 0},
    "exit_code": 0,
    "signal": None,
    "stdout": {"encoding": "utf-8", "data": "x", "bytes": 1},
    "stderr": {"encoding": "utf-8", "data": "", "bytes": 0},
}
Answer = Callable[[httpx.Request], httpx.Response]


class Network:
    """Responds from a list, and records requests and delays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.kind = kind
        self.requests: List[httpx.Request] = []
        self.bodies: List[bytes] = []
        self.delays: List[float] = []
        self.answers: List[Any] = []

        async def sleep(seconds: float) -> None:
            self.delays.append(seconds)

        monkeypatch.setattr(belljar._async._io, "sleep", sleep)
        monkeypatch.setattr(belljar._sync._io, "sleep", self.delays.append)

    def client(self, *answers: Any, **options: Any) -> Any:
        self.answers = list(answers)
        if self.kind == "async":

            async def handle(request: httpx.Request) -> httpx.Response:
                await request.aread()
                return self.handle(request)

            return belljar.AsyncBelljar(KEY, transport=httpx.MockTransport(handle), **options)

        def handle_sync(request: httpx.Request) -> httpx.Response:
            request.read()
            return self.handle(request)

        return Lifted(belljar.Belljar(KEY, transport=httpx.MockTransport(handle_sync), **options))

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.bodies.append(request.content)
        answer = self.answers.pop(0)
        if isinstance(answer, type):
            raise answer("it broke", request=request)
        assert isinstance(answer, httpx.Response)
        return answer


@pytest.fixture(params=["sync", "async"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch, request.param)


def ok(value: Any = None, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=INFO if value is None else value, headers=headers)


def problem(status: int, code: str, retry_after: Any = None, **more: Any) -> httpx.Response:
    headers = {"X-Request-Id": "r-77"} if retry_after is None else {"X-Request-Id": "r-77", "Retry-After": str(retry_after)}
    body = {"type": "t", "title": "T", "status": status, "code": code, "detail": "what failed", **more}
    return httpx.Response(status, json=body, headers=headers)


async def sandbox(network: Network, *answers: Any, **options: Any) -> Any:
    client = network.client(ok(), *answers, **options)
    found = await client.sandboxes.connect("abcdefghij0123456789")
    network.requests.clear()
    network.bodies.clear()
    return found


BREAKS = [httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError]


@pytest.mark.parametrize("broken", [*BREAKS, httpx.ConnectError, httpx.ConnectTimeout])
async def test_reading_is_repeated(network: Network, broken: Any) -> None:
    client = network.client(broken, broken, ok())
    assert (await client.sandboxes.get("x")).state == "running"
    assert len(network.requests) == 3 and len(network.delays) == 2
    assert 0.1 <= network.delays[0] <= 0.2 and 0.2 <= network.delays[1] <= 0.4


async def test_reading_is_given_up(network: Network) -> None:
    client = network.client(*[httpx.ReadError] * 9)
    with pytest.raises(belljar.ConnectionException):
        await client.sandboxes.get("x")
    assert len(network.requests) == 6


async def test_no_retries_at_all(network: Network) -> None:
    client = network.client(httpx.ConnectError, ok(), max_retries=0)
    with pytest.raises(belljar.ConnectionException):
        await client.sandboxes.get("x")
    assert len(network.requests) == 1


@pytest.mark.parametrize("broken", BREAKS)
async def test_create_and_run_are_repeated_under_one_key(network: Network, broken: Any) -> None:
    client = network.client(broken, ok(status=201), broken, ok(RESULT))
    sbx = await client.sandboxes.create()
    assert (await sbx.commands.run("echo x")).stdout == "x"
    keys = [request.headers["Idempotency-Key"] for request in network.requests]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert network.bodies[0] == network.bodies[1] and network.bodies[2] == network.bodies[3]


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize(
    "call",
    [
        lambda sbx: sbx.pause(),
        lambda sbx: sbx.fork(),
        lambda sbx: sbx.create_snapshot(),
        lambda sbx: sbx.commands.run("x", background=True),
        lambda sbx: sbx.files.write("f", "x"),
        lambda sbx: sbx.files.rename("a", "b"),
        lambda sbx: sbx.update(labels={}),
    ],
)
async def test_what_is_not_safe_is_not_repeated(network: Network, broken: Any, call: Any) -> None:
    sbx = await sandbox(network, broken, ok())
    with pytest.raises(belljar.ConnectionException):
        await call(sbx)
    assert len(network.requests) == 1


async def test_what_is_not_safe_is_repeated_when_it_was_not_begun(network: Network) -> None:
    sbx = await sandbox(network, httpx.ConnectError, problem(429, "quota_exceeded", 2), problem(503, "machine_full", 1), ok())
    assert await sbx.pause() is True
    assert len(network.requests) == 4
    assert 2 <= network.delays[1] <= 2.4 and 1 <= network.delays[2] <= 1.8


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_what_is_not_safe_is_not_repeated_without_retry_after(network: Network, status: int) -> None:
    sbx = await sandbox(network, problem(status, "engine_failed"), ok())
    with pytest.raises(belljar.SandboxException):
        await sbx.pause()
    assert len(network.requests) == 1


async def test_retry_waits_for_the_attempt_that_is_at_work(network: Network) -> None:
    sbx = await sandbox(network, httpx.ReadError, problem(409, "idempotency_running", 1), ok(RESULT))
    assert (await sbx.commands.run("x")).stdout == "x"
    assert len({request.headers["Idempotency-Key"] for request in network.requests}) == 1 and len(network.requests) == 3


async def test_what_the_sandbox_could_not_answer_is_repeated_under_its_key(network: Network) -> None:
    sbx = await sandbox(network, problem(502, "sandbox_unreachable"), problem(429, "rate_limited", 1), ok(RESULT))
    assert (await sbx.commands.run("x")).stdout == "x"


async def test_used_up_quotas_are_not_waited_for(network: Network) -> None:
    client = network.client(problem(429, "quota_exceeded"), ok())
    with pytest.raises(belljar.RateLimitException):
        await client.sandboxes.get("x")
    assert len(network.requests) == 1 and network.delays == []


async def test_long_waits_are_the_callers(network: Network) -> None:
    client = network.client(problem(429, "quota_exceeded", 3600), ok())
    with pytest.raises(belljar.RateLimitException) as caught:
        await client.sandboxes.get("x")
    assert caught.value.retry_after == 3600 and network.delays == []


async def test_bodies_that_cannot_be_repeated_are_not(network: Network) -> None:
    sbx = await sandbox(network, problem(429, "quota_exceeded", 1), ok())
    with pytest.raises(belljar.RateLimitException):
        await sbx.files.write("f", iter([b"a"]))
    assert len(network.requests) == 1 and network.bodies == [b"a"]


async def test_kill_that_broke_has_worked(network: Network) -> None:
    sbx = await sandbox(network, httpx.ReadError, problem(410, "sandbox_gone"))
    assert await sbx.kill() is True
    client = network.client(problem(410, "sandbox_gone"))
    assert await client.sandboxes.kill("x") is False


@pytest.mark.parametrize(("status", "done"), [(502, True), (503, False)])
async def test_a_deletion_that_may_have_been_begun_has_worked(network: Network, status: int, done: bool) -> None:
    client = network.client(problem(status, "x"), problem(404, "volume_not_found"))
    assert await client.volumes.delete("x") is done
    assert len(network.requests) == 2


async def test_silence_is_no_reason_to_repeat(network: Network) -> None:
    client = network.client(httpx.ReadTimeout, ok())
    with pytest.raises(belljar.TimeoutException):
        await client.sandboxes.get("x")
    assert len(network.requests) == 1


CODES = [
    ("invalid_field", 400, belljar.InvalidArgumentException),
    ("invalid_json", 400, belljar.InvalidArgumentException),
    ("invalid_argument", 400, belljar.InvalidArgumentException),
    ("unauthenticated", 401, belljar.AuthenticationException),
    ("forbidden", 403, belljar.ForbiddenException),
    ("policy_refused", 403, belljar.ForbiddenException),
    ("host_not_allowed", 403, belljar.ForbiddenException),
    ("origin_not_allowed", 403, belljar.ForbiddenException),
    ("permission_denied", 403, belljar.ForbiddenException),
    ("sandbox_not_found", 404, belljar.SandboxNotFoundException),
    ("template_not_found", 404, belljar.TemplateNotFoundException),
    ("volume_not_found", 404, belljar.VolumeNotFoundException),
    ("key_not_found", 404, belljar.KeyNotFoundException),
    ("secret_not_found", 404, belljar.SecretNotFoundException),
    ("process_not_found", 404, belljar.ProcessNotFoundException),
    ("path_not_found", 404, belljar.FileNotFoundException),
    ("program_not_found", 404, belljar.ProgramNotFoundException),
    ("session_not_found", 404, belljar.SessionNotFoundException),
    ("context_not_found", 404, belljar.ContextNotFoundException),
    ("port_not_found", 404, belljar.PortNotFoundException),
    ("not_found", 404, belljar.NotFoundException),
    ("kernel_unavailable", 409, belljar.KernelUnavailableException),
    ("method_not_allowed", 405, belljar.InvalidArgumentException),
    ("name_taken", 409, belljar.ConflictException),
    ("wrong_state", 409, belljar.ConflictException),
    ("volume_in_use", 409, belljar.ConflictException),
    ("path_exists", 409, belljar.ConflictException),
    ("not_regular", 409, belljar.ConflictException),
    ("idempotency_running", 409, belljar.ConflictException),
    ("execution_interrupted", 409, belljar.ConflictException),
    ("failed_precondition", 409, belljar.ConflictException),
    ("sandbox_gone", 410, belljar.SandboxGoneException),
    ("too_large", 413, belljar.NotEnoughSpaceException),
    ("unsupported_media_type", 415, belljar.InvalidArgumentException),
    ("range_not_satisfiable", 416, belljar.InvalidArgumentException),
    ("idempotency_mismatch", 422, belljar.ConflictException),
    ("build_failed", 422, belljar.BuildException),
    ("quota_exceeded", 429, belljar.RateLimitException),
    ("rate_limited", 429, belljar.RateLimitException),
    ("engine_failed", 500, belljar.ServerException),
    ("store_failed", 500, belljar.ServerException),
    ("store_failed", 507, belljar.NotEnoughSpaceException),
    ("sandbox_unreachable", 502, belljar.ServerException),
    ("port_not_open", 502, belljar.ServerException),
    ("machine_full", 503, belljar.ServerException),
    ("shutting_down", 503, belljar.ServerException),
    ("sandbox_unresponsive", 504, belljar.TimeoutException),
    ("not_invented_yet", 404, belljar.NotFoundException),
    ("not_invented_yet", 418, belljar.SandboxException),
    ("not_invented_yet", 599, belljar.ServerException),
]


@pytest.mark.parametrize(("code", "status", "expected"), CODES)
async def test_codes(network: Network, code: str, status: int, expected: Any) -> None:
    sbx = await sandbox(network, problem(status, code, field="a.b"), max_retries=0)
    with pytest.raises(belljar.SandboxException) as caught:
        await sbx.get_metrics()
    error = caught.value
    assert type(error) is expected
    assert (error.code, error.status, error.field, error.request_id) == (code, status, "a.b", "r-77")
    assert str(error) == error.message == "what failed"


async def test_every_code_has_a_case() -> None:
    assert set(errors.known_codes()) <= {code for code, _, _ in CODES}


@pytest.mark.parametrize(
    "body", [b"", b"<html>Bad Gateway</html>", b"[1]", b'"x"', b'{"status":"x","code":7,"field":3,"retry_after_s":"y"}']
)
async def test_answers_of_somebody_else(network: Network, body: bytes) -> None:
    client = network.client(httpx.Response(500, content=body))
    with pytest.raises(belljar.ServerException) as caught:
        await client.sandboxes.get("x")
    assert caught.value.status == 500


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[]", b"{}", b'{"id":1}', json.dumps({**INFO, "created_at": "noon"}).encode()]
)
async def test_good_answers_that_are_not_as_agreed(network: Network, body: bytes) -> None:
    client = network.client(httpx.Response(200, content=body))
    with pytest.raises(belljar.ServerException):
        await client.sandboxes.get("x")


async def test_unknown_keys_are_passed_over(network: Network) -> None:
    client = network.client(ok({**INFO, "new": {"thing": 1}}))
    assert (await client.sandboxes.get("x")).raw["new"] == {"thing": 1}


async def test_requests(network: Network) -> None:
    client = network.client(ok(status=201))
    await client.sandboxes.create(envs={"A": "ü"}, timeout="10m", metadata={"k": "v"}, limits={"memory": "1g", "pids": None})
    request = network.requests[0]
    assert (request.method, request.url.path) == ("POST", "/v1/sandboxes")
    assert json.loads(network.bodies[0]) == {
        "env": {"A": "ü"},
        "timeout": "10m",
        "labels": {"k": "v"},
        "limits": {"memory": "1g"},
    }
    assert request.headers["Authorization"] == f"Bearer {KEY}" and request.headers["User-Agent"].startswith("belljar-python/")


async def test_ids_stay_one_segment(network: Network) -> None:
    client = network.client(ok())
    await client.sandboxes.get("../keys?x#y")
    assert network.requests[0].url.raw_path == b"/v1/sandboxes/..%2Fkeys%3Fx%23y"


async def test_paths_that_are_not_utf8(network: Network) -> None:
    sbx = await sandbox(network, ok({"path": "�", "path_base64": "/w==", "kind": "file"}), ok({"path": "a&b", "kind": "file"}))
    assert (await sbx.files.get_info(b"\xff")).path_bytes == b"\xff"
    await sbx.files.get_info("a&b=ü")
    assert [dict(request.url.params) for request in network.requests] == [
        {"path_base64": "/w==", "follow": "true"},
        {"path": "a&b=ü", "follow": "true"},
    ]
    with pytest.raises(belljar.InvalidArgumentException):
        await sbx.files.rename(b"\xff", "x")


def events(*told: Any, cut: int = 7) -> httpx.Response:
    body = "".join(f": alive\n\nevent: {name}\ndata: {json.dumps(data)}\n\n" for name, data in told).encode()

    class Stream(httpx.AsyncByteStream, httpx.SyncByteStream):
        def __iter__(self) -> Any:
            return (body[at : at + cut] for at in range(0, len(body), cut))

        async def __aiter__(self) -> Any:
            for piece in self:
                yield piece

    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Stream())


def piece(name: str, offset: int, text: str) -> Any:
    return name, {"offset": offset, "encoding": "utf-8", "data": text}


PROCESS = {"process": 7, "pid": 12, "argv": ["x"], "running": True}


async def test_broken_output_is_taken_up_where_it_broke(network: Network) -> None:
    sbx = await sandbox(
        network,
        ok(PROCESS, 201),
        events(piece("stdout", 0, "one "), piece("stderr", 0, "err ")),
        httpx.ReadError,
        events(piece("stdout", 4, "two "), piece("stdout", 2, "e two three ")),
        events(piece("stdout", 14, ""), ("exited", {"exit_code": 0, "signal": None, "outcome": {"kind": "exited", "code": 0}})),
    )
    handle = await sbx.commands.run("x", background=True)
    result = await handle.wait()
    assert (result.stdout, result.stderr) == ("one two three ", "err ")
    offsets = [(request.url.params["stdout"], request.url.params["stderr"]) for request in network.requests[1:]]
    assert offsets == [("0", "0"), ("4", "4"), ("4", "4"), ("14", "4")]


class Endless(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A stream of events that does not end."""

    closed = False

    def __iter__(self) -> Any:
        for offset in range(1000):
            yield f"event: stdout\ndata: {json.dumps(piece('stdout', offset, 'x')[1])}\n\n".encode()

    async def __aiter__(self) -> Any:
        for data in self:
            yield data

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


async def test_a_stream_that_was_left_is_closed(network: Network) -> None:
    stream = Endless()
    found = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=stream)
    sbx = await sandbox(network, ok(PROCESS, 201), found)
    handle = await sbx.commands.run("x", background=True)
    async for output in handle:
        assert output.stdout == "x"
        break
    assert not stream.closed
    await handle.disconnect()
    assert stream.closed
    assert [output async for output in handle] == []


async def test_answers_that_come_too_late_do_not_cost_the_outcome(network: Network) -> None:
    started = "started", {"execution": 9, "context": {"id": "c1", "language": "python"}, "count": 1}
    question = "input_requested", {"prompt": "name? ", "password": False}
    called = "tool_called", {"call": 1, "name": "lookup", "arguments": {}}
    late = problem(409, "failed_precondition")
    timed_out = events(started, piece("stdout", 0, "o"), question, ("ended", {"status": "timed_out", "state": "preserved"}))
    sbx = await sandbox(network, timed_out, late)
    done = await sbx.run_code("x", on_input=lambda question: "Ada")
    assert (done.status, done.stdout) == ("timed_out", "o")

    # The response to the first answer is lost, so the second one is late.
    end = "ended", {"status": "ok", "state": "preserved"}
    sbx = await sandbox(network, events(started, called, end), httpx.ReadError, problem(409, "failed_precondition"))
    assert (await sbx.run_code("x", functions={"lookup": lambda: 1})).status == "ok"
    assert [json.loads(body).get("call") for body in network.bodies] == [None, 1, 1]

    def failing(question: str) -> str:
        raise LookupError("mine")

    sbx = await sandbox(network, events(started, question, end), httpx.ReadError)
    with pytest.raises(LookupError, match="mine"):
        await sbx.run_code("x", on_input=failing)

    # In a sandbox that is paused the code goes on to wait.
    sbx = await sandbox(network, events(started, question, end), problem(409, "wrong_state"))
    with pytest.raises(belljar.ConflictException):
        await sbx.run_code("x", on_input=lambda question: "Ada")


async def test_output_goes_on_after_a_restart_of_the_server(network: Network) -> None:
    shutting_down = {"status": 503, "code": "shutting_down", "detail": "the server is shutting down"}
    sbx = await sandbox(
        network,
        ok(PROCESS, 201),
        events(piece("stdout", 0, "one "), ("error", shutting_down)),
        *[httpx.ConnectError] * 4,
        problem(503, "shutting_down", 1),
        events(piece("stdout", 4, "two"), ("exited", {"exit_code": 0, "outcome": {"kind": "exited", "code": 0}})),
    )
    assert (await (await sbx.commands.run("x", background=True)).wait()).stdout == "one two"


async def test_a_command_in_the_background_has_other_errors(network: Network) -> None:
    gone = {"status": 410, "code": "sandbox_gone", "detail": "the sandbox has ended"}
    sbx = await sandbox(network, ok(PROCESS, 201), events(("error", gone)))
    with pytest.raises(belljar.SandboxGoneException):
        await (await sbx.commands.run("x", background=True)).wait()


async def test_time_limits(network: Network) -> None:
    entry = {"path": "f", "kind": "file"}
    info = {**INFO, "limits": {"timeout_s": 60}}
    client = network.client(ok(info), *[ok(RESULT)] * 4, ok(entry), ok(entry), ok(entry))
    sbx = await client.sandboxes.connect("x")
    await sbx.commands.run("x")
    await sbx.commands.run("x", timeout=10, request_timeout=5)
    await sbx.commands.run("x", timeout=0)
    await sbx.commands.run("x", timeout=10**400, request_timeout=5)
    await sbx.files.get_info("f")
    await sbx.files.get_info("f", request_timeout=7)
    await sbx.files.write("f", "x", request_timeout=0)
    limits = [request.extensions["timeout"] for request in network.requests]
    assert [limit["read"] for limit in limits[1:]] == [120, 15, None, (1 << 31) + 4, 60, 7, None]
    assert limits[0] == {"connect": 10, "read": 60, "write": 60, "pool": 60} and limits[-1]["write"] is None


async def test_commands_alone_run_as_another_user(network: Network) -> None:
    sbx = await sandbox(network, ok(RESULT), ok({"path": "f", "kind": "file"}))
    await sbx.commands.run("x", user="root")
    assert json.loads(network.bodies[0])["user"] == "root"
    await sbx.files.get_info("f", user="user")
    for call in (sbx.files.write("f", "x", user="root"), sbx.files.list("d", user="root")):
        with pytest.raises(belljar.InvalidArgumentException, match="own user") as caught:
            await call
        assert caught.value.field == "user"
    with pytest.raises(TypeError):
        await sbx.files.read("f", use="user")
    assert len(network.requests) == 2


async def test_results_show_what_was_written(network: Network) -> None:
    failed = {**RESULT, "exit_code": 3, "outcome": {"kind": "exited", "code": 3}, "stderr": {**RESULT["stderr"], "data": "no\n"}}
    killed = {**RESULT, "exit_code": None, "outcome": {"kind": "timed_out"}, "stdout": {**RESULT["stdout"], "data": "a" * 5000}}
    sbx = await sandbox(network, ok(failed), ok(killed))
    assert repr(await sbx.commands.run("x", check=False)) == "CommandResult(exit_code=3, stdout='x', stderr='no\\n')"
    shown = repr(await sbx.commands.run("x", check=False))
    assert shown.startswith("CommandResult(error='its time ran out', stdout='aaa") and len(shown) < 2200


async def test_output_that_the_server_has_not_kept(network: Network) -> None:
    end = ("exited", {"exit_code": 1, "signal": None, "outcome": {"kind": "exited", "code": 1}})
    sbx = await sandbox(network, ok(PROCESS, 201), events(piece("stdout", 0, "head"), piece("stdout", 1000, "tail"), end))
    result = await (await sbx.commands.run("x", background=True)).wait(check=False)
    assert result.output.truncated and (result.output.total_bytes, result.output.omitted_bytes) == (1004, 996)
    assert (result.stdout, result.output.head_bytes) == ("headtail", 4)


async def test_stream_that_ends_before_the_command(network: Network) -> None:
    sbx = await sandbox(network, events(piece("stdout", 0, "x")), events(("error", {"code": "sandbox_gone", "status": 410})))
    with pytest.raises(belljar.ConnectionException):
        await sbx.commands.run("x", on_stdout=print)
    with pytest.raises(belljar.SandboxGoneException):
        await sbx.commands.run("x", on_stdout=print)
    assert len(network.requests) == 2


async def test_stream_that_is_none(network: Network) -> None:
    sbx = await sandbox(network, ok({}))
    with pytest.raises(belljar.ServerException, match="not an event stream"):
        await sbx.commands.run("x", on_stdout=print)


async def test_forks_that_fail(network: Network) -> None:
    failed = {"status": 503, "code": "machine_full", "detail": "there is no room"}
    sbx = await sandbox(network, ok({"sandboxes": [{"sandbox": INFO}, {"error": failed}]}, 201))
    with pytest.raises(belljar.ForkException, match="1 of 2") as caught:
        await sbx.fork(count=2)
    error = caught.value
    assert len(error.sandboxes) == 1 and [one.code for one in error.errors] == ["machine_full"]


async def test_download_is_taken_up_where_it_broke(network: Network, tmp_path: Any) -> None:
    class Broken(httpx.AsyncByteStream, httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield b"01234"
            raise httpx.ReadError("it broke")

        async def __aiter__(self) -> Any:
            yield b"01234"
            raise httpx.ReadError("it broke")

    first = httpx.Response(200, headers={"ETag": '"a"', "Content-Length": "10"}, stream=Broken())
    rest = httpx.Response(206, headers={"ETag": '"a"'}, content=b"56789")
    sbx = await sandbox(network, first, rest)
    assert await sbx.files.download("f", tmp_path / "f") == 10 and (tmp_path / "f").read_bytes() == b"0123456789"
    assert network.requests[1].headers["Range"] == "bytes=5-" and network.requests[1].headers["If-Range"] == '"a"'


async def test_download_of_a_file_that_changed_begins_anew(network: Network, tmp_path: Any) -> None:
    class Broken(httpx.AsyncByteStream, httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield b"old old old"
            raise httpx.ReadError("it broke")

        async def __aiter__(self) -> Any:
            yield b"old old old"
            raise httpx.ReadError("it broke")

    first = httpx.Response(200, headers={"ETag": '"a"'}, stream=Broken())
    sbx = await sandbox(network, first, httpx.Response(200, headers={"ETag": '"b"'}, content=b"new"))
    assert await sbx.files.download("f", tmp_path / "f") == 3 and (tmp_path / "f").read_bytes() == b"new"


async def test_the_key_is_told_to_nobody(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    told: List[str] = []
    caplog.set_level(logging.DEBUG)
    for answer in (problem(401, "unauthenticated"), httpx.ReadError, httpx.ReadTimeout, httpx.ConnectError, ok([])):
        client = network.client(answer, max_retries=0)
        told += [repr(client), repr(client.config), repr(getattr(client, "inner", client)._transport)]
        try:
            await client.sandboxes.get("x")
        except belljar.SandboxException as error:
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            told += ["".join(shown.format()), repr(error), repr(vars(error))]
            assert error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
    sbx = await sandbox(network)
    told += [repr(sbx), repr(sbx.info), caplog.text]
    assert all(KEY not in text for text in told) and len(told) >= 5 * 6 + 3


async def test_a_sandbox_without_git(network: Network) -> None:
    sbx = await sandbox(network, problem(404, "program_not_found"))
    with pytest.raises(belljar.ProgramNotFoundException, match=r"there is no git in the sandbox.*what failed") as missing:
        await sbx.git.status("r")
    assert missing.value.code == "program_not_found"


@pytest.mark.parametrize("name", ["sandboxes", "keys", "templates", "secrets"])
async def test_lists_in_pages(network: Network, name: str) -> None:
    entry = {
        **INFO,
        "kind": "built",
        "role": "user",
        "tenant": "t",
        "version": 1,
        "updated_at": INFO["created_at"],
        "name": "n",
    }
    pages = [{name: [{**entry, "id": f"{number}a"}, {**entry, "id": f"{number}b"}]} for number in range(3)]
    answers = [
        ok({**pages[0], "next_cursor": "c1"}),
        ok({**pages[1], "next_cursor": "c2"}),
        ok({**pages[2], "next_cursor": None}),
    ]

    def ids(items: List[Any]) -> List[str]:
        return [next(getattr(item, key) for key in vars(item) if key.endswith("_id")) for item in items]

    of = getattr(network.client(*answers), name)
    first = of.list(limit=2)
    assert (first.next_token, first.has_next) == (None, True)
    assert ids(await first.next_items()) == ["0a", "0b"] and (first.next_token, first.has_next) == ("c1", True)
    # The list is continued by another program, from the page where this one stopped.
    rest = of.list(limit=2, next_token=first.next_token)
    assert ids(await rest.all()) == ["1a", "1b", "2a", "2b"]
    assert (rest.next_token, rest.has_next, await rest.next_items(), await rest.all()) == (None, False, [], [])
    queries = [dict(request.url.params) for request in network.requests]
    assert queries == [{"limit": "2"}, {"limit": "2", "cursor": "c1"}, {"limit": "2", "cursor": "c2"}]
    of = getattr(network.client(ok({**pages[0], "next_cursor": "c1"}), ok(pages[1])), name)
    assert ids([item async for item in of.list()]) == ["0a", "0b", "1a", "1b"]


async def test_one_client_for_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, "sync")
    count = 0
    lock = threading.Lock()

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal count
        with lock:
            count += 1
        return ok()

    client = belljar.Belljar(KEY, transport=httpx.MockTransport(handle))
    await asyncio.gather(*(asyncio.to_thread(client.sandboxes.get, "x") for _ in range(50)))
    assert count == 50 and network.delays == []
