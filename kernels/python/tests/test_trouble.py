"""Interrupts, exits, forks, and malicious code."""

import os
import signal
import time

import driver
import pytest

HELLO = "print('running', flush=True)\n"

SLOW = {
    "sleep": "import time\ntime.sleep(1000)",
    "loop": "while True:\n    pass",
    "busy await": "import asyncio\nawait asyncio.sleep(0)\nwhile True:\n    pass",
    "await": "import asyncio\nawait asyncio.sleep(1000)",
    "await gather": "import asyncio\nawait asyncio.gather(*[asyncio.sleep(1000) for _ in range(10)])",
    "asyncio.run": "import asyncio\nasyncio.run(asyncio.sleep(1000))",
    "time.sleep in a task": "import asyncio, time\nasync def f():\n    time.sleep(1000)\nawait asyncio.create_task(f())",
    "command": "!sleep 1000",
    "command with children": "!sleep 1000 | cat | cat",
    "command that ignores it": "!trap '' INT; sleep 1000; sleep 1000",
    "captured command": "x = !sleep 1000",
    "bash cell": "%%bash\nsleep 1000",
    "subprocess": "import subprocess\nsubprocess.run(['sleep', '1000'])",
    "thread join": "import threading, time\nt = threading.Thread(target=time.sleep, args=(1000,), daemon=True); t.start(); t.join()",
    "lock": "import threading\nthreading.Event().wait()",
    "display loop": "while True:\n    display('x' * 1000)",
    "print loop": "while True:\n    print('x' * 1000)",
    "pipe": "import os\nr, w = os.pipe()\nos.read(r, 1)",
    "repr": "class R:\n    def __repr__(self):\n        while True:\n            pass\nR()",
    "html": "class R:\n    def _repr_html_(self):\n        import time\n        time.sleep(1000)\nR()",
    "str of the error": "class E(Exception):\n    def __str__(self):\n        while True:\n            pass\nraise E()",
    "catches once": "import time\ntry:\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    time.sleep(1000)",
    "catches often": "import time\nfor _ in range(3):\n    try:\n        time.sleep(1000)\n    except BaseException:\n        pass\ntime.sleep(1000)",
    "sort": "class K:\n    def __lt__(self, other):\n        return True\nwhile True:\n    sorted([K() for _ in range(10000)])",
    "finally": "import time\ntry:\n    time.sleep(1000)\nfinally:\n    print('cleaned')",
    "regular expression in a loop": "import re\nwhile True:\n    re.match('(a|aa)*$', 'a' * 20 + 'b')",
    "flush": "import sys, time\nclass Out:\n    def write(self, t):\n        return len(t)\n    def flush(self):\n        time.sleep(1000)\nold = sys.stdout\nsys.stdout = Out()",
    "import": "open('slow_module.py', 'w').write('import time\\ntime.sleep(1000)\\n')\nimport slow_module",
    "exec": "exec('while True: pass')",
}


@pytest.mark.parametrize("code", SLOW.values(), ids=SLOW.keys())
def test_interrupt(kernel, code):
    outcome = kernel.run(
        HELLO + code if not code.startswith("%%") else code.replace("\n", "\necho running\n", 1), interrupt="running"
    )
    assert outcome.status in ("interrupted",), (outcome.error, outcome.stderr)
    assert outcome.error["name"] == "KeyboardInterrupt"
    assert "<belljar" not in outcome.error["traceback"]
    kernel.run("import sys; sys.stdout = sys.__stdout__")
    assert kernel.run("kept = 1\nkept + 1").text == "2"


def test_interrupt_that_code_catches(kernel):
    outcome = kernel.run(
        HELLO + "import time\ntry:\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    print('caught')\n5", interrupt="running"
    )
    assert outcome.status == "ok" and "caught" in outcome.stdout and outcome.text == "5"


