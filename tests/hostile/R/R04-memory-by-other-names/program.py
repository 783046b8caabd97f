import ctypes
import mmap
import os
import sys

import probe

MIB = 1 << 20
MOST = 128
libc = probe.libc
libc.shmat.restype = ctypes.c_void_p
PIECE = bytes(MIB)


def fill(file):
    for _ in range(MOST):
        os.write(file, PIECE)
    return "ok"


def memfd():
    return fill(os.memfd_create("balloon"))


def file_in(directory):
    """Returns an attack that fills an unnamed file, which is freed with its last descriptor."""
    return lambda: fill(os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600))


def system_v():
    segment = libc.shmget(0, ctypes.c_size_t(MOST * MIB), 0o1600)
    address = libc.shmat(segment, None, 0)
    # It is freed with the last process that has it attached.
    libc.shmctl(segment, 0, None)
    ctypes.memset(address, 1, MOST * MIB)
    return "ok"


def shared():
    held = mmap.mmap(-1, MOST * MIB, flags=mmap.MAP_SHARED)
    for start in range(0, MOST * MIB, mmap.PAGESIZE):
        held[start] = 1
    return "ok"


def queues():
    """Creates and fills message queues until that fails."""
    class Attributes(ctypes.Structure):
        _fields_ = [("values", ctypes.c_long * 8)]

    held, answer = 0, "ok"
    attributes = Attributes((0, 10, 8192, 0))
    for index in range(300):
        name = f"/queue-{index}".encode()
        queue = libc.mq_open(name, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 0o600, ctypes.byref(attributes))
        if queue < 0:
            answer = probe.name_of(ctypes.get_errno())
            break
        while libc.mq_send(queue, PIECE, ctypes.c_size_t(8192), 0) == 0:
            held += 8192
    for index in range(300):
        libc.mq_unlink(f"/queue-{index}".encode())
    return f"{answer} within 1 MiB" if held <= MIB else f"{held / MIB:.1f} MiB"


MFD_HUGETLB = 4


def huge():
    """Uses a page of 2 MiB, of which the machine has none free."""
    file, error = probe.raw("memfd_create", ctypes.c_char_p(b"huge"), MFD_HUGETLB)
    if error:
        return probe.name_of(error)
    try:
        os.ftruncate(file, 2 * MIB)
        mmap.mmap(file, 2 * MIB)[0] = 1
    except OSError as failure:
        return probe.name_of(failure.errno)
    return "ok"


attacks = {
    "memfd": memfd, "System V shared memory": system_v, "POSIX shared memory": file_in("/dev/shm"),
    "shared mapping": shared, "file in /tmp": file_in("/tmp"), "file at home": file_in("."),
}
if len(sys.argv) > 1:
    attacks[sys.argv[1]]()
else:
    probe.say("huge pages", probe.in_child(huge))
    probe.say("message queues", probe.in_child(queues))
