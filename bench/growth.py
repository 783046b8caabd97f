#!/usr/bin/env python3
"""Measures how cost grows: with idle sandboxes, ended sandboxes, keys, snapshots and subscribers of events.

Usage: BELLJAR=path/to/belljar growth.py [--idle N] [--most N] [--write]
--idle limits the number of idle sandboxes, --most all numbers, of which the first is measured in any case. With --write the results
replace bench/RESULTS-growth.md. For each row the exponent of its growth is fitted to all its points: 0 is independent of the number, 1
in proportion to it.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import math
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
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
# A sandbox lives longer than the run.
LIFETIME_S = 4 * 3600
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
            if limit is not None and (limit is not self.factor or len(values) > 1):
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


def start():
    return service.Service(os.environ["BELLJAR"], 0, 'on_exit = "end"\n')


def close(server):
    """Ends the server with all of its sandboxes, which takes a while."""
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(600)
    server.close()


def fill(server, count):
    """Creates sandboxes, eight at a time; returns their ids."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        return [made["id"] for made in threads.map(lambda _: server.create(timeout=LIFETIME_S), range(count))]


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
    execution = Row("execution on one of them, p50", "ms", factor=1.5)
    memory = Row("memory of an idle sandbox", "MiB", most=1.1)
    listed = Row("list of 100, administrator", "ms", factor=12)
    metrics = Row("metrics", "ms")
    again = Row("restart until ready", "s", most=0.7)
    server = start()
    made = []
    try:
        server.kill(server.create()["id"])
        before = available()
        for number in numbers:
            made += fill(server, number - len(made))
            memory.add(number, (before - available()) / number)
            begin = cpu_s(server)
            create.add(number, timed(lambda: cycle(server)))
            cpu.add(number, (cpu_s(server) - begin) * 1000 / ROUNDS)
            execution.add(number, timed(lambda: server.run(made[0], "/bin/true")))
            listed.add(number, timed(lambda: server.expect(200, "GET", "/v1/sandboxes?limit=100")))
            metrics.add(number, timed(lambda: server.expect(200, "GET", "/metrics")))
            again.add(number, restart(server))
    finally:
        close(server)
    return [create, cpu, execution, memory, listed, metrics, again]


def ended_sandboxes(numbers):
    """Measures lists of live sandboxes after many have ended. Their records are written while the server is down."""
    user = Row("list of 100, user", "ms", most=4)
    admin = Row("list of 100, administrator", "ms", most=4)
    server = start()
    try:
        key = server.expect(201, "POST", "/v1/keys", {"name": "bench", "role": "user"})["key"]
        own = server.key
        fill(server, 100)
        server.kill(server.create()["id"])
        there = 0
        for number in numbers:
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
        close(server)
    return [user, admin]


def keys(numbers):
    """Measures the creation of keys, a page of them, and one of the audit log, which has a record of each."""
    rate = Row("keys created in a second", "/s", least=300)
    page = Row("page of 100 keys", "ms", factor=1.5)
    audit = Row("page of 100 audit records", "ms", factor=1.5)
    server = start()
    try:
        count = 0
        for number in numbers:
            first, begin = count, time.perf_counter()
            while count < number:
                server.expect(201, "POST", "/v1/keys", {"name": "bench", "role": "user"})
                count += 1
                if count == number - 50:
                    first, begin = count, time.perf_counter()
            rate.add(number, (count - first) / (time.perf_counter() - begin))
            page.add(number, timed(lambda: server.expect(200, "GET", "/v1/keys?limit=100")))
            audit.add(number, timed(lambda: server.expect(200, "GET", "/v1/audit?limit=100")))
    finally:
        close(server)
    return [rate, page, audit]


def snapshots(numbers):
    """Measures lists beside many snapshots."""
    whole = Row("all snapshots", "ms")
    page = Row("page of 10 snapshots", "ms", factor=3)
    server = start()
    try:
        sandbox, count = server.create(timeout=LIFETIME_S)["id"], 0
        for number in numbers:
            while count < number:
                server.expect(201, "POST", f"/v1/sandboxes/{sandbox}/snapshot", {})
                count += 1
            whole.add(number, timed(lambda: server.expect(200, "GET", "/v1/templates")))
            page.add(number, timed(lambda: server.expect(200, "GET", "/v1/templates?limit=10")))
    finally:
        close(server)
    return [whole, page]


def subscribers(numbers):
    """Measures executions while others follow the events."""
    took = Row("execution, p50", "ms", factor=1.2)
    cpu = Row("the server's processor time for it", "ms")
    server = start()
    try:
        sandbox = server.create(timeout=LIFETIME_S)["id"]
        for number in numbers:
            with followers(server, number):
                for _ in range(20):
                    server.run(sandbox, "/bin/true")
                begin = cpu_s(server)
                took.add(number, timed(lambda: server.run(sandbox, "/bin/true"), 200))
                cpu.add(number, (cpu_s(server) - begin) * 1000 / 200)
    finally:
        close(server)
    return [took, cpu]


# One process reads all streams, and says so when each has begun.
FOLLOW = """
import select, socket, sys
port, key, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begun, poll, streams = set(), select.poll(), {}
for _ in range(count):
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(f"GET /v1/events HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer {key}\\r\\n\\r\\n".encode())
    streams[stream.fileno()] = stream
    poll.register(stream, select.POLLIN)
while True:
    for fd, _ in poll.poll():
        data = streams[fd].recv(1 << 16)
        if not data or (fd not in begun and not data.startswith(b"HTTP/1.1 200")):
            sys.exit(f"a stream ended: {data!r}")
        begun.add(fd)
    if len(begun) == count:
        print("all", flush=True)
        count = -1
"""


@contextlib.contextmanager
def followers(server, number):
    """Follows the events that many times, in a process of its own, which takes no time of the caller's interpreter."""
    if number == 0:
        yield
        return
    argv = [sys.executable, "-c", FOLLOW, str(server.port), server.key, str(number)]
    reader = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        if reader.stdout.readline() != "all\n":
            raise measure.Failed("not all subscribers were accepted")
        yield
        if reader.poll() is not None:
            raise measure.Failed("a subscriber lost its stream")
    finally:
        reader.kill()
        reader.wait()


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
    arguments.add_argument("--idle", type=int, default=IDLE[-1])
    arguments.add_argument("--most", type=int, default=max(*IDLE, *ENDED, *KEYS))
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    load = os.getloadavg()[0]
    up_to = lambda numbers, most: [number for number in numbers if number <= most] or list(numbers[:1])
    groups = [
        ("Idle sandboxes", idle_sandboxes(up_to(IDLE, min(options.idle, options.most)))),
        ("Ended sandboxes", ended_sandboxes(up_to(ENDED, options.most))),
        ("Keys", keys(up_to(KEYS, options.most))),
        ("Snapshots", snapshots(up_to(SNAPSHOTS, options.most))),
        ("Subscribers of events", subscribers(up_to(SUBSCRIBERS, options.most))),
    ]
    page = render(groups, load)
    print(page)
    if options.write:
        (HERE / "RESULTS-growth.md").write_text(page)


if __name__ == "__main__":
    main()
