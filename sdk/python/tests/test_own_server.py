"""The server of this user's home, for programs that name none."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from conftest import WITHOUT_WALLS
from lifted import Api

import belljar
from belljar import _own_server

GONE_SECONDS = 60.0


def processes(home: Path) -> List[str]:
    """The processes of a home."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.fsencode(home) in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            pass
    return found


def wait_until_gone(home: Path) -> None:
    """Waits for the end of the server, which has no sandboxes."""
    deadline = time.monotonic() + GONE_SECONDS
    while processes(home):
        assert time.monotonic() < deadline, processes(home)
        time.sleep(0.05)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, whose server ends soon after its last sandbox."""
    made = Path(tempfile.mkdtemp(prefix="belljar-own-"))
    for name in ("BELLJAR_API_KEY", "BELLJAR_API_URL", "BELLJAR_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BELLJAR_HOME", str(made))
    monkeypatch.setenv("BELLJAR_SERVER_LINGER", "1s")
    yield made
    wait_until_gone(made)
    shutil.rmtree(made)


@pytest.fixture(params=["sync", "async"])
def own_api(request: pytest.FixtureRequest, home: Path) -> Api:
    """Both clients, without a named server."""
    if not os.environ.get("BELLJAR_BIN"):
        pytest.skip(WITHOUT_WALLS.format("program"))
    return Api(request.param)


# httpcore does not close a Unix socket that could not be connected.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.asyncio
async def test_server_is_started_when_needed(own_api: Any, home: Path) -> None:
    assert not processes(home)
    async with own_api.Belljar() as client:
        async with await client.sandboxes.create(timeout=60) as sandbox:
            assert (await sandbox.commands.run("echo own")).stdout == "own\n"
            assert client.config.api_url == f"unix://{home}/belljar.sock" and str(home) in repr(sandbox)
        # The server ends, and the next request starts another.
        await client.close()
        wait_until_gone(home)
        assert [info async for info in client.sandboxes.list()] == []


def test_program_is_found(tmp_path: Path) -> None:
    program = tmp_path / "belljar"
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    assert _own_server.find_program({"PATH": str(tmp_path)}) == str(program)
    assert _own_server.find_program({"PATH": "/nonexistent", "BELLJAR_BIN": "/opt/belljar"}) == "/opt/belljar"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="servers run on Linux")
def test_errors_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(belljar.AuthenticationException, match="no program belljar on this machine"):
        _own_server.reach({"PATH": "/nonexistent"})
    program = tmp_path / "belljar"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    environ = {"PATH": os.defpath, "BELLJAR_BIN": str(program)}
    with pytest.raises(belljar.ConnectionException, match=r"cannot run .*/belljar to find a server: Exec format error$"):
        _own_server.reach(environ)
    program.write_text("#!/bin/sh\necho 'belljar: cannot make \"/x\": Read-only file system' >&2; exit 125\n", "utf-8")
    with pytest.raises(
        belljar.ConnectionException, match=r"no server could be started with .*: belljar: cannot make .*Read-only file system$"
    ):
        _own_server.reach(environ)
