import os
import time

import host

MARK = f"frozen-{os.getpid()}-{time.monotonic_ns()}"
host.relay(host.run("program.py", "ask"))
begin = time.monotonic()
done = host.run("program.py", "freeze", flags=["--timeout", "500ms", "--env", f"MARK={MARK}"])
took = time.monotonic() - begin
latest = 0.5 + (2 if done.result["signal"] == "SIGKILL" else 0) + 1
host.say("the run", f"{done.kind}, " + ("in time" if took < latest else f"after {took:.1f} s"))
left = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if f"MARK={MARK}".encode() in file.read().split(b"\0"):
                left.append(pid)
    except OSError:
        pass
host.say("processes left on the host", ", ".join(left) or "none")
