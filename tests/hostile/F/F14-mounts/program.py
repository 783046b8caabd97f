import ctypes
import os

import probe

RDONLY, NOSUID, REMOUNT, BIND, MOVE, REC, SHARED, DETACH = 1, 2, 0x20, 0x1000, 0x2000, 0x4000, 1 << 20, 2


def text(value):
    return ctypes.c_char_p(value.encode()) if value is not None else 0


def mount(source, target, kind, flags=0, data=None):
    return probe.outcome("mount", text(source), text(target), text(kind), flags, text(data))


def mounts():
    with open("/proc/self/mountinfo") as lines:
        return lines.read()


before = mounts()
os.mkdir("at")
os.mkdir("work")
for kind in ["tmpfs", "proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "binfmt_misc"]:
    name = f"a {kind}" if kind == "tmpfs" else kind
    probe.say(f"mount {name}", mount("x", "at", kind, 0, "release_agent=/x" if kind == "cgroup" else None))
overlay = "lowerdir=/etc,upperdir=/home/user/at,workdir=/home/user/work"
probe.say("mount an overlay over /etc", mount("overlay", "/etc", "overlay", 0, overlay))
probe.say("mount fuse", mount("x", "at", "fuse", 0, "fd=0,rootmode=40000,user_id=1000,group_id=1000"))
probe.say("bind /", mount("/", "at", None, BIND | REC))
probe.say("bind /proc/1/root", mount("/proc/1/root", "at", None, BIND))
probe.say("move /proc", mount("/proc", "at", None, MOVE))
probe.say("make / shared", mount(None, "/", None, SHARED | REC))
probe.say("remount /usr for writing", mount(None, "/usr", None, REMOUNT | BIND))
probe.say("remount /proc for writing", mount(None, "/proc", None, REMOUNT | BIND))
probe.say("remount home with devices", mount(None, "/home/user", None, REMOUNT | BIND))
for name, target in [("/proc", "/proc"), ("a cover of /proc", "/proc/kallsyms"), ("home", "/home/user")]:
    probe.syscall(f"unmount {name}", "umount2", text(target), DETACH)
probe.syscall("pivot_root", "pivot_root", text("at"), text("at"))
probe.syscall("chroot", "chroot", text("/proc/1/root"))
probe.syscall("fsopen", "fsopen", text("tmpfs"), 0)
probe.syscall("open_tree", "open_tree", -100, text("/"), 1)
probe.syscall("fspick", "fspick", -100, text("/usr"), 0)
probe.syscall("move_mount", "move_mount", -100, text("/proc"), -100, text("at"), 0)
attributes = ctypes.create_string_buffer(32)
probe.syscall("mount_setattr", "mount_setattr", -100, text("/usr"), 0, attributes, 32)


def of_its_own():
    error = probe.outcome("unshare", 0x10000000 | 0x20000)
    return error if error != "ok" else mount("x", "at", "tmpfs")


probe.say("mount in a namespace of its own", probe.in_child(of_its_own))
probe.say("mounts", "as before" if mounts() == before else "changed")
