import os
import signal
import subprocess
import sys

import host

COUNTER = """
import signal, sys
got = []
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, lambda number, frame: got.append(number))
print("ready", flush=True)
sys.stdin.readline()
print(got, flush=True)
"""
neighbour = host.spawn(code=COUNTER, language="python")
decoy = subprocess.Popen([sys.executable, "-c", COUNTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for process in (neighbour, decoy):
    process.stdout.readline()


def below(pid):
    """Returns the host's pids of a process and its descendants."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return [pid]
    return [pid, *[number for child in children for number in below(child)]]


numbers = [decoy.pid, os.getpid(), *below(neighbour.pid)]
host.relay(host.run("program.py", *map(str, numbers), flags=["--timeout", "15s"]))
for name, process in [("neighbour", neighbour), ("process of the host", decoy)]:
    said = process.communicate(b"\n", timeout=10)[0].decode().strip()
    host.say(name, "lives and got no signal" if said == "[]" and process.returncode == 0 else f"{process.returncode} {said}")
