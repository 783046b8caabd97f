"""Doubles itself eight times, which would result in 256 processes that sleep for a second."""

import os
import time

import probe

LIMIT = 64
answer, tell = os.pipe()
main = os.getpid()

children = []
for _ in range(8):
    try:
        pid = os.fork()
    except OSError as error:
        os.write(tell, f"{probe.name_of(error.errno)}\n".encode())
        continue
    if pid == 0:
        children = []
    else:
        children.append(pid)
if os.getpid() != main:
    time.sleep(1)
    os._exit(0)
time.sleep(0.3)
here = [name for name in os.listdir("/proc") if name.isdigit()]
os.set_blocking(answer, False)
try:
    errors = set(os.read(answer, 65536).decode().split())
except BlockingIOError:
    errors = {"ok"}
probe.say("a fork", " and ".join(sorted(errors)))
probe.say("processes at once", "within the limit" if len(here) <= LIMIT + 1 else len(here))
for child in children:
    os.waitpid(child, 0)
# Orphans of orphans end a moment later.
deadline = time.monotonic() + 3
while len([name for name in os.listdir("/proc") if name.isdigit()]) > 2 and time.monotonic() < deadline:
    time.sleep(0.01)
probe.say("a fork after the bomb", probe.in_child(lambda: "ok"))
