"""Examines the belljar binary, the guest on the host, and programs inside with checksec.

docs/hostile-tools.md explains the answers.
"""

import filecmp
import json
import os
import shutil
import subprocess
import tempfile

import host

TOOL = "/usr/bin/checksec"
GUEST = os.path.join(os.path.dirname(host.BELLJAR), "belljar-guest")
INSIDE = """
sleep 5 & sleep 0.3
checksec --format=csv --proc=sleep
echo ---
checksec --format=csv --kernel 2>/dev/null | head -c 300; echo
echo ---
checksec --format=csv --proc-all 2>/dev/null
kill %1 2>/dev/null || kill $!
"""


def checksec(*flags):
    """Returns its report on a file or process, which is the only entry."""
    done = subprocess.run([TOOL, "--format=json", *flags], capture_output=True, text=True, check=False, timeout=30)
    return next(iter(json.loads(done.stdout).values()))


def readelf(flag):
    return subprocess.run(["readelf", flag, host.BELLJAR], capture_output=True, text=True, check=True).stdout


def descendants(pid):
    """Returns the processes below this one, whichever thread started them."""
    children = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            children += [int(word) for word in file.read().split()]
    return children + [one for child in children for one in descendants(child)]


if not os.access(TOOL, os.X_OK):
    host.skip("needs checksec; scripts/install-deps.sh hostile installs it")
binary = checksec(f"--file={host.BELLJAR}")
for name in ("relro", "pie", "nx", "rpath", "runpath", "canary"):
    host.say(f"binary, {name}", binary[name])
host.say("binary, fortify", binary["fortify_source"])
# checksec reports whether the stack is executable, but not whether other segments are.
segments = [line.split() for line in readelf("-lW").splitlines() if line.split()[:1] in (["LOAD"], ["GNU_STACK"])]
both = [line for line in segments if line[0] == "LOAD" and "W" in line[6:-1] and "E" in line[6:-1] or "RWE" in line]
host.say("binary, segments writable and executable", "none" if not both else str(len(both)))
stack = [line for line in segments if line[0] == "GNU_STACK"]
host.say("binary, stack", "not executable" if stack and not any("E" in word for word in stack[0][6:-1]) else "executable")
host.say("binary, libraries", "none" if "NEEDED" not in readelf("-dW") else "some")

process = host.spawn(code="read -r line", language="sh")


def guest():
    """Returns the process that is pid 1 in the sandbox, once its code runs, and its seccomp mode."""
    for pid in descendants(process.pid):
        try:
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            if status["NSpid"].split()[1:] == ["1"] and descendants(pid):
                return pid, status["Seccomp"]
        except (FileNotFoundError, ProcessLookupError):
            # It has ended meanwhile.
            continue
    return None


pid, mode = host.wait_for(guest)
# The guest's program no longer has a path, on the host or inside.
with tempfile.NamedTemporaryFile() as copy:
    shutil.copyfile(f"/proc/{pid}/exe", copy.name)
    host.say("guest, program", "belljar's" if filecmp.cmp(copy.name, GUEST, shallow=False) else "another")
    seen = checksec(f"--file={copy.name}")
for name in ("relro", "nx", "pie"):
    host.say(f"guest, {name}", seen[name])
host.say("guest, seccomp", {"0": "none", "1": "strict", "2": "filter"}[mode])
host.finish(process)

parts = host.run(code=INSIDE, language="sh", flags=["--timeout", "30"]).output.split("---\n")
one = next((line for line in parts[0].splitlines() if ",sleep," in line), "").split(",")
one = dict(zip(("pid", "name", "relro", "canary", "seccomp", "nx", "pie", "fortify"), one, strict=False))
for name in ("relro", "seccomp", "pie"):
    host.say(f"inside, {name} of sleep", one.get(name, "not found"))
host.say("inside, kernel's configuration", "read" if "config" in parts[1] else "not there")
lines = [line for line in parts[2].splitlines() if line.count(",") >= 6]
host.say("inside, everything is filtered", "yes" if lines and all("Seccomp-bpf" in line for line in lines) else "no")
host.say("inside, the guest", "not seen" if not any(line.startswith("1,") for line in lines) else "seen")
