import ctypes
import os

import probe
from probe import CLONE_NEW

SIGCHLD = 17


def clone(flags):
    """Calls clone without a new stack, which is a fork. The child ends at once."""
    pid, error = probe.raw("clone", flags | SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if error:
        return probe.name_of(error)
    os.waitpid(pid, 0)
    return "ok"


def clone3(flags):
    arguments = (ctypes.c_uint64 * 11)(flags, 0, 0, 0, SIGCHLD)
    pid, error = probe.raw("clone3", arguments, ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    if error:
        return probe.name_of(error)
    os.waitpid(pid, 0)
    return "ok"


for kind, flag in CLONE_NEW.items():
    # In a child, because unsharing cannot be undone.
    probe.say(f"unshare {kind}", probe.in_child(lambda flag=flag: probe.outcome("unshare", flag)))
    if kind != "time":
        # For clone the flag for time is part of the exit signal.
        probe.say(f"clone {kind}", clone(flag))
probe.say("clone user and all others", clone(sum(CLONE_NEW.values()) - CLONE_NEW["time"]))
probe.say("clone3 user", clone3(CLONE_NEW["user"]))
probe.say("capabilities afterwards", "none" if int(probe.status("CapEff"), 16) == 0 else probe.status("CapEff"))
