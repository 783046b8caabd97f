"""The asynchronous client, which uses different streams."""

import asyncio

import pytest
import pytest_asyncio
from conftest import WAIT_TIMEOUT
from e2b import CommandExitException, FilesystemEventType, PtySize
from e2b_code_interpreter import AsyncSandbox


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def box():
    sandbox = await AsyncSandbox.create(timeout=600)
    yield sandbox
    await sandbox.kill()


async def test_lifecycle():
    sandbox = await AsyncSandbox.create(metadata={"a": "b"})
    assert await sandbox.is_running()
    assert (await sandbox.get_info()).metadata == {"a": "b"}
    page = await AsyncSandbox.list().next_items()
    assert sandbox.sandbox_id in [info.sandbox_id for info in page]
    assert await sandbox.pause()
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert (await again.commands.run("echo on")).stdout == "on\n"
    assert await sandbox.kill()


async def test_commands(box):
    done = await box.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    with pytest.raises(CommandExitException):
        await box.commands.run("exit 2")
    command = await box.commands.run("cat", background=True, stdin=True)
    await box.commands.send_stdin(command.pid, "typed")
    await box.commands.close_stdin(command.pid)
    assert (await command.wait()).stdout == "typed"


async def test_many_commands_at_once(box):
    done = await asyncio.gather(*(box.commands.run(f"echo {number}") for number in range(20)))
    assert [one.stdout for one in done] == [f"{number}\n" for number in range(20)]


async def test_files(box):
    await box.files.write("async/a.txt", "content")
    assert await box.files.read("async/a.txt") == "content"
    assert [entry.name for entry in await box.files.list("async")] == ["a.txt"]
    assert await box.files.exists("async/none") is False
    await box.files.rename("async/a.txt", "async/b.txt")
    await box.files.remove("async")
    assert await box.files.exists("async") is False


async def test_watch_stream(box):
    await box.files.make_dir("watched")
    seen = asyncio.Queue()
    handle = await box.files.watch_dir("watched", on_event=seen.put_nowait)
    await box.files.write("watched/new.txt", "x")
    event = await asyncio.wait_for(seen.get(), WAIT_TIMEOUT)
    assert (event.name, event.type) == ("new.txt", FilesystemEventType.CREATE)
    await handle.stop()


async def test_pty(box):
    seen = []
    terminal = await box.pty.create(PtySize(rows=24, cols=80), on_data=seen.append)
    await box.pty.send_stdin(terminal.pid, b"echo a''b; exit\n")
    assert (await terminal.wait()).exit_code == 0
    assert b"ab" in b"".join(seen)


async def test_code(box):
    seen = []
    done = await box.run_code("print('x')\n40 + 2", on_stdout=lambda message: seen.append(message.line))
    assert done.text == "42" and seen == ["x\n"]
    context = await box.create_code_context()
    assert (await box.run_code("1", context=context)).text == "1"
    await box.remove_code_context(context)


async def test_cancelled_code_is_interrupted(box):
    running = asyncio.Event()
    task = asyncio.create_task(
        box.run_code("print('runs', flush=True)\nimport time; time.sleep(300)", on_stdout=lambda _: running.set())
    )
    await asyncio.wait_for(running.wait(), WAIT_TIMEOUT)
    task.cancel()
    assert (await box.run_code("1 + 1", timeout=WAIT_TIMEOUT)).text == "2"
