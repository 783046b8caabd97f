import os

import probe

found = {}
for fd in range(3, 1024):
    try:
        found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue
rings = [fd for fd, link in found.items() if "io_uring" in link]
probe.say("inherited rings", "none" if not rings else "some")
probe.say("descriptors", "none" if not found else "some")
answers = {fd: probe.outcome("io_uring_enter", fd, 0, 0, 0, 0, 0) for fd in rings or range(3, 64)}
probe.say("enter", probe.together(answers))
