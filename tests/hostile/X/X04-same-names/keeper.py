import ctypes
import os
import socket
import sys

import probe

# Creates one of each, waits, checks them, and removes them again.
CREATE, EXCLUSIVE, REMOVE = 0o1000, 0o2000, 0
key, name = int(sys.argv[1]), sys.argv[2]
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0" + name)
abstract.listen()
abstract.setblocking(False)
shared, _ = probe.raw("shmget", key, 4096, CREATE | EXCLUSIVE | 0o666)
semaphores, _ = probe.raw("semget", key, 1, CREATE | EXCLUSIVE | 0o666)
queue, _ = probe.raw("msgget", key, CREATE | EXCLUSIVE | 0o666)
probe.libc.shmat.restype = ctypes.c_void_p
memory = probe.libc.shmat(shared, None, 0)
ctypes.memmove(memory, b"kept", 5)
probe.libc.mq_open(ctypes.c_char_p(f"/{name}".encode()), os.O_CREAT | os.O_RDWR, 0o666, None)
for place in (f"/dev/shm/{name}", f"/tmp/{name}"):
    with open(place, "w") as file:
        file.write("kept")
    os.chmod(place, 0o666)
print(shared, flush=True)
sys.stdin.readline()
try:
    wrong = []
    if ctypes.string_at(memory) != b"kept":
        wrong.append("shared memory")
    for place in (f"/dev/shm/{name}", f"/tmp/{name}"):
        with open(place) as file:
            if file.read() != "kept":
                wrong.append(place)
    try:
        abstract.accept()
        wrong.append("abstract socket")
    except BlockingIOError:
        pass
    print(" ".join(wrong) or "kept", flush=True)
finally:
    probe.libc.shmctl(shared, REMOVE, None)
    probe.libc.semctl(semaphores, 0, REMOVE)
    probe.libc.msgctl(queue, REMOVE, None)
    probe.libc.mq_unlink(ctypes.c_char_p(f"/{name}".encode()))
