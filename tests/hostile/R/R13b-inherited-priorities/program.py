import ctypes
import resource
import struct

import probe


def scheduler(policy, value):
    """Sets a policy in a child that ends at once, so that nothing runs with it."""
    parameter = ctypes.create_string_buffer(struct.pack("i", value))
    return probe.in_child(lambda: probe.outcome("sched_setscheduler", 0, policy, parameter))


probe.say("nice -20", probe.in_child(lambda: probe.outcome("setpriority", 0, 0, -20)))
probe.say("SCHED_FIFO", scheduler(1, 50))
probe.say("SCHED_RR", scheduler(2, 1))
try:
    resource.setrlimit(resource.RLIMIT_RTPRIO, (50, 50))
    probe.say("raise the limit", "ok")
except (ValueError, PermissionError):
    probe.say("raise the limit", "EPERM")
