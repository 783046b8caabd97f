#!/usr/bin/env python3
"""Measures the service through E2B's Python client: from `Sandbox.create` to the result of the first command or code.

Usage: BELLJAR=path/to/belljar e2b_client.py [--rounds N] [--write], with a Python that has e2b-code-interpreter (make bench-e2b)
With --write the results replace bench/RESULTS-e2b.md. The client's own cost is measured in the same run, against a server that
returns recorded responses immediately (stub.py).
"""

import argparse
import asyncio
import concurrent.futures
import importlib.metadata
import os
import pathlib
import sys
import tempfile
import threading
import time

import measure
import report
import service
import stub
from e2b_code_interpreter import AsyncSandbox, Sandbox

HERE = pathlib.Path(__file__).resolve().parent
BURST = 20
POOL = 8
TARGET_MS = 25
CODE = "2 ** 64"
RESULT = "18446744073709551616"

# Settings and pool size of each server.
SERVERS = {
    "pre-warmed, no network": (["server.e2b_internet=false"], POOL),
    "cold, no network": (["server.e2b_internet=false"], 0),
    "as it comes, open network": ([], POOL),
}
FIRST = {"command": "commands.run", "code": "run_code"}


def check(done, what):
    if what == "command":
        good = done.exit_code == 0 and done.stdout == "hello\n"
    else:
        good = done.text == RESULT
    if not good:
        raise measure.Failed(f"{what}: {done}")


def first(given, what):
    """Returns the seconds from `create` to the first result; ending the sandbox is not included."""
    begin = time.perf_counter()
    sandbox = Sandbox.create(**given)
    done = sandbox.commands.run("echo hello") if what == "command" else sandbox.run_code(CODE)
    took = time.perf_counter() - begin
    check(done, what)
    sandbox.kill()
    return took


async def first_async(given, what):
    """Like `first`, with the asynchronous client."""
    begin = time.perf_counter()
    sandbox = await AsyncSandbox.create(**given)
    done = await (sandbox.commands.run("echo hello") if what == "command" else sandbox.run_code(CODE))
    took = time.perf_counter() - begin
    check(done, what)
    await sandbox.kill()
    return took


def record(given):
    """Makes each call once, in an order in which all succeed, so that the stub records the responses."""
    with Sandbox.create(**given) as sandbox:
        check(sandbox.commands.run("echo hello"), "command")
        check(sandbox.run_code(CODE), "code")


def attempt(call, *arguments):
    """Returns the time of a call, or None if the client raised an error, which is printed."""
    try:
        return call(*arguments)
    except Exception as error:
        measure.say(f"{type(error).__name__}: {error}")
        return None


def sequential(given, what, rounds, settle):
    """Runs one after the other, each when the pool is full again."""
    taken = []
    for _ in range(rounds):
        settle()
        taken.append(first(given, what))
    return taken


def burst(given, what, count):
    """Runs all at once, each in its own thread."""
    together = threading.Barrier(count)

    def one():
        together.wait()
        return attempt(first, given, what)

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return [begun.result() for begun in [threads.submit(one) for _ in range(count)]]


async def sequential_async(given, what, rounds, settle):
    taken = []
    for _ in range(rounds):
        settle()
        taken.append(await first_async(given, what))
    return taken


async def burst_async(given, what, count):
    done = await asyncio.gather(*(first_async(given, what) for _ in range(count)), return_exceptions=True)
    for error in done:
        if isinstance(error, BaseException):
            measure.say(f"{type(error).__name__}: {error}")
    return [None if isinstance(one, BaseException) else one for one in done]


