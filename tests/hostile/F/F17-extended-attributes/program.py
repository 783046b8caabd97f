import os
import stat
import struct

import probe

for place in ("own", "/m/own"):
    with open(place, "w") as file:
        file.write("own")


def outcome_of(place, name, value):
    try:
        os.setxattr(place, name, value)
        return "ok"
    except OSError as error:
        return probe.name_of(error.errno)


for name, value in [
    ("security.capability", struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0, 0)),
    # Not security.selinux: its policy decides with SELinux, and the file's owner without.
    ("security.ima", b"x"), ("trusted.overlay.opaque", b"y"),
    ("trusted.any", b"x"), ("system.any", b"x"),
]:
    answers = [outcome_of(place, name, value) for place in ("own", "/m/own")]
    # The two file systems may refuse with different errors.
    probe.say(name, "ok" if "ok" in answers else answers[0])
# Every user may set this on their own files. It matters only to those who mount an overlay over them.
outcome_of("own", "user.overlay.opaque", b"y")
# Every user may also create device 0:0, with which an overlay marks deleted files.
for place in ("whiteout", "/m/whiteout"):
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(0, 0))
    except OSError:
        pass
