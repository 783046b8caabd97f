import os

import probe

USER_MODE_ONLY = 1

probe.syscall("all faults", "userfaultfd", 0)
probe.syscall("faults in user mode", "userfaultfd", USER_MODE_ONLY)
probe.syscall("faults in user mode, closed by exec", "userfaultfd", USER_MODE_ONLY | os.O_CLOEXEC | os.O_NONBLOCK)
probe.syscall("unknown flags", "userfaultfd", 0x7FFF0000)
probe.errno("the device", lambda: os.open("/dev/userfaultfd", os.O_RDWR))
