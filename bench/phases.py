"""The phases of `belljar run`, and their times."""

import json
import os
import time

import contenders
import measure

# In order of execution; those with a dash are parts of `create`.
MEANING = {
    "prepare": "flags and files are read, the language is determined",
    "create": "until the launch is under way, including planning; the next ten phases overlap with what follows",
    "plan": "- the launch is planned, and the host side opens its files",
    "supervisor": "- the supervisor is cloned and runs",
    "namespaces": "- the first process is cloned into its namespaces",
    "identity": "- ids are mapped",
    "root": "- an empty root with its nodes",
    "mounts": "- `/usr` and the like, `/tmp`, the home directory",
    "proc": "- `/proc` with its covers",
    "pivot": "- the new root takes over",
    "equipment": "- control groups and network, created concurrently, are joined",
    "privileges": "- resource limits, capabilities, seccomp",
    "guest": "- the guest is started, and starts the program",
    "upload": "files are copied in; a small source is sent with the start of the program",
    "run": "the program, from its start to its end and all of its output",
    "bring_out": "files are copied out",
    "stop": "everything is ended and removed",
    "total": "all of these",
    "outside": "the rest of the time seen by a shell: loading and exiting `belljar`",
}


def measure_phases(belljar, program, rounds):
    """Returns the median of each phase in milliseconds."""
    code = ["-c", contenders.CODE] if program == "print(2**64)" else ["-l", "sh", "-c", contenders.SHELL_CODE]
    command = measure.Command("belljar", [belljar, "run", "--json", "--timings", *code], contenders.ENV, b"")
    taken = {}
    for _ in range(rounds):
        run = measure.Run(command)
        _, status, _ = os.wait4(run.pid, 0)
        now = time.perf_counter_ns()
        timings = json.loads(os.read(run.reader, 1 << 16))["timings"]
        wall = run.finish(now, status)
        timings["outside"] = wall - timings["total"]
        for name, value in timings.items():
            taken.setdefault(name, []).append(value)
    return {name: measure.median(taken[name]) for name in [*MEANING, *(taken.keys() - MEANING.keys())] if name in taken}
