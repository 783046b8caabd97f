import ctypes
import fcntl
import os
import select

import probe

TIOCSTI, TIOCLINUX, TIOCSETD, TIOCSCTTY, TIOCCONS = 0x5412, 0x541C, 0x5423, 0x540E, 0x541D
HIGH = {"": 0, ", a bit above": 1 << 32, ", all bits above": -1 << 32}
# A whole line, which can be read at once.
letter = ctypes.create_string_buffer(b"\n")
discipline = ctypes.byref(ctypes.c_int(0))

# This program's own controlling terminal, for which the kernel requires no privilege.
master, slave = os.openpty()
if os.getsid(0) != os.getpid():
    os.setsid()
fcntl.ioctl(slave, TIOCSCTTY, 0)
for where, fd in [("own terminal", slave), ("other end", master), ("standard input", 0)]:
    for bits, high in HIGH.items():
        probe.syscall(f"TIOCSTI, {where}{bits}", "ioctl", fd, TIOCSTI | high, letter)
        probe.syscall(f"TIOCSETD, {where}{bits}", "ioctl", fd, TIOCSETD | high, discipline)
    probe.syscall(f"TIOCLINUX, {where}", "ioctl", fd, TIOCLINUX, letter)
# Line disciplines that exploits load: n_hdlc, slip, ppp, gsm.
for number in (13, 1, 3, 21):
    discipline = ctypes.byref(ctypes.c_int(number))
    probe.say(f"line discipline {number}", probe.outcome("ioctl", slave, TIOCSETD, discipline) if probe.is_filtered() else "not tried")
probe.syscall("console's output", "ioctl", slave, TIOCCONS, 0)
probe.say("typed in", "nothing" if not select.select([slave], [], [], 0)[0] else "something")
size = fcntl.ioctl(slave, 0x5413, bytes(8))
probe.say("size of the terminal", "known" if len(size) == 8 else "unknown")
