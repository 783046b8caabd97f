"""The cases of sdk/conformance, with both clients. They are the engines' own cases, as a user of the SDK sees them."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import time
import uuid
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, Optional

import pytest

import belljar
from belljar import CommandResult, PtySize, SandboxException
from belljar._config import ConnectionConfig
from belljar.errors import error_from_problem
from belljar.models.charts import chart_from_json

pytestmark = pytest.mark.asyncio

TABLE = Path(__file__).resolve().parents[2] / "conformance" / "cases.json"
FOUND: Dict[str, Any] = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
CASES: List[Dict[str, Any]] = FOUND.get("cases", [])
DEFAULTS: Dict[str, Any] = FOUND.get("defaults", {})
# Upper limit: the expected event arrives much earlier.
DEADLINE = 60.0


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
async def test_case(api: Any, real: None, case: Dict[str, Any]) -> None:
    async with await api.Sandbox.create(timeout=120, **case.get("create", {})) as sbx:
        await Run(api, sbx).all(case["steps"])


async def test_defaults(environment: Any) -> None:
    config, wanted = ConnectionConfig.resolve(), DEFAULTS
    assert (config.max_retries, config.request_timeout) == (wanted["max_retries"], wanted["request_timeout_s"])
    for function, name in ((belljar.Sandbox.get_url, "get_url"), (belljar.Sandbox.create_token, "create_token")):
        assert inspect.signature(function).parameters["expires"].default == wanted[f"{name}_expires_s"], name


async def test_errors() -> None:
    for code, (status, name, base) in FOUND["errors"].items():
        error = error_from_problem({"code": code, "status": status, "detail": "d"})
        assert type(error).__name__ == f"{name}Exception" and isinstance(error, getattr(belljar, f"{base}Exception")), code


async def test_charts() -> None:
    for kind, name in FOUND["charts"].items():
        assert type(chart_from_json({"type": kind, "title": None, "elements": []})) is getattr(belljar, name)


async def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds."""
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


