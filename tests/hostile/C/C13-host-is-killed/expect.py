import os
import random
import signal
import subprocess
import sys
import time

import host

DECOY = """
import os, signal, sys
got = []
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, lambda number, frame: got.append(number))
print("ready", flush=True)
sys.stdin.readline()
print(got, flush=True)
"""
# Several processes that ignore all signals, one of them in its own session.
PROGRAM = """
import os, signal, time
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        break
print("ready", flush=True)
time.sleep(30)
"""
# Everything here descends from the harness, including the orphans that it adopts.
TOP = os.getppid()


def table():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(pid)] = int(fields[1])
    return found


def descendants():
    parents = table()

    def descends(pid):
        while pid in parents and pid != TOP:
            pid = parents[pid]
        return pid == TOP

    return {pid for pid in parents if pid != TOP and descends(pid)}


def groups_of(pids):
    found = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                found |= {line.strip().split(":", 2)[2] for line in file if "belljar-" in line}
        except OSError:
            pass
    return {os.path.basename(path) for path in found}


def groups_there(names):
    if not names:
        return set()
    return {name for top, directories, _ in os.walk("/sys/fs/cgroup") for name in directories if name in names}


def members(names):
    """Returns the processes in the groups. A dying thread counts until the kernel has released it."""
    tops = [top for top, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(top) in names]
    return [pid for top in tops for pid in open(f"{top}/cgroup.procs").read().split()]


def removed(names):
    for path in [top for top, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(top) in names]:
        try:
            os.rmdir(path)
        except OSError:
            return False
    return True


def supervisor_of(pids):
    for pid in pids:
        try:
            with open(f"/proc/{pid}/comm") as file:
                if file.read().strip() == "belljar-super":
                    return pid
        except OSError:
            pass
    return None


decoys = [subprocess.Popen([sys.executable, "-c", DECOY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
for decoy in decoys:
    decoy.stdout.readline()
before = descendants()
stayed, groups_stayed, killed = [], set(), 0
seed = os.environ.get("BELLJAR_SEED") or str(random.randrange(1 << 32))
random.seed(seed)
print(f"BELLJAR_SEED={seed}", file=sys.stderr)


def gone(what):
    """Waits until no process of this run is left."""
    left = host.wait_for(lambda: not descendants() - before, 20)
    if not left:
        stayed.append((what, sorted(descendants() - before)))


for turn in range(30):
    process = subprocess.Popen(host.command(code=PROGRAM, language="python", flags=["--timeout", "50s"]),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(random.uniform(0, 0.06))
    groups = groups_of(descendants() - before)
    process.send_signal(signal.SIGKILL)
    killed += process.wait() == -signal.SIGKILL
    gone(turn)
    if not host.wait_for(lambda: not groups_there(groups), 20):
        groups_stayed |= groups_there(groups)
host.say("killed", "30 at random moments" if killed == 30 else f"{killed}")
host.say("processes that stayed 20 s", stayed or "none")
host.say("groups that stayed 20 s", sorted(groups_stayed) or "none")

# First the supervisor alone, then both at once.
stayed.clear()
for both in (False, True):
    process = host.spawn(code=PROGRAM, language="python", flags=["--timeout", "50s"])
    process.stdout.readline()
    made = descendants() - before
    groups = groups_of(made)
    supervisor = supervisor_of(made)
    if supervisor is None:
        stayed.append("no supervisor was found")
        continue
    pidfd = os.pidfd_open(supervisor)
    if both:
        process.send_signal(signal.SIGKILL)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    process.communicate(timeout=15)
    gone("both" if both else "supervisor")
    if both:
        # A start a minute later removes the groups, which must be empty for that.
        if not host.wait_for(lambda: not members(groups), 20):
            stayed.append("members of groups")
        # The kernel may still be releasing their members.
        if not host.wait_for(lambda: removed(groups), 20):
            stayed.append("groups that cannot be removed")
    if not host.wait_for(lambda: not groups_there(groups), 20):
        stayed.append(sorted(groups_there(groups)))
host.say("the supervisor killed", stayed or "nothing stayed")
answers = [decoy.communicate(b"\n", timeout=10)[0].decode().strip() for decoy in decoys]
fine = answers == ["[]"] * 4 and all(decoy.returncode == 0 for decoy in decoys)
host.say("decoys", "live and got no signal" if fine else answers)
done = host.run(code="echo well", language="sh")
host.say("a run afterwards", "is well" if done.output == "well\n" and done.status == 0 else f"{done}")
