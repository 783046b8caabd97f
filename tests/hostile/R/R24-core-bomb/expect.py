import os
import resource
import tempfile

import host

with open("/proc/sys/kernel/core_pattern", encoding="utf-8") as file:
    pattern = file.read().strip()
helper = os.path.basename(pattern[1:].split()[0]) if pattern.startswith("|") else None


def helpers():
    """Counts the processes of the program that cores are piped to, if there is one."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
                found += helper is not None and comm.read().strip() == helper[:15]
        except OSError:
            pass
    return found


# The caller of Belljar enables cores.
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
before, most = helpers(), 0
with tempfile.TemporaryDirectory() as place:
    os.chdir(place)
    attack = host.spawn("program.py", json_result=True)
    while not host.wait_for(lambda: attack.poll() is not None, seconds=0.02):
        most = max(most, helpers())
    host.relay(host.finish(attack))
    left = [name for name in os.listdir(place) if name.startswith("core")]
    os.chdir("/")
if os.path.isabs(pattern):
    directory = os.path.dirname(pattern)
    left += [name for name in os.listdir(directory) if os.stat(os.path.join(directory, name)).st_uid >= 1_900_000_000]
host.say("cores in the host's directory", ", ".join(left) or "none")
host.say("helpers on the host", f"{most - before}" if most > before else "none")
