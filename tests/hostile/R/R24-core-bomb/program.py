import ctypes
import mmap
import os
import resource
import signal

import probe

MIB = 1 << 20
# Without the limit each core is written, or piped to a helper, so there are few then.
CORE = resource.RLIMIT_CORE
TIMES, MOST_CORES = 100, 3


def raise_limit():
    try:
        resource.setrlimit(CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return "ok" if resource.getrlimit(CORE)[0] == resource.RLIM_INFINITY else "no change"
    except (ValueError, PermissionError):
        return "EPERM"


def crash(number=signal.SIGSEGV, before=lambda: None):
    pid = os.fork()
    if pid == 0:
        before()
        os.kill(os.getpid(), number)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status), os.WCOREDUMP(status)


def hide():
    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


probe.say("raise the limit", raise_limit())
held = mmap.mmap(-1, 32 * MIB)
for start in range(0, 32 * MIB, mmap.PAGESIZE):
    held[start] = 1
crashes = cores = 0
while crashes < TIMES and cores < MOST_CORES:
    ended, dumped = crash()
    crashes += ended
    cores += dumped
probe.say("crashes", crashes)
probe.say("with a core", cores)
dumped = any(crash(number)[1] for number in (signal.SIGABRT, signal.SIGQUIT, signal.SIGBUS, signal.SIGSYS))
probe.say("a core by another signal", "core" if dumped else "no core")
probe.say("a crash without being dumpable", "core" if crash(before=hide)[1] else "no core")
found = [name for place in (".", "/tmp", "/dev/shm", "/var/tmp", "/") for name in os.listdir(place) if name.startswith("core")]
probe.say("cores inside", ", ".join(found[:3]) or "none")
