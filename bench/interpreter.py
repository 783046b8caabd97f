#!/usr/bin/env python3
"""Measures code in contexts over loopback HTTP: a new sandbox to its first result, a cell in a live context, pandas, a picture.

Usage: BELLJAR=path/to/belljar interpreter.py [--rounds N] [--write]
With --write the results replace bench/RESULTS-interpreter.md. Measured in the same run: bare Python processes, bubblewrap,
`docker run` if bench/peers.sh provides it, and a plain ipykernel if BELLJAR_IPYKERNEL is a Python that can import it.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import contenders
import measure
import report
import service

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"
PRINT = "print(2**64)"
DESCRIBE = (
    "import pandas as pd\ndf = pd.DataFrame({'a': range(1000), 'b': [n * 0.5 for n in range(1000)]})\nprint(df.describe())"
)
PLOT = (
    "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nimport io\nfig, ax = plt.subplots()\n"
    "ax.plot(range(50))\nfile = io.BytesIO()\nfig.savefig(file, format='png')\nplt.close(fig)\nprint(len(file.getvalue()) > 0)"
)
BOTH = DESCRIBE + "\n" + PLOT
IDLE = 200


def run_code(server, sandbox, code):
    begin = time.perf_counter()
    done = server.expect(200, "POST", f"/v1/sandboxes/{sandbox}/code", {"code": code})
    took = time.perf_counter() - begin
    if done["status"] != "ok" or done["state"] != "preserved":
        raise measure.Failed(f"{code!r}: {json.dumps(done)[:500]}")
    return took


def new_sandbox(server, code):
    """Returns the time from no sandbox to the result; ending the sandbox is not included."""
    begin = time.perf_counter()
    sandbox = server.create()["id"]
    run_code(server, sandbox, code)
    took = time.perf_counter() - begin
    server.kill(sandbox)
    return took


def bare(code, rounds, argv=(PYTHON, "-c")):
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run([*argv, code], check=True, capture_output=True)
        taken.append(time.perf_counter() - begin)
    return taken


def peers(belljar, rounds):
    """Measures other sandboxes with the same program; returns their times by name."""
    field = contenders.find(belljar)
    found = {}
    for command in [*field.core[PRINT], *field.peers[PRINT]]:
        if command.name not in ("bubblewrap", "docker run"):
            continue
        measure.say(command.name)
        found[command.name] = []
        for _ in range(rounds if command.name != "docker run" else 10):
            begin = time.perf_counter()
            subprocess.run(command.argv, env=command.env, check=True, capture_output=True)
            found[command.name].append(time.perf_counter() - begin)
    for name, reason in field.skipped.items():
        if name in ("bubblewrap", "docker"):
            measure.say(f"skipped: {name}: {reason}")
    return found


def ipykernel(rounds):
    """Measures a plain Jupyter kernel, from its start to the end of its first execution."""
    script = (
        "import time\nbegin = time.perf_counter()\nfrom jupyter_client.manager import start_new_kernel\nmanager, client = start_new_kernel()\n"
        f"client.execute_interactive({PRINT!r}, output_hook=lambda _: None)\nprint(time.perf_counter() - begin)\n"
        "client.stop_channels()\nmanager.shutdown_kernel(now=True)"
    )
    python = os.environ.get("BELLJAR_IPYKERNEL")
    if not python:
        measure.say("skipped: ipykernel: BELLJAR_IPYKERNEL is not set")
        return []
    taken = []
    for _ in range(rounds):
        done = subprocess.run([python, "-c", script], capture_output=True, text=True)
        if done.returncode != 0:
            measure.say(f"skipped: ipykernel: {done.stderr.strip().splitlines()[-1]}")
            return []
        taken.append(float(done.stdout))
    return taken


def idle(server, count):
    """Returns the memory that each idle context with pandas loaded takes from the machine, in MiB."""
    before = service.available_kib()
    sandboxes = [server.create()["id"] for _ in range(count)]
    for sandbox in sandboxes:
        run_code(server, sandbox, "import pandas, matplotlib.pyplot")
    time.sleep(1)
    after = service.available_kib()
    for sandbox in sandboxes:
        server.kill(sandbox)
    return (before - after) / 1024 / count


def wait_for_warm(server):
    """Waits until new sandboxes have warm interpreters."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        sandbox = server.create()["id"]
        context = server.expect(201, "POST", f"/v1/sandboxes/{sandbox}/contexts", {"language": "python"})
        server.kill(sandbox)
        if context["start"] == "warm":
            return
        time.sleep(0.1)
    raise measure.Failed(f"no interpreter became warm: {context.get('start_note')}")


