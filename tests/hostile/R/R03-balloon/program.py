import ctypes
import mmap
import os
import time

import probe

MIB = 1 << 20
MOST = 160


def inflate(mib):
    held = mmap.mmap(-1, mib * MIB)
    for start in range(0, mib * MIB, mmap.PAGESIZE):
        held[start] = 1
    return "ok"


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def eight():
    """Starts eight processes: each takes less than the limit, all together more."""
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            inflate(24)
            os.read(reader, 1)
            os._exit(0)
        children.append(pid)
    # None frees memory before all have theirs, or one has been killed.
    ends = []
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and not any(os.WIFSIGNALED(status) for status in ends):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ends.append(status)
            children.remove(pid)
        time.sleep(0.01)
    os.write(writer, b"x" * 8)
    ends += [os.waitpid(pid, 0)[1] for pid in children]
    signals = {os.WTERMSIG(status) for status in ends if os.WIFSIGNALED(status)}
    return " and ".join(f"killed by signal {signal}" for signal in signals) or "ok"


def lock(held):
    address = ctypes.addressof(ctypes.c_char.from_buffer(held))
    failed = probe.libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(MIB))
    return probe.name_of(ctypes.get_errno()) if failed else "ok"


probe.errno("never be killed", lambda: write("/proc/self/oom_score_adj", "-1000"))
probe.errno("guest first", lambda: write("/proc/1/oom_score_adj", "1000"))
probe.say("balloon", probe.in_child(lambda: inflate(MOST)))
held = mmap.mmap(-1, MIB)
probe.say("locked balloon", lock(held))
reader, writer = os.pipe()
probe.say("eight balloons", eight())
probe.say("afterwards", probe.in_child(lambda: inflate(8)))
inflate(MOST)
