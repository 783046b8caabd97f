import ctypes
import fcntl
import os
import select
import socket
import sys

import probe

name, key, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def watch(path):
    number = probe.libc.inotify_init1(os.O_NONBLOCK)
    probe.libc.inotify_add_watch(number, ctypes.c_char_p(path.encode()), 0xFFF)
    return number


def can_lock(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False


def counts():
    with open("/proc/self/cgroup") as file:
        group = file.read()
    return len([pid for pid in os.listdir("/proc") if pid.isdigit()]), os.uname().nodename, group


for place in ["/tmp", "/dev/shm", "/home/user"]:
    with open(f"{place}/{name}", "w"):
        pass
own, system = watch("/tmp"), watch("/usr/lib/os-release")
before = counts()
print("ready", flush=True)
sys.stdin.readline()


def signal(what, seen):
    probe.say(what, "SIGNAL" if seen else "no signal")


signal("abstract socket", socket.socket(socket.AF_UNIX).connect_ex("\0" + name) == 0)
signal("port", socket.socket().connect_ex(("127.0.0.1", port)) == 0)
signal("SysV key", probe.raw("shmget", key, 4096, 0)[0] != -1)
signal("file of /tmp", os.path.getsize(f"/tmp/{name}") != 0 or len(os.listdir("/tmp")) != 1)
signal("file of /dev/shm", len(os.listdir("/dev/shm")) != 1)
signal("lock on a file of its own disks", not all(can_lock(f"{place}/{name}") for place in ["/tmp", "/dev/shm", "/home/user"]))
# It is notified only of its own opening of the files.
events = os.read(own, 65536) if select.select([own], [], [], 0)[0] else b""
signal("inotify on a disk of its own", int.from_bytes(events[4:8], "little") & 0x100)
signal("message queue", probe.libc.mq_open(ctypes.c_char_p(f"/{name}".encode()), os.O_RDWR, 0, None) != -1)
signal("keyring", probe.raw("keyctl", 10, -4, ctypes.c_char_p(b"user"), ctypes.c_char_p(name.encode()), 0)[0] != -1)
after = counts()
signal("pids", before[0] != after[0])
signal("host name", before[1] != after[1])
signal("own control group", before[2] != after[2] or name in after[2])
for entry in ["interrupts", "keys", "modules", "sched_debug", "timer_list", "slabinfo", "kpagecount", "locks"]:
    try:
        with open(f"/proc/{entry}", "rb") as file:
            text = file.read(4096)
        probe.say(entry, "tells something" if text else "is covered")
    except PermissionError:
        probe.say(entry, "is refused")
    except FileNotFoundError:
        probe.say(entry, "is covered")
try:
    with open("/proc/locks") as lines:
        signal("lock at an offset", any(f" {key} " in line for line in lines))
except OSError:
    signal("lock at an offset", False)
# The tree `host` cannot close these two: both sandboxes see the same files of the machine.
signal("lock on a file of the shared system", not can_lock("/usr/bin/env"))
signal("inotify on the shared system", bool(select.select([system], [], [], 0.1)[0]))
