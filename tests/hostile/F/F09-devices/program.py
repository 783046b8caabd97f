import errno
import os
import stat

import probe

CHARACTER, BLOCK = stat.S_IFCHR | 0o666, stat.S_IFBLK | 0o666
for name, kind, major, minor in [
    ("mem", CHARACTER, 1, 1), ("kmem", CHARACTER, 1, 2), ("port", CHARACTER, 1, 4), ("null", CHARACTER, 1, 3),
    ("sda", BLOCK, 8, 0), ("vda", BLOCK, 254, 0), ("loop0", BLOCK, 7, 0), ("kvm", CHARACTER, 10, 232),
    ("fuse", CHARACTER, 10, 229), ("tun", CHARACTER, 10, 200),
]:
    probe.errno(f"mknod {name}", lambda: os.mknod(name, kind, os.makedev(major, minor)))
for directory in ["/tmp", "/dev/shm"]:
    place = f"{directory}/mem"
    probe.errno(f"mknodat in {directory}", lambda: os.mknod(place, CHARACTER, os.makedev(1, 1)))

# Every user may create device 0:0, with which overlays mark deleted files. There is no such device.
try:
    os.mknod("whiteout", CHARACTER, os.makedev(0, 0))
    os.open("whiteout", os.O_RDWR)
    probe.say("a whiteout", "opens")
except OSError as error:
    nothing = error.errno in (errno.ENXIO, errno.EACCES) and os.path.lexists("whiteout")
    probe.say("a whiteout", "opens nothing" if nothing else probe.name_of(error.errno))

for name, path in [("mem", "mem"), ("kvm", "kvm"), ("fuse", "fuse"), ("kmsg", "kmsg"), ("the console", "console")]:
    probe.errno(f"open {name}", lambda: os.open(f"/dev/{path}", os.O_RDONLY))
disks = [name for name in os.listdir("/dev") if name.startswith(("sd", "vd", "nvme", "loop", "dm-", "mapper"))]
probe.say("open a disk", ", ".join(disks) or "ENOENT")
names = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"}
extra = set(os.listdir("/dev")) - names
extra |= {f"pts/{name}" for name in os.listdir("/dev/pts") if name != "ptmx"}
probe.say("devices", ", ".join(sorted(extra)) or "only the harmless ones")
probe.errno("create in /dev", lambda: open("/dev/planted", "w"))
probe.errno("replace null", lambda: os.rename("/dev/null", "/dev/zero"))
with open("/proc/self/mountinfo") as lines:
    mounts = [(line.split()[4], line.split()[5].split(",")) for line in lines]
# Device files are mounts themselves. All other mounts are nodev or read-only.
harmless = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts")}
open_to = [place for place, options in mounts if "nodev" not in options and "ro" not in options and place not in harmless]
probe.say("mounts that devices work on", ", ".join(open_to) or "the harmless devices alone")
