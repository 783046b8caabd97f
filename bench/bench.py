#!/usr/bin/env python3
"""Measures what a sandbox costs, as ratios to a bare process and to bubblewrap in the same run.

Usage: BELLJAR=path/to/belljar bench.py [--runs N] [--write]
With --write the numbers replace those in bench/RESULTS.md. Every round runs each contender once, in turn, so that
a busy moment of the machine hits all of them alike.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BELLJAR = os.environ.get("BELLJAR") or shutil.which("belljar")
PYTHON = "/usr/bin/python3"
CODE = "print(2**64)"

# The same namespaces and the same kind of tree as Belljar's: a new root, /usr read-only, private /proc, /dev and /tmp.
BWRAP = [
    "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
    "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
    "--ro-bind", "/etc/alternatives", "/etc/alternatives", "--ro-bind", "/etc/ssl/certs", "/etc/ssl/certs",
    "--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
    "--tmpfs", "/home/user", "--chdir", "/home/user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--",
]


def contenders():
    """Name -> command, by program; what is not installed is left out and said so."""
    programs = {
        "true": {"bare": ["/bin/true"], "belljar": [BELLJAR, "run", "-l", "sh", "-c", "exec /bin/true"]},
        "python": {"bare": [PYTHON, "-c", CODE], "belljar": [BELLJAR, "run", "-c", CODE]},
    }
    if shutil.which("bwrap"):
        programs["true"]["bubblewrap"] = BWRAP + ["/bin/sh", "-c", "exec /bin/true"]
        programs["python"]["bubblewrap"] = BWRAP + [PYTHON, "-c", CODE]
        programs["true"]["bare sh"] = ["/bin/sh", "-c", "exec /bin/true"]
    else:
        print("skipped: bubblewrap is not installed", file=sys.stderr)
    return programs


def once(command):
    begin = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    took = (time.perf_counter() - begin) * 1000
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return took


def percentile(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def measure(commands, runs):
    times = {name: [] for name in commands}
    for _ in range(5):
        for command in commands.values():
            once(command)
    for _ in range(runs):
        for name, command in commands.items():
            times[name].append(once(command))
    return {name: sorted(values) for name, values in times.items()}


def throughput(command, at_once, seconds=5.0):
    """Runs a second with `at_once` going at any time."""
    end = time.perf_counter() + seconds

    def worker():
        count = 0
        while time.perf_counter() < end:
            once(command)
            count += 1
        return count

    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        total = sum(future.result() for future in [pool.submit(worker) for _ in range(at_once)])
    return total / (time.perf_counter() - begin)


def streaming(megabytes=512):
    """MB/s of standard output: through a plain pipe, and out of a sandbox."""
    code = f"import os\nb=b'x'*65536\nfor _ in range({megabytes}*16): os.write(1,b)"
    rates = {}
    for name, command in {"plain pipe": [PYTHON, "-c", code], "belljar": [BELLJAR, "run", "-c", code]}.items():
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
            got = 0
            while piece := process.stdout.read1(1 << 20):
                got += len(piece)
        if got != megabytes << 20:
            sys.exit(f"{name}: {got} bytes came instead of {megabytes << 20}")
        rates[name] = megabytes / (time.perf_counter() - begin)
    return rates


def phases(runs):
    """Where the time of `belljar run` goes: the median of each phase."""
    all_timings = []
    for _ in range(runs):
        done = subprocess.run([BELLJAR, "run", "--json", "--timings", "-c", CODE], capture_output=True, check=True)
        all_timings.append(json.loads(done.stdout)["timings"] or {})
    names = list(all_timings[0])
    return {name: percentile(sorted(timing.get(name, 0.0) for timing in all_timings), 0.5) for name in names}


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal")) >> 20
    return f"{os.cpu_count()} × {model}, {memory} GiB, Linux {platform.release()}, {'root' if os.geteuid() == 0 else 'ordinary user'}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=200)
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    if not BELLJAR:
        sys.exit("set BELLJAR to the binary to be measured")
    out = [
        "# Results of the last run",
        "",
        f"{datetime.date.today()}, {machine()}; {options.runs} runs of each, in turn. Made by `make bench`.",
        "Times are from start to end of the whole command, in milliseconds. Compare within a run, not between runs.",
        "",
    ]
    for program, commands in contenders().items():
        results = measure(commands, options.runs)
        base_name = "bare sh" if "bare sh" in results else "bare"
        base = percentile(results[base_name], 0.5)
        peer = percentile(results["bubblewrap"], 0.5) - base if "bubblewrap" in results else None
        out += [f"## {program}", "", "| | p50 | p95 | p99 | × bare | adds | adds, × bubblewrap |", "|---|---|---|---|---|---|---|"]
        for name, values in results.items():
            p50 = percentile(values, 0.5)
            added = p50 - base
            ratio = f"{added / peer:.2f}" if peer and name in ("belljar", "bubblewrap") else ""
            out.append(
                f"| {name} | {p50:.2f} | {percentile(values, 0.95):.2f} | {percentile(values, 0.99):.2f} "
                f"| {p50 / percentile(results['bare'], 0.5):.2f} | {added:.2f} | {ratio} |"
            )
        out.append("")
    out += ["## Sustained, `print(2**64)` a second", "", "| at once | bare | bubblewrap | belljar |", "|---|---|---|---|"]
    python = contenders()["python"]
    for at_once in (1, 2, 8):
        rates = [f"{throughput(python[name], at_once):.0f}" if name in python else "–" for name in ("bare", "bubblewrap", "belljar")]
        out.append(f"| {at_once} | " + " | ".join(rates) + " |")
    rates = streaming()
    out += ["", "## Standard output, MB/s", ""]
    out += [f"- {name}: {rate:.0f}" for name, rate in rates.items()]
    out += ["", "## Where the time goes, `belljar run --json`, median milliseconds", "", "| phase | ms |", "|---|---|"]
    out += [f"| {name} | {value:.3f} |" for name, value in phases(50).items()]
    text = "\n".join(out) + "\n"
    print(text)
    if options.write:
        (HERE / "RESULTS.md").write_text(text)


if __name__ == "__main__":
    main()