def test_interrupt_of_a_question(kernel):
    number = kernel.start("input('q')", input=True)
    assert [kernel.frame()["op"] for _ in range(2)] == ["started", "input"]
    os.kill(kernel.process.pid, signal.SIGINT)
    frames = [kernel.frame() for _ in range(2)]
    assert frames[0]["name"] == "KeyboardInterrupt" and frames[1] == {"op": "done", "id": number, "status": "interrupted"}
    kernel.send({"op": "input", "id": number, "value": "too late"})
    assert kernel.run("1 + 1").text == "2"


def test_interrupt_ends_the_command(kernel):
    kernel.run("!echo running; echo $$ > pid; exec sleep 1000", interrupt="running")
    pid = int(kernel.run("open('pid').read()").text.strip("'\\n"))
    end = time.monotonic() + driver.TIMEOUT
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        assert kernel.run("1").text == "1"
    assert not os.path.exists(f"/proc/{pid}")


def test_a_signal_between_cells_does_nothing(kernel):
    kernel.run("1")
    for _ in range(50):
        os.kill(kernel.process.pid, signal.SIGINT)
    assert kernel.run("2 + 2").text == "4"


def test_repeated_signals_break_no_frame(fresh):
    """Frames are complete even if a signal interrupts at any point."""
    kernel = fresh()
    for _ in range(15):
        number = kernel.start("print('go', flush=True)\nwhile True:\n    display('x' * 300_000)")
        assert kernel.frame()["op"] == "started"
        for _ in range(3):
            assert kernel.frame()["op"] == "result"
        os.kill(kernel.process.pid, signal.SIGINT)
        outcome = kernel_rest(kernel, number)
        assert outcome[-1] == {"op": "done", "id": number, "status": "interrupted"}
        assert [one["op"] for one in outcome].count("error") == 1
        kernel.printed()
    assert kernel.run("1").text == "1"


def kernel_rest(kernel, number):
    frames = []
    while not frames or frames[-1]["op"] != "done":
        frames.append(kernel.frame(tick=lambda: os.kill(kernel.process.pid, signal.SIGINT)))
        assert frames[-1]["id"] == number
    return frames


def test_many_signals(fresh):
    """Signals at any moment of short executions: each ends, and the kernel survives."""
    kernel = fresh()
    statuses = set()
    for at in range(60):
        number = kernel.start("x = [i for i in range(2000)]\nx[-1]")
        end = time.monotonic() + at * 0.0002
        while time.monotonic() < end:
            continue
        for _ in range(3):
            os.kill(kernel.process.pid, signal.SIGINT)
        statuses.add(kernel_rest_any(kernel, number)["status"])
        kernel.printed()
    assert statuses <= {"ok", "interrupted", "error"}
    assert kernel.run("1 + 1").text == "2"


def kernel_rest_any(kernel, number):
    while True:
        frame = kernel.frame()
        assert frame["id"] == number
        if frame["op"] == "done":
            return frame


def test_a_background_task_that_never_yields(fresh):
    kernel = fresh()
    kernel.run(
        "import asyncio\nasync def hog():\n    await asyncio.sleep(0.01)\n    print('hogging', flush=True)\n    while True:\n        pass"
    )
    kernel.run("task = asyncio.get_event_loop().create_task(hog())\nawait asyncio.sleep(0)")
    kernel.wait_printed("hogging")
    number = kernel.start("1 + 1")
    frames = []
    while not frames or frames[-1]["op"] != "done":
        frames.append(kernel.frame(tick=lambda: os.kill(kernel.process.pid, signal.SIGINT)))
        assert frames[-1]["id"] == number
    assert kernel.run("2 + 2").text == "4"


ENDS = {
    "exit()": ("exit()", 0),
    "exit": ("exit", 0),
    "quit()": ("quit()", 0),
    "exit(3)": ("exit(3)", 3),
    "exit text": ("exit('bye')", 1),
    "exit(256 + 7)": ("exit(256 + 7)", 7),
    "in await": ("import asyncio\nasync def f():\n    exit(4)\nawait f()", 4),
    "in a function": ("def f():\n    exit(5)\nf()", 5),
    # As the rehearsal of a warm interpreter does.
    "after a reset": ("%reset -f\nexit(6)", 6),
}

