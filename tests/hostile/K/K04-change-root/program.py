import ctypes
import os

import probe


def text(value):
    return ctypes.create_string_buffer(value.encode())


def root():
    return [(os.stat(path).st_dev, os.stat(path).st_ino) for path in ("/", "/proc/self/root", "/..")]


before = root()
os.makedirs("jail/old")
probe.syscall("chroot", "chroot", text("jail"))
probe.syscall("chroot to the root", "chroot", text("/"))
# The kernel looks up the directory before it checks permissions.
probe.syscall("chroot to nothing", "chroot", text("/no/such/place"))
probe.syscall("pivot_root", "pivot_root", text("jail"), text("jail/old"))
probe.syscall("pivot_root onto itself", "pivot_root", text("."), text("."))


def upwards():
    """Tries the classic escape: keep a directory outside of the new root open, then walk up."""
    outside = os.open("/", os.O_DIRECTORY)
    probe.raw("chroot", text("jail"))
    os.fchdir(outside)
    for _ in range(40):
        os.chdir("..")
    probe.raw("chroot", text("."))
    return "reached" if os.path.exists(os.environ["CANARY_PUBLIC"]) else "not reached"


probe.say("host's file by chroot and ..", probe.in_child(upwards))
probe.say("root afterwards", "the same" if root() == before else "another")
