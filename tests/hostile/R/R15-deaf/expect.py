import os
import time

import host

TIMEOUT, GRACE, SLACK = 0.7, 2.0, 1.2
MARK = f"deaf-{os.getpid()}-{time.monotonic_ns()}"

EACH = "for number in range(1, 65):\n    try: signal.signal(number, {})\n    except (OSError, ValueError): pass\n"
HEAD = "import os, signal, sys, time\nend = time.monotonic() + 15\n"
TAIL = "while time.monotonic() < end: time.sleep(0.05)\n"
ATTACKS = {
    "ignores": HEAD + EACH.format("signal.SIG_IGN") + TAIL,
    "catches": HEAD + EACH.format("lambda *_: None") + TAIL,
    "blocks": HEAD + "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n" + TAIL,
    # The first process ends on SIGTERM; its child in another session does not.
    "a deaf child": HEAD + "if os.fork() == 0:\n    os.setsid()\n    " + EACH.format("signal.SIG_IGN").replace("\n", "\n    ").rstrip() + "\n" + TAIL,
    # On each SIGTERM another process continues, 60 times at most.
    "always another": HEAD + """
left = 60
def again(*_):
    global left
    left -= 1
    if left > 0 and os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, again)
""" + TAIL,
}

running = {}
for name, code in ATTACKS.items():
    flags = ["--timeout", f"{int(TIMEOUT * 1000)}ms", "--env", f"MARK={MARK}"]
    process = host.spawn(code=code, language="python", flags=flags, json_result=True)
    running[name] = (process, time.monotonic())
ends = {}
while len(ends) < len(running):
    for name, (process, begin) in running.items():
        if name not in ends and process.poll() is not None:
            ends[name] = time.monotonic() - begin
    time.sleep(0.01)


def left():
    """Returns the processes on the host with the mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"MARK={MARK}".encode() in file.read():
                    found.append(pid)
        except OSError:
            pass
    return found


# Immediately: a process that exists when the last run has ended has outlived it.
rest = left()
for name, (process, _) in running.items():
    done = host.finish(process)
    when = "in time" if ends[name] <= TIMEOUT + GRACE + SLACK else f"after {ends[name]:.1f} s"
    signal = f", {done.result['signal']}" if name in ("ignores", "catches", "blocks") else ""
    host.say(name, f"{done.kind}{signal}, {when}")
host.say("processes left on the host", ", ".join(rest) or "none")
