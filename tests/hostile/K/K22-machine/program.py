import ctypes
import os
import time

import probe


def text(value):
    return ctypes.create_string_buffer(value.encode())


def state():
    with open("/proc/swaps", encoding="ascii") as swaps:
        return os.uname().nodename, swaps.read(), time.clock_getres(time.CLOCK_REALTIME)


before, apart = state(), time.time() - time.monotonic()
# Turns Ctrl-Alt-Del off instead of restarting, because that can be undone.
probe.syscall("reboot", "reboot", 0xFEE1DEAD, 0x28121969, 0, 0)
probe.syscall("reboot of no such kind", "reboot", 0, 0, 0, 0)
with open("swap", "wb") as file:
    file.write(bytes(40960))
probe.syscall("swapon", "swapon", text("swap"), 0)
probe.syscall("swapoff", "swapoff", text("swap"))
now = (ctypes.c_long * 2)(int(time.time()) + 3600, 0)
probe.syscall("settimeofday", "settimeofday", now, None)
probe.syscall("clock_settime", "clock_settime", 0, now)
probe.syscall("adjtimex, only read", "adjtimex", ctypes.create_string_buffer(256))
probe.syscall("clock_adjtime, only read", "clock_adjtime", 0, ctypes.create_string_buffer(256))
probe.syscall("sethostname", "sethostname", text("planted"), 7)
probe.syscall("setdomainname", "setdomainname", text("planted"), 7)
probe.syscall("acct", "acct", text("swap"))
probe.syscall("acct off", "acct", None)
# Q_SYNC of everything, which the kernel allows to every user.
probe.syscall("quotactl, sync", "quotactl", 0x800001 << 8, None, 0, None)
probe.syscall("quotactl, on", "quotactl", 0x800002 << 8, text("/dev/vda"), 0, text("swap"))
probe.syscall("quotactl_fd", "quotactl_fd", -1, 0x800007 << 8, 0, None)
buffer = ctypes.create_string_buffer(4096)
for name, kind in [("read", 2), ("read all", 3), ("clear", 5), ("console off", 6), ("size", 10)]:
    probe.syscall(f"syslog {name}", "syslog", kind, buffer, 4096)
probe.syscall("vhangup", "vhangup")
# Obsolete: it resolved the path cookies of a profiler.
probe.syscall("lookup_dcookie", "lookup_dcookie", 0, buffer, 0)
probe.errno("kernel's log", lambda: os.open("/dev/kmsg", os.O_RDONLY))
probe.errno("sysrq", lambda: open("/proc/sysrq-trigger", "w").write("h"))
probe.errno("out of memory for all", lambda: open("/proc/sys/vm/panic_on_oom", "w").write("1"))
probe.say("kernel's log, read", "nothing" if not buffer.value.strip(b"\0") else "something")
probe.say("name and swap afterwards", "the same" if state() == before else "others")
probe.say("clock afterwards", "the same" if abs(time.time() - time.monotonic() - apart) < 60 else "another")
