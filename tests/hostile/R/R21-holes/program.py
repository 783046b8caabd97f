import os

import probe

MIB = 1 << 20


def allocate(size):
    with open("allocated", "wb") as file:
        answer = probe.outcome("fallocate", file.fileno(), 0, 0, size)
    os.remove("allocated")
    return answer


probe.errno("8 EiB", lambda: open("endless", "wb").truncate((1 << 63) - 1))
probe.say("fallocate more than there is", allocate(96 * MIB))


def far():
    with open("far", "wb") as file:
        os.pwrite(file.fileno(), b"x", (1 << 62) - 1)


probe.errno("a seek to the end and a byte", far)
with open("holes", "wb") as file:
    file.write(b"begin")
    file.truncate(60 * MIB)
    os.pwrite(file.fileno(), b"end", 60 * MIB - 3)
