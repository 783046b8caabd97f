import os
import time

import host


def state():
    """Returns the host's name, its swap areas, and its settings for Ctrl-Alt-Del and out of memory."""
    paths = ("/proc/swaps", "/proc/sys/kernel/ctrl-alt-del", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/domainname")
    found = [os.uname().nodename]
    for path in paths:
        with open(path, encoding="ascii") as file:
            # Only the names of swap areas, because their use changes.
            found.append([line.split()[0] for line in file if line.strip()])
    return found


before, apart = state(), time.time() - time.monotonic()
host.relay(host.run("program.py"))
host.say("host afterwards", "unchanged" if state() == before else "changed")
host.say("host's clock", "unchanged" if abs(time.time() - time.monotonic() - apart) < 60 else "changed")
