import os
import threading
import time

import host

NEIGHBOUR = """
import os, sys
file = os.open("mine", os.O_CREAT | os.O_RDWR, 0o600)
for line in sys.stdin:
    os.pwrite(file, bytes(4096), 0)
    os.fsync(file)
    os.write(1, line.encode())
"""


class Writer(host.Neighbour):
    """A neighbour that writes and syncs for each answer."""

    def __init__(self):
        self.process = host.spawn(code=NEIGHBOUR, language="python", flags=["--timeout", "1m"], stderr=None)
        self.ask()


def written_by(pid):
    """Returns the bytes written to a disk by a process and the children that it waited for."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
    except OSError:
        return 0


class Disk:
    """Writes and syncs on the host's own disk continuously, and records how long each takes."""

    def __init__(self):
        self.took, self.stop = [], threading.Event()
        self.file = os.open(os.path.join(host.scratch(), "mine"), os.O_CREAT | os.O_RDWR, 0o600)
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            begin = time.monotonic()
            os.pwrite(self.file, bytes(4096), 0)
            os.fsync(self.file)
            self.took.append(time.monotonic() - begin)
            self.stop.wait(0.005)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        os.close(self.file)


host.relay(host.run("program.py", "quota", flags=["--disk", "1m"]))
with Writer() as neighbour:
    quiet = host.percentile(neighbour.latencies(300), 0.99)
    attack = host.spawn("program.py", "storm", json_result=True)
    written = 0

    def is_over():
        global written
        written = max(written, written_by(attack.pid))
        return attack.poll() is not None

    loud = host.percentile(neighbour.latencies(20_000, until=is_over), 0.99)
    host.relay(host.finish(attack))
# The disk is in memory, so the storm reaches no device; Belljar itself writes almost nothing.
host.say("the machine's disks", "not touched" if written < 1 << 20 else f"{written} bytes")
slower = loud > max(5 * quiet, 0.05)
host.say("the neighbour's slowest fsync", f"{loud * 1000:.1f} ms, before {quiet * 1000:.1f} ms" if slower else "as before")

# The remaining risk in the threat model: the tree and its disk are the host's, which gets slower but continues to work.
with Disk() as disk:
    attack = host.run("program.py", "flushes")
    host.relay(attack)
slowest = max(disk.took)
host.say("the host's slowest fsync", "within a second" if slowest < 1 else f"{slowest:.2f} s of {len(disk.took)}")
