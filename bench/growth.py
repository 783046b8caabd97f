#!/usr/bin/env python3
"""Measures how cost grows: with idle sandboxes, ended sandboxes, keys, snapshots and subscribers of events.

Usage: BELLJAR=path/to/belljar growth.py [--most N] [--write]
--most limits the number of idle sandboxes (3000). With --write the results replace bench/RESULTS-growth.md. For each row the exponent
of its growth is fitted to all its points: 0 is independent of the number, 1 in proportion to it.
"""

import argparse
import contextlib
import datetime
import math
import os
import pathlib
import signal
import sqlite3
import subprocess
import time

import measure
import report
import service

HERE = pathlib.Path(__file__).resolve().parent
IDLE = (10, 100, 1000, 3000)
ENDED = (1_000, 10_000, 100_000)
KEYS = (100, 1_000, 10_000)
SNAPSHOTS = (10, 100, 500)
SUBSCRIBERS = (0, 10, 100)
ROUNDS = 40
TICKS = os.sysconf("SC_CLK_TCK")


class Row:
    """What one figure was at each number. `goal` is the largest factor from the first number to the last, or the largest last value."""

    def __init__(self, name, unit, factor=None, most=None, least=None):
        self.name, self.unit = name, unit
        self.factor, self.most, self.least = factor, most, least
        self.points = {}

    def add(self, number, value):
        self.points[number] = value
        measure.say(f"{self.name}: {number}: {value:.3g} {self.unit}")

    def exponent(self):
        """Returns the slope of the line through the logarithms; None with fewer than two points."""
        points = [(math.log(number), math.log(value)) for number, value in self.points.items() if number > 0 and value > 0]
        if len(points) < 2:
            return None
        middle = [sum(axis) / len(points) for axis in zip(*points)]
        over = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
        under = sum((x - middle[0]) ** 2 for x, _ in points)
        return over / under

    def goal(self):
        """Returns the goal as text, and whether it is met."""
        values = list(self.points.values())
        if not values:
            return "", "not measured"
        for limit, reached, text, is_met in (
            (self.most, values[-1], "at most {} at the last", lambda reached, limit: reached <= limit),
            (self.least, values[-1], "at least {} at the last", lambda reached, limit: reached >= limit),
            (self.factor, values[-1] / values[0], "at most × {} of the first", lambda reached, limit: reached <= limit),
        ):
            if limit is not None:
                return text.format(limit), "met" if is_met(reached, limit) else f"missed: {reached:.3g}"
        return "", ""


def timed(action, rounds=ROUNDS):
    """Returns the median time of an action in milliseconds."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        taken.append((time.perf_counter() - begin) * 1000)
    return measure.median(taken)


def cpu_s(server):
    """Returns the processor time of the server's own process in seconds."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def available():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) / 1024


def start(pool=0, more=""):
    return service.Service(os.environ["BELLJAR"], pool, more)


def restart(server):
    """Kills the server, starts it again with the same home, and returns the time until it is ready, in seconds."""
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    config = pathlib.Path(server.home, "belljar.toml")
    begin = time.monotonic()
    server.process = subprocess.Popen(
        [os.environ["BELLJAR"], "serve", "--config", str(config)],
        env={**os.environ, "BELLJAR_HOME": server.home},
        stdout=subprocess.DEVNULL,
        stderr=open(pathlib.Path(server.home, "stderr"), "ab"),
    )
    server.local.connection = None
    server.until(lambda: server.call("GET", "/ready")[0] == 200, "the server to be ready")
    return time.monotonic() - begin


def cycle(server):
    server.kill(server.create()["id"])


def idle_sandboxes(numbers):
    """Measures beside more and more idle sandboxes."""
    create = Row("create and end, p50", "ms", factor=1.5)
    cpu = Row("the server's processor time for that", "ms", factor=1.5)
    memory = Row("memory of an idle sandbox", "MiB", most=1.1)
    listed = Row("list of 100, administrator", "ms", factor=12)
    metrics = Row("metrics", "ms")
    again = Row("restart until ready", "s", most=0.7)
    server = start()
    before, count = available(), 0
    try:
        for number in numbers:
            while count < number:
                server.create()
                count += 1
            memory.add(number, (before - available()) / number)
            begin = cpu_s(server)
            create.add(number, timed(lambda: cycle(server)))
            cpu.add(number, (cpu_s(server) - begin) * 1000 / ROUNDS)
            listed.add(number, timed(lambda: server.expect(200, "GET", "/v1/sandboxes?limit=100")))
            metrics.add(number, timed(lambda: server.expect(200, "GET", "/metrics")))
            again.add(number, restart(server))
    finally:
        server.close()
    return [create, cpu, memory, listed, metrics, again]


