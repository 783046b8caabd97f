import os
import shutil
import socket
import time

import host

work = host.scratch(0o777)
target = os.path.join(work, "target")
# Duration of an ordinary run, so that a slow machine is not mistaken for a hang.
begin = time.monotonic()
host.run(code="true", language="sh")
usual = time.monotonic() - begin
slowest = 0.0


def say(name, **options):
    global slowest
    begin = time.monotonic()
    done = host.run(**options)
    slowest = max(slowest, time.monotonic() - begin)
    if done.status != 125 or os.path.lexists(target):
        host.say(name, f"{done}")
        return
    kinds = ["a FIFO", "a socket", "a directory", "a device", "a symbolic link"]
    kind = next((kind for kind in kinds if f"is {kind}" in done.stderr), None)
    if "at most" in done.stderr:
        kind = "too long"
    host.say(name, f"refused: {kind}" if kind else "refused")


def bring(name, setup, inside="x", language="sh"):
    say(f"bring {name}", code=setup, language=language, flags=["-o", f"{inside}:{target}"])


bring("a FIFO", "mkfifo x")
bring("a FIFO with a writer", "mkfifo x; (sleep 5 3<>x >/dev/null 2>&1 &)")
bring("a socket", "import socket; socket.socket(socket.AF_UNIX).bind('x')", language="python")
for name in ["/dev/zero", "/dev/tty", "/dev/ptmx", "/dev/pts/ptmx"]:
    bring(name, "true", name)
bring("a sparse file", "truncate -s 1T x")
bring("a file without rights", "echo x > x; chmod 0 x")
for name, setup in [("a directory with a FIFO", "mkfifo x/f"), ("a directory with a link to /", "ln -s / x/l")]:
    done = host.run(code=f"mkdir x; echo x > x/file; {setup}", language="sh", flags=["-o", f"x:{target}"])
    came = sorted(os.listdir(target)) if os.path.isdir(target) else "nothing"
    host.say(f"bring {name}", f"{came} came" if done.status == 125 else f"{done}")
    shutil.rmtree(target, ignore_errors=True)
fifo, listening = os.path.join(work, "fifo"), os.path.join(work, "socket")
os.mkfifo(fifo)
socket.socket(socket.AF_UNIX).bind(listening)
say("put a FIFO of the host", code="true", language="sh", flags=["-f", f"{fifo}:x"])
say("put a socket of the host", code="true", language="sh", flags=["-f", f"{listening}:x"])
os.unlink(listening)
say("put a directory with a FIFO", code="true", language="sh", flags=["-f", f"{work}:x"])
say("a script that is a FIFO", program=fifo, language="sh")
host.say("slowest", "at once" if slowest < usual + 10 else f"{slowest:.1f} s, an honest run takes {usual:.1f} s")