def sustained(server, seconds=30, width=2):
    """Returns the programs per second, each in its own sandbox, `width` in parallel."""
    end = time.monotonic() + seconds
    counts = [0] * width

    def work(index):
        while time.monotonic() < end:
            new_sandbox(server, PRINT)
            counts[index] += 1

    with concurrent.futures.ThreadPoolExecutor(width) as threads:
        list(threads.map(work, range(width)))
    return sum(counts) / seconds


def sustained_processes(commands, seconds=10, width=2):
    """Like `sustained`, with processes outside of sandboxes."""
    end = time.monotonic() + seconds
    counts = [0] * width

    def work(index):
        while time.monotonic() < end:
            subprocess.run(commands, check=True, capture_output=True)
            counts[index] += 1

    with concurrent.futures.ThreadPoolExecutor(width) as threads:
        list(threads.map(work, range(width)))
    return sum(counts) / seconds


def programs(server):
    """Runs the small programs in sandboxes and bare, two in parallel; returns their number and the total seconds of both."""
    texts = [path.read_text() for path in sorted((HERE / "programs").glob("*.py"))]
    taken = []
    for run in (lambda text: new_sandbox(server, text), lambda text: bare(text, 1)):
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            list(threads.map(run, texts))
        taken.append(time.perf_counter() - begin)
    return len(texts), *taken


