import ctypes
import os
import subprocess
import sys
import threading

import probe

SET_MODE_FILTER, GET_ACTION_AVAIL, NEW_LISTENER, TSYNC = 1, 2, 8, 1


def mode():
    return probe.status("Seccomp", "thread-self"), probe.status("NoNewPrivs", "thread-self")


def here():
    return f"mode {mode()[0]}, no new privileges {mode()[1]}, unshare {probe.outcome('unshare', 0x10000000)}"


probe.say("program", here())
answers = []
thread = threading.Thread(target=lambda: answers.append(here()))
thread.start()
thread.join()
probe.say("thread", answers[0])
probe.say("fork", probe.in_child(here))
probe.say("fork of a fork", probe.in_child(lambda: probe.in_child(here)))
grep = subprocess.run(["grep", "-h", "^Seccomp:", "/proc/self/status"], capture_output=True, text=True, check=True)
probe.say("program of its own", "mode " + grep.stdout.split()[1])
code = "import probe; print(probe.outcome('unshare', 0x10000000))"
env = {**os.environ, "PYTHONPATH": os.path.dirname(probe.__file__)}
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
probe.say("program of its own, unshare", child.stdout.strip())
probe.say("after setsid and a double fork", probe.in_child(lambda: (os.setsid(), probe.in_child(here))[1]))

# A filter that allows everything: a second one cannot relax the first.
allow = (ctypes.c_uint16 * 4)(0x06, 0, 0, 0x7FFF)
program = ctypes.create_string_buffer((1).to_bytes(8, "little") + ctypes.addressof(allow).to_bytes(8, "little"), 16)
for name, flags in [("listener", NEW_LISTENER), ("listener for all threads", NEW_LISTENER | TSYNC | 16), ("listener, a bit above", NEW_LISTENER | 1 << 32)]:
    probe.say(name, probe.in_child(lambda flags=flags: probe.outcome("seccomp", SET_MODE_FILTER, flags, program)))


def second():
    outcome = probe.outcome("seccomp", SET_MODE_FILTER, 0, program)
    return f"{outcome}, filters {probe.status('Seccomp_filters')}, {here()}"


probe.say("second filter that allows all", probe.in_child(second))
probe.say("strict mode off again", probe.in_child(lambda: probe.outcome("prctl", 22, 0, 0, 0, 0)))
probe.say("no new privileges off again", probe.in_child(lambda: probe.outcome("prctl", 38, 0, 0, 0, 0)))
