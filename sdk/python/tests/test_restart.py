"""A server that is restarted while handles are open, with both clients. The test starts its own."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Callable, List

import pytest
from service import Service

pytestmark = pytest.mark.asyncio

LINE = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two"
# Upper limit: the expected event arrives much earlier.
DEADLINE = 60.0


async def until(holds: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + DEADLINE
    while not holds():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_handles_go_on_after_a_restart(api: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    program = os.environ.get("BELLJAR_BIN")
    if not program:
        pytest.skip("the stand-in cannot be restarted; set BELLJAR_BIN")
    service = Service(program, on_exit="keep")
    try:
        monkeypatch.setenv("BELLJAR_API_URL", service.url)
        monkeypatch.setenv("BELLJAR_API_KEY", service.key)
        async with await api.Sandbox.create(timeout=120) as sbx:
            seen: List[bytes] = []
            command = await sbx.commands.run(LINE, background=True)
            terminal = await sbx.pty.create(on_data=seen.append, cmd=LINE)
            waiting = asyncio.ensure_future(command.wait())
            await until(lambda: command.stdout == "one\n" and b"one" in b"".join(seen))
            await asyncio.to_thread(service.stop, number)
            await asyncio.to_thread(service.start, "keep")
            await sbx.files.write("go", "")
            assert (await asyncio.wait_for(waiting, DEADLINE)).stdout == "one\ntwo\n"
            assert (await asyncio.wait_for(terminal.wait(), DEADLINE)).exit_code == 0
            assert b"".join(seen) == b"one\r\ntwo\r\n"
    finally:
        service.stop()
        # Leftovers of the test are ended with this one.
        service.start("end")
        service.close()
