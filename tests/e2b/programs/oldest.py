"""A program for clients of the first generation, by host names with TLS. PROXY resolves the names."""

import os

from e2b import CommandExitException, NotFoundException, SandboxException
from e2b_code_interpreter import Sandbox

given = {"proxy": os.environ["PROXY"]}
# Later versions have a class method.
create = getattr(Sandbox, "create", Sandbox)

with create(timeout=120, metadata={"by": "oldest"}, envs={"OWN": "o"}, **given) as sandbox:
    assert sandbox.is_running()
    assert sandbox.commands.run("echo $OWN").stdout == "o\n"
    try:
        sandbox.commands.run("echo err >&2; exit 3")
        raise AssertionError("this must fail")
    except CommandExitException as error:
        assert (error.exit_code, error.stderr) == (3, "err\n")
    command = sandbox.commands.run("sleep 1000", background=True)
    assert command.pid in [process.pid for process in sandbox.commands.list()]
    assert command.kill() is True
    sandbox.files.write("a.txt", "content")
    assert sandbox.files.read("a.txt") == "content"
    assert [entry.name for entry in sandbox.files.list(".")] == ["a.txt"]
    assert sandbox.files.exists("none") is False
    try:
        sandbox.files.read("none")
        raise AssertionError("this must fail")
    except NotFoundException:
        pass
    watcher = sandbox.files.watch_dir(".")
    sandbox.files.write("b.txt", "new")
    while not watcher.get_new_events():
        pass
    watcher.stop()
    if hasattr(Sandbox, "create"):
        assert sandbox.run_code("x = 6\nx * 7").text == "42"
        assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"
    else:
        # This version sends no token with code.
        try:
            sandbox.run_code("1")
            raise AssertionError("this must fail")
        except SandboxException as error:
            assert "401" in str(error)
    sandbox.set_timeout(240)
    listed = Sandbox.list(**given)
    listed = listed if isinstance(listed, list) else listed.next_items()
    assert sandbox.sandbox_id in [info.sandbox_id for info in listed]
    again = Sandbox.connect(sandbox.sandbox_id, **given)
    assert again.files.read("a.txt") == "content"
assert sandbox.is_running() is False
print("done")