def measure_all(belljar, rounds):
    slow = max(rounds // 5, 5)
    found = {"bare": bare(PRINT, rounds), **peers(belljar, rounds), "ipykernel": ipykernel(5)}
    for name, code in (("describe", DESCRIBE), ("a picture", PLOT), ("describe and plot", BOTH)):
        measure.say(f"bare: {name}")
        found[f"bare, {name}"] = bare(code, slow)
    pandas = 'warm_imports = ["numpy", "pandas", "matplotlib.pyplot"]\n'
    for kind, pool, more in (
        ("pre-warmed", 8, ""),
        ("cold", 0, ""),
        ("plain", 0, "warm_interpreters = false\n"),
        ("pre-warmed, pandas", 8, pandas),
        ("cold, pandas", 0, pandas),
    ):
        server = service.Service(belljar, pool, more)
        try:
            measure.say(f"{kind}: new sandboxes")
            if kind != "plain":
                wait_for_warm(server)
            if pool:
                # Sandboxes created before the first code has run have no interpreter.
                for _ in range(pool):
                    new_sandbox(server, PRINT)
                server.until(server.pool_is_full, "the pool to be full")
            times = []
            for _ in range(rounds):
                if pool:
                    server.until(server.pool_is_full, "the pool to be full")
                times.append(new_sandbox(server, PRINT))
            found[kind] = times
            if kind == "cold":
                measure.say("sustained, two at a time")
                found["sustained"] = sustained(server)
                found["programs"] = programs(server)
            if kind == "cold, pandas":
                for name, code in (("describe", DESCRIBE), ("a picture", PLOT), ("describe and plot", BOTH)):
                    found[f"cold, {name}"] = [new_sandbox(server, code) for _ in range(slow)]
                measure.say("a live context")
                sandbox = server.create()["id"]
                for code in (PRINT, DESCRIBE, PLOT):
                    run_code(server, sandbox, code)
                found["live"] = [run_code(server, sandbox, PRINT) for _ in range(rounds * 5)]
                found["live, describe"] = [run_code(server, sandbox, DESCRIBE) for _ in range(slow)]
                found["live, a picture"] = [run_code(server, sandbox, PLOT) for _ in range(slow)]
                server.kill(sandbox)
                measure.say("idle contexts")
                found["idle"] = idle(server, IDLE)
        finally:
            server.close()
    measure.say("bare processes, two at a time")
    found["sustained bare"] = sustained_processes([PYTHON, "-c", PRINT])
    return found


NUMBERS = ("idle", "sustained", "sustained bare", "programs")


def render(found, load, rounds):
    p50 = lambda name: measure.median(found[name])
    unit = p50("bare")
    lines = ["# Code in contexts: results of the last run", ""]
    lines += [f"{report.machine()}, load {load:.1f} before; {rounds} rounds. Generated by `make bench-interpreter`.", ""]
    lines += [
        f"Over HTTP on loopback with a client in Python. Bare: `{PYTHON} -c '{PRINT}'`, {unit * 1000:.1f} ms. Each sandbox is new; the",
        "interpreter in it is forked from a warm one, except where marked plain.",
        "",
    ]
    lines += ["## Targets", ""]
    ratio = lambda text, name, limit: service.target(text, p50(name) / unit, limit, "× bare")
    live = sorted(found["live"])
    count, ours, bares = found["programs"]
    most = lambda text, reached, least: [text, f"{reached:.2f} ×", "met" if reached >= least else f"missed by {least / reached:.1f}"]
    lines += report.table(["target", "reached", ""], [
        ratio("a new sandbox to its first result ≤ 0.35 × bare", "cold", 0.35),
        ratio("the same, pre-warmed ≤ 0.25 ×", "pre-warmed", 0.25),
        ratio("the same with pandas and matplotlib loaded ≤ 0.60 ×", "cold, pandas", 0.60),
        ratio("with both, pre-warmed ≤ 0.25 ×", "pre-warmed, pandas", 0.25),
        service.target("describe and plot in a new sandbox ≤ 0.15 × itself run bare", p50("cold, describe and plot") / p50("bare, describe and plot"), 0.15, "×"),
        service.target("p99 ≤ 3 × p50 of new sandboxes", measure.percentile(sorted(found["cold"]), 0.99) / p50("cold"), 3, "×"),
        most("two at a time for 30 s ≥ 6 × bare processes", found["sustained"] / found["sustained bare"], 6),
        most(f"{count} small programs ≥ 5 × bare", bares / ours, 5),
        service.target("a cell in a live context ≤ 0.5 ms", p50("live") * 1000, 0.5, "ms"),
        service.target("its p99 ≤ 3 × its p50", measure.percentile(live, 0.99) / p50("live"), 3, "×"),
        service.target("an idle context with pandas and matplotlib ≤ 4 MiB", found["idle"], 4, "MiB"),
    ])
    lines += ["", f"Sustained: {found['sustained']:.0f} sandboxes a second, {found['sustained bare']:.0f} bare processes.", ""]
    lines += ["## Times, in milliseconds", ""]
    rows = []
    for name, times in found.items():
        if name not in NUMBERS and times:
            rows.append([*service.row(name, times)[:4], f"{measure.median(times) / unit:.2f}"])
    lines += report.table(["", "p50", "p95", "p99", "× bare, p50"], rows)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    belljar = os.environ.get("BELLJAR") or sys.exit("set BELLJAR to the path of the belljar binary")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        installed = str(measure.install(belljar, directory))
        text = render(measure_all(installed, options.rounds), load, options.rounds)
    print(text)
    if options.write:
        (HERE / "RESULTS-interpreter.md").write_text(text)


if __name__ == "__main__":
    main()
