"""Requests of older clients, and invalid ones."""

import base64
import json
import os
import struct

import httpx
import pytest
from conftest import until
from e2b import NotFoundException, Sandbox
from service import Service

MISSING = "a0000000000000000000"


@pytest.fixture(scope="module")
def api(server):
    with httpx.Client(base_url=server.url, headers={"X-API-KEY": os.environ["E2B_API_KEY"]}) as client:
        yield client


@pytest.fixture(scope="module")
def envd(server, sbx):
    token = sbx.connection_config.sandbox_headers["X-Access-Token"]
    headers = {"E2b-Sandbox-Id": sbx.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}
    with httpx.Client(base_url=server.url, headers=headers) as client:
        yield client


def test_first_generation(api):
    made = api.post("/sandboxes", json={"templateID": "base", "secure": True, "metadata": {"gen": "1"}})
    assert made.status_code == 201
    sandbox = made.json()
    path = f"/sandboxes/{sandbox['sandboxID']}"
    assert sandbox["envdAccessToken"] == api.get(path).json()["envdAccessToken"]
    assert [one["sandboxID"] for one in api.get("/sandboxes", params={"metadata": "gen=1"}).json()] == [sandbox["sandboxID"]]
    assert api.post(f"{path}/resume", json={"timeout": 60}).status_code == 409
    assert api.post(f"{path}/connect", json={"timeout": 60}).status_code == 200
    assert api.post(f"{path}/refreshes", json={"duration": 60}).status_code == 204
    assert api.post(f"{path}/pause").status_code == 204
    assert api.post(f"{path}/pause").status_code == 409
    assert api.post(f"{path}/refreshes", json={"duration": 60}).status_code == 409
    assert api.post(f"{path}/resume", json={"timeout": 60}).status_code == 201
    assert api.get(f"{path}/logs").json()["logs"][0]["line"].startswith("created")
    assert api.get(f"/v2{path}/logs").json()["logs"][0]["level"] == "info"
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404


def test_both_spellings_of_a_key_and_both_headers(server):
    key = os.environ["E2B_API_KEY"]
    for spelling in (key, key.replace("e2b_", "bj_")):
        for headers in ({"X-API-KEY": spelling}, {"Authorization": f"Bearer {spelling}"}):
            assert httpx.get(f"{server.url}/v2/sandboxes", headers=headers).status_code == 200
    refused = httpx.get(f"{server.url}/v2/sandboxes")
    assert (refused.status_code, refused.json()["code"]) == (401, 401)


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("GET", f"/sandboxes/{MISSING}", None, 404),
        ("DELETE", f"/sandboxes/{MISSING}", None, 404),
        ("POST", f"/v2/sandboxes/{MISSING}/connect", {}, 404),
        ("POST", "/v2/sandboxes", {}, 400),
        ("POST", "/v2/sandboxes", {"templateID": "base", "timeout": -1}, 400),
        ("POST", "/v2/sandboxes", {"templateID": "base", "timeout": "x"}, 400),
        ("GET", "/v2/sandboxes?limit=0", None, 400),
        ("GET", "/v2/sandboxes?state=asleep", None, 400),
        ("GET", "/v2/sandboxes?nextToken=junk", None, 400),
        ("GET", "/v2/sandboxes?metadata=%2525FF", None, 400),
        ("GET", "/templates/aliases/none", None, 404),
        ("GET", "/templates/aliases/base", None, 200),
        ("POST", "/templates", {"dockerfile": "FROM x"}, 501),
        ("GET", "/templates/base", None, 501),
        ("POST", "/v2/sandboxes", {"templateID": "mcp-gateway", "mcp": {"x": {}}}, 501),
        ("GET", f"/volumes/{MISSING}", None, 404),
        ("POST", "/volumes", {"name": "a b"}, 400),
        ("POST", "/volumes", {}, 400),
        ("POST", "/secrets", {"name": "two words", "value": "b"}, 400),
        ("GET", "/secrets/none", None, 404),
        ("PATCH", "/v2/sandboxes", {}, 405),
    ],
)
def test_errors_have_one_form(api, method, path, body, status):
    answer = api.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    if status >= 300:
        assert answer.json()["code"] == status and answer.json()["message"]


def test_idempotent_create(api):
    body = {"templateID": "base"}
    made = [api.post("/v2/sandboxes", json=body, headers={"Idempotency-Key": "once-1"}).json() for _ in range(2)]
    assert made[0]["sandboxID"] == made[1]["sandboxID"]
    other = api.post("/v2/sandboxes", json={**body, "timeout": 5}, headers={"Idempotency-Key": "once-1"})
    assert other.status_code == 422
    api.delete(f"/sandboxes/{made[0]['sandboxID']}")


