import time

import host

PROGRAM = """
import os, sys, time
os.write(1, b"before\\n")
{}
os._exit(7)
"""
# Each ends by itself after some seconds.
STAYS = "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(12)\n    os._exit(0)\nos.wait()"
WRITES = "if os.fork() == 0:\n    os.setsid()\n    end = time.monotonic() + 12\n    while time.monotonic() < end: os.write(2, bytes(4096))\n    os._exit(0)"
PIPES = "files = [os.dup(index % 2 + 1) for index in range(500)]\n" + STAYS


def timed(code):
    begin = time.monotonic()
    done = host.run(code=code, language="python", flags=["--output", "64k"])
    return f"{done.output.strip()}, {done.status}", time.monotonic() - begin


quick = []
for _ in range(3):
    answer, took = timed(PROGRAM.format(""))
    quick.append(took)
host.say("nobody stays", answer)
for name, then in [
    ("a silent grandchild", STAYS), ("a writing grandchild", WRITES),
    ("a grandchild with a terminal's worth of pipes", PIPES),
]:
    answer, took = timed(PROGRAM.format(then))
    later = took - min(quick)
    host.say(name, f"{answer}, " + ("hardly later" if later < 6 else f"{later:.2f} s later"))
lost = 0
for _ in range(5):
    # Fits into the pipe, and is there when its writer ends.
    code = "import os\nif os.fork() == 0:\n    import time; time.sleep(12)\nos.write(1, b'x' * 65000)\nos._exit(0)"
    lost += 65000 - len(host.run(code=code, language="python").output)
host.say("what was written just before the end", "complete" if lost == 0 else f"{lost} bytes are lost")
