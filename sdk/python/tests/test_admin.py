"""Keys, templates, the audit log, ports and the server itself, with both clients."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, List

import httpx
import pytest

from belljar import (
    AuthenticationException,
    BuildEvent,
    BuildException,
    ConflictException,
    ForbiddenException,
    InvalidArgumentException,
    KeyNotFoundException,
    NetworkSecret,
    NotFoundException,
    RateLimitException,
    SecretNotFoundException,
    ServerException,
    Template,
    TimeoutException,
)

pytestmark = pytest.mark.asyncio


async def test_server(client: Any) -> None:
    assert (await client.health())["status"] == "ok"
    await client.ready()
    assert (await client.version())["version"]


async def test_server_metrics(client: Any, real: None) -> None:
    assert "# TYPE" in await client.metrics()


async def test_me(client: Any) -> None:
    me = await client.me()
    assert (me.role, me.tenant) == ("admin", "default")


async def test_screen(client: Any, real: None) -> None:
    report = await client.screen("import os\nos.system('rm -rf /')")
    assert (report.language, report.risk, report.complete, report.left_out) == ("python", "high", True, 0)
    assert "not a wall" in report.advice
    found = next(one for one in report.findings if one.rule == "destructive-command")
    assert (found.line, found.name, found.inside, found.severity) == (2, "rm", "bash", "high")
    assert (await client.screen("ls", "sh")).risk == "low"
    denied = await client.screen("const a = require('node:fs')", "javascript", deny_modules=["fs"])
    assert [one.rule for one in denied.findings] == ["module-denied"]
    allowed = await client.screen("import os, re", allow_modules=("re",))
    assert [one.name for one in allowed.findings] == ["os"]
    with pytest.raises(InvalidArgumentException, match="language"):
        await client.screen("x", "cobol")
    with pytest.raises(InvalidArgumentException, match="deny_modules"):
        await client.screen("x", deny_modules="os")


async def test_network(client: Any, real: None) -> None:
    offer = await client.network.offer()
    pip = next(preset for preset in offer.presets if preset.name == "pip")
    assert {"pypi.org": (443,)}.items() <= {host.name: host.ports for host in pip.hosts}.items()
    assert offer.presets_version >= 1 and offer.most.get("key") is None
    found = await client.network.check({"presets": ["pip"]}, hosts=["pypi.org", "example.com:80"])
    assert [(one.host, one.allowed, one.missing) for one in found.hosts] == [
        ("pypi.org:443", True, None),
        ("example.com:80", False, "example.com:80"),
    ]
    assert found.network["presets"] == ["pip"] and (found.problems, found.beyond) == ((), None)
    wrong = await client.network.check({"allow": ["a_b.example"]}, hosts=["pypi.org"])
    assert [(one.field, one.value) for one in wrong.problems] == [("network.allow", "a_b.example")]
    assert (wrong.network, wrong.hosts) == (None, ())
    sbx = await client.sandboxes.create(timeout=60, network={"allow": ["api.example.com"]})
    in_force = await client.network.check(hosts=["api.example.com"], sandbox_id=sbx.sandbox_id)
    assert [one.allowed for one in in_force.hosts] == [True]
    await client.sandboxes.kill(sbx.sandbox_id)
    with pytest.raises(InvalidArgumentException, match="hosts"):
        await client.network.check("open", hosts="example.com")


async def test_tool_schema(client: Any, real: None) -> None:
    definition = {
        "description": "Analyses data.",
        "languages": ["python"],
        "timeout": timedelta(seconds=30),
        "limits": {"memory": "1g"},
        "network": {"presets": ["pip"]},
    }
    described = await client.tools.schema("analyse", definition=definition)
    assert (described["name"], described["description"]) == ("analyse", "Analyses data.") and "code" in described["inputSchema"][
        "properties"
    ]
    assert "input_schema" in await client.tools.schema("analyse", "anthropic", definition=definition)
    openai = await client.tools.schema("analyse", "openai", definition=definition)
    assert openai["type"] == "function" and openai["parameters"]["properties"]
    # Nothing is stored.
    with pytest.raises(NotFoundException):
        await client.tools.schema("analyse")
    with pytest.raises(InvalidArgumentException, match="languages"):
        await client.tools.schema("analyse", definition={"description": "d", "languages": "python"})
    with pytest.raises(InvalidArgumentException, match="approval"):
        await client.tools.schema("analyse", definition={**definition, "approval": "sometimes"})


async def test_sandboxes(client: Any) -> None:
    mark = uuid.uuid4().hex
    sbx = await client.sandboxes.create(timeout=60, labels={"mark": mark})
    assert (await client.sandboxes.get(sbx.sandbox_id)).labels == {"mark": mark}
    assert [info.sandbox_id async for info in client.sandboxes.list(labels={"mark": mark})] == [sbx.sandbox_id]
    assert await client.sandboxes.pause(sbx.sandbox_id) is True
    assert (await client.sandboxes.resume(sbx.sandbox_id)).state == "running"
    assert (await client.sandboxes.set_timeout(sbx.sandbox_id, 500)).expires_at is not None
    assert (await (await client.sandboxes.connect(sbx.sandbox_id)).commands.run("echo x")).stdout == "x\n"
    assert await client.sandboxes.kill(sbx.sandbox_id) is True
    assert await client.sandboxes.kill(sbx.sandbox_id) is False


async def test_builtin_template(client: Any) -> None:
    assert "default" in [template.name async for template in client.templates.list()]
    assert [template.name for template in await client.templates.list(limit=1).next_items()] == ["default"]


def _stats() -> Template:
    name = f"t-{uuid.uuid4().hex[:12]}"
    template = (
        Template(name, description='a "small" one')
        .set_envs({"GREETING": "hello \u00fc"})
        .run_cmd("echo built > /opt/template/built")
    )
    return template.set_limits(memory="300m").set_start_cmd("echo started > started; sleep 600", "test -e started")


async def test_a_template_is_its_file() -> None:
    here = Path(__file__)
    template = Template("a", "debian", suite="bookworm").apt_install("curl").pip_install("x>=2", 'y "z"').npm_install("n")
    template.run_cmd("a\\b\x7f").copy(here, "/srv/test.py").set_user("u").set_workdir("/srv").set_warm_imports("json")
    template.set_build_limits(disk="8g").set_envs({"A b": "c"})
    assert template.to_toml() == (
        'name = "a"\nbase = "debian"\nsuite = "bookworm"\nwarm = ["json"]\n\n[build]\ndisk = "8g"\n\n[[step]]\napt = ["curl"]\n'
        '\n[[step]]\npip = ["x>=2", "y \\"z\\""]\n\n[[step]]\nnpm = ["n"]\n\n[[step]]\nrun = "a\\\\b\\u007f"\n'
        '\n[[step]]\ncopy = { from = "4/test_admin.py", to = "/srv/test.py" }\n\n[[step]]\nuser = "u"\n'
        '\n[[step]]\nworkdir = "/srv"\n'
        '\n[[step]]\nenv = { "A b" = "c" }\n'
    )
    (file,) = template.files()
    assert file["path"] == "4/test_admin.py" and base64.b64decode(file["content_base64"]) == here.read_bytes()
    with pytest.raises(InvalidArgumentException) as caught:
        template.copy("/no/such/file", "/x")
    assert caught.value.field == "source"


async def test_templates_are_built_exported_and_imported(client: Any, real: None, tmp_path: Path) -> None:
    template = _stats()
    events: List[BuildEvent] = []
    try:
        built = await client.templates.build(template, fresh=True, on_event=events.append)
    except ServerException as error:
        pytest.skip(f"this machine builds no templates: {error}")
    try:
        assert built.name == template.name and built.kind == "built"
        steps = [event.kind for event in events if event.event == "step"]
        assert steps == ["env", "run"] and {event.event for event in events} >= {"step", "layer"}
        async with await client.sandboxes.create(template.name, timeout=60) as sbx:
            said = await sbx.commands.run("echo $GREETING; cat /opt/template/built started")
            assert said.stdout == "hello \u00fc\nbuilt\nstarted\n"
        size = await client.templates.export_file(template.name, tmp_path / "one")
        assert size == (tmp_path / "one").stat().st_size > 100
        again = await client.templates.import_file(tmp_path / "one", f"{template.name}-b")
        assert again.name == f"{template.name}-b"
        assert await client.templates.delete(again.template_id) is True
    finally:
        await client.templates.delete(template.name)


async def test_a_step_that_fails_is_named(client: Any, real: None) -> None:
    with pytest.raises((BuildException, ServerException)) as caught:
        await client.templates.build(_stats().run_cmd("echo why >&2; exit 7"))
    if isinstance(caught.value, ServerException):
        pytest.skip(f"this machine builds no templates: {caught.value}")
    assert caught.value.code == "build_failed" and "step 3" in str(caught.value) and "why" in str(caught.value)
    with pytest.raises(InvalidArgumentException) as wrong:
        await client.templates.build("name = 7")
    assert "line 1" in str(wrong.value)


async def test_missing_template(client: Any, real: None) -> None:
    with pytest.raises(NotFoundException):
        await client.templates.get("missing")


async def test_keys(client: Any, api: Any, real: None) -> None:
    made = await client.keys.create("for a test", role="user", expires="1h", quotas={"sandboxes": 1})
    assert made.key and made.key.startswith("bj_") and made.key not in repr(made) and made.role == "user"
    listed = [key async for key in client.keys.list(limit=1) if key.key_id == made.key_id]
    assert len(listed) == 1 and listed[0].key is None and listed[0].quotas["sandboxes"] == 1
    assert listed == [key for key in await client.keys.list().all() if key.key_id == made.key_id]
    async with await api.Sandbox.create(api_key=made.key):
        with pytest.raises(RateLimitException) as full:
            await api.Sandbox.create(api_key=made.key, max_retries=0)
        assert full.value.code == "quota_exceeded"
    async with api.Belljar(made.key) as user:
        with pytest.raises(ForbiddenException):
            await user.keys.list().next_items()
        with pytest.raises(ForbiddenException):
            await user.keys.update(made.key_id, quotas={})
    changed = await client.keys.update(made.key_id, quotas={"sandboxes": 2, "stored_secrets": False})
    assert (changed.quotas["sandboxes"], changed.quotas["stored_secrets"]) == (2, False)
    changed = await client.keys.update(made.key_id, name="renamed", role="read", expires="1h")
    assert (changed.name, changed.role, changed.quotas["sandboxes"]) == ("renamed", "read", 2)
    assert changed.expires_at is not None and changed.usage["sandboxes"] == 0
    assert (await client.keys.update(made.key_id, expires=0)).expires_at is None
    with pytest.raises(KeyNotFoundException):
        await client.keys.update("none-such", quotas={})
    assert await client.keys.revoke(made.key_id) is True
    with pytest.raises(AuthenticationException):
        await api.Sandbox.create(api_key=made.key)


async def test_approvals(client: Any, api: Any, real: None) -> None:
    agent = await client.keys.create("agent", owner="agent", approval="always")
    ann = await client.keys.create("ann", role="approver", owner="ann")
    own = await client.keys.create("own", role="approver", owner="agent")
    assert (agent.owner, agent.approval, ann.role) == ("agent", "always", "approver")
    async with api.Belljar(ann.key) as approver, await api.Sandbox.create(api_key=agent.key) as sbx:

        async def waiting() -> Any:
            while True:
                for approval in await approver.approvals.list(state="pending", limit=100).all():
                    if approval.key_id == agent.key_id:
                        return approval
                await asyncio.sleep(0.05)

        running = asyncio.ensure_future(sbx.commands.run("echo yes"))
        asked = await waiting()
        assert (asked.state, asked.requester, asked.request["sandbox"]) == ("pending", "agent", sbx.sandbox_id)
        assert asked.request["command"] == {"encoding": "utf-8", "data": "echo yes"} and asked.decision is None
        async with api.Belljar(own.key) as same, api.Belljar(agent.key) as caller:
            with pytest.raises(ForbiddenException) as refused:
                await same.approvals.approve(asked.approval_id)
            assert refused.value.code == "own_approval"
            assert await caller.approvals.get(asked.approval_id) == asked
        given = await approver.approvals.approve(asked.approval_id, note="fine", uses=2, within="1m")
        assert given.decision is not None and given.decision.budget is not None
        assert (given.decision.person, given.decision.note, given.decision.budget["uses"]) == ("ann", "fine", 2)
        assert (await running).stdout == "yes\n"
        assert (await sbx.commands.run("echo yes")).stdout == "yes\n"
        with pytest.raises(ConflictException) as decided:
            await approver.approvals.approve(asked.approval_id)
        assert decided.value.code == "approval_decided"
        running = asyncio.ensure_future(sbx.run_code("echo yes", language="bash"))
        denied = await approver.approvals.deny((await waiting()).approval_id, note="not now")
        assert denied.state == "denied"
        with pytest.raises(ForbiddenException, match=r"denied by .*: not now"):
            await running
        with pytest.raises(NotFoundException):
            await approver.approvals.get("apr_0")
    for key in (agent, ann, own):
        await client.keys.revoke(key.key_id)


async def test_approvals_show_calling_code(client: Any, api: Any, real: None) -> None:
    agent = await client.keys.create("caller", owner="caller")
    ann = await client.keys.create("judge", role="approver", owner="judge")
    key = {"Authorization": f"Bearer {os.environ['BELLJAR_API_KEY']}"}
    admin = httpx.AsyncClient(base_url=os.environ["BELLJAR_API_URL"], headers=key, trust_env=False)
    tool = {"name": "asked", "description": "Asks first.", "languages": ["bash"], "approval": "always"}
    assert (await admin.post("/v1/tools", json=tool)).status_code == 201
    code = "import belljar\nbelljar.tools.asked(code='echo yes')['stdout']  # ä"
    async with api.Belljar(ann.key) as approver, await api.Sandbox.create(api_key=agent.key) as sbx:
        running = asyncio.ensure_future(sbx.run_code(code, tools=["asked"]))
        while not (pending := await approver.approvals.list(state="pending").all()):
            await asyncio.sleep(0.05)
        asked = await approver.approvals.get(pending[0].approval_id)
        shown = asked.calling_code
        assert shown is not None and asked.request["code"]["data"] == "echo yes"
        assert (shown.sandbox_id, shown.context, shown.language) == (sbx.sandbox_id, "python", "python")
        assert (shown.code, shown.code_bytes) == (code, len(code.encode()))
        assert shown.code_sha256 == hashlib.sha256(code.encode()).hexdigest()
        await approver.approvals.approve(asked.approval_id)
        done = await running
        assert (done.text, done.execution) == ("'yes\\n'", shown.execution)
    assert (await admin.delete("/v1/tools/asked")).status_code == 204
    await admin.aclose()
    for key in (agent, ann):
        await client.keys.revoke(key.key_id)


async def test_secrets(client: Any, api: Any, real: None) -> None:
    name = f"python-{uuid.uuid4().hex}"
    made = await client.secrets.create(name, "s3cret-value", metadata={"owner": "test"})
    assert (made.name, made.version, made.metadata) == (name, 1, {"owner": "test"}) and made.secret_id.startswith("sec_")
    with pytest.raises(ConflictException) as taken:
        await client.secrets.create(name, "s3cret-other")
    assert taken.value.code == "name_taken" and "s3cret" not in repr(taken.value)
    changed = await client.secrets.update(made.secret_id, "s3cret-later")
    assert (changed.version, changed.metadata, changed.created_at) == (2, {"owner": "test"}, made.created_at)
    assert (await client.secrets.update(name, "s3cret-last", metadata={})).metadata == {}
    listed = [secret async for secret in client.secrets.list(limit=1) if secret.name == name]
    assert listed == [await client.secrets.get(name)] and "s3cret" not in repr([made, changed, listed])
    policy = {"allow": ["good.example"], "headers": [NetworkSecret("good.example", "x-key", "${secrets.none-such}")]}
    with pytest.raises(InvalidArgumentException, match="none-such"):
        await api.Sandbox.create(network=policy)
    assert await client.secrets.delete(name) is True and await client.secrets.delete(name) is False
    with pytest.raises(NotFoundException):
        await client.secrets.get(name)


async def test_hosts_of_secrets(client: Any, api: Any, real: None) -> None:
    name = f"python-{uuid.uuid4().hex}"
    made = await client.secrets.create(name, "s3cret-value", hosts=["good.example"], header="x-key")
    assert (made.hosts, made.header) == (("good.example",), "x-key")
    assert (await client.secrets.update(name, "s3cret-later")).hosts == made.hosts
    changed = await client.secrets.update(name, "s3cret-last", hosts=("*.good.example", "other.example"))
    assert (changed.hosts, changed.header) == (("other.example", "*.good.example"), None)
    assert [secret async for secret in client.secrets.list() if secret.name == name] == [changed]
    assert await client.secrets.get(name) == changed
    elsewhere = {"allow": ["bad.example"], "headers": [NetworkSecret("bad.example", "x-key", f"${{secrets.{name}}}")]}
    with pytest.raises((ForbiddenException, InvalidArgumentException), match=r"bad\.example"):
        await api.Sandbox.create(network=elsewhere)
    with pytest.raises(InvalidArgumentException) as alone:
        await client.secrets.create(f"{name}-b", "s3cret-value", header="x-key")
    assert alone.value.field == "header"
    await client.secrets.delete(name)
    shared = await api.Secret.create(name, "s3cret-value", hosts=["good.example"], header="x-key")
    again = await api.Secret.update(name, "s3cret-later", hosts=["other.example"], header="x-key")
    assert (shared.hosts, again.hosts, again.header) == (("good.example",), ("other.example",), "x-key")
    assert await api.Secret.delete(name) is True


ECHO_HOST = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Echo(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers["Host"].encode())

HTTPServer(("127.0.0.1", 8000), Echo).serve_forever()
"""


