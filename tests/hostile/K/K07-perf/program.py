import ctypes
import os

import probe

HARDWARE, SOFTWARE, TRACEPOINT, RAW = 0, 1, 2, 4
EXCLUDE_KERNEL_AND_HYPERVISOR, DISABLED = (1 << 5) | (1 << 6), 1


def event(name, kind, config, pid=0, cpu=-1, flags=0):
    attributes = kind.to_bytes(4, "little") + (128).to_bytes(4, "little") + config.to_bytes(8, "little") + bytes(24)
    attributes += (EXCLUDE_KERNEL_AND_HYPERVISOR | DISABLED).to_bytes(8, "little")
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    descriptor, error = probe.raw("perf_event_open", buffer, pid, cpu, -1, flags)
    probe.say(name, probe.name_of(error) if error else "ok")
    if not error:
        os.close(descriptor)


event("software, task clock", SOFTWARE, 1)
event("software, page faults", SOFTWARE, 2)
event("hardware, cycles", HARDWARE, 0)
event("trace point", TRACEPOINT, 1)
event("raw", RAW, 0x3C)
event("whole processor", SOFTWARE, 0, pid=-1, cpu=0)
event("first process", SOFTWARE, 1, pid=1)
# The kernel itself would answer EINVAL.
event("unknown flags", SOFTWARE, 1, flags=0x7FFF0000)
events = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd != "3"]
probe.say("events afterwards", "none" if not any("perf" in event for event in events) else "some")
