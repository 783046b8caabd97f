"""Commands, their input and output, terminals."""

import threading

import pytest
from conftest import until
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxException,
    TimeoutException,
)


def test_output_and_exit(sbx):
    done = sbx.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code, done.error) == ("out\n", "err\n", 0, None)


def test_failure_is_an_exception(sbx):
    with pytest.raises(CommandExitException) as raised:
        sbx.commands.run("echo out; echo err >&2; exit 3")
    assert (raised.value.exit_code, raised.value.stdout, raised.value.stderr) == (3, "out\n", "err\n")
    assert raised.value.error == "exit status 3"


def test_callbacks_get_the_output(sbx):
    seen = []
    sbx.commands.run("echo a; echo b >&2", on_stdout=seen.append, on_stderr=seen.append)
    assert sorted(seen) == ["a\n", "b\n"]


def test_large_and_binary_output(sbx):
    done = sbx.commands.run("head -c 3000000 /dev/zero | tr '\\0' x; printf '\\303\\274 \\377'")
    assert len(done.stdout) == 3_000_003
    assert done.stdout.endswith("xü \ufffd")


def test_shell_is_a_login_bash_of_the_user(sbx):
    done = sbx.commands.run('echo "$0 $HOME $USER $LOGNAME $(pwd) $(whoami)"')
    assert done.stdout.split() == ["/bin/bash", "/home/user", "user", "user", "/home/user", "user"]


def test_cwd(sbx):
    assert sbx.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    sbx.files.make_dir("work")
    assert sbx.commands.run("pwd", cwd="work").stdout == "/home/user/work\n"
    with pytest.raises(InvalidArgumentException, match="does not exist"):
        sbx.commands.run("pwd", cwd="/no/such/place")


def test_users(sbx):
    assert sbx.commands.run("whoami", user="user").stdout == "user\n"
    for user in ["root", "nobody"]:
        with pytest.raises(AuthenticationException, match="invalid username"):
            sbx.commands.run("whoami", user=user)


def test_missing_command(sbx):
    with pytest.raises(CommandExitException) as raised:
        sbx.commands.run("no-such-command")
    assert raised.value.exit_code == 127


def test_timeout_kills(sbx):
    with pytest.raises(TimeoutException):
        sbx.commands.run("exec sleep 987", timeout=1)
    until(lambda: "sleep 987" not in sbx.commands.run("ps ax -o args || true").stdout, "the end of the command")


def test_killed_sandbox_is_named_as_the_reason(own):
    command = own.commands.run("echo runs; exec sleep 987", background=True, timeout=0)
    outputs = iter(command)
    assert next(outputs)[0] == "runs\n"
    own.kill()
    with pytest.raises(SandboxException, match="The sandbox was killed or reached its end of life: ended on request"):
        command.wait()


def test_background_wait_and_disconnect(sbx):
    command = sbx.commands.run("read line; echo got $line", background=True, stdin=True)
    assert command.pid > 0
    sbx.commands.send_stdin(command.pid, "input\n")
    done = command.wait()
    assert (done.stdout, done.exit_code) == ("got input\n", 0)


def test_kill(sbx):
    command = sbx.commands.run("sleep 1000", background=True)
    assert command.kill() is True
    with pytest.raises(CommandExitException) as raised:
        command.wait()
    assert (raised.value.exit_code, raised.value.error) == (-1, "signal: killed")
    assert sbx.commands.kill(command.pid) is False
    assert sbx.commands.kill(999_999) is False


def test_list(sbx):
    command = sbx.commands.run("sleep 1001", background=True)
    found = {process.pid: process for process in sbx.commands.list()}[command.pid]
    assert (found.cmd, found.args) == ("/bin/bash", ["-l", "-c", "sleep 1001"])
    command.kill()
    until(lambda: command.pid not in [one.pid for one in sbx.commands.list()], "the end of the command")


def test_connect_streams_later_output(sbx):
    command = sbx.commands.run("echo before; read line; echo after $line", background=True, stdin=True)
    until(lambda: sbx.commands.run(f"ls /proc/{command.pid}").exit_code == 0, "the command")
    command.disconnect()
    again = sbx.commands.connect(command.pid)
    sbx.commands.send_stdin(command.pid, "x\n")
    done = again.wait()
    assert done.stdout.endswith("after x\n")
    with pytest.raises(NotFoundException):
        sbx.commands.connect(999_999)


def test_disconnect_does_not_kill(sbx):
    command = sbx.commands.run("sleep 1002", background=True)
    command.disconnect()
    assert command.pid in [process.pid for process in sbx.commands.list()]
    assert sbx.commands.kill(command.pid) is True


def test_close_stdin(sbx):
    command = sbx.commands.run("cat; echo end", background=True, stdin=True)
    sbx.commands.send_stdin(command.pid, "some ")
    sbx.commands.close_stdin(command.pid)
    assert command.wait().stdout == "some end\n"


def test_stream_input(sbx):
    command = sbx.commands.run("head -c 9; echo .", background=True, stdin=True)
    sbx.commands.stream_input(command.pid, iter(["abc", b"def", "ghi"]))
    assert command.wait().stdout == "abcdefghi.\n"
    with pytest.raises(NotFoundException):
        sbx.commands.stream_input(999_999, iter(["x"]))


def test_missing_stdin_is_an_end_of_file(sbx):
    assert sbx.commands.run("cat; echo end").stdout == "end\n"
    command = sbx.commands.run("sleep 1003", background=True)
    with pytest.raises(SandboxException):
        sbx.commands.send_stdin(command.pid, "x")
    command.kill()


def test_many_at_once(sbx):
    results = {}

    def run(number):
        results[number] = sbx.commands.run(f"echo {number}").stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n" for number in range(10)}


def test_pty(sbx):
    seen = []
    terminal = sbx.pty.create(PtySize(rows=24, cols=80), envs={"ABC": "123"})
    sbx.pty.send_stdin(terminal.pid, b"echo abc$ABC; stty size; tty; echo $TERM\n")
    sbx.pty.resize(terminal.pid, PtySize(rows=40, cols=120))
    sbx.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    done = terminal.wait(on_pty=lambda data: seen.append(data))
    output = b"".join(seen).decode()
    assert done.exit_code == 0
    assert "abc123" in output and "40 120" in output and "/dev/pts/" in output


def test_pty_kill(sbx):
    terminal = sbx.pty.create(PtySize(rows=24, cols=80))
    assert sbx.pty.kill(terminal.pid) is True
    assert sbx.pty.kill(terminal.pid) is False