# Code, and the value of the error.
LIVES_ON = {
    "sys.exit()": ("import sys; sys.exit()", "0"),
    "sys.exit(3)": ("import sys; sys.exit(3)", "3"),
    "sys.exit text": ("import sys; sys.exit('bye')", "bye"),
    "SystemExit": ("raise SystemExit(256 + 7)", "7"),
    "in await": ("import asyncio\nasync def f():\n    raise SystemExit(4)\nawait f()", "4"),
    "in an awaited task": (
        "import asyncio, sys\nasync def f():\n    sys.exit(5)\nawait asyncio.create_task(f())\nkept = 'changed'",
        "5",
    ),
    "in another task": (
        "import asyncio, sys\nasync def f():\n    sys.exit(6)\ntask = asyncio.create_task(f())\nawait asyncio.sleep(1000)\nkept = 'changed'",
        "6",
    ),
    "argparse": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('file')\nparser.parse_args([])",
        "2",
    ),
    "unittest that passes": (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        pass\nunittest.main()",
        "0",
    ),
    "unittest that fails": (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.fail()\nunittest.main()",
        "1",
    ),
}


@pytest.mark.parametrize("code,value", LIVES_ON.values(), ids=LIVES_ON.keys())
def test_exit_of_a_program_keeps_the_variables(kernel, code, value):
    kernel.run("kept = 'kept'")
    outcome = kernel.run(code)
    assert (outcome.status, outcome.error["name"], outcome.error["value"]) == ("error", "SystemExit", value)
    assert "exiting" not in outcome.frames[-1] and "never retrieved" not in outcome.stderr
    assert kernel.run("kept").text == "'kept'"
    assert kernel.run("import asyncio\nawait asyncio.sleep(0, 1)").text == "1"
    if value == "2":
        assert "the following arguments are required: file" in outcome.stderr


@pytest.mark.parametrize("code,status", ENDS.values(), ids=ENDS.keys())
def test_exit(fresh, code, status):
    kernel = fresh()
    outcome = kernel.run("print('before')\n" + code)
    assert outcome.status == "error" and outcome.error["name"] == "SystemExit"
    assert outcome.frames[-1]["exiting"] is True
    assert outcome.stdout == "before\n" and outcome.stderr == ""
    assert kernel.ended() == status


def test_exit_runs_atexit_and_waits_for_no_thread(fresh):
    kernel = fresh()
    kernel.run(
        "import atexit, threading\natexit.register(print, 'bye', flush=True)\nthreading.Thread(target=threading.Event().wait).start()"
    )
    kernel.run("exit()")
    assert kernel.ended() == 0
    assert kernel.printed()[0] == "bye\n"


def test_exit_with_atexit_that_hangs(fresh):
    kernel = fresh()
    kernel.run("import atexit, time\natexit.register(time.sleep, 1000)\nexit(6)")
    assert kernel.ended() == 6


DEATHS = {
    "os._exit": ("import os; os._exit(7)", 7),
    "kill": ("import os; os.kill(os.getpid(), 9)", -9),
    "term": ("import os; os.kill(os.getpid(), 15)\nimport time; time.sleep(100)", -15),
    "abort": ("import os; os.abort()", -6),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", -11),
    "closes all": ("import os\nos.closerange(3, 4096)", None),
    "closes the socket": (
        "import os\n[os.close(int(f)) for f in os.listdir('/proc/self/fd') if int(f) > 2 and 'socket' in str(os.path.exists(f'/proc/self/fd/{f}') and os.readlink(f'/proc/self/fd/{f}'))];",
        None,
    ),
}


@pytest.mark.parametrize("code,status", DEATHS.values(), ids=DEATHS.keys())
def test_abnormal_exit(fresh, code, status):
    kernel = fresh()
    kernel.start(code)
    with pytest.raises(driver.Ended):
        for _ in range(5):
            kernel.frame()
    found = kernel.ended()
    assert found == status if status is not None else found != 0


