"""Forks continuously, so that pids are reused: the children end at once, some of them as orphans."""

import ctypes
import os
import sys
import time

import probe


def choose():
    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
        file.write("4000")


if "ask" in sys.argv:
    probe.errno("a number of one's choice", choose)
    chosen = (ctypes.c_int * 1)(4001)
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(chosen), 1, 0)
    probe.syscall("clone3 with a number", "clone3", arguments, ctypes.sizeof(arguments))
    sys.exit(0)
end, made = time.monotonic() + 4, 0
while time.monotonic() < end and made < 6000:
    try:
        pid = os.fork()
    except OSError:
        time.sleep(0.001)
        continue
    if pid == 0:
        # Sometimes in its own session, so that a whole tree changes.
        if made % 7 == 0:
            os.setsid()
        if made % 3:
            os._exit(0)
        if os.fork():
            os._exit(0)
        os._exit(0)
    made += 1
    if made % 5:
        os.waitpid(pid, 0)
time.sleep(10)
