import ctypes
import os
import resource
import struct
import sys
import time

import probe


def priority(which, who, value):
    return probe.in_child(lambda: probe.outcome("setpriority", which, who, value))


def scheduler(policy, value):
    """Sets a policy in a child that ends at once, so that nothing runs with it."""
    parameter = ctypes.create_string_buffer(struct.pack("i", value))
    return probe.in_child(lambda: probe.outcome("sched_setscheduler", 0, policy, parameter))


def deadline():
    millisecond = 1_000_000
    attributes = struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, millisecond, 10 * millisecond, 10 * millisecond)
    buffer = ctypes.create_string_buffer(attributes)
    return probe.in_child(lambda: probe.outcome("sched_setattr", 0, buffer, 0))


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def raise_limit():
    try:
        resource.setrlimit(resource.RLIMIT_RTPRIO, (50, 50))
        return "ok"
    except (ValueError, PermissionError):
        return "EPERM"


if sys.argv[1] == "ask":
    probe.say("nice -20", priority(0, 0, -20))
    probe.say("nice -1 for the group", priority(1, 0, -1))
    probe.say("SCHED_FIFO", scheduler(1, 50))
    probe.say("SCHED_RR", scheduler(2, 1))
    probe.say("SCHED_DEADLINE", deadline())
    REAL_TIME = 1 << 13
    probe.say("I/O real-time", probe.in_child(lambda: probe.outcome("ioprio_set", 1, 0, REAL_TIME)))
    probe.errno("autogroup", lambda: write("/proc/self/autogroup", "-20"))
    probe.say("raise the limit", raise_limit())
else:
    end = time.monotonic() + 1.5
    children = [os.fork()]
    while children[-1] and len(children) < 7:
        children.append(os.fork())
    while time.monotonic() < end:
        pass
    if not children[-1]:
        # With a twentieth of a processor, even the interpreter's shutdown is slow.
        os._exit(0)
    for pid in children:
        os.waitpid(pid, 0)
