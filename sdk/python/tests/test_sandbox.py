"""The lifecycle of sandboxes, with both clients."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import belljar
from belljar import (
    AuthenticationException,
    ConflictException,
    ConnectionException,
    InvalidArgumentException,
    NetworkSecret,
    NotFoundException,
    SandboxException,
    SandboxGoneException,
)

pytestmark = pytest.mark.asyncio


def remaining(info: Any) -> float:
    return float((info.expires_at - datetime.now(timezone.utc)).total_seconds())


async def test_create(api: Any) -> None:
    sbx = await api.Sandbox.create()
    try:
        info = await sbx.get_info()
        assert (info.sandbox_id, info.state, info.template) == (sbx.sandbox_id, "running", "default")
        assert 280 < remaining(info) <= 301 and await sbx.is_running()
        assert info.limits.memory_bytes and info.engine and info.isolation["engine"] and info.raw["id"] == info.sandbox_id
    finally:
        assert await sbx.kill() is True
    assert await sbx.kill() is False and not await sbx.is_running()


async def test_create_with_everything(api: Any) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    sbx = await api.Sandbox.create(
        "default",
        timedelta(minutes=10),
        labels={"job": "42", "ü": "日本"},
        envs={"A": "1"},
        name=name,
        idle_timeout="5m",
        on_timeout="pause",
        auto_resume=False,
        files={"hello.txt": "hello", "sub/b.bin": b"\xff"},
    )
    async with sbx:
        assert sbx.name == name and sbx.info.labels == sbx.info.metadata == {"job": "42", "ü": "日本"}
        assert (sbx.info.on_timeout, sbx.info.auto_resume) == ("pause", False) and 580 < remaining(sbx.info) <= 601
        assert await sbx.files.read("hello.txt") == "hello" and await sbx.files.read("sub/b.bin", "bytes") == b"\xff"


async def test_create_without_waiting(api: Any, real: None) -> None:
    async with await api.Sandbox.create(wait=False) as sbx:
        assert sbx.info.state in ("creating", "running")
        assert (await sbx.commands.run("echo ready")).stdout == "ready\n"
        assert (await sbx.get_info()).state == "running"


async def test_context_manager(api: Any) -> None:
    async with await api.Sandbox.create() as sbx:
        inside = sbx.sandbox_id
    with pytest.raises(NotFoundException):
        await api.Sandbox.connect(inside)
    with pytest.raises(ZeroDivisionError):
        async with await api.Sandbox.create() as sbx:
            await sbx.kill()
            raise ZeroDivisionError


async def test_gone(api: Any) -> None:
    sbx = await api.Sandbox.create()
    await sbx.kill()
    with pytest.raises(SandboxGoneException) as caught:
        await sbx.commands.run("true")
    assert (caught.value.code, caught.value.status) == ("sandbox_gone", 410) and isinstance(caught.value, NotFoundException)
    with pytest.raises(SandboxGoneException):
        await api.Sandbox.connect(sbx.sandbox_id)


async def test_missing(api: Any) -> None:
    with pytest.raises(NotFoundException) as caught:
        await api.Sandbox.connect("a0000000000000000000")
    assert caught.value.code == "sandbox_not_found"
    assert await api.Sandbox.kill("a0000000000000000000") is False
    for bad in ("", "..", "."):
        with pytest.raises(InvalidArgumentException):
            await api.Sandbox.connect(bad)
    with pytest.raises(SandboxException) as refused:
        await api.Sandbox.connect("../keys")
    assert refused.value.status in (400, 404)


async def test_by_id(api: Any) -> None:
    sbx = await api.Sandbox.create()
    info = await api.Sandbox.set_timeout(sbx.sandbox_id, 1000)
    assert 980 < remaining(info) <= 1001
    assert (await api.Sandbox.get_info(sbx.sandbox_id)).state == "running"
    assert await api.Sandbox.pause(sbx.sandbox_id) is True
    assert await api.Sandbox.pause(sbx.sandbox_id) is False
    resumed = await api.Sandbox.resume(sbx.sandbox_id)
    assert resumed.info.state == "running" and resumed.sandbox_id == sbx.sandbox_id
    assert await api.Sandbox.kill(sbx.sandbox_id) is True


async def test_connect(sbx: Any, api: Any) -> None:
    await sbx.files.write("f", "here")
    other = await api.Sandbox.connect(sbx.sandbox_id)
    assert await other.files.read("f") == "here"
    longer = await api.Sandbox.connect(sbx.sandbox_id, timeout=2000)
    assert longer.sandbox_id == sbx.sandbox_id and await longer.is_running()


async def test_names(api: Any) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    async with await api.Sandbox.create(name=name) as sbx:
        with pytest.raises(ConflictException) as caught:
            await api.Sandbox.create(name=name)
        assert caught.value.code == "name_taken"
        same = await api.Sandbox.create(name=name, if_exists="return")
        assert same.sandbox_id == sbx.sandbox_id
        assert (await api.Sandbox.connect(name)).sandbox_id == sbx.sandbox_id


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0.001},
        {"timeout": "soon"},
        {"timeout": 10**9},
        {"timeout": -5},
        {"labels": {"a": "1"}, "metadata": {"b": "2"}},
        {"timeout": float("inf")},
    ],
)
async def test_bad_arguments(api: Any, options: Any) -> None:
    with pytest.raises(InvalidArgumentException) as caught:
        await api.Sandbox.create(**options)
    assert caught.value.field in ("timeout", "metadata")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "Not A Name"}, "name"),
        ({"limits": {"memory": "much"}}, "limits.memory"),
        ({"limits": {"teeth": 3}}, "limits.teeth"),
        ({"on_timeout": "dance"}, "on_timeout"),
        ({"envs": {"A=B": "c"}}, "env"),
        ({"labels": {"k" * 200: "v"}}, "labels"),
        ({"engine": "steam"}, "engine"),
        ({"network": "all"}, "network"),
    ],
)
async def test_fields_that_the_server_refuses(api: Any, real: None, options: Any, field: str) -> None:
    with pytest.raises(InvalidArgumentException) as caught:
        await api.Sandbox.create(**options)
    assert caught.value.field is not None and caught.value.field.startswith(field.split(".")[0])
    assert caught.value.status == 400 and caught.value.request_id


async def test_missing_template(api: Any) -> None:
    with pytest.raises(NotFoundException) as caught:
        await api.Sandbox.create("no-such-template")
    assert caught.value.code == "template_not_found"


async def test_list(api: Any) -> None:
    mark = uuid.uuid4().hex
    made = [await api.Sandbox.create(metadata={"mark": mark, "n": str(number)}) for number in range(5)]
    try:
        found = [info async for info in api.Sandbox.list(labels={"mark": mark}, limit=2, order="asc")]
        assert [info.sandbox_id for info in found] == [sbx.sandbox_id for sbx in made]
        pages = api.Sandbox.list(labels={"mark": mark}, limit=3)
        assert len(await pages.next_items()) == 3 and pages.has_next
        assert len(await pages.next_items()) == 2 and not pages.has_next and await pages.next_items() == []
        both = [info async for info in api.Sandbox.list(labels={"mark": mark, "n": "3"})]
        assert [info.sandbox_id for info in both] == [made[3].sandbox_id]
        await made[0].pause()
        await made[1].kill()
        states = {}
        for state in ("paused", "gone", "running"):
            states[state] = [info.sandbox_id async for info in api.Sandbox.list(labels={"mark": mark}, state=state)]
        assert states["paused"] == [made[0].sandbox_id] and states["gone"] == [made[1].sandbox_id]
        assert len(states["running"]) == 3
        both_states = api.Sandbox.list(labels={"mark": mark}, state=["running", "paused"])
        assert len([info async for info in both_states]) == 4
    finally:
        for sbx in made:
            await sbx.kill()


async def test_pause_and_resume(sbx: Any) -> None:
    handle = await sbx.commands.run("while :; do date +%s%N > t; sleep 0.05; done", background=True)
    assert await sbx.pause() is True
    info = await sbx.get_info()
    assert info.state == "paused" and info.paused_at is not None and not await sbx.is_running()
    assert await sbx.pause() is False
    assert (await sbx.resume()).state == "running"
    assert (await sbx.commands.get_info(handle)).running


async def test_use_resumes(sbx: Any) -> None:
    await sbx.pause()
    assert (await sbx.commands.run("echo awake")).stdout == "awake\n"
    assert await sbx.is_running()


async def test_set_timeout(api: Any) -> None:
    sbx = await api.Sandbox.create()
    assert 3580 < remaining(await sbx.set_timeout("1h")) <= 3601
    await sbx.set_timeout(0)
    deadline = asyncio.get_running_loop().time() + 10
    while await sbx.is_running():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


async def test_fork(sbx: Any) -> None:
    await sbx.files.write("f", "original")
    forks = await sbx.fork(600, 2, labels={"fork": "yes"})
    try:
        assert len({fork.sandbox_id for fork in [sbx, *forks]}) == 3
        await forks[0].files.write("f", "changed")
        assert [await box.files.read("f") for box in (sbx, *forks)] == ["original", "changed", "original"]
        assert forks[0].info.labels["fork"] == "yes" and 580 < remaining(forks[0].info) <= 601
    finally:
        for fork in forks:
            await fork.kill()


async def test_snapshot(sbx: Any, api: Any, client: Any, real: None) -> None:
    await sbx.files.write("f", "kept")
    name = f"t-{uuid.uuid4().hex[:8]}"
    template = await sbx.create_snapshot(name, note="a note")
    try:
        assert (template.name, template.kind, template.note) == (name, "snapshot", "a note")
        async with await api.Sandbox.create(template.snapshot_id) as other:
            assert await other.files.read("f") == "kept"
        async with await api.Sandbox.create(name) as other:
            assert await other.files.read("f") == "kept"
        assert (await client.templates.get(name)).template_id == template.template_id
        assert template.template_id in [found.template_id async for found in client.templates.list()]
        assert [one.template_id async for one in sbx.list_snapshots()] == [template.template_id]
        everything = await api.Sandbox.list_snapshots().next_items()
        assert template.template_id in [one.template_id for one in everything]
        assert {one.kind for one in everything} == {"snapshot"}
        async with await api.Sandbox.create() as other:
            assert [one async for one in other.list_snapshots()] == []
            assert await other.delete_snapshot("none") is False
            with pytest.raises(InvalidArgumentException, match="no snapshot"):
                await other.delete_snapshot("default")
    finally:
        assert await api.Sandbox.delete_snapshot(template.template_id) is True
    assert await api.Sandbox.delete_snapshot(template.template_id) is False


async def test_update(sbx: Any) -> None:
    info = await sbx.update(labels={"a": "1", "b": "2"}, on_timeout="pause")
    assert info.labels == {"a": "1", "b": "2"} and info.on_timeout == "pause"
    assert (await sbx.update(labels={"a": None})).labels == {"b": "2"}


async def test_set_limits(sbx: Any, real: None) -> None:
    info = await sbx.set_limits(memory="128m", pids=50)
    assert (info.limits.memory_bytes, info.limits.pids) == (128 << 20, 50)
    with pytest.raises(InvalidArgumentException):
        await sbx.set_limits(memory="1")


async def test_network(api: Any, real: None) -> None:
    try:
        sbx = await api.Sandbox.create(timeout=60, network={"allow": ("good.example:5432",)})
    except SandboxException as error:
        if "nft_tproxy" in str(error):
            pytest.skip(str(error))
        raise
    async with sbx:
        assert sbx.info.network == {"mode": "whitelist", "allow": ["good.example:5432"]}
        look = "import socket\ntry: socket.gethostbyname('other.example')\nexcept OSError as error: print(type(error).__name__)"
        assert (await sbx.commands.run(["python3", "-c", look])).stdout == "gaierror\n"
        seen = [record async for record in sbx.network_log()]
        assert [(record.event, record.host, record.port) for record in seen] == [("lookup", "other.example", None)]
        assert "not allowed" in (seen[0].reason or "") and seen[0].at.tzinfo is not None
        info = await sbx.update(network={"presets": ["pip"], "allow": ["other.example"], "deny": ["good.example"]})
        assert info.network["presets"] == ["pip"] and info.network["deny"] == ["good.example:*"]
        assert (await sbx.commands.run(["python3", "-c", look])).stdout == ""
        assert [record async for record in sbx.network_log(after=seen[-1].number)] == []
        with pytest.raises(InvalidArgumentException) as caught:
            await sbx.update(network={"allow": ["a..b"]})
        assert (caught.value.field or "").startswith("network.allow")
        assert (await sbx.update(network="disabled")).network == "disabled"
        await sbx.commands.run(["python3", "-c", look])
        last = None
        async for record in sbx.network_log(seen[-1].number, follow=True):
            last = record
            break
        assert last is not None and last.number == seen[-1].number + 1


async def test_update_network(api: Any, real: None) -> None:
    async with await api.Sandbox.create(network={"allow": ["one.example"]}) as sbx:
        assert (await sbx.update_network({"allow": ["two.example"]})).network["allow"] == ["two.example"]
        changed = await api.Sandbox.update_network(sbx.sandbox_id, {"allow": ["three.example"]})
        assert changed.network["allow"] == (await sbx.get_info()).network["allow"] == ["three.example"]


async def test_network_secrets_and_requests(api: Any, real: None) -> None:
    secret = NetworkSecret("good.example", "Authorization", "s3cret-value")
    policy = {
        "allow": ["good.example", "other.example:443"],
        "secrets": {"KEY": secret},
        "requests": {"other.example": ["GET /v1/*"]},
    }
    try:
        sbx = await api.Sandbox.create(timeout=60, network=policy)
    except SandboxException as error:
        if "nft_tproxy" in str(error):
            pytest.skip(str(error))
        raise
    async with sbx:
        shown = {"KEY": {"host": "good.example", "header": "authorization"}}
        assert sbx.info.network["secrets"] == shown
        assert sbx.info.network["requests"] == {"other.example": ["GET /v1/*"]}
        assert (await sbx.commands.run("echo $KEY")).stdout == "belljar-secret-KEY\n"
        later = {"KEY": {"host": "good.example", "header": "authorization", "value": "s3cret-later"}}
        assert (await sbx.update(network={**policy, "secrets": later})).network["secrets"] == shown
        for bad in ({"KEY": {**later["KEY"], "value": "s3cret\n"}}, {"NEW": secret}):
            with pytest.raises(InvalidArgumentException) as caught:
                await sbx.update(network={**policy, "secrets": bad})
            assert (caught.value.field or "").startswith("network.secrets") and "s3cret" not in repr(caught.value)
        assert "secrets" not in (await sbx.update(network={"allow": ["good.example"]})).network
    assert "s3cret" not in repr(policy) and "good.example" in repr(secret)


async def test_metrics(sbx: Any) -> None:
    await sbx.commands.run("head -c 1000000 /dev/zero > f")
    metrics = await sbx.get_metrics()
    assert metrics.at.tzinfo is not None and metrics.uptime_s is not None and metrics.uptime_s > 0


async def test_logs(sbx: Any) -> None:
    await sbx.commands.run("true")
    page = await sbx.logs()
    events = [entry.event for entry in page.entries]
    assert "created" in events and "exec" in events and page.next >= page.entries[-1].seq
    assert (await sbx.logs(after=page.next)).entries == ()
    assert len((await sbx.logs(limit=1)).entries) == 1


async def test_token(sbx: Any, api: Any, real: None) -> None:
    token = await sbx.create_token(expires=60)
    assert token.token.startswith("bjs_") and token.token not in repr(token)
    limited = await api.Sandbox.connect(sbx.sandbox_id, api_key=token.token)
    assert (await limited.commands.run("echo inside")).stdout == "inside\n"
    with pytest.raises(belljar.ForbiddenException):
        await limited.kill()
    with pytest.raises(belljar.ForbiddenException):
        await api.Sandbox.create(api_key=token.token)
    async with await api.Sandbox.create() as other:
        with pytest.raises(SandboxException) as caught:
            await api.Sandbox.connect(other.sandbox_id, api_key=token.token)
        assert caught.value.status in (403, 404)


async def test_sessions(sbx: Any, real: None) -> None:
    session = await sbx.sessions.create(cwd="/tmp", envs={"A": "1"})
    assert (await session.run("pwd; echo $A")).stdout == "/tmp\n1\n"
    await session.run("cd /; B=2; f() { echo called $1; }")
    result = await session.run('pwd; echo "$B"; f x')
    assert result.stdout == "/\n2\ncalled x\n" and result.session_state == "preserved"
    assert session.session_id in [info.session_id for info in await sbx.sessions.list()]
    with pytest.raises(belljar.CommandExitException):
        await session.run("false")
    assert await session.close() is True and await session.close() is False


async def test_session_as_context_manager(sbx: Any, real: None) -> None:
    seen: Any = []
    async with await sbx.sessions.create() as session:
        await session.run("echo streamed", on_stdout=seen.append)
    assert "".join(seen) == "streamed\n"
    assert await sbx.sessions.list() == []


async def test_wrong_key(api: Any) -> None:
    wrong = "bj_" + "f" * 64
    with pytest.raises(AuthenticationException) as caught:
        await api.Sandbox.create(api_key=wrong)
    assert caught.value.status == 401 and wrong not in f"{caught.value!r}{caught.value}"


async def test_no_key(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BELLJAR_API_KEY")
    with pytest.raises(AuthenticationException, match="BELLJAR_API_KEY"):
        await api.Sandbox.create()
    async with api.Belljar() as client:
        assert (await client.health())["status"] == "ok"


async def test_no_server(api: Any) -> None:
    with pytest.raises(ConnectionException, match="belljar serve"):
        await api.Sandbox.create(api_url="http://127.0.0.1:9", max_retries=1)


async def test_get_host(sbx: Any, api: Any) -> None:
    named = await api.Sandbox.connect(sbx.sandbox_id, domain="boxes.example")
    assert named.get_host(8000) == f"8000-{sbx.sandbox_id}.boxes.example"
    if sbx.info.host is None:
        with pytest.raises(SandboxException, match="BELLJAR_DOMAIN"):
            sbx.get_host(8000)
