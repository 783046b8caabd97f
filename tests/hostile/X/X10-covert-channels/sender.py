import ctypes
import fcntl
import os
import socket
import struct
import sys

import probe

name, key, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
kept = []
for address, family in [("\0" + name, socket.AF_UNIX), (("127.0.0.1", port), socket.AF_INET)]:
    made = socket.socket(family)
    made.bind(address)
    made.listen()
    kept.append(made)
shared, _ = probe.raw("shmget", key, 4096, 0o1666)
probe.libc.mq_open(ctypes.c_char_p(f"/{name}".encode()), os.O_CREAT | os.O_RDWR, 0o666, None)
probe.raw("add_key", ctypes.c_char_p(b"user"), ctypes.c_char_p(name.encode()), ctypes.c_char_p(b"x"), 1, -4)
for place in ["/tmp", "/dev/shm", "/home/user"]:
    file = open(f"{place}/{name}", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    kept.append(file)
# A lock of an open file description (fcntl_locking(2)), whose offset carries information: an integer for each lock.
file = open(f"/tmp/{name}", "w")
F_OFD_SETLK = 37
fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, key, 1, 0))
kept.append(file)
# Files that both sandboxes see.
system = open("/usr/bin/env", "rb")
fcntl.flock(system, fcntl.LOCK_EX)
open("/usr/lib/os-release").read()
try:
    socket.sethostname(name)
except OSError:
    pass
children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        sys.stdin.readline()
        os._exit(0)
    children.append(pid)
print("sent", flush=True)
sys.stdin.readline()
for pid in children:
    os.kill(pid, 9)
probe.libc.shmctl(shared, 0, None)
probe.libc.mq_unlink(ctypes.c_char_p(f"/{name}".encode()))
