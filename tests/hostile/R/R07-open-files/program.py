import array
import fcntl
import os
import resource
import socket
import time

import probe

LIMIT, MOST = 256, 600
NOFILE = resource.RLIMIT_NOFILE


def open_many():
    files = []
    try:
        while len(files) < MOST:
            files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        answer = probe.name_of(error.errno)
        return f"{answer} at the limit" if files[-1] < LIMIT else f"{answer} after {len(files)}"
    return "ok"


def dup_many():
    made = 0
    try:
        while made < MOST:
            os.dup(0)
            made += 1
    except OSError as error:
        return probe.name_of(error.errno)
    return "ok"


probe.say("open", probe.in_child(open_many))
probe.say("dup", probe.in_child(dup_many))
probe.errno("a number above the limit", lambda: fcntl.fcntl(0, fcntl.F_DUPFD, LIMIT + 10))
try:
    resource.setrlimit(NOFILE, (1 << 19, 1 << 19))
    probe.say("raise the limit", "ok" if resource.getrlimit(NOFILE)[1] > LIMIT else "no change")
except (OSError, ValueError) as error:
    probe.say("raise the limit", "EPERM" if isinstance(error, ValueError) else probe.name_of(error.errno))
try:
    resource.prlimit(1, NOFILE, (16, 16))
    probe.say("raise the guest's", "ok")
except PermissionError:
    probe.say("raise the guest's", "EPERM")


def in_flight():
    """Sends descriptors that only a socket's queue holds."""
    pairs, sent = [], 0
    try:
        while sent < MOST:
            pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
            for _ in range(4):
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 25))]
                pairs[-1][0].sendmsg([b"x"], ancillary)
                sent += 25
    except OSError as error:
        return probe.name_of(error.errno)
    return "ok"


probe.say("files in flight", probe.in_child(in_flight))
# All processes at once, for the host to count.
children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        open_many()
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
        time.sleep(0.5)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
