"""Terminals, with both clients."""

from __future__ import annotations

import asyncio
from typing import Any, List

import pytest

from belljar import PtySize, SandboxException

pytestmark = pytest.mark.asyncio


async def until(seen: List[bytes], wanted: bytes) -> None:
    deadline = asyncio.get_running_loop().time() + 15
    while wanted not in b"".join(seen):
        assert asyncio.get_running_loop().time() < deadline, b"".join(seen)
        await asyncio.sleep(0.02)


async def test_shell(sbx: Any) -> None:
    seen: List[bytes] = []
    pty = await sbx.pty.create(PtySize(rows=30, cols=100), seen.append, envs={"PS1": "> "})
    await pty.send_stdin("stty size; echo $((40+2)) $TERM\n")
    await until(seen, b"30 100")
    await until(seen, b"42 xterm-256color")
    await pty.send_stdin("exit 5\n")
    result = await pty.wait()
    assert result.exit_code == 5 == pty.exit_code


async def test_command_on_a_terminal(sbx: Any) -> None:
    pty = await sbx.pty.create(cmd=["sh", "-c", "test -t 0 && test -t 1 && echo terminal"])
    output = b"".join([data async for data in pty])
    assert b"terminal" in output
    assert (await pty.wait(check=True)).exit_code == 0


async def test_resize(sbx: Any) -> None:
    seen: List[bytes] = []
    pty = await sbx.pty.create(on_data=seen.append, cmd="read a; stty size; read b; stty size")
    await pty.resize(PtySize(rows=11, cols=22))
    await pty.send_stdin("\n")
    await until(seen, b"11 22")
    await sbx.pty.resize(pty.pid, PtySize(33, 44))
    await sbx.pty.send_stdin(pty.pid, "\n")
    await until(seen, b"33 44")
    assert (await pty.wait()).exit_code == 0


async def test_interrupt(sbx: Any) -> None:
    seen: List[bytes] = []
    pty = await sbx.pty.create(
        on_data=seen.append, cmd="trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    )
    await until(seen, b"ready")
    await pty.send_stdin("\x03")
    await until(seen, b"caught")
    assert (await pty.wait()).exit_code == 9


async def test_kill(sbx: Any) -> None:
    pty = await sbx.pty.create(cmd=["sleep", "60"])
    assert await sbx.pty.kill(pty.pid) is True
    assert (await pty.wait()).signal == "SIGKILL"
    assert await pty.kill() is False


async def test_reconnect(sbx: Any) -> None:
    seen: List[bytes] = []
    first = await sbx.pty.create(on_data=seen.append, cmd="echo before; read a; echo after")
    await until(seen, b"before")
    await first.disconnect()
    with pytest.raises(SandboxException):
        await first.send_stdin("x")
    again: List[bytes] = []
    second = await sbx.pty.connect(first.pid, again.append)
    await until(again, b"before")
    await second.send_stdin("\n")
    assert (await second.wait()).exit_code == 0 and b"after" in b"".join(again)


async def test_much_output(sbx: Any) -> None:
    size = 0
    pty = await sbx.pty.create(cmd="head -c 3000000 /dev/zero | tr '\\0' x")
    async for data in pty:
        size += data.count(b"x")
    assert size == 3_000_000