def test_tokens_are_valid_for_one_sandbox(envd, sbx):
    with Sandbox.create() as other:
        foreign = other.connection_config.sandbox_headers["X-Access-Token"]
        for token in (foreign, "junk", "", os.environ["E2B_API_KEY"]):
            headers = {"X-Access-Token": token}
            assert envd.post("/process.Process/List", json={}, headers=headers).status_code == 401
            assert envd.get("/metrics", headers=headers).status_code == 401
            assert envd.get("/files", params={"path": "a"}, headers=headers).status_code == 401
            execute = {**headers, "E2b-Sandbox-Port": "49999"}
            assert envd.post("/execute", json={"code": "1"}, headers=execute).status_code == 401
            assert envd.get("/contexts", headers=execute).status_code == 401
    assert envd.post("/process.Process/List", json={}).status_code == 200


def test_health_needs_no_token(server, sbx):
    def health(sandbox, port="49983"):
        headers = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": port}
        return httpx.get(f"{server.url}/health", headers=headers)

    assert health(sbx.sandbox_id).status_code == 204
    assert health(sbx.sandbox_id, "49999").text == "OK"
    gone = health(MISSING)
    assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found")
    assert health("../../etc").status_code == 502


def test_metrics_and_envs_of_the_daemon(envd):
    assert envd.get("/metrics").json()["mem_total"] > 0
    assert envd.get("/envs").json() == {}
    assert envd.post("/init", json={}).status_code == 404


def call(envd, procedure, message):
    return envd.post(f"/process.Process/{procedure}", json=message)


