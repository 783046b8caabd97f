import os
import sys

import probe

public = sys.argv[1]
probe.errno("link to the host's file", lambda: os.link(public, "linked"))
probe.errno("link to the system's file", lambda: os.link("/usr/bin/env", "linked"))
probe.errno("link to /etc/passwd", lambda: os.link("/etc/passwd", "linked"))
with open("own", "w") as file:
    file.write("own")
probe.errno("link from home to /tmp", lambda: os.link("own", "/tmp/linked"))


def by_descriptor():
    number = os.open("/usr/bin/env", os.O_RDONLY)
    os.link(f"/proc/self/fd/{number}", "linked", follow_symlinks=True)


probe.errno("link by descriptor", by_descriptor)
probe.errno("link from a mount for reading", lambda: os.link("/r/file", "/m/linked"))
probe.errno("link of another owner's private file", lambda: os.link("/m/private", "/m/linked"))
probe.errno("link to one's own file", lambda: os.link("own", "second"))
