import ctypes
import os
import signal
import sys
import time

import probe

TRACEME, ATTACH, DETACH = 0, 16, 17


def traced():
    pid = os.fork()
    if pid == 0:
        time.sleep(5)
        os._exit(0)
    answer = probe.outcome("ptrace", ATTACH, pid, 0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return answer


def freezer():
    """Lists files that freeze a control group, anywhere."""
    found = []
    for place in ["/sys/fs/cgroup", "/sys", "/cgroup"]:
        for directory, _, names in os.walk(place):
            found += [os.path.join(directory, name) for name in names if "freez" in name]
    return ", ".join(found[:3]) or "none"


def mount():
    text = [ctypes.c_char_p(word) for word in (b"none", b"/tmp", b"fuse", b"fd=3,rootmode=40000,user_id=0,group_id=0")]
    return probe.outcome("mount", *text[:3], 0, text[3])


if sys.argv[1] == "ask":
    probe.say("trace a child", traced())
    probe.say("be traced", probe.in_child(lambda: probe.outcome("ptrace", TRACEME, 0, 0, 0)))
    probe.errno("open /dev/fuse", lambda: os.open("/dev/fuse", os.O_RDWR))
    probe.say("mount fuse", mount())
    probe.say("a freezer", freezer())
    sys.exit(0)

# Stopped processes, half of them in their own sessions.
for index in range(20):
    if os.fork() == 0:
        if index % 2:
            os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
# Uninterruptible parents, which wait for a child that does not execute another program.
libc = ctypes.CDLL(None)
CLONE_VM, CLONE_VFORK, SIGCHLD = 0x100, 0x4000, 17
for _ in range(5):
    if os.fork() == 0:
        # Without CLONE_VM the child has its own memory, and the parent waits all the same.
        if libc.syscall(ctypes.c_long(probe.number("clone")), CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
            time.sleep(15)
        os._exit(0)
# Stops all other processes, then itself.
os.kill(-1, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(15)
