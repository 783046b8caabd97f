import ctypes
import os

import probe

parameters = ctypes.create_string_buffer(120)
probe.syscall("setup", "io_uring_setup", 8, parameters)
# IORING_SETUP_SQPOLL: a kernel thread does the work.
polled = ctypes.create_string_buffer((0).to_bytes(8, "little") + (2).to_bytes(4, "little"), 120)
probe.syscall("setup with a thread in the kernel", "io_uring_setup", 8, polled)
probe.syscall("setup without memory", "io_uring_setup", 8, 0)
probe.syscall("enter", "io_uring_enter", -1, 1, 0, 0, 0, 0)
probe.syscall("enter standard input", "io_uring_enter", 0, 1, 0, 0, 0, 0)
# IORING_REGISTER_PROBE lists the supported operations, such as IORING_OP_SOCKET; with -1 some requests need no ring.
probe.syscall("register", "io_uring_register", -1, 8, ctypes.create_string_buffer(2064), 256)


def socket_by_ring():
    """Creates a ring, which could create a socket unseen by the filter."""
    ring, error = probe.raw("io_uring_setup", 8, ctypes.create_string_buffer(120))
    return probe.name_of(error) if error else "a ring that makes sockets"


probe.say("socket by a ring", socket_by_ring())
probe.syscall("native, io_setup", "io_setup", 8, ctypes.byref(ctypes.c_uint64(0)))
links = [os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) for fd in ("0", "1", "2")]
probe.say("rings afterwards", "none" if not any("io_uring" in link for link in links) else "some")
