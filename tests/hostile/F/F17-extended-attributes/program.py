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
    # Not security.selinux: a kernel with SELinux leaves that to its policy, and without one to the file's owner.
    ("security.ima", b"x"), ("trusted.overlay.opaque", b"y"),
    ("trusted.any", b"x"), ("system.any", b"x"),
]:
    answers = [outcome_of(place, name, value) for place in ("own", "/m/own")]
    # The two file systems may say no in different words.
    probe.say(name, "ok" if "ok" in answers else answers[0])
# Everybody may set this on their own files. It means something only to who mounts an overlay over them.
outcome_of("own", "user.overlay.opaque", b"y")
# Everybody may make the device 0:0 as well, by which an overlay marks what is deleted.
for place in ("whiteout", "/m/whiteout"):
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(0, 0))
    except OSError:
        pass
