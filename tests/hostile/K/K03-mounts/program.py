import ctypes
import os

import probe

CWD, OPEN_TREE_CLONE, RECURSIVE = -100, 1, 0x8000
BIND, REMOUNT, DETACH = 4096, 32, 2


def text(value):
    return ctypes.create_string_buffer(value.encode())


def mounts():
    with open("/proc/self/mountinfo", encoding="ascii") as lines:
        return lines.read()


def mount(name, source, target, kind, flags, options=None):
    options = text(options) if options else None
    probe.syscall(name, "mount", text(source), text(target), text(kind), flags, options)


before = mounts()
os.mkdir("place")
mount("tmpfs", "none", "place", "tmpfs", 0)
mount("proc", "none", "place", "proc", 0)
mount("bind", "/usr", "place", "", BIND)
mount("remount /usr writable", "none", "/usr", "", REMOUNT | BIND)
mount("remount / writable", "none", "/", "", REMOUNT)
mount("overlay over /etc", "overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir=/tmp,workdir=/tmp")
mount("cgroup", "none", "place", "cgroup2", 0)
mount("make all shared", "none", "/", "", (1 << 20) | 16384)
mount("no target", "none", "/no/such/place", "tmpfs", 0)
probe.syscall("unmount /proc", "umount2", text("/proc"), DETACH)
probe.syscall("unmount /", "umount2", text("/"), DETACH)
probe.syscall("fsopen", "fsopen", text("tmpfs"), 0)
probe.syscall("fsconfig", "fsconfig", -1, 6, None, None, 0)
probe.syscall("fsmount", "fsmount", -1, 0, 0)
probe.syscall("fspick", "fspick", CWD, text("/"), 0)
probe.syscall("move_mount", "move_mount", CWD, text("/usr"), CWD, text("place"), 0)
probe.syscall("open_tree", "open_tree", CWD, text("/usr"), 0)
probe.syscall("open_tree, a copy", "open_tree", CWD, text("/"), OPEN_TREE_CLONE | RECURSIVE)
attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
probe.syscall("mount_setattr", "mount_setattr", CWD, text("/usr"), RECURSIVE, attributes, 32)
probe.syscall("open_tree_attr", "open_tree_attr", CWD, text("/usr"), OPEN_TREE_CLONE, attributes, 32)
# The root of the tree (LSMT_ROOT): mounts elsewhere would be listed.
wanted = (ctypes.c_uint64 * 4)(24, 0xFFFFFFFFFFFFFFFF, 0)
found = (ctypes.c_uint64 * 64)()
probe.syscall("listmount", "listmount", wanted, found, 64, 0)
probe.syscall("statmount", "statmount", wanted, found, 512, 0)
probe.say("mounts afterwards", "the same" if mounts() == before else "others")
probe.errno("file in /usr", lambda: open("/usr/planted", "w"))
