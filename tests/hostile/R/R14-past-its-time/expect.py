import os
import time

import host

TIMEOUT, GRACE, SLACK = 0.7, 2.0, 1.0

ATTACKS = {
    "sleep": "import time\ntime.sleep(15)",
    "spin": "import time\nend = time.monotonic() + 15\nwhile time.monotonic() < end: pass",
    "stop itself": "import os\nos.kill(os.getpid(), 19)",
    "stop everybody": """
import os, time
for _ in range(10):
    if os.fork() == 0: time.sleep(15); os._exit(0)
os.kill(-1, 19)
os.kill(os.getpid(), 19)
""",
    "close everything": "import os, time\nos.closerange(0, 1000)\ntime.sleep(15)",
    "wait for a stopped child": """
import os, signal
pid = os.fork()
if pid == 0: os.kill(os.getpid(), 19)
os.waitpid(pid, 0)
""",
}

running = {}
for name, code in ATTACKS.items():
    process = host.spawn(code=code, language="python", flags=["--timeout", f"{int(TIMEOUT * 1000)}ms"], json_result=True)
    running[name] = (process, time.monotonic())
ends = {}
while len(ends) < len(running):
    for name, (process, begin) in running.items():
        if name not in ends and process.poll() is not None:
            ends[name] = time.monotonic() - begin
    time.sleep(0.01)
for name, (process, _) in running.items():
    done = host.finish(process)
    killed = done.result["signal"] == "SIGKILL"
    latest = TIMEOUT + (GRACE if killed else 0) + SLACK
    when = "in time" if ends[name] <= latest else f"after {ends[name]:.1f} s"
    host.say(name, f"{done.kind}, {done.status}, {done.result['signal']}, {when}")
