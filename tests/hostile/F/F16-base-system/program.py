import ctypes
import fcntl
import glob
import mmap
import os
import sysconfig

import probe

library = glob.glob("/usr/lib/*-linux-gnu/libc.so.6")[0]
probe.errno("write a program", lambda: open("/usr/bin/env", "r+b"))
probe.errno("append to a library", lambda: open(library, "ab"))
probe.errno("truncate", lambda: os.truncate("/usr/bin/env", 0))
for name, directory in [
    ("/usr/bin", "/usr/bin"), ("/usr/lib", "/usr/lib"), ("/usr/local/bin", "/usr/local/bin"),
    ("Python's library", sysconfig.get_paths()["stdlib"]), ("/etc", "/etc"), ("the root", ""), ("/var/lib", "/var/lib"),
    ("the certificates", "/etc/ssl/certs"),
]:
    probe.errno(f"create in {name}", lambda: open(f"{directory}/planted", "x"))
probe.errno("remove a program", lambda: os.unlink("/usr/bin/["))
probe.errno("rename a program", lambda: os.rename("/usr/bin/[", "/usr/bin/planted"))
probe.errno("chmod", lambda: os.chmod("/usr/bin/env", 0o777))
probe.errno("chown", lambda: os.chown("/usr/bin/env", 1000, 1000))
probe.errno("utime", lambda: os.utime("/usr/bin/env", (1, 1)))
probe.errno("setxattr", lambda: os.setxattr("/usr/bin/env", "user.planted", b"x"))
probe.errno("make a symbolic link", lambda: os.symlink("/tmp", "/usr/lib/planted"))


def map_for_writing():
    number = os.open("/usr/bin/env", os.O_RDONLY)
    mmap.mmap(number, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def reopened():
    number = os.open("/usr/bin/env", os.O_RDONLY)
    os.open(f"/proc/self/fd/{number}", os.O_RDWR)


def immutable():
    number = os.open("/usr/bin/env", os.O_RDONLY)
    fcntl.ioctl(number, 0x40086602, b"\x10\0\0\0\0\0\0\0")


probe.errno("map for writing", map_for_writing)
probe.errno("by /proc/self/fd", reopened)
probe.errno("by the first process's program", lambda: os.open("/proc/1/exe", os.O_WRONLY))
probe.errno("immutable flag", immutable)
probe.errno("/etc/passwd", lambda: open("/etc/passwd", "r+"))
