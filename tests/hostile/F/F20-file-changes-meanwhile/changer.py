import os
import select
import sys

os.chdir(sys.argv[1])
A = b"A" * (64 << 10)


def make(name, pieces):
    with open(name, "wb", buffering=0) as file:
        for _ in range(pieces):
            file.write(A)


make("file", 4)
make("growing", 4)
print("changing", flush=True)
growing = os.open("growing", os.O_WRONLY | os.O_APPEND)
grown = 0
for turn in range(100_000):
    file = os.open("file", os.O_RDWR)
    os.ftruncate(file, 0)
    for _ in range(8):
        os.write(file, A)
    os.ftruncate(file, 3 << 20)
    os.close(file)
    make("new", turn % 16)
    os.rename("new", "file")
    if turn % 3 == 0:
        os.unlink("file")
        os.symlink("neighbour", "file")
        os.unlink("file")
        make("file", 2)
    # At most 64 MiB, on the host's disk.
    if grown < 1024:
        os.write(growing, A)
        grown += 1
    if select.select([0], [], [], 0)[0]:
        break
