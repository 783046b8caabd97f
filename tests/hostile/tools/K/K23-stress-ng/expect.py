"""Runs stress-ng in sandboxes, a dozen stressors at once for a second, and checks the kernel afterwards.

docs/hostile-tools.md lists the stressors that fail, and why.
"""

import os
import re
import subprocess

import host

CLASSES = ("os", "memory", "filesystem", "scheduler")
LIMITS = ["--memory", "256m", "--pids", "64", "--timeout", "8"]
AT_ONCE = 12
# The version that the document describes.
VERSION = "0.15.06"
DOCUMENT = os.path.join(host.CASE, "../../../../../docs/hostile-tools.md")
# These always exhaust the memory or the time of a sandbox, so nothing else could run beside them.
ALONE = {"copy-file", "fallocate", "hdd", "iomix", "revio", "sync-file", "vm-segv"}
TOOL = "/usr/bin/stress-ng"


def documented():
    """Returns the names in the first column of the document's table of stressors."""
    with open(DOCUMENT, encoding="utf-8") as file:
        section = file.read().split("## stress-ng")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def stressors():
    names = set()
    for kind in CLASSES:
        done = subprocess.run([TOOL, "--class", kind + "?"], capture_output=True, text=True, check=False)
        names.update((done.stdout + done.stderr).partition(":")[2].split())
    return sorted(names)


def tainted():
    with open("/proc/sys/kernel/tainted", encoding="ascii") as file:
        return file.read()


class Log:
    """The kernel's log from now on."""

    def __init__(self):
        try:
            self.file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.file, 0, os.SEEK_END)
        except OSError:
            self.file = None

    def complaints(self):
        """Returns lines that report an error of the kernel itself, not of a program that was killed."""
        if self.file is None:
            return None
        found = []
        while True:
            try:
                record = os.read(self.file, 8192).decode(errors="replace")
            except BrokenPipeError:
                # Lines were overwritten before they were read.
                continue
            except BlockingIOError:
                return found
            line = record.partition(";")[2].splitlines()[0]
            if re.search(r"\b(BUG|WARNING|KASAN|UBSAN|KFENCE|INFO: (task|rcu)|Oops|panic|lockup|scheduling while atomic)\b", line):
                found.append(line)


def failures(output):
    """Returns the names of stressors that failed."""
    names = re.findall(r"(?:fail|error): +\[\d+\] ([a-z][\w-]*): ", output)
    names += re.findall(r"process \[\d+\] \(([\w-]+)\) (?:terminated with an error|aborted early)", output)
    return set(names)


def run(group):
    """Runs these stressors at once, in their own sandbox."""
    flags = " ".join(f"--{name} 1" for name in group)
    code = f"exec stress-ng --timeout 1 --metrics {flags} 2>&1"
    return host.run(code=code, language="sh", flags=LIMITS, timeout=60)


if not os.access(TOOL, os.X_OK):
    host.skip("needs stress-ng; scripts/install-deps.sh hostile installs it")
version = subprocess.run([TOOL, "--version"], capture_output=True, text=True, check=True).stdout
log, taint = Log(), tainted()
names = stressors()
together = [name for name in names if name not in ALONE]
groups = [together[at:at + AT_ONCE] for at in range(0, len(together), AT_ONCE)]
groups += [[name] for name in names if name in ALONE]
failed, ends, ran = set(), set(), 0
for group in groups:
    done = run(group)
    failed |= failures(done.output)
    ends.add(done.kind)
    # Stressors that did something are in the table at the end; a sandbox that reached a limit prints none.
    at_least = re.findall(r"metrc: +\[\d+\] ([\w-]+) +([1-9]\d*) +[\d.]+ +[\d.]+", done.output)
    ran += len({name for name, _ in at_least}) or (0 if done.kind == "exited" else 1)
host.say("stressors", "enough" if ran >= 150 else f"only {ran} of {len(names)}")
odd = ends - {"exited", "out_of_memory", "limit", "timed_out"}
host.say("ends of sandboxes", "by themselves or by a limit" if not odd else " ".join(sorted(odd)))
# They share one sandbox's limits, so those that fail must fail alone as well.
new = {name for name in failed - documented() if name in failures(run([name]).output)}
if VERSION not in version:
    host.say("failures that nobody has looked at", "another version")
else:
    host.say("failures that nobody has looked at", "none" if not new else " ".join(sorted(new)))
host.say("kernel's taint", "unchanged" if tainted() == taint else tainted().strip())
complaints = log.complaints()
said = "cannot be read" if complaints is None else "none" if not complaints else " / ".join(complaints[:5])
host.say("kernel's complaints", said)
