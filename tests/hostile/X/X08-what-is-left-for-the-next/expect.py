import os

import host

key, name = str(0x61000000 | int.from_bytes(os.urandom(3), "big")), f"x08-{os.urandom(6).hex()}"
pristine = host.run("posture.py", "look", key, name)
first = host.run("posture.py", "leave", key, name)
host.say("first", "left everything" if "left everything" in first.output else f"{first}")
second = host.run("posture.py", "look", key, name)


def difference(one, other):
    one, other = one.output.splitlines(), other.output.splitlines()
    lines = [line for line in one + other if (line in one) != (line in other)]
    return "; ".join(lines)[:1500]


same = pristine.output == second.output and pristine.status == second.status == 0 and len(pristine.output) > 500
host.say("second", "finds what the first found" if same else f"{difference(pristine, second)} {second.stderr}")
# Processes of the first run would be visible on the host.
running = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if name.encode() in file.read():
                running.append(pid)
    except OSError:
        pass
host.say("processes", f"{running}" if running else "none of the first")
with host.Neighbour():
    third = host.run("posture.py", "look", key, name)
same = pristine.output == third.output
host.say("the third, while a fourth is there", "finds what the first found" if same else difference(pristine, third))
# Without the IPC namespace the shared memory is the host's.
host.run("posture.py", "tidy", key, name)
