import os

import probe
from probe import CLONE_NEW

KINDS = {"user": "user", "mnt": "mount", "pid": "pid", "net": "net", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup", "time": "time"}


def mine():
    return {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in KINDS}


before = mine()
for kind, name in KINDS.items():
    with open(f"/proc/self/ns/{kind}", "rb") as namespace:
        probe.syscall(f"own {kind}", "setns", namespace.fileno(), 0)
        probe.syscall(f"own {kind} by type", "setns", namespace.fileno(), CLONE_NEW[name])


def of_first_process(kind):
    with open(f"/proc/1/ns/{kind}", "rb") as namespace:
        return probe.outcome("setns", namespace.fileno(), 0)


def attempt(name, kind):
    try:
        probe.say(name, of_first_process(kind))
    except OSError as error:
        probe.say(name, probe.name_of(error.errno))


for kind in ["user", "mnt", "net"]:
    attempt(f"first process's {kind}", kind)


def by_pidfd(name, pid, flags):
    process, error = probe.raw("pidfd_open", pid, 0)
    probe.say(name, probe.name_of(error) if error else probe.outcome("setns", process, flags))
    if not error:
        os.close(process)


by_pidfd("pidfd of the first process, all", 1, sum(CLONE_NEW.values()))
by_pidfd("pidfd of the first process, mount", 1, CLONE_NEW["mount"])
by_pidfd("own pidfd, user", os.getpid(), CLONE_NEW["user"])
# The kernel itself would answer EBADF.
probe.syscall("no descriptor", "setns", -1, 0)
probe.say("namespaces afterwards", "the same" if mine() == before else "others")
