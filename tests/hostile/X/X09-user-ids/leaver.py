import ctypes
import os
import socket
import sys

import probe

# Leftovers of others with the same id: in keyrings of the user, in shared memory, in files.
turn = sys.argv[1]
found = []
for place in ["/home/user", "/tmp", "/dev/shm", "/run", "/var/tmp"]:
    found += [name for name in os.listdir(place) if name.startswith("left")]
shared, _ = probe.raw("shmget", 0x58303901, 4096, 0)
found += ["shared memory"] if shared != -1 else []
key, _ = probe.raw("keyctl", 10, -4, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"left"), 0)
found += ["key"] if key != -1 else []
if socket.socket(socket.AF_UNIX).connect_ex("\0left") == 0:
    found.append("abstract socket")
found += [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]

for place in ["/home/user", "/tmp", "/dev/shm", "/m"]:
    with open(f"{place}/left-{turn}", "w") as file:
        file.write(turn)
probe.raw("shmget", 0x58303901, 4096, 0o1666)
probe.raw("add_key", ctypes.c_char_p(b"user"), ctypes.c_char_p(b"left"), ctypes.c_char_p(b"x"), 1, -4)
print("ready", flush=True)
sys.stdin.readline()
print(" ".join(found) or "nothing", flush=True)
