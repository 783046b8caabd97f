import os
import re
import subprocess
import sys

import host

if os.geteuid() != 0:
    host.skip("needs root, to create mount namespaces")
LAUNCHER = [sys.executable, host.path("launcher.py")]
# Part of the arguments of all processes of a run, so that they can be found afterwards.
CODE = f"echo RAN; : {os.getpid()}-left"
wrong_texts = []


def attempt(name, steps, names):
    """Runs with a feature removed; the error must match `names`, a regular expression for the wall."""
    argv = [*LAUNCHER, *steps, "--", *host.command(code=CODE, language="sh", json_result=False)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode == 77:
        host.say(name, "no such hierarchy")
    elif "RAN" in done.stdout:
        host.say(name, "ran" if not names else f"RAN with less: {done.stderr}")
    elif done.returncode == 125 and names:
        host.say(name, "refused")
        if not re.search(names, done.stderr, re.IGNORECASE) or "panicked" in done.stderr:
            wrong_texts.append((name, done.stderr))
    elif done.returncode == 126 and names:
        host.say(name, "refused with 126")
    else:
        host.say(name, f"status {done.returncode}, {done.stdout!r}, {done.stderr!r}")


attempt("all there", [], None)
attempt("landlock - not in the kernel", ["landlock_create_ruleset=ENOSYS"], "landlock")
attempt("landlock - not enabled", ["landlock_create_ruleset=EOPNOTSUPP"], "landlock")
attempt("landlock - no rules", ["landlock_add_rule=EPERM"], "landlock")
attempt("landlock - no enforcement", ["landlock_restrict_self=EPERM"], "landlock")
attempt("seccomp - not in the kernel", ["seccomp=ENOSYS"], "system call filter|seccomp")
attempt("seccomp - no filters", ["seccomp=EINVAL"], "system call filter|seccomp")
attempt("no new privileges", ["prctl:38=EPERM"], "new privileges")
attempt("namespaces - clone3 refused", ["clone3=EPERM"], "namespaces|start|supervisor|clone")
attempt("namespaces - clone3 unknown", ["clone3=ENOSYS"], "namespaces|start|supervisor|clone")
attempt("network - unshare", ["unshare=EPERM"], "network|namespace")
attempt("network - setns", ["setns=EPERM"], "network|namespace")
attempt("mounts - new file systems", ["fsopen=EPERM"], "mount|root file system")
attempt("mounts - attributes", ["mount_setattr=ENOSYS"], "mount|program for the sandbox")
attempt("mounts - move", ["move_mount=EPERM"], "mount|root file system")
attempt("mounts - open_tree", ["open_tree=EPERM"], "mount|program|root file system")
attempt("mounts - pivot_root", ["pivot_root=EPERM"], "root")
attempt("mounts - umount2", ["umount2=EPERM"], "root")
attempt("capabilities - capset", ["capset=EPERM"], "capabilities")
attempt("capabilities - bounding set", ["prctl:24=EPERM"], "capabilities")
attempt("capabilities - secure bits", ["prctl:28=EPERM"], "capabilities|user id")
attempt("ids - setresuid", ["setresuid=EPERM"], "user id")
attempt("ids - setgroups", ["setgroups=EPERM"], "user id|group")
attempt("keyring", ["keyctl=EPERM"], "keyring")
# Without keyrings there is none to leave.
attempt("keyring - not in the kernel", ["keyctl=ENOSYS"], None)
attempt("descriptors", ["close_range=ENOSYS"], "descriptors|close|supervisor|guest")
attempt("resource limits", ["prlimit64=EPERM", "setrlimit=EPERM"], "resource limits")
attempt("host name", ["sethostname=EPERM"], "host name")
attempt("dumpable", ["prctl:4=EPERM"], "closed to inspection")
attempt("groups - read-only", ["readonly:/sys/fs/cgroup"], "control group|cgroup")
attempt("groups - hidden", ["hide:/sys/fs/cgroup"], "control group|cgroup")
for controller in ("memory", "pids"):
    attempt(f"groups - {controller} hidden", [f"hide:/sys/fs/cgroup/{controller}"], "control group|cgroup")
attempt("groups - no new ones", ["mkdir=EACCES", "mkdirat=EACCES"], "control group|cgroup|make")
attempt("user ids - read-only", ["hide:/run/belljar", "readonly:/run/belljar"], "user id")
attempt("proc - hidden parts", ["hide:/proc/sys"], "/proc")
host.say("texts", wrong_texts or "each names its wall")


def left():
    """Returns the processes of the runs, except zombies."""
    listed = subprocess.run(["ps", "-A", "-o", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if CODE in line and not line.startswith("Z")]


host.wait_for(lambda: not left(), seconds=20)
host.say("groups and processes", left() or "nothing stayed")
