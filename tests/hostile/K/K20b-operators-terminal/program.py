import ctypes
import os

import probe

TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
COMMAND = b"\necho typed-by-the-sandbox\n"


def type_in(fd):
    answers = {}
    for byte in COMMAND:
        letter = ctypes.create_string_buffer(bytes([byte]))
        for high in (0, 1 << 32):
            answers[byte, high] = probe.outcome("ioctl", fd, TIOCSTI | high, letter)
    return probe.together(answers)


for name, fd in [("input", 0), ("output", 1), ("errors", 2)]:
    probe.say(f"TIOCSTI, standard {name}", type_in(fd))
probe.syscall("TIOCSETD", "ioctl", 0, TIOCSETD, ctypes.byref(ctypes.c_int(0)))
probe.syscall("TIOCLINUX", "ioctl", 0, TIOCLINUX, ctypes.create_string_buffer(b"\x02"))
try:
    terminal = os.open("/dev/tty", os.O_RDWR)
    probe.say("TIOCSTI, /dev/tty", type_in(terminal))
except OSError as error:
    probe.say("TIOCSTI, /dev/tty", probe.name_of(error.errno))
probe.say("end", "ok")
