import ctypes
import subprocess
import sys

import probe

LAYOUT = "import re\nprint([line.split('-')[0] for line in open('/proc/self/maps') if re.search('stack|libc|heap', line)][0:9:4])"


def layouts():
    """Returns the addresses of the stack, the heap and libc in three programs."""
    return {subprocess.run([sys.executable, "-c", LAYOUT], capture_output=True, check=True).stdout for _ in range(3)}


FLAGS = {
    "ADDR_NO_RANDOMIZE": 0x40000, "READ_IMPLIES_EXEC": 0x400000, "MMAP_PAGE_ZERO": 0x100000, "ADDR_COMPAT_LAYOUT": 0x200000,
    "ADDR_LIMIT_3GB": 0x8000000, "PER_BSD": 6, "randomisation off, 32 bits": 0x40008,
}
for name, flags in FLAGS.items():
    probe.syscall(f"personality {name}", "personality", flags)
probe.syscall("personality, only asked", "personality", 0xFFFFFFFF)
entry = (ctypes.c_uint32 * 4)(0, 0, 0xFFFFF, 0x51)
probe.syscall("modify_ldt, read", "modify_ldt", 0, ctypes.create_string_buffer(64), 64)
probe.syscall("modify_ldt, write", "modify_ldt", 1, entry, 16)
probe.syscall("iopl", "iopl", 3)
# Releasing a port that was never acquired needs no privilege.
probe.syscall("iopl 0", "iopl", 0)
probe.syscall("ioperm", "ioperm", 0x80, 1, 1)
probe.syscall("ioperm off", "ioperm", 0x80, 1, 0)
ARCH = {"MAP_VDSO_X32": 0x2001, "MAP_VDSO_32": 0x2002, "SET_CPUID": 0x1012, "GET_CPUID": 0x1011, "LAM": 0x4002, "nonsense": 0x7777}
for name, code in ARCH.items():
    probe.syscall(f"arch_prctl {name}", "arch_prctl", code, 1)
probe.syscall("memory map that others believe", "prctl", 35, 1, 0, 0, 0)
probe.say("addresses", "differ" if len(layouts()) == 3 else "are the same")