class Run:
    """One case in one sandbox."""

    def __init__(self, api: Any, sbx: Any) -> None:
        self.api, self.sbx = api, sbx
        self.handle: Any = None
        self.session: Any = None

    async def all(self, steps: List[Dict[str, Any]]) -> None:
        for step in steps:
            await self.step(step)

    async def step(self, step: Dict[str, Any]) -> None:
        kind = next(iter(step))
        do: Callable[[Dict[str, Any]], Awaitable[None]] = getattr(self, f"do_{kind}")
        wanted = step.get("error")
        if wanted is None:
            await do(step)
            return
        with pytest.raises(SandboxException) as caught:
            await do(step)
        assert wanted in ("*", caught.value.code), (step, caught.value)

    async def do_run(self, step: Dict[str, Any]) -> None:
        given = dict(step.get("with", {}))
        if "timeout_ms" in given:
            given["timeout"] = given.pop("timeout_ms") / 1000
        check_result(step, await self.sbx.commands.run(step["run"], check=False, **given))

    async def do_session(self, step: Dict[str, Any]) -> None:
        if self.session is None:
            self.session = await self.sbx.sessions.create()
        check_result(step, await self.session.run(step["session"], check=False))

    async def do_code(self, step: Dict[str, Any]) -> None:
        done = await self.sbx.run_code(step["code"], step["language"])
        found = {
            "status": done.status,
            "state": done.state,
            "failed": None if done.error is None else done.error.name,
            "stdout": done.stdout,
            "rebuilt": done.rebuilt is not None,
        }
        wanted = {"status": "ok", "state": "preserved", "failed": None, "rebuilt": False, **step}
        assert found == {**found, **{name: wanted[name] for name in found if name in wanted}}, (step, found)

    async def do_code_step(self, step: Dict[str, Any]) -> None:
        end = await self.sbx.run_code_step(step["code_step"], step["language"], functions=step["functions"])
        for answers in step["answers"]:
            called = [{"name": call.name, "arguments": call.arguments} for call in end.tool_calls]
            assert called == [{"name": one["name"], "arguments": one["arguments"]} for one in answers]
            results = [LookupError(one["fails"]) if "fails" in one else one["result"] for one in answers]
            end = await self.sbx.run_code_step({call.id: result for call, result in zip(end.tool_calls, results)})
        assert end.execution is not None and (end.execution.status, end.execution.stdout) == ("ok", step["stdout"])

    async def do_at_once(self, step: Dict[str, Any]) -> None:
        await asyncio.gather(*(self.step(one) for one in step["at_once"]))

    async def do_start(self, step: Dict[str, Any]) -> None:
        self.handle = await self.sbx.commands.run(step["start"], background=True, stdin=step.get("stdin"))

    async def do_processes(self, step: Dict[str, Any]) -> None:
        found = [{"argv": list(one.argv), "running": one.running} for one in await self.sbx.commands.list()]
        assert found == step["processes"]

    async def do_send_stdin(self, step: Dict[str, Any]) -> None:
        await self.sbx.commands.send_stdin(step.get("pid", self.handle), step["send_stdin"])

    async def do_close_stdin(self, step: Dict[str, Any]) -> None:
        await self.handle.close_stdin()

    async def do_connect(self, step: Dict[str, Any]) -> None:
        await self.sbx.commands.connect(step["connect"])

    async def do_disconnect(self, step: Dict[str, Any]) -> None:
        await self.handle.disconnect()

    async def do_reconnect(self, step: Dict[str, Any]) -> None:
        self.handle = await self.sbx.commands.connect(self.handle.pid)

    async def do_until_stdout(self, step: Dict[str, Any]) -> None:
        reader = await self.sbx.commands.connect(self.handle)
        seen = ""
        async for output in reader:
            seen += output.stdout or ""
            if step["until_stdout"] in seen:
                break
        await reader.disconnect()
        assert step["until_stdout"] in seen

    async def do_signal(self, step: Dict[str, Any]) -> None:
        assert await self.handle.send_signal(step["signal"]) is True

    async def do_kill(self, step: Dict[str, Any]) -> None:
        assert await self.handle.kill() is step["kill"]

    async def do_wait(self, step: Dict[str, Any]) -> None:
        check_result(step, await self.handle.wait(check=False))

    async def do_terminal(self, step: Dict[str, Any]) -> None:
        seen: List[bytes] = []
        size = PtySize(step.get("rows", 24), step.get("cols", 80))
        pty = await self.sbx.pty.create(size, seen.append, cmd=step["terminal"])
        waiting = asyncio.ensure_future(pty.wait())
        await until(lambda: step.get("ready", "").encode("utf-8") in b"".join(seen))
        if "input" in step:
            await pty.send_stdin(step["input"])
        result = await asyncio.wait_for(waiting, DEADLINE)
        assert result.exit_code == step.get("exit_code", 0)
        assert step.get("shows", "") in b"".join(seen).decode("utf-8")

    async def do_write(self, step: Dict[str, Any]) -> None:
        data = base64.b64decode(step["base64"]) if "base64" in step else step["text"]
        options = {name: step[name] for name in ("mode", "append", "exclusive") if name in step}
        await self.sbx.files.write(step["write"], data, **options)

    async def do_read(self, step: Dict[str, Any]) -> None:
        start, end = step.get("range", (None, None))
        data = bytes(await self.sbx.files.read(step["read"], "bytes", start=start, end=end))
        assert data == (base64.b64decode(step["base64"]) if "base64" in step else step["text"].encode("utf-8"))

    async def do_info(self, step: Dict[str, Any]) -> None:
        info = await self.sbx.files.get_info(step["info"], follow=step.get("follow", True))
        found = {"kind": str(info.kind), "mode": f"{info.mode:04o}", "bytes": info.size}
        assert {name: found[name] for name in found if name in step} == {name: step[name] for name in found if name in step}

    async def do_exists(self, step: Dict[str, Any]) -> None:
        assert await self.sbx.files.exists(step["exists"]) is step["there"]

    async def do_list(self, step: Dict[str, Any]) -> None:
        found = await self.sbx.files.list(step["list"], depth=step.get("depth", 1))
        assert [entry.path for entry in found] == step["paths"]

    async def do_make_dir(self, step: Dict[str, Any]) -> None:
        assert await self.sbx.files.make_dir(step["make_dir"]) is step.get("made", True)

    async def do_remove(self, step: Dict[str, Any]) -> None:
        await self.sbx.files.remove(step["remove"], **{name: step[name] for name in ("recursive",) if name in step})

    async def do_rename(self, step: Dict[str, Any]) -> None:
        await self.sbx.files.rename(*step["rename"], overwrite=step.get("overwrite", False))

    async def do_chmod(self, step: Dict[str, Any]) -> None:
        await self.sbx.files.chmod(*step["chmod"])

    async def do_search(self, step: Dict[str, Any]) -> None:
        found = await self.sbx.files.search(**step["search"])
        assert sorted(match.path for match in found.matches) == step["paths"]

    async def do_pause(self, step: Dict[str, Any]) -> None:
        assert await self.sbx.pause() is True and await self.sbx.pause() is False
        assert (await self.sbx.get_info()).state == step["pause"]

    async def do_resume(self, step: Dict[str, Any]) -> None:
        assert (await self.sbx.resume()).state == step["resume"]

    async def do_set_limits(self, step: Dict[str, Any]) -> None:
        limits = (await self.sbx.set_limits(**step["set_limits"])).limits
        assert (limits.memory_bytes, limits.pids) == (step["memory_bytes"], step["pids"])

    async def do_beside(self, step: Dict[str, Any]) -> None:
        async with await self.api.Sandbox.create(timeout=120) as other:
            await Run(self.api, other).all(step["beside"])

    async def do_fork(self, step: Dict[str, Any]) -> None:
        for copy in await self.sbx.fork(count=1):
            async with copy:
                await Run(self.api, copy).all(step["fork"])

    async def do_snapshot(self, step: Dict[str, Any]) -> None:
        template = await self.sbx.create_snapshot(f"c-{uuid.uuid4().hex[:8]}")
        try:
            async with await self.api.Sandbox.create(template.snapshot_id, timeout=120) as other:
                await Run(self.api, other).all(step["snapshot"])
        finally:
            async with self.api.Belljar() as client:
                await client.templates.delete(template.template_id)


def check_result(step: Dict[str, Any], result: CommandResult) -> None:
    """Checks the result of a command against the step. By default it must have succeeded."""
    assert result.exit_code == step.get("exit_code", 0), result
    for name, found in (("stdout", result.stdout), ("stderr", result.stderr), ("signal", result.signal)):
        assert step.get(name, found) == found, result
    assert step.get("hint", "") in (result.hint or "") and "--" not in (result.hint or ""), result.hint
    if "outcome" in step:
        assert result.outcome.kind == step["outcome"], result
    check_bytes(step, "stdout", result.output.data)
    check_bytes(step, "stderr", result.error_output.data)
    if "stdout_bytes" in step:
        assert len(result.output.data) == step["stdout_bytes"]


def check_bytes(step: Dict[str, Any], name: str, found: Optional[bytes]) -> None:
    wanted = step.get(f"{name}_base64")
    assert wanted is None or base64.b64decode(wanted) == found
