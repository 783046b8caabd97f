import ctypes
import errno
import os

import host

NEIGHBOUR = """
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.inotify_init1(0) < 0
print("inotify:", errno.errorcode[ctypes.get_errno()] if failed else "ok")
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
failed = any([libc.sigqueue(os.getpid(), 40, None) for _ in range(100)])
print("signals:", errno.errorcode[ctypes.get_errno()] if failed else "ok")
"""
libc = ctypes.CDLL(None, use_errno=True)


def aio():
    with open("/proc/sys/fs/aio-nr", encoding="ascii") as file:
        return int(file.read())


def outcome(value):
    return errno.errorcode[ctypes.get_errno()] if value < 0 else "ok"


before = aio()
attack = host.spawn("program.py")
for line in iter(attack.stdout.readline, b""):
    if line == b"holding: all\n":
        break
    print(line.decode(), end="", flush=True)
else:
    raise SystemExit(f"the attack ended early: {attack.stderr.read()}")
file = libc.inotify_init1(0)
host.say("inotify for the host's root", outcome(file))
if file >= 0:
    os.close(file)
name = f"/hostile-{os.getpid()}".encode()
queue = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
host.say("message queues for the host's root", outcome(queue))
if queue >= 0:
    os.close(queue)
    libc.mq_unlink(name)
answers = dict(line.split(": ") for line in host.run(code=NEIGHBOUR, language="python").output.splitlines())
host.say("inotify for a neighbour", answers["inotify"])
host.say("signals for a neighbour", answers["signals"])
# A context of 4096 events counts double, and more with many processors; others may use some as well.
host.say("aio in use on the host", "as before" if aio() - before < 4096 else f"{aio() - before} more")
attack.stdin.close()
attack.stdin = None
host.finish(attack)