def times(given, rounds, settle):
    """Returns all times against one server, by client, first result and load. `settle` waits until the pool is full."""
    found = {}

    async def asynchronous(what):
        await sequential_async(given, what, 5, settle)
        found["async", what, "sequential"] = await sequential_async(given, what, rounds, settle)
        settle()
        found["async", what, "burst"] = await burst_async(given, what, BURST)

    for what in FIRST:
        sequential(given, what, 5, settle)
        found["sync", what, "sequential"] = sequential(given, what, rounds, settle)
        settle()
        found["sync", what, "burst"] = burst(given, what, BURST)
        asyncio.run(asynchronous(what))
    return found


def measure_all(belljar, rounds):
    results = {}
    for name, (settings, pool) in SERVERS.items():
        arguments = ["--e2b", *(word for setting in settings for word in ("--set", setting))]
        server = service.Service(belljar, pool, arguments=arguments)
        url = f"http://127.0.0.1:{server.port}"
        given = {"api_url": url, "sandbox_url": url, "api_key": server.key}
        settle = lambda: server.until(server.pool_is_full, "the pool to be full")
        try:
            if not results:
                recorded = stub.Stub(server.port)
                with recorded.serving() as port:
                    url = f"http://127.0.0.1:{port}"
                    there = {**given, "api_url": url, "sandbox_url": url}
                    record(there)
                    measure.say("the client's own cost")
                    results["the client alone"] = times(there, rounds, lambda: None)
            measure.say(name)
            results[name] = times(given, rounds, settle)
        finally:
            server.close()
    return results


def p50(seconds):
    return measure.median(one * 1000 for one in seconds if one is not None)


def render(results, load, rounds):
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("e2b", "e2b-code-interpreter"))
    lines = ["# Through E2B's client: results of the last run", ""]
    lines += [f"{report.machine()}, load {load:.1f} before; {rounds} rounds, {BURST} at once. Generated by `make bench-e2b`.", ""]
    lines += [f"{versions}, Python {sys.version.split()[0]}. In milliseconds, over HTTP on loopback: from `Sandbox.create` until the", "first `commands.run(\"echo hello\")` or the first `run_code` is done, including the client's own cost.", ""]
    lines += [f"Pre-warmed: {POOL} sandboxes are kept ready, and `server.e2b_internet` is off. Cold: none is. As it comes: the client's default,", "an open network. The client alone: the same calls to a server that returns recorded responses immediately.", ""]
    lines += ["## Targets", ""]
    rows = []
    for name in SERVERS:
        for what, method in FIRST.items():
            for client in ("sync", "async"):
                reached = p50(results[name][client, what, "sequential"])
                rows.append(service.target(f"{name}, {client} `{method}`, p50 ≤ {TARGET_MS} ms", reached, TARGET_MS, "ms"))
    bursts = [times for found in results.values() for (*_, load), times in found.items() if load == "burst"]
    failures = sum(one is None for times in bursts for one in times)
    rows.append([f"bursts of {BURST} without a failure", f"{failures} failures", "met" if failures == 0 else "missed"])
    lines += report.table(["target", "reached", ""], rows)
    for load in ("sequential", "burst"):
        lines += [f"## {'One after the other, each when the pool is full' if load == 'sequential' else f'{BURST} at once'}", ""]
        rows = []
        for what, method in FIRST.items():
            for client in ("sync", "async"):
                alone = p50(results["the client alone"][client, what, load])
                for name, found in results.items():
                    taken = found[client, what, load]
                    over = f"{p50(taken) - alone:.2f}" if name in SERVERS else ""
                    rows.append([f"`{method}`, {client}", *service.row(name, taken), over])
        lines += report.table(["", "", "p50", "p95", "p99", "done", "over the client's own"], rows)
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    belljar = os.environ.get("BELLJAR") or sys.exit("set BELLJAR to the path of the belljar binary")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        # A copy, as on installation: the linker's output is in the page cache in smaller pieces.
        installed = measure.install(belljar, directory)
        text = render(measure_all(installed, options.rounds), load, options.rounds)
    print(text)
    if options.write:
        (HERE / "RESULTS-e2b.md").write_text(text)


if __name__ == "__main__":
    main()
