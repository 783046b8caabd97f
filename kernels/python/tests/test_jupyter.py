"""The bridge to Jupyter kernels, with ipykernel behind it."""

import base64
import json
import os
import pathlib
import signal
import stat
import sys

import driver
import pytest

BRIDGE = pathlib.Path(__file__).resolve().parents[2] / "jupyter" / "bridge.py"


def start(name="python3", specs=None, **more):
    env = {"BELLJAR_KERNEL_LANGUAGE": f"jupyter:{name}", "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    if specs is not None:
        env["JUPYTER_PATH"] = str(specs)
    return driver.Kernel(program=BRIDGE, env=env, **more)


@pytest.fixture(scope="module")
def shared():
    kernel = start()
    yield kernel
    kernel.kill()


def write_spec(data, name, **spec):
    directory = data / "kernels" / name
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(json.dumps(spec))
    return directory


IPYKERNEL = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


def test_ready_frame_of_the_bridge(shared):
    assert shared.ready["op"] == "ready"
    assert (shared.ready["protocol"], shared.ready["language"]) == (1, "python")
    assert shared.ready["version"].startswith("3.")


def test_state_of_the_bridge_is_kept(shared):
    assert shared.run("x = 20").status == "ok"
    outcome = shared.run("print('out'); import sys; print('err', file=sys.stderr)\nx * 2 + 2")
    assert (outcome.text, outcome.stdout, outcome.stderr) == ("42", "out\n", "err\n")
    assert outcome.started["count"] >= 2


def test_results_have_all_their_forms(shared):
    code = """
from IPython.display import display, HTML, Image, JSON
display(HTML('<b>1</b>'), display_id='a'); display(JSON({'a': [1]}))
display(Image(data=b'\\x89PNG\\r\\n' + bytes(600), format='png'))
"""
    outcome = shared.run(code)
    assert [sorted(one["data"]) for one in outcome.results] == [
        ["text/html", "text/plain"],
        ["application/json", "text/plain"],
        ["image/png", "text/plain"],
    ]
    assert outcome.results[0]["display_id"] == "a"
    assert outcome.results[1]["data"]["application/json"] == {"a": [1]}
    assert base64.b64decode(outcome.results[2]["data"]["image/png"]).startswith(b"\x89PNG")
    updated = shared.run("from IPython.display import update_display\nupdate_display(HTML('<b>2</b>'), display_id='a')")
    assert updated.results[0]["update"] and updated.results[0]["display_id"] == "a"


def test_too_large_forms_are_omitted_and_listed(shared):
    outcome = shared.run("from IPython.display import HTML\nHTML('x' * (9 << 20))")
    assert sorted(outcome.main["data"]) == ["text/plain"]
    assert outcome.main["cut"][0].startswith("text/html: 9.4 MB are more than the 8 MiB")


def test_errors_are_plain(shared):
    outcome = shared.run("def f():\n    raise ValueError('no')\nf()")
    assert (outcome.status, outcome.error["name"], outcome.error["value"]) == ("error", "ValueError", "no")
    assert "in f" in outcome.error["traceback"] or "f()" in outcome.error["traceback"]


def test_questions_are_answered_or_refused(shared):
    outcome = shared.run("print(input('name? '))", answers=["Ada"], input=True)
    assert (outcome.questions[0]["prompt"], outcome.stdout) == ("name? ", "Ada\n")
    refused = shared.run("input()")
    assert (refused.status, refused.error["name"]) == ("error", "StdinNotImplementedError")


def test_an_interrupt_keeps_the_state(shared):
    shared.run("y = 7")
    outcome = shared.run("print('begun', flush=True)\nimport time\ntime.sleep(600)", interrupt="begun")
    assert (outcome.status, outcome.error["name"]) == ("interrupted", "KeyboardInterrupt")
    os.kill(shared.process.pid, signal.SIGINT)
    assert shared.run("y").text == "7"


def test_errors_do_not_abort_later_executions(tmp_path):
    # Whether an execution arrives early enough to be aborted depends on timing: the kernel records that it would abort.
    script = tmp_path / "recording.py"
    script.write_text(
        "from ipykernel.ipkernel import IPythonKernel\n"
        "from ipykernel.kernelapp import IPKernelApp\n"
        "class Recording(IPythonKernel):\n"
        "    def _abort_queues(self, *_):\n"
        "        self.shell.user_ns['aborts'] = True\n"
        "IPKernelApp.launch_instance(kernel_class=Recording)\n"
    )
    argv = [sys.executable, str(script), "-f", "{connection_file}"]
    write_spec(tmp_path, "recording", argv=argv, language="python")
    kernel = start("recording", specs=tmp_path)
    assert kernel.run("1 / 0").error["name"] == "ZeroDivisionError"
    assert kernel.run("'aborts' in globals()").text == "False"
    kernel.kill()


def test_cwd_of_one_execution_is_refused(shared):
    outcome = shared.run("1", cwd="/tmp")
    assert (outcome.status, outcome.error["name"]) == ("error", "NotSupported")
    assert outcome.error["value"].startswith("cwd: ")
    assert shared.run("1").text == "1"


def test_large_output_is_complete(shared):
    outcome = shared.run("for i in range(20000): print('x' * 99)")
    assert len(outcome.stdout) == 2_000_000


def test_bridge_exits_with_its_kernel():
    kernel = start()
    with pytest.raises(driver.Ended):
        kernel.run("import os; os._exit(7)")
    assert kernel.ended() == 7
    kernel.close()


def test_bridge_exits_by_the_signal_of_its_kernel():
    kernel = start()
    with pytest.raises(driver.Ended):
        kernel.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert kernel.ended() == -signal.SIGKILL
    kernel.close()


def test_last_output_of_a_kernel_that_exits():
    kernel = start()
    # The bridge stands still meanwhile, so that it finds the output and the end of the kernel's sockets at the same time.
    code = """
import os, signal, subprocess, time
bridge = os.getppid()
subprocess.Popen(['sh', '-c', f'sleep 2; kill -CONT {bridge}'], start_new_session=True)
os.kill(bridge, signal.SIGSTOP)
print('the last', flush=True)
time.sleep(0.5)
os._exit(7)
"""
    with pytest.raises(driver.Ended):
        kernel.run(code)
    assert kernel.ended() == 7
    assert kernel.printed()[0] == "the last\n"
    kernel.close()


def test_kernel_and_bridge_exit_with_the_guest():
    kernel = start()
    pid = int(kernel.run("import os; os.getpid()").text)
    room = pathlib.Path(kernel.run("import sys; sys.argv[2] if len(sys.argv) > 2 else ''").text.strip("'") or "/none").parent
    kernel.close()
    assert not pathlib.Path(f"/proc/{pid}").exists()
    assert not room.name.startswith("belljar-jupyter-") or not room.exists()


def test_sockets_are_private():
    kernel = start()
    code = "import glob, os, ipykernel.kernelapp as app; app.IPKernelApp.instance().ip"
    ip = kernel.run(code).text.strip("'")
    room = pathlib.Path(ip).parent
    assert stat.S_IMODE(room.stat().st_mode) == 0o700
    assert stat.S_IMODE((room / "connection.json").stat().st_mode) == 0o600
    kernel.kill()


def test_kernels_with_tcp_only_are_retried(tmp_path):
    script = tmp_path / "tcp.py"
    script.write_text(
        "import json, os, sys\n"
        "if json.load(open(sys.argv[1]))['transport'] != 'tcp': sys.exit('tcp only')\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'ipykernel_launcher', '-f', sys.argv[1]])\n"
    )
    write_spec(tmp_path, "tcp", argv=[sys.executable, str(script), "{connection_file}"], language="python")
    kernel = start("TCP", specs=tmp_path)
    assert kernel.run("6 * 7").text == "42"
    kernel.kill()


def test_interrupts_as_messages(tmp_path):
    write_spec(tmp_path, "messages", argv=IPYKERNEL, interrupt_mode="message", env={"SPEC": "s"})
    kernel = start("messages", specs=tmp_path)
    assert kernel.run("import os; os.environ['SPEC']").text == "'s'"
    outcome = kernel.run("print('begun', flush=True)\nimport time\ntime.sleep(600)", interrupt="begun")
    assert outcome.status == "interrupted"
    kernel.kill()


@pytest.mark.parametrize(
    ("name", "spec", "why"),
    [
        ("none", None, "no kernelspec is called 'none'; installed are: "),
        ("empty", {"argv": []}, "has an empty argv"),
        ("wrong", {"argv": 7}, "is no kernelspec"),
        ("missing", {"argv": ["/no/such/program"]}, "/no/such/program cannot be started: No such file"),
        ("fails", {"argv": ["/bin/sh", "-c", "exit 3"]}, "it exited with code 3 while it started"),
    ],
)
def test_failed_start_reports_the_reason(tmp_path, name, spec, why):
    if spec is not None:
        write_spec(tmp_path, name, **spec)
    kernel = start(name, specs=tmp_path)
    assert kernel.ready["op"] == "failed"
    assert why in kernel.ready["message"], kernel.ready
    assert kernel.ended() == 1
    kernel.close()