async def test_policies_about_tls_and_hosts_of_ports(api: Any, real: None) -> None:
    policy = {"allow": ["good.example"], "tls": {"good.example": "terminate"}}
    async with await api.Sandbox.create(network=policy, port_host="localhost:{port}") as sbx:
        network = (await sbx.get_info()).network
        assert network["tls"] == {"good.example": "terminate"}
        await sbx.files.write("echo.py", ECHO_HOST)
        await sbx.commands.run(["python3", "echo.py"], background=True)
        await sbx.wait_for_port(8000)
        async with httpx.AsyncClient(trust_env=False) as anybody:
            assert (await anybody.get(await sbx.get_url(8000, by_path=True))).text == "localhost:8000"


async def test_secrets_without_a_client(api: Any, real: None) -> None:
    name = f"python-{uuid.uuid4().hex}"
    made = await api.Secret.create(name, "value", metadata={"a": "b"})
    assert (await api.Secret.update(name, "other")).version == 2
    assert await api.Secret.get(made.secret_id) in await api.Secret.list()
    assert await api.Secret.delete(name) is True and await api.Secret.delete(name) is False
    with pytest.raises(SecretNotFoundException):
        await api.Secret.get(name)


async def test_tenants_do_not_see_each_other(client: Any, api: Any, sbx: Any, real: None) -> None:
    # A server may not create sandboxes from its own tree while two tenants exist, so the sandbox is created first.
    made = await client.keys.create("other", tenant=f"t{uuid.uuid4().hex[:8]}")
    try:
        with pytest.raises(NotFoundException) as foreign:
            await api.Sandbox.connect(sbx.sandbox_id, api_key=made.key)
        assert foreign.value.code == "sandbox_not_found"
        assert [info async for info in api.Sandbox.list(api_key=made.key)] == []
    finally:
        await client.keys.revoke(made.key_id)


