"""Runs itself in a pid namespace with few pids where possible (Linux 6.14), so that they are soon reused."""

import os
import signal
import subprocess
import sys
import time

import host

if "inside" not in sys.argv:
    host.relay(host.run("program.py", "ask"))
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, os.path.abspath(__file__), "inside"]
    sys.exit(subprocess.run(argv, check=False).returncode)

# Before 6.14 the maximum applies to the whole machine, and stays unchanged.
is_small = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 14)
if is_small:
    with open("/proc/sys/kernel/pid_max", "w", encoding="ascii") as file:
        # The kernel's minimum is 301, and pids below 300 are assigned only once.
        file.write("460")


def steady():
    """Starts processes that live for the whole case."""
    return [subprocess.Popen(["sleep", "60"], start_new_session=index % 2 == 0) for index in range(8)]


decoys, hit, seen, again = steady(), 0, set(), 0
kinds = set()
for _ in range(3):
    attacks = [host.spawn("program.py", flags=["--timeout", "600ms", "--pids", "24"], json_result=True) for _ in range(2)]
    # Short-lived decoys take the pids that have just become free.
    while any(attack.poll() is None for attack in attacks):
        try:
            brief = [subprocess.Popen(["sleep", "0.02"]) for _ in range(6)]
        except BlockingIOError:
            continue
        again += sum(process.pid in seen for process in brief)
        seen |= {process.pid for process in brief}
        hit += sum(process.wait() < 0 for process in brief)
    for attack in attacks:
        kinds.add(host.finish(attack).kind)
host.say("numbers", "used again" if again or not is_small else "never twice")
host.say("runs", " and ".join(sorted(kinds)))
host.say("decoys that belljar hit", hit)
host.say("decoys that live on", "all" if all(decoy.poll() is None for decoy in decoys) else "not all")
for decoy in decoys:
    decoy.send_signal(signal.SIGKILL)
    decoy.wait()
