"""Commands, as a user runs them, with both clients."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, List

import pytest

import belljar
from belljar import (
    CommandExitException,
    CommandTimeoutException,
    InvalidArgumentException,
    NotFoundException,
    ProcessNotFoundException,
    TimeoutException,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("cmd", "stdout", "stderr"),
    [
        ("echo hello", "hello\n", ""),
        (["printf", "%s|", "a b", "$HOME", "*"], "a b|$HOME|*|", ""),
        ("echo out; echo err >&2", "out\n", "err\n"),
        ("printf ''", "", ""),
        ("printf 'ä€😀'", "ä€😀", ""),
        (("echo", "tuple"), "tuple\n", ""),
        ("true && echo yes || echo no", "yes\n", ""),
    ],
)
async def test_output(sbx: Any, cmd: Any, stdout: str, stderr: str) -> None:
    result = await sbx.commands.run(cmd)
    assert (result.stdout, result.stderr, result.exit_code, result.error) == (stdout, stderr, 0, None)
    assert result.outcome == belljar.Outcome(kind="exited", code=0)


@pytest.mark.parametrize("code", [1, 2, 42, 127, 255])
async def test_exit_codes(sbx: Any, code: int) -> None:
    with pytest.raises(CommandExitException) as caught:
        await sbx.commands.run(f"echo partly; echo sorry >&2; exit {code}")
    error = caught.value
    assert (error.exit_code, error.stdout, error.stderr) == (code, "partly\n", "sorry\n")
    assert str(code) in str(error) and "sorry" in str(error)
    result = await sbx.commands.run(f"exit {code}", check=False)
    assert result.exit_code == code and not result.outcome.success


async def test_nothing_is_imported_for_a_command(sbx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await sbx.commands.run("true")
    sought: List[str] = []

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            sought.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    await sbx.commands.run("true")
    assert sought == []


async def test_signal(sbx: Any) -> None:
    result = await sbx.commands.run(["sh", "-c", "kill -KILL $$"], check=False)
    assert (result.exit_code, result.signal) == (None, "SIGKILL")
    assert result.outcome.kind == "signalled" and result.error is not None and "SIGKILL" in result.error


@pytest.mark.parametrize("timeout", [0.3, "300ms", timedelta(seconds=0.3)])
async def test_timeout(sbx: Any, timeout: Any) -> None:
    with pytest.raises(CommandTimeoutException) as caught:
        await sbx.commands.run("echo before; sleep 30", timeout=timeout)
    assert caught.value.stdout == "before\n" and caught.value.outcome.kind == "timed_out"
    assert isinstance(caught.value, TimeoutException) and isinstance(caught.value, CommandExitException)


async def test_timeout_without_check(sbx: Any) -> None:
    result = await sbx.commands.run("sleep 30", timeout=0.2, check=False)
    assert result.outcome.kind == "timed_out" and result.exit_code is None


@pytest.mark.parametrize("stdin", ["some text\n", b"bytes\n", "ä" * 1000, b""])
async def test_stdin(sbx: Any, stdin: Any) -> None:
    result = await sbx.commands.run("cat", stdin=stdin)
    assert result.output.data == (stdin.encode() if isinstance(stdin, str) else stdin)


async def test_output_that_is_not_text(sbx: Any) -> None:
    result = await sbx.commands.run(r"printf '\377\000\001'")
    assert result.output.data == b"\xff\x00\x01" and result.stdout == "\ufffd\x00\x01"


async def test_environment_and_directory(sbx: Any) -> None:
    await sbx.files.make_dir("sub/dir")
    result = await sbx.commands.run('echo "$A-$B"; pwd', envs={"A": "1", "B": "x y"}, cwd="sub/dir")
    assert result.stdout.splitlines()[0] == "1-x y" and result.stdout.rstrip().endswith("/sub/dir")


async def test_environment_of_the_sandbox(api: Any) -> None:
    async with await api.Sandbox.create(envs={"A": "sandbox", "B": "sandbox"}) as sbx:
        assert (await sbx.commands.run("echo $A $B", envs={"B": "command"})).stdout == "sandbox command\n"


async def test_callbacks(sbx: Any) -> None:
    out: List[str] = []
    err: List[str] = []
    result = await sbx.commands.run("echo a; echo b >&2; echo c", on_stdout=out.append, on_stderr=err.append)
    assert "".join(out) == "a\nc\n" == result.stdout and "".join(err) == "b\n" == result.stderr


async def test_callbacks_come_while_it_runs(sbx: Any) -> None:
    seen: List[str] = []
    await sbx.commands.run(
        "echo first; while [ ! -e go ]; do sleep 0.02; done; echo last", on_stdout=_then(sbx, seen), timeout=20
    )
    assert "".join(seen) == "first\nlast\n"


def _then(sbx: Any, seen: List[str]) -> Any:
    """A callback that lets the command continue, so that the command ends only if output arrives while it runs."""
    if isinstance(sbx, belljar.AsyncSandbox):

        async def tell(text: str) -> None:
            seen.append(text)
            await sbx.files.write("go", "")

        return tell

    def tell_sync(text: str) -> None:
        seen.append(text)
        sbx.inner.files.write("go", "")

    return tell_sync


async def test_callbacks_get_whole_characters(sbx: Any) -> None:
    seen: List[str] = []
    script = r"for b in '\360' '\237' '\230' '\200'; do printf $b; sleep 0.05; done"
    await sbx.commands.run(script, on_stdout=seen.append)
    assert "".join(seen) == "😀"


async def test_error_in_a_callback_reaches_the_caller(sbx: Any) -> None:
    def fail(_: str) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        await sbx.commands.run("echo a; sleep 20", on_stdout=fail)


async def test_callbacks_and_exit_code(sbx: Any) -> None:
    seen: List[str] = []
    with pytest.raises(CommandExitException) as caught:
        await sbx.commands.run("echo a; exit 3", on_stdout=seen.append)
    assert seen == ["a\n"] and caught.value.exit_code == 3


async def test_big_output_streams(sbx: Any) -> None:
    size = 0

    def count(text: str) -> None:
        nonlocal size
        size += len(text)

    result = await sbx.commands.run("head -c 20000000 /dev/zero | tr '\\0' x", on_stdout=count, timeout=60)
    assert size == 20_000_000 == result.output.total_bytes


async def test_kept_output_is_bounded(sbx: Any, real: None) -> None:
    result = await sbx.commands.run("seq 100000", output=1000)
    output = result.output
    assert output.truncated and len(output.data) <= 1000
    assert output.omitted_bytes == output.total_bytes - len(output.data) and output.head_bytes < len(output.data)
    assert result.stdout.startswith("1\n2\n") and result.stdout.endswith("100000\n")


@pytest.mark.parametrize(
    ("cmd", "options"),
    [
        ("", {}),
        ([], {}),
        ("true", {"timeout": -1}),
        ("true", {"timeout": "soon"}),
        ("true", {"timeout": float("nan")}),
        ("true", {"stdin": True}),
    ],
)
async def test_bad_arguments(sbx: Any, real: None, cmd: Any, options: Any) -> None:
    with pytest.raises(InvalidArgumentException) as caught:
        await sbx.commands.run(cmd, **options)
    assert caught.value.field


async def test_background(sbx: Any) -> None:
    handle = await sbx.commands.run("echo start; sleep 0.2; echo end; exit 3", background=True)
    assert handle.pid > 0 and handle.process > 0 and handle.exit_code is None
    with pytest.raises(CommandExitException) as caught:
        await handle.wait()
    assert (caught.value.exit_code, caught.value.stdout) == (3, "start\nend\n")
    assert handle.exit_code == 3 and handle.stdout == "start\nend\n"
    assert (await handle.wait(check=False)).exit_code == 3


async def test_background_iteration(sbx: Any) -> None:
    handle = await sbx.commands.run("echo a; echo b >&2; sleep 0.1; echo c", background=True)
    pieces = [piece async for piece in handle]
    assert "".join(piece.stdout or "" for piece in pieces) == "a\nc\n"
    assert "".join(piece.stderr or "" for piece in pieces) == "b\n"
    assert (await handle.wait()).stdout == "a\nc\n"


async def test_background_iteration_can_be_left_and_taken_up(sbx: Any) -> None:
    handle = await sbx.commands.run("echo a; read line; echo $line", background=True, stdin=True)
    async for piece in handle:
        assert piece.stdout == "a\n"
        break
    await handle.send_stdin("b\n")
    assert (await handle.wait()).stdout == "a\nb\n"


async def test_background_callbacks(sbx: Any) -> None:
    seen: List[str] = []
    handle = await sbx.commands.run("echo a; sleep 0.1; echo b", background=True, on_stdout=seen.append)
    result = await handle.wait()
    assert "".join(seen) == "a\nb\n" == result.stdout
    with pytest.raises(belljar.SandboxException):
        async for _ in handle:
            pass


async def test_wait_with_callbacks(sbx: Any) -> None:
    seen: List[str] = []
    handle = await sbx.commands.run("echo a; echo b >&2", background=True)
    await handle.wait(on_stderr=seen.append)
    assert seen == ["b\n"]


async def test_kill(sbx: Any) -> None:
    handle = await sbx.commands.run(["sleep", "60"], background=True)
    assert await handle.kill() is True
    result = await handle.wait(check=False)
    assert result.signal == "SIGKILL"
    assert await handle.kill() is False


async def test_kill_of_a_line_of_shell(sbx: Any) -> None:
    handle = await sbx.commands.run("sleep 60", background=True)
    assert await handle.kill() is True
    result = await handle.wait(check=False)
    # The shell may see its child end before it is killed itself.
    assert result.signal == "SIGKILL" or result.exit_code == 137


async def test_pid_is_what_programs_inside_see(sbx: Any, real: None) -> None:
    handle = await sbx.commands.run("echo $$; read -r word; echo $word", background=True, stdin=True)
    assert (await sbx.commands.get_info(handle.pid)).process == handle.process
    assert (await sbx.commands.get_info(handle)).argv == (await sbx.commands.get_info(handle.pid)).argv
    await sbx.commands.send_stdin(handle, "word\n")
    assert (await handle.wait()).stdout == f"{handle.pid}\nword\n"
    assert await sbx.commands.kill(handle) is False
    assert await sbx.commands.kill(999_999) is False


async def test_kill_by_pid(sbx: Any) -> None:
    handle = await sbx.commands.run(["sleep", "60"], background=True)
    assert await sbx.commands.kill(handle.pid) is True
    assert (await handle.wait(check=False)).outcome.kind == "signalled"
    assert await sbx.commands.kill(handle.pid) is False
    assert await sbx.commands.kill(999_999) is False


@pytest.mark.parametrize("signal", ["SIGTERM", "term", 15])
async def test_signals(sbx: Any, signal: Any) -> None:
    handle = await sbx.commands.run(["sleep", "60"], background=True)
    assert await handle.send_signal(signal)
    assert (await handle.wait(check=False)).signal == "SIGTERM"


async def test_list(sbx: Any) -> None:
    handle = await sbx.commands.run(["sleep", "60"], background=True)
    found = [process for process in await sbx.commands.list() if process.process == handle.process]
    assert len(found) == 1 and found[0].running and found[0].pid == handle.pid
    assert (found[0].cmd, found[0].args) == ("sleep", ("60",))
    await handle.kill()
    await handle.wait(check=False)
    info = await sbx.commands.get_info(handle)
    assert not info.running and info.signal == "SIGKILL" and info.outcome.kind == "signalled"


async def test_stdin_piece_by_piece(sbx: Any) -> None:
    handle = await sbx.commands.run("cat", background=True, stdin=True)
    assert await handle.send_stdin("one\n") == 4
    assert await sbx.commands.send_stdin(handle.pid, b"two\n") == 4
    await handle.close_stdin()
    assert (await handle.wait()).stdout == "one\ntwo\n"


async def test_streamed_input(sbx: Any, tmp_path: Path) -> None:
    handle = await sbx.commands.run("cat", background=True, stdin=True)
    assert await sbx.commands.stream_input(handle.pid, iter(["one\n", b"two\n", "ü\n"])) == 11
    (tmp_path / "in").write_bytes(b"file\n")
    with open(tmp_path / "in", "rb") as file:
        await handle.stream_input(file)
    await handle.stream_input("text\n", close=True)
    assert (await handle.wait()).stdout == "one\ntwo\nü\nfile\ntext\n"
    with pytest.raises(ProcessNotFoundException):
        await sbx.commands.stream_input(999_999, iter(["x"]))
    other = await sbx.commands.run("cat", background=True, stdin=True)
    for wrong in (None, 5, [5]):
        with pytest.raises(InvalidArgumentException):
            await other.stream_input(wrong)
    await other.kill()


async def test_streamed_input_of_asynchronous_pieces(environment: Any) -> None:
    async def pieces() -> Any:
        yield "a"
        yield b"b"

    async with await belljar.AsyncSandbox.create() as sbx:
        handle = await sbx.commands.run("cat", background=True, stdin=True)
        assert await handle.stream_input(pieces(), close=True) == 2
        assert (await handle.wait()).stdout == "ab"


async def test_connect(sbx: Any) -> None:
    first = await sbx.commands.run("echo a; read line; echo $line", background=True, stdin=True)
    await first.disconnect()
    second = await sbx.commands.connect(first.pid)
    await second.send_stdin("b\n")
    assert (await second.wait()).stdout == "a\nb\n"
    with pytest.raises(belljar.SandboxException, match="disconnected"):
        await first.wait()


async def test_connect_to_one_that_has_ended(sbx: Any) -> None:
    handle = await sbx.commands.run("echo a; exit 4", background=True)
    await handle.wait(check=False)
    result = await (await sbx.commands.connect(handle)).wait(check=False)
    assert (result.stdout, result.exit_code) == ("a\n", 4)


async def test_connect_to_nothing(sbx: Any) -> None:
    with pytest.raises(NotFoundException) as caught:
        await sbx.commands.connect(999_999)
    assert caught.value.code == "process_not_found"


async def test_disconnect_ends_a_reader_that_waits(sbx: Any) -> None:
    seen: List[str] = []
    handle = await sbx.commands.run("echo a; sleep 60", background=True, on_stdout=seen.append)
    async with _deadline():
        while not seen:
            await asyncio.sleep(0.01)
        await handle.disconnect()
    assert (await sbx.commands.get_info(handle)).running


async def test_disconnect_ends_a_wait(sbx: Any) -> None:
    handle = await sbx.commands.run("echo a; sleep 60", background=True)
    waiting = asyncio.ensure_future(handle.wait())
    async with _deadline():
        while handle.stdout != "a\n":
            await asyncio.sleep(0.01)
        await handle.disconnect()
        with pytest.raises(belljar.SandboxException, match="disconnected"):
            await waiting
    assert (await sbx.commands.get_info(handle)).running


async def test_many_at_once(sbx: Any) -> None:
    results = await asyncio.gather(*(sbx.commands.run(f"sleep 0.1; echo {number}") for number in range(12)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(12)]


async def test_cancellation_ends_the_command(environment: Any) -> None:
    async with await belljar.AsyncSandbox.create() as sbx:
        task = asyncio.ensure_future(sbx.commands.run("touch began; sleep 60; touch ended"))
        async with _deadline():
            while not await sbx.files.exists("began"):
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while any(process.running for process in await sbx.commands.list()):
                await asyncio.sleep(0.02)
        assert not await sbx.files.exists("ended")


async def test_cancelled_wait_leaves_the_command(environment: Any) -> None:
    async with await belljar.AsyncSandbox.create() as sbx:
        handle = await sbx.commands.run("read line; echo $line", background=True, stdin=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle.wait(), 0.2)
        await handle.send_stdin("still here\n")
        assert (await handle.wait()).stdout == "still here\n"


def _deadline(seconds: float = 20.0) -> Any:
    return _Deadline(seconds)


class _Deadline:
    """`asyncio.timeout`, which Python 3.9 lacks."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.handle = asyncio.get_running_loop().call_later(self.seconds, task.cancel)

    async def __aexit__(self, *_: Any) -> None:
        self.handle.cancel()