def test_garbage_on_the_socket(fresh):
    kernel = fresh()
    code = "import os, socket\nfor f in os.listdir('/proc/self/fd'):\n    try:\n        if 'socket' in os.readlink('/proc/self/fd/' + f):\n            os.write(int(f), b'\\xff' * 100)\n    except OSError:\n        pass"
    kernel.start(code)
    with pytest.raises(driver.Ended):
        for _ in range(5):
            kernel.frame()


def test_end_of_file_ends_at_once(fresh):
    kernel = fresh()
    kernel.run(
        "import threading\n[threading.Thread(target=threading.Event().wait).start() for _ in range(3)]\nimport atexit, time\natexit.register(time.sleep, 1000)"
    )
    kernel.socket.shutdown(2)
    assert kernel.ended() == 0


def test_bad_frames_end_the_kernel(fresh):
    for data in (b"\xff\xff\xff\xff", b"\0\0\0\3{{{", b"\0\0\0\2\xff\xff"):
        kernel = fresh()
        kernel.socket.sendall(data)
        assert kernel.ended() == 1


def test_code_that_is_not_text(kernel):
    assert kernel.run(5).status == "ok"
    assert kernel.run("1 + 1").text == "2"


def test_children_do_not_have_the_socket(kernel):
    code = "import subprocess, os\nsubprocess.run('ls -l /proc/self/fd', shell=True, close_fds=False, capture_output=True, text=True).stdout.count('socket')"
    assert kernel.run(code).text == "0"


def test_forked_children_write_no_frames(kernel):
    code = """import os, sys
pid = os.fork()
if pid == 0:
    display('from the child')
    try:
        input('q')
    except EOFError:
        print('refused', flush=True)
    os._exit(0)
os.waitpid(pid, 0)[1]"""
    outcome = kernel.run(code, input=True)
    assert outcome.text == "0" and len(outcome.results) == 1 and outcome.stdout == "refused\n"


def test_forked_child_does_not_continue_as_a_kernel(kernel):
    outcome = kernel.run("import os\npid = os.fork()\nprint('both', flush=True)")
    assert outcome.status == "ok"
    assert kernel.run("os.WEXITSTATUS(os.waitpid(pid, 0)[1])").text == "0"
    kernel.run("pid = os.fork()\nif pid == 0:\n    raise ValueError('in the child')")
    outcome = kernel.run("os.WEXITSTATUS(os.waitpid(pid, 0)[1])")
    assert outcome.text == "1"
    kernel.run("pid = os.fork()\nif pid == 0:\n    raise SystemExit(9)")
    assert kernel.run("os.WEXITSTATUS(os.waitpid(pid, 0)[1])").text == "9"


def test_a_forked_child_of_an_async_cell(kernel):
    kernel.run("import os, asyncio\nawait asyncio.sleep(0)\npid = os.fork()\nawait asyncio.sleep(0)")
    assert kernel.run("os.WEXITSTATUS(os.waitpid(pid, 0)[1])").text == "0"


def test_a_child_forked_by_c(kernel):
    code = "import ctypes, os\npid = ctypes.CDLL(None).fork()\nif pid == 0:\n    display('child')\n    os._exit(0)\nos.waitpid(pid, 0)[1]"
    outcome = kernel.run(code)
    assert outcome.text == "0" and len(outcome.results) == 1


def test_a_child_outlives_the_cell(kernel):
    kernel.run("import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(1000)\n    os._exit(0)")
    assert kernel.run("1 + 1").text == "2"
    kernel.run("os.kill(pid, 9); os.waitpid(pid, 0);")


def test_patched_display(kernel):
    kernel.run("import IPython.display as d, sys\nd.display = None\nsys.displayhook = lambda v: 1 / 0")
    assert kernel.run("5").status in ("ok", "error")
    kernel.run("get_ipython().display_pub.publish = lambda *a, **k: 1 / 0")
    assert kernel.run("display(5)").status == "error"
    assert kernel.run("x = 1").status == "ok"


