import ctypes
import fcntl
import os
import struct
import subprocess
import sys

import host

if os.geteuid() != 0:
    host.skip("needs root, to lease user ids")
# Ids are leased by locks in files. In a separate mount namespace, with an empty directory in its place, most ids can be taken,
# so that the few others are soon reused.
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None):
    host.skip("cannot create a mount namespace")
os.makedirs("/run/belljar", exist_ok=True)
if libc.mount(b"x09", b"/run/belljar", b"tmpfs", 0, b"mode=700"):
    host.skip("cannot mount")
FIRST, COUNT, TRIED = 1_900_000_000, 65_536, 4_096
OFD_SETLK = 37
IDS_OF_FILE = 256
leases = [os.open(f"/run/belljar/uids-{number}", os.O_RDWR | os.O_CREAT, 0o600) for number in range(COUNT // IDS_OF_FILE)]


def lock(kind, start, length):
    while length > 0:
        number = start // IDS_OF_FILE
        here = min(length, (number + 1) * IDS_OF_FILE - start)
        fcntl.fcntl(leases[number], OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, here, 0))
        start, length = start + here, length - here


def leave(every):
    """Takes all ids except one in `every`."""
    lock(fcntl.F_UNLCK, 0, COUNT)
    for start in range(0, COUNT, every):
        lock(fcntl.F_WRLCK, start + 1, every - 1)


# From any start, eight are among those that are tried.
leave(TRIED // 8)

work = host.scratch(0o777)
shared = os.path.join(work, "shared")
os.mkdir(shared)
os.chown(shared, 54321, 54321)
mount = ["--mount", f"{shared}:/m:rw"]


def outside_ids(process):
    """Returns the user ids of a sandbox's processes on the host."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            at = int(pid)
            with open(f"/proc/{pid}/status") as file:
                fields = dict(line.split(":", 1) for line in file.read().splitlines())
            uid = int(fields["Uid"].split()[0])
            while at not in (0, 1, process.pid):
                with open(f"/proc/{at}/stat") as file:
                    at = int(file.read().rsplit(") ", 1)[1].split()[1])
            if at == process.pid and uid >= FIRST:
                found.add(uid)
        except (OSError, KeyError):
            pass
    return found


# At the same time.
CODE = "echo ready; read -r x"
processes = [host.spawn(code=CODE, language="sh") for _ in range(5)]
for process in processes:
    process.stdout.readline()
ids = [outside_ids(process) for process in processes]
different = all(len(found) == 1 for found in ids) and len(set().union(*ids)) == len(ids)
host.say("ids at the same time", "all different" if different else ids)
for process in processes:
    process.communicate(b"\n")

# One after the other, with 16 ids for all of them: each leaves what it can, and looks for leftovers of others.
seen, found_things, strange = [], [], []
leave(TRIED)
for turn in range(18):
    process = host.spawn("leaver.py", str(turn), flags=mount)
    process.stdout.readline()
    seen += outside_ids(process)
    said, _ = process.communicate(b"\n", timeout=10)
    if said.strip() != b"nothing":
        found_things.append(said.decode().strip())
host.say("ids again", "were given again" if len(seen) == 18 and len(set(seen)) < 18 else f"{len(seen)} {len(set(seen))}")
host.say("what an earlier one with the id left", " ".join(found_things) or "nothing")
owners = {os.lstat(f"{shared}/{name}").st_uid for name in os.listdir(shared)}
host.say("files on the mount", "belong to the mount's owner" if owners == {54321} else owners)

# All are taken; a killed sandbox releases its own.
lock(fcntl.F_WRLCK, 0, COUNT)
done = host.run(code="echo RAN", language="sh")
refused = done.status == 125 and "user id" in done.stderr and "RAN" not in done.output
host.say("when all ids are taken", "refused, naming the user id" if refused else f"{done}")
lock(fcntl.F_UNLCK, 0, COUNT)
process = host.spawn(code=CODE, language="sh")
process.stdout.readline()
slot = outside_ids(process).pop() - FIRST


def is_free():
    try:
        lock(fcntl.F_WRLCK, slot, 1)
        return True
    except OSError:
        return False


before = is_free()
process.kill()
process.wait()
free = host.wait_for(is_free, 5)
host.say("an id after a kill", "is free again" if free and not before else f"{before} {free}")

# Limits that the kernel counts for each user: one sandbox exhausts its own, another still has its own.
first = host.spawn("user_limits.py", "hold")
taken = first.stdout.readline().decode().strip()
second = host.run("user_limits.py", "count").output.strip()
own = libc.inotify_init1(0)
first.communicate(b"\n")
host.say("limits of the user", "count for one sandbox alone" if taken == second else f"{taken}, then {second}")
host.say("the host's root", "is not limited by them" if own != -1 else f"has none left: error {ctypes.get_errno()}")
for lease in leases:
    os.close(lease)