def test_processes_are_found_by_tag(envd, sbx):
    headers = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
    config = {"cmd": "/bin/bash", "args": ["-c", "read line; echo got $line"]}
    started = frame(json.dumps({"process": config, "tag": "the reader", "stdin": True}).encode())
    selector = {"process": {"tag": "the reader"}}
    with envd.stream("POST", "/process.Process/Start", content=started, headers=headers) as first:
        next(first.iter_raw())
        listed = {one.get("tag"): one["pid"] for one in call(envd, "List", {}).json()["processes"]}
        assert listed["the reader"] > 0
        with envd.stream("POST", "/process.Process/Connect", content=frame(json.dumps(selector).encode()), headers=headers) as second:
            typed = base64.b64encode(b"input\n").decode()
            assert call(envd, "SendInput", {**selector, "input": {"stdin": typed}}).status_code == 200
            output = b"".join(second.iter_raw())
    assert f'"pid":{listed["the reader"]}'.encode() in output
    assert base64.b64encode(b"got input\n") in output
    until(lambda: "the reader" not in [one.get("tag") for one in call(envd, "List", {}).json()["processes"]], "the end")
    missing = call(envd, "SendSignal", {"process": {"tag": "none"}, "signal": "SIGNAL_SIGKILL"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    long = frame(json.dumps({"process": config, "tag": "x" * 257}).encode())
    refused = envd.post("/process.Process/Start", content=long, headers=headers)
    assert b'"invalid_argument"' in refused.content and b"tag" in refused.content


def test_tags_are_valid_in_one_sandbox(envd):
    with Sandbox.create() as other:
        started = {"process": {"cmd": "/bin/sleep", "args": ["1000"]}, "tag": "elsewhere"}
        token = other.connection_config.sandbox_headers["X-Access-Token"]
        headers = {"Content-Type": "application/connect+json", "E2b-Sandbox-Id": other.sandbox_id, "X-Access-Token": token}
        with envd.stream("POST", "/process.Process/Start", content=frame(json.dumps(started).encode()), headers=headers) as stream:
            next(stream.iter_raw())
            foreign = call(envd, "SendSignal", {"process": {"tag": "elsewhere"}, "signal": "SIGNAL_SIGKILL"})
            assert foreign.status_code == 404


def frame(message, flags=0, length=None):
    return struct.pack(">BI", flags, len(message) if length is None else length) + message


@pytest.mark.parametrize(
    "body, code",
    [
        (b"", "invalid_argument"),
        (b"\0\0", "invalid_argument"),
        (frame(b"{", length=1), "invalid_argument"),
        (frame(b"{}", length=2**32 - 1), "invalid_argument"),
        (frame(b"{}", flags=1), "invalid_argument"),
        (frame(b"{}"), "invalid_argument"),
    ],
)
def test_malformed_frames(envd, body, code):
    headers = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
    answer = envd.post("/process.Process/Start", content=body, headers=headers)
    assert answer.status_code == 200
    assert answer.content[0] == 2 and f'"{code}"'.encode() in answer.content


def test_unknown_procedures(envd):
    for path in ("/process.Process/Nothing", "/filesystem.Filesystem/Nothing"):
        answer = envd.post(path, json={})
        assert (answer.status_code, answer.json()["code"]) == (501, "unimplemented")
    assert envd.get("/process.Process/List").json()["code"] == "invalid_argument"


def test_interrupted_upload_leaves_nothing(envd, sbx):
    def half():
        yield b"half of it"
        raise RuntimeError("the client goes away")

    with pytest.raises(RuntimeError):
        envd.post("/files", params={"path": "half.txt"}, content=half(), headers={"Content-Type": "application/octet-stream"})
    assert sbx.files.exists("half.txt") is False


def test_both_context_and_language(envd):
    headers = {"E2b-Sandbox-Port": "49999"}
    answer = envd.post("/execute", json={"code": "1", "context_id": "python", "language": "python"}, headers=headers)
    assert answer.status_code == 400


ECHO = """
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write((self.path + str(self.headers)).encode())
http.server.HTTPServer(("127.0.0.1", 8123), Echo).serve_forever()
"""


def serve_echo(sandbox):
    """Starts a server on port 8123 that returns the request."""
    sandbox.files.write("echo.py", ECHO)
    sandbox.commands.run("exec python3 echo.py", background=True)
    until(lambda: sandbox.commands.run("cat /proc/net/tcp | grep -q 1FBB; echo $?").stdout == "0\n", "the port")


def places(sandbox):
    """The ways to name port 8123 of a sandbox."""
    yield {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8123"}
    yield {"Host": f"{sandbox.get_host(8123)}"}


def test_ports_are_public(server, sbx):
    serve_echo(sbx)
    token = sbx.connection_config.sandbox_headers["X-Access-Token"]
    # Clients send it with requests for contexts, and nothing else.
    assert sbx.traffic_access_token == token
    for place in places(sbx):
        for headers in ({}, {"X-Access-Token": token}, {"E2B-Traffic-Access-Token": "junk"}):
            answer = httpx.get(f"{server.url}/a?b=c", headers={**place, **headers})
            assert answer.status_code == 200 and answer.text.startswith("/a?b=c")
            # The program inside never sees a token.
            assert token not in answer.text and "junk" not in answer.text


def test_private_ports_need_the_traffic_token(server):
    with Sandbox.create(network={"allow_public_traffic": False}) as sandbox:
        serve_echo(sandbox)
        token = sandbox.traffic_access_token
        for place in places(sandbox):
            for name in ("E2B-Traffic-Access-Token", "X-Access-Token"):
                answer = httpx.get(f"{server.url}/", headers={**place, name: token})
                assert answer.status_code == 200 and token not in answer.text
            for headers in ({}, {"E2B-Traffic-Access-Token": "junk"}):
                refused = httpx.get(f"{server.url}/", headers={**place, **headers})
                assert (refused.status_code, refused.json()["sandboxId"]) == (403, sandbox.sandbox_id)
                assert "e2b-traffic-access-token" in refused.json()["message"]
        fork = sandbox.fork()[0]
        answer = httpx.get(f"{server.url}/", headers={"E2b-Sandbox-Id": fork.sandbox_id, "E2b-Sandbox-Port": "8123"})
        assert answer.status_code == 403
        fork.kill()


def test_ports_of_ended_sandboxes(server):
    with Sandbox.create() as sandbox:
        pass
    for place in places(sandbox):
        gone = httpx.get(f"{server.url}/", headers=place)
        body = {"sandboxId": sandbox.sandbox_id, "message": "The sandbox was not found", "code": 502}
        assert (gone.status_code, gone.json()) == (502, body)


def test_host_that_programs_see(server):
    with Sandbox.create(network={"mask_request_host": "localhost:${PORT}"}) as sandbox:
        serve_echo(sandbox)
        for place in places(sandbox):
            seen = httpx.get(f"{server.url}/", headers=place).text.lower()
            assert "host: localhost:8123\n" in seen.replace("\r", "")
        assert f"x-forwarded-host: {sandbox.get_host(8123)}" in seen


def test_operator_closes_ports(server):
    closed = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b", "--set", "server.e2b_public_ports=false"])
    try:
        assert "server.e2b_public_ports = false" in closed.said()
        with httpx.Client(base_url=closed.url, headers={"X-API-KEY": closed.key}) as api:
            made = api.post("/v2/sandboxes", json={"templateID": "base", "network": {"allowPublicTraffic": True}}).json()
            assert made["trafficAccessToken"] == made["envdAccessToken"]
            place = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "8123"}
            assert httpx.get(closed.url, headers=place).status_code == 403
            open_to_token = httpx.get(closed.url, headers={**place, "E2B-Traffic-Access-Token": made["trafficAccessToken"]})
            assert open_to_token.json()["message"] == "The sandbox is running but port is not open"
    finally:
        closed.close()


def test_domain_is_that_of_the_server(api):
    """Clients without a domain in the answer fall back to E2B's own."""
    made = api.post("/sandboxes", json={"templateID": "base"}).json()
    assert made["domain"] == f"localhost:{api.base_url.port}"
    single = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b"], domain="")
    try:
        with httpx.Client(base_url=single.url, headers={"X-API-KEY": single.key}) as raw:
            made = raw.post("/sandboxes", json={"templateID": "base"}).json()
            assert made["domain"] == single.address
            assert raw.get(f"/sandboxes/{made['sandboxID']}").json()["domain"] == single.address
    finally:
        single.close()


def test_closed_ports(envd, sbx):
    answer = envd.get("/", headers={"E2b-Sandbox-Port": "8099"})
    message = "The sandbox is running but port is not open"
    body = {"sandboxId": sbx.sandbox_id, "message": message, "port": 8099, "code": 502}
    assert (answer.status_code, answer.json()) == (502, body)


def test_host_names_of_the_daemon(server, sbx, envd):
    name = f"49983-{sbx.sandbox_id}.localhost"
    token = {"X-Access-Token": envd.headers["X-Access-Token"]}
    assert httpx.get(f"{server.url}/health", headers={"Host": name}).status_code == 204
    listed = httpx.post(f"{server.url}/process.Process/List", json={}, headers={"Host": name, **token})
    assert listed.json() == {"processes": listed.json()["processes"]}
    code = {"Host": f"49999-{sbx.sandbox_id}.localhost", **token}
    assert httpx.get(f"{server.url}/contexts", headers=code).status_code == 200
    gone = httpx.get(f"{server.url}/health", headers={"Host": f"49983-{MISSING}.localhost"})
    assert (gone.status_code, gone.json()["code"]) == (502, 502)


def new_key(server, tenant="default", role="user"):
    headers = {"Authorization": f"Bearer {server.key}"}
    made = httpx.post(f"{server.url}/v1/keys", json={"name": "test", "role": role, "tenant": tenant}, headers=headers)
    assert made.status_code == 201, made.text
    return made.json()


def test_the_access_token_ends_with_its_key(server):
    key = new_key(server)
    sandbox = Sandbox.create(api_key=key["key"].replace("bj_", "e2b_"))
    again = Sandbox.connect(sandbox.sandbox_id, api_key=key["key"])
    token = sandbox.connection_config.sandbox_headers["X-Access-Token"]
    assert again.connection_config.sandbox_headers["X-Access-Token"] == token
    url = sandbox.download_url("/etc/hostname")
    assert httpx.get(url).status_code == 200
    revoked = httpx.delete(f"{server.url}/v1/keys/{key['id']}", headers={"Authorization": f"Bearer {server.key}"})
    assert revoked.status_code == 204, revoked.text
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": token}
    assert httpx.get(f"{server.url}/metrics", headers=headers).status_code == 401
    assert httpx.get(url).status_code == 401
    assert Sandbox.kill(sandbox.sandbox_id) is True


def test_the_deadline_of_a_process_outlives_its_key(server, sbx):
    key = new_key(server)
    sandbox = Sandbox.connect(sbx.sandbox_id, api_key=key["key"])
    headers = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": sandbox.connection_config.sandbox_headers["X-Access-Token"],
        "Content-Type": "application/connect+json",
        "Connect-Timeout-Ms": "5000",
    }
    content = frame(json.dumps({"process": {"cmd": "sleep", "args": ["1000.7"]}}).encode())
    is_there = "for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $each 2>/dev/null; echo; done | grep -c '^sleep 1000.7' || true"
    with httpx.stream("POST", f"{server.url}/process.Process/Start", content=content, headers=headers, timeout=30) as stream:
        next(stream.iter_raw())
        assert sbx.commands.run(is_there).stdout == "1\n"
        revoked = httpx.delete(f"{server.url}/v1/keys/{key['id']}", headers={"Authorization": f"Bearer {server.key}"})
        assert revoked.status_code == 204, revoked.text
    until(lambda: sbx.commands.run(is_there).stdout == "0\n", "the process to be killed at its deadline")


def test_sandboxes_of_other_tenants_are_invisible(server, sbx):
    other = {"api_key": new_key(server, "other")["key"]}
    assert Sandbox.kill(sbx.sandbox_id, **other) is False
    assert sbx.sandbox_id not in [info.sandbox_id for info in Sandbox.list(**other).next_items()]
    for call in (Sandbox.connect, Sandbox.get_info, Sandbox.pause, Sandbox.get_metrics):
        with pytest.raises(NotFoundException):
            call(sbx.sandbox_id, **other)
    assert sbx.is_running()