def test_deleted_builtins(fresh):
    kernel = fresh()
    number = kernel.start(
        "import builtins\nfor n in ('len', 'isinstance', 'str', 'repr', 'open', 'getattr'):\n    delattr(builtins, n)"
    )
    try:
        kernel.finish(number)
        kernel.run("1 + 1")
    except driver.Ended:
        assert kernel.ended() != 0


def test_closed_standard_output(kernel):
    kernel.run("import sys; sys.stdout.close()")
    outcome = kernel.run("print('again')\n1 + 1")
    assert outcome.text == "2" and outcome.stdout == "again\n"
    kernel.run("sys.__stderr__.close()")
    assert kernel.run("import warnings; warnings.warn('hey')").stderr.startswith("Cell In[")


DESCRIPTORS = {
    "closed": "os.close(1); os.close(2)",
    "replaced": "for fd in (1, 2):\n    os.dup2(os.open('/dev/null', os.O_WRONLY), fd)",
    "exchanged": "os.dup2(1, 5); os.dup2(2, 1); os.dup2(5, 2)",
    "taken by a file": "os.close(1)\nfile = open('taken', 'w')",
}


@pytest.mark.parametrize("code", DESCRIPTORS.values(), ids=DESCRIPTORS.keys())
def test_descriptors_of_output_are_restored(fresh, code):
    kernel = fresh()
    kernel.run(f"import os, sys\n{code}")
    outcome = kernel.run("print('again'); print('there', file=sys.stderr)\n!echo child")
    assert (outcome.status, outcome.stdout, outcome.stderr) == ("ok", "again\nchild\n", "there\n")


def test_children_release_the_output(fresh):
    """A pipe ends for its reader as soon as a forked child has closed its descriptors."""
    kernel = fresh()
    code = "import os, sys\nr, w = os.pipe()\nif os.fork() == 0:\n    os.close(r)\n    os.closerange(0, 3)\n"
    code += "    os.write(w, repr([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]).encode())\n"
    code += "    os._exit(0)\nos.close(w)\n(os.readlink('/proc/self/fd/1') in open(r).read(), os.wait()[1])"
    assert kernel.run(code).text == "(False, 0)"


def test_invalid_stdout(fresh):
    kernel = fresh()
    kernel.run("import sys; sys.stdout = 5; sys.stderr = None")
    assert kernel.run("1 + 1").text == "2"


def test_deep_recursion_of_code(kernel):
    outcome = kernel.run("-" * 3000 + "1")
    assert outcome.status in ("ok", "error")
    assert kernel.run("1").text == "1"


def test_recursion_without_limit(fresh):
    """Either Python stops it, or the process dies; nothing hangs."""
    kernel = fresh()
    number = kernel.start("import sys\nsys.setrecursionlimit(10**9)\ndef f(n):\n    return f(n - 1) if n else 1 / 0\nf(100_000)")
    try:
        outcome = kernel.finish(number)
        assert outcome.status == "error" and len(outcome.error["traceback"]) < 256 * 1024
    except driver.Ended:
        assert kernel.ended() < 0


def test_out_of_memory(fresh):
    kernel = fresh()
    kernel.run("import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))")
    outcome = kernel.run("x = b'x' * (4 << 30)")
    assert outcome.error["name"] == "MemoryError"
    assert kernel.run("1 + 1").text == "2"


def test_descriptors_run_out(fresh):
    kernel = fresh()
    outcome = kernel.run(
        "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nfs = []\nwhile True:\n    fs.append(open('/dev/null'))"
    )
    assert outcome.error["name"] == "OSError"
    assert kernel.run("fs.clear()\n1 + 1").text == "2"


def test_signal_handler_is_restored(kernel):
    kernel.run("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    outcome = kernel.run(HELLO + "import time\ntime.sleep(1000)", interrupt="running")
    assert outcome.status == "interrupted"