def ended_sandboxes():
    """Measures lists of live sandboxes after many have ended. Their records are written while the server is down."""
    user = Row("list of 100, user", "ms", most=4)
    admin = Row("list of 100, administrator", "ms", most=4)
    server = start()
    try:
        key = server.expect(201, "POST", "/v1/keys", {"name": "bench", "role": "user", "quotas": {"sandboxes": 200}})["key"]
        own = server.key
        for who in (key, own):
            server.local.key = who
            for _ in range(100):
                server.create()
        server.local.key = own
        server.kill(server.create()["id"])
        there = 0
        for number in ENDED:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            with contextlib.closing(sqlite3.connect(pathlib.Path(server.home, "belljar.db"))) as store:
                columns = [column[1] for column in store.execute("PRAGMA table_info(sandboxes)")]
                row = store.execute("SELECT * FROM sandboxes WHERE state = 'gone' LIMIT 1").fetchone()
                base = dict(zip(columns, row))
                made = (
                    {**base, "id": f"g{one:019}", "name": None, "created_at": base["created_at"] - 1_000_000 + one}
                    for one in range(there, number)
                )
                marks = ", ".join("?" * len(columns))
                store.executemany(f"INSERT INTO sandboxes VALUES ({marks})", ([one[name] for name in columns] for one in made))
                store.commit()
            there = number
            restart(server)
            server.local.key = key
            user.add(number, timed(lambda: server.expect(200, "GET", "/v1/sandboxes?limit=100")))
            server.local.key = own
            admin.add(number, timed(lambda: server.expect(200, "GET", "/v1/sandboxes?limit=100")))
    finally:
        server.close()
    return [user, admin]


def keys():
    """Measures the creation of keys, and a page of them."""
    rate = Row("keys created in a second", "/s", least=300)
    page = Row("page of 100 keys", "ms", factor=1.5)
    server = start()
    try:
        count = 0
        for number in KEYS:
            first, begin = count, time.perf_counter()
            while count < number:
                server.expect(201, "POST", "/v1/keys", {"name": "bench", "role": "user"})
                count += 1
                if count == number - 50:
                    first, begin = count, time.perf_counter()
            rate.add(number, (count - first) / (time.perf_counter() - begin))
            page.add(number, timed(lambda: server.expect(200, "GET", "/v1/keys?limit=100")))
    finally:
        server.close()
    return [rate, page]


def snapshots():
    """Measures lists beside many snapshots."""
    whole = Row("all snapshots", "ms")
    page = Row("page of 10 snapshots", "ms", factor=3)
    server = start()
    try:
        sandbox, count = server.create()["id"], 0
        for number in SNAPSHOTS:
            while count < number:
                server.expect(201, "POST", f"/v1/sandboxes/{sandbox}/snapshot", {})
                count += 1
            whole.add(number, timed(lambda: server.expect(200, "GET", "/v1/templates")))
            page.add(number, timed(lambda: server.expect(200, "GET", "/v1/templates?limit=10")))
    finally:
        server.close()
    return [whole, page]


def subscribers():
    """Measures executions while others follow the events."""
    took = Row("execution, p50", "ms", factor=1.2)
    cpu = Row("the server's processor time for it", "ms")
    server = start()
    followers = []
    try:
        sandbox = server.create()["id"]
        for number in SUBSCRIBERS:
            while len(followers) < number:
                followers.append(follow(server))
            for _ in range(20):
                server.run(sandbox, "/bin/true")
            begin = cpu_s(server)
            took.add(number, timed(lambda: server.run(sandbox, "/bin/true"), 200))
            cpu.add(number, (cpu_s(server) - begin) * 1000 / 200)
    finally:
        for follower in followers:
            follower.kill()
            follower.wait()
        server.close()
    return [took, cpu]


def follow(server):
    """Starts a subscriber in a process of its own, so that it takes no time of the caller's interpreter."""
    header = f"Authorization: Bearer {server.key}"
    argv = ["curl", "-sSN", "-o", os.devnull, "-H", header, f"http://127.0.0.1:{server.port}/v1/events"]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL)


def render(groups, load):
    out = [
        "# Growth, results of the last run",
        "",
        f"{datetime.date.today()}, {report.machine()}, load {load:.1f} before. Generated by `make bench-growth`.",
        "",
        "Each figure at several numbers of what is named above it, and the exponent of its growth: 0 does not grow, 1 grows in",
        "proportion. Compare within a run, not between runs.",
        "",
    ]
    for title, rows in groups:
        numbers = [f"{number:,}" for number in rows[0].points]
        out += [f"## {title}", ""]
        lines = []
        for row in rows:
            exponent = row.exponent()
            goal, reached = row.goal()
            values = [f"{value:.3g}" for value in row.points.values()]
            lines.append([f"{row.name}, {row.unit}", *values, "" if exponent is None else f"{exponent:.2f}", goal, reached])
        out += report.table(["", *numbers, "exponent", "goal", ""], lines)
    return "\n".join(out).rstrip() + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--most", type=int, default=IDLE[-1])
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    load = os.getloadavg()[0]
    numbers = [number for number in IDLE if number <= options.most]
    groups = [
        ("Idle sandboxes", idle_sandboxes(numbers)),
        ("Ended sandboxes", ended_sandboxes()),
        ("Keys", keys()),
        ("Snapshots", snapshots()),
        ("Subscribers of events", subscribers()),
    ]
    page = render(groups, load)
    print(page)
    if options.write:
        (HERE / "RESULTS-growth.md").write_text(page)


if __name__ == "__main__":
    main()
