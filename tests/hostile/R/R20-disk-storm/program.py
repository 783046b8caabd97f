import mmap
import os
import sys
import time

import probe

MIB, PAGE = 1 << 20, 4096


def one_byte_each():
    """Writes files of one byte, which take a page each: a MiB holds 256 of them."""
    made, answer = 0, "ok"
    try:
        while made < 600:
            with open(f"b{made}", "wb", buffering=0) as file:
                file.write(b"x")
            made += 1
    except OSError as error:
        answer = probe.name_of(error.errno)
    for index in range(made + 1):
        if os.path.exists(f"b{index}"):
            os.remove(f"b{index}")
    return f"{answer} by blocks" if made <= 256 else f"{answer} after {made}"


def scattered():
    made, answer = 0, "ok"
    with open("scattered", "wb", buffering=0) as file:
        try:
            while made < 600:
                os.pwrite(file.fileno(), b"x", made * 16 * PAGE)
                made += 1
        except OSError as error:
            answer = probe.name_of(error.errno)
    os.remove("scattered")
    return f"{answer} by blocks" if made <= 256 else f"{answer} after {made}"


if sys.argv[1] == "quota":
    probe.say("files of one byte", one_byte_each())
    probe.say("one byte in each page", scattered())
    sys.exit(0)
if sys.argv[1] == "flushes":
    # A readable file of the host: each call may flush its disk.
    end, file = time.monotonic() + 1.5, os.open("/bin/sh", os.O_RDONLY)
    while time.monotonic() < end:
        os.fsync(file)
        os.fdatasync(file)
        os.sync()
    probe.say("flushes", "ok")
    sys.exit(0)
end = time.monotonic() + 1.5
for kind in range(3):
    if os.fork() == 0:
        break
else:
    kind = 3
block = mmap.mmap(-1, MIB)
name = f"storm{kind}"
try:
    file = os.open(name, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
except OSError:
    file = os.open(name, os.O_CREAT | os.O_RDWR, 0o600)
while time.monotonic() < end:
    if kind == 0:
        os.pwrite(file, block, 0)
        os.fsync(file)
    elif kind == 1:
        os.ftruncate(file, MIB)
        os.fdatasync(file)
        os.ftruncate(file, 0)
    elif kind == 2:
        os.rename(name, "other")
        os.rename("other", name)
    else:
        os.link(name, "linked")
        os.remove("linked")
if kind == 3:
    for _ in range(3):
        os.wait()
    probe.say("storm", "ok")
