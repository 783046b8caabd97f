import os
import sys

import probe

shared, token = sys.argv[1], (sys.argv[2] + sys.argv[3]).encode()
found = []
looked = 0
for top in ["/home", "/tmp", "/dev", "/run", "/var", "/etc", "/m"]:
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 20 and not path.startswith("/home/user/program"):
                    with open(path, "rb") as file:
                        if token in file.read():
                            found.append(path)
                    looked += 1
            except OSError:
                pass
probe.say("the neighbour's token in the tree", " ".join(found) or ("not there" if looked else "nothing was looked at"))


def read(path):
    with open(path, "rb") as file:
        return file.read()


probe.errno("the neighbour's directory by its path", lambda: read(f"{shared}/token"))
probe.errno("the neighbour's directory by the old root", lambda: read(f"/old-root{shared}/token"))
probe.say("home", "its own" if not os.path.exists("token") and os.listdir("/home") == ["user"] else os.listdir("/home"))
left = os.listdir("/tmp") + os.listdir("/dev/shm")
probe.say("/tmp and /dev/shm", " ".join(left) or "empty")
strange = []
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            if os.path.exists(f"/proc/{name}/root/m") or os.path.exists(f"/proc/{name}/cwd/token"):
                strange.append(name)
        except OSError:
            pass
probe.say("roots in /proc", " ".join(strange) or "its own")
names = [name for name in os.listdir("/") + os.listdir("/run") + os.listdir("/var") if "belljar" in name]
with open("/proc/self/mountinfo") as lines:
    names += [line for line in lines if "belljar-" in line]
probe.say("names of other sandboxes", " ".join(names) or "none")
