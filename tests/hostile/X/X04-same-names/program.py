import ctypes
import os
import socket
import sys

import probe

CREATE, EXCLUSIVE, REMOVE = 0o1000, 0o2000, 0
key, name, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def made_anew(what, attempt, remove):
    """Creates an object, which must work as if the neighbour's did not exist."""
    try:
        value = attempt()
    except OSError as error:
        probe.say(what, probe.name_of(error.errno))
        return
    remove(value)
    probe.say(what, "not the neighbour's")


def raw(*args):
    returned, error = probe.raw(*args)
    if returned == -1:
        raise OSError(error, "")
    return returned


def abstract():
    reached = socket.socket(socket.AF_UNIX).connect_ex("\0" + name)
    if reached == 0:
        raise OSError(17, "")
    made = socket.socket(socket.AF_UNIX)
    made.bind("\0" + name)
    return made


probe_remove = lambda value: None
made_anew("abstract socket", abstract, lambda value: value.close())
made_anew("shared memory by key", lambda: raw("shmget", key, 4096, CREATE | EXCLUSIVE | 0o666),
          lambda value: probe.libc.shmctl(value, REMOVE, None))
probe.libc.shmat.restype = ctypes.c_long


def attach():
    if probe.libc.shmat(number, None, 0) == -1:
        raise OSError(ctypes.get_errno(), "")


probe.errno("shared memory by number", attach)
made_anew("semaphores by key", lambda: raw("semget", key, 1, CREATE | EXCLUSIVE | 0o666),
          lambda value: probe.libc.semctl(value, 0, REMOVE))
made_anew("queue by key", lambda: raw("msgget", key, CREATE | EXCLUSIVE | 0o666),
          lambda value: probe.libc.msgctl(value, REMOVE, None))


def posix_queue():
    path = ctypes.c_char_p(f"/{name}".encode())
    there = probe.libc.mq_open(path, os.O_RDWR, 0, None)
    if there != -1:
        raise OSError(17, "")


made_anew("POSIX queue", posix_queue, probe_remove)
for what, place in [("POSIX shared memory", f"/dev/shm/{name}"), ("file of /tmp", f"/tmp/{name}")]:
    made_anew(what, lambda: os.open(place, os.O_CREAT | os.O_EXCL | os.O_RDWR), os.close)
listed = []
for kind in ("shm", "sem", "msg"):
    try:
        with open(f"/proc/sysvipc/{kind}") as lines:
            listed += [line for line in lines.read().splitlines()[1:]]
    except OSError:
        pass
probe.say("lists in /proc/sysvipc", " ".join(listed) or "its own")
