import ctypes
import os
import struct

import probe


def handle_of(path):
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount = ctypes.c_int()
    return probe.outcome("name_to_handle_at", -100, ctypes.c_char_p(path), handle, ctypes.byref(mount), 0)


def open_guess(at, inode):
    # An inode number and a generation, as in ext4 and XFS; 2 is the root of ext4.
    handle = struct.pack("IiII", 8, 1, inode, 0)
    return probe.outcome("open_by_handle_at", at, ctypes.c_char_p(handle), os.O_RDONLY)


probe.say("handle of a file of the system", handle_of(b"/usr/bin/env"))
with open("own", "w") as file:
    file.write("own")
probe.say("handle of an own file", handle_of(b"own"))
at = os.open("/usr/bin/env", os.O_RDONLY)
probe.say("open the root of the disk", open_guess(at, 2))
answers = {open_guess(at, inode) for inode in range(2, 258)}
probe.say("open 256 guesses", " ".join(sorted(answers)))
probe.say("open by a descriptor of /proc", open_guess(os.open("/proc/self", os.O_RDONLY), 1))


def of_its_own():
    error = probe.outcome("unshare", 0x10000000)
    return error if error != "ok" else open_guess(at, 2)


probe.say("in a namespace of its own", probe.in_child(of_its_own))