async def test_bad_role(client: Any, real: None) -> None:
    with pytest.raises(InvalidArgumentException) as caught:
        await client.keys.create("x", role="king")
    assert caught.value.field == "role"


async def test_audit(client: Any, sbx: Any, real: None) -> None:
    await sbx.commands.run("true")
    page = await client.audit.list(sandbox=sbx.sandbox_id)
    assert page.records and page.head["hash"]
    verdict = await client.audit.verify()
    assert verdict.ok and verdict.records and verdict.first == page.base["seq"] + 1
    count = 0
    async for record in client.audit.export():
        count += 1
        assert isinstance(record, dict)
    assert count >= len(page.records)


async def test_ports(sbx: Any, real: None) -> None:
    await sbx.files.write("www/index.html", "from inside")
    await sbx.commands.run(["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"], background=True, cwd="www")
    await sbx.wait_for_port(8000)
    with pytest.raises(TimeoutException, match="port 8001"):
        await sbx.wait_for_port(8001, timeout=0.1)
    by_path = await sbx.get_url(8000, expires=60, by_path=True)
    by_name = httpx.URL(await sbx.get_url(8000, expires=60))
    assert by_name.host == sbx.get_host(8000)
    async with httpx.AsyncClient(trust_env=False) as anybody:
        assert (await anybody.get(by_path)).text == "from inside"
        assert (await anybody.get(by_path.split("?")[0])).status_code in (401, 403, 404)
        # Not every machine resolves names below localhost, so the name is only in the header.
        server = httpx.URL(os.environ["BELLJAR_API_URL"])
        here = by_name.copy_with(host=server.host, port=server.port)
        first = await anybody.get(here, headers={"Host": by_name.netloc.decode()})
        assert first.is_redirect and "set-cookie" in first.headers
        plain = here.copy_with(query=None)
        second = await anybody.get(
            plain, headers={"Host": by_name.netloc.decode(), "Cookie": first.headers["set-cookie"].split(";")[0]}
        )
        assert second.text == "from inside"
    published = await sbx.ports.list()
    assert [port.port for port in published.ports] == [8000] and not published.ports[0].public
    assert await sbx.ports.unpublish(8000) is True
    assert await sbx.ports.unpublish(8000) is False


async def test_bad_port(sbx: Any, real: None) -> None:
    with pytest.raises(InvalidArgumentException):
        await sbx.ports.publish(70000)
