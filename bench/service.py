#!/usr/bin/env python3
"""Measures the service over loopback HTTP: time to the first command's result, files, executions, idle sandboxes.

Usage: BELLJAR=path/to/belljar [BELLJAR_SDK_PYTHON=path/to/python] service.py [--rounds N] [--idle N] [--write]
BELLJAR_SDK_PYTHON is a Python with the SDK, whose executions are measured as well (make bench-service).
With --write the results replace bench/RESULTS-service.md. Measured in the same run: a bare process, bubblewrap, and Docker if a
daemon responds (make bench-service-peers).
"""

import argparse
import concurrent.futures
import http.client
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import contenders
import measure
import report

HERE = pathlib.Path(__file__).resolve().parent
BURST = 100
STAGGER_S = 0.2
CALLERS = 64
# Numbers of concurrent callers in throughput measurements.
WIDTHS = (1, 2, 8, 64)
# The maximum of `output`, and the size of each response.
FULL_MIB = 16
FILE_MIB = 64
START_LIMIT_S = 30


class Service:
    """A server with its own home directory."""

    def __init__(self, belljar, pool, more="", arguments=()):
        self.home = tempfile.mkdtemp(prefix="belljar-bench-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        config = pathlib.Path(self.home, "belljar.toml")
        config.write_text(
            f'[server]\nlisten = ["127.0.0.1:{self.port}"]\n'
            f"[sandboxes]\npool = {pool}\nmax_sandboxes = 4000\n{more}"
        )
        environment = {**os.environ, "BELLJAR_HOME": self.home}
        self.process = subprocess.Popen(
            [belljar, "serve", "--config", str(config), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=open(pathlib.Path(self.home, "stderr"), "wb"),
            text=True,
        )
        self.key = self.first_key()
        self.local = threading.local()
        self.until(lambda: self.call("GET", "/ready")[0] == 200, "the server to be ready")

    def first_key(self):
        begin = time.monotonic()
        while time.monotonic() - begin < START_LIMIT_S:
            line = self.process.stdout.readline()
            if found := re.search(r"bj_[0-9a-f]{64}", line):
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return found.group()
            if not line and self.process.poll() is not None:
                break
        sys.exit(f"the server did not start: {pathlib.Path(self.home, 'stderr').read_text()}")

    def call(self, method, path, body=None, headers=None):
        """Sends a request on this thread's connection; returns status and body. A thread may have its own key."""
        connection = getattr(self.local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.local.connection = connection
        key = getattr(self.local, "key", self.key)
        headers = {"Authorization": f"Bearer {key}", **(headers or {})}
        if isinstance(body, dict):
            body = json.dumps(body)
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except Exception:
            self.local.connection = None
            raise

    def expect(self, status, method, path, body=None, headers=None):
        got, answer = self.call(method, path, body, headers)
        if got != status:
            raise measure.Failed(f"{method} {path}: {got}: {answer[:500]!r}")
        return json.loads(answer) if answer[:1] in (b"{", b"[") else answer

    def until(self, done, what):
        begin = time.monotonic()
        while True:
            try:
                if done():
                    return
            except OSError:
                pass
            if time.monotonic() - begin > START_LIMIT_S:
                sys.exit(f"timed out waiting for {what}")
            time.sleep(0.01)

    def pool_is_full(self):
        text = self.expect(200, "GET", "/metrics").decode()
        level = dict(re.findall(r"^belljar_pool_(ready|size) (\d+)", text, re.M))
        return level["ready"] == level["size"]

    def create(self, **request):
        return self.expect(201, "POST", "/v1/sandboxes", request)

    def run(self, sandbox, *argv):
        result = self.expect(200, "POST", f"/v1/sandboxes/{sandbox}/exec", {"argv": list(argv)})
        if result["exit_code"] != 0:
            raise measure.Failed(f"{argv}: {result}")
        return result

    def kill(self, sandbox):
        self.expect(204, "DELETE", f"/v1/sandboxes/{sandbox}")

    def processes(self):
        """Returns the server, its descendants, and the launcher, which is not one of them."""
        found, parents = set(), {self.process.pid}
        table = {}
        for directory in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                stat = (directory / "stat").read_text()
                environment = (directory / "environ").read_bytes()
            except OSError:
                continue
            pid = int(directory.name)
            table[pid] = int(stat.rpartition(")")[2].split()[1])
            if self.home.encode() in environment:
                parents.add(pid)
        while parents:
            found |= parents
            parents = {pid for pid, parent in table.items() if parent in found and pid not in found}
        return found

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        shutil.rmtree(self.home, ignore_errors=True)


def tti(service, limit=None):
    """Returns the time to create a sandbox and run its first command; ending the sandbox is not included."""
    begin = time.perf_counter()
    sandbox = service.create()["id"]
    service.run(sandbox, "/bin/true")
    took = time.perf_counter() - begin
    service.kill(sandbox)
    return took


def sequential(service, rounds):
    return [tti(service) for _ in range(rounds)]


def staggered(service, count):
    """Starts one every 200 ms, even if the previous ones are not done."""
    with concurrent.futures.ThreadPoolExecutor(32) as threads:
        begun = []
        for _ in range(count):
            begun.append(threads.submit(tti, service))
            time.sleep(STAGGER_S)
        return [one.result() for one in begun]


def burst(service, count):
    """Starts all at once. A failure is returned as None."""
    together = threading.Barrier(count)

    def one():
        service.call("GET", "/health")
        together.wait()
        try:
            return tti(service)
        except (measure.Failed, OSError) as error:
            measure.say(f"burst: {error}")
            return None

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return [begun.result() for begun in [threads.submit(one) for _ in range(count)]]


def peers(belljar, rounds):
    """Measures the same without a service: start, run, end."""
    field = contenders.find(belljar)
    for name, reason in field.skipped.items():
        measure.say(f"skipped: {name}: {reason}")
    times = {}
    for command in [*field.core["true"], *field.peers["true"]]:
        if command.name not in ("bare", "bubblewrap", "docker run"):
            continue
        taken = []
        for _ in range(rounds if command.name != "docker run" else min(rounds, 20)):
            begin = time.perf_counter()
            subprocess.run(command.argv, env=command.env, check=True, capture_output=True)
            taken.append(time.perf_counter() - begin)
        times[command.name] = taken
    return times


def file_speed(service):
    """Returns MiB per second of uploads, downloads, and of cp in the same run."""
    data = os.urandom(1 << 20) * FILE_MIB
    sandbox = service.create(limits={"disk": f"{FILE_MIB * 2}m", "memory": "512m"})["id"]
    path = f"/v1/sandboxes/{sandbox}/files/content?path=big"
    up, down = [], []
    for _ in range(5):
        begin = time.perf_counter()
        service.expect(200, "PUT", path, data, {"Content-Type": "application/octet-stream"})
        up.append(FILE_MIB / (time.perf_counter() - begin))
        begin = time.perf_counter()
        content = service.expect(200, "GET", path)
        down.append(FILE_MIB / (time.perf_counter() - begin))
        if content != data:
            raise measure.Failed("the downloaded content differs from the uploaded content")
    service.kill(sandbox)
    copies = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        source = pathlib.Path(directory, "a")
        source.write_bytes(data)
        for _ in range(5):
            begin = time.perf_counter()
            subprocess.run(["cp", str(source), str(source.with_name("b"))], check=True)
            copies.append(FILE_MIB / (time.perf_counter() - begin))
    return {"up": measure.median(up), "down": measure.median(down), "cp": measure.median(copies)}


def docker_cp():
    """Measures the same with `docker cp`, if bench/peers.sh provides a daemon."""
    directory = os.environ.get("BELLJAR_PEERS")
    if not directory or "docker\tready" not in pathlib.Path(directory, "peers").read_text():
        return {}
    docker = [contenders.which("docker"), "-H", f"unix://{directory}/docker.sock"]
    run = lambda *words: subprocess.run([*docker, *words], check=True, capture_output=True, text=True).stdout.strip()
    container = run("create", "--network", "none", "belljar-bench", "sleep", "1000")
    up, down = [], []
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            source = pathlib.Path(directory, "a")
            source.write_bytes(os.urandom(1 << 20) * FILE_MIB)
            for _ in range(5):
                begin = time.perf_counter()
                run("cp", str(source), f"{container}:/big")
                up.append(FILE_MIB / (time.perf_counter() - begin))
                begin = time.perf_counter()
                run("cp", f"{container}:/big", str(source.with_name("b")))
                down.append(FILE_MIB / (time.perf_counter() - begin))
    finally:
        run("rm", "-f", container)
    return {"docker up": measure.median(up), "docker down": measure.median(down)}


def spawn_bare():
    """Spawns /bin/true and waits for it; returns the seconds."""
    begin = time.perf_counter()
    _, status = os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)
    if status != 0:
        raise measure.Failed(f"/bin/true: {status}")
    return time.perf_counter() - begin


def execution_times(service, rounds):
    """Measures executions on a live sandbox, alternating with bare processes and the SDK, in seconds."""
    sandbox = service.create()["id"]
    taken = {"bare": [], "raw": []}

    def run():
        begin = time.perf_counter()
        service.run(sandbox, "/bin/true")
        return time.perf_counter() - begin

    client = None
    if python := os.environ.get("BELLJAR_SDK_PYTHON"):
        url = {"BELLJAR_API_URL": f"http://127.0.0.1:{service.port}", "BELLJAR_API_KEY": service.key}
        argv = [python, str(HERE / "sdk_client.py"), sandbox]
        client = subprocess.Popen(argv, env={**os.environ, **url}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        taken["sdk"] = []

    def through_sdk(count):
        client.stdin.write(f"{count}\n")
        client.stdin.flush()
        return json.loads(client.stdout.readline() or "[]")

    turn = 50
    for begun in range(-turn, 2 * rounds, turn):
        found = {"bare": [spawn_bare() for _ in range(turn)], "raw": [run() for _ in range(turn)]}
        if client:
            found["sdk"] = through_sdk(turn)
        # The first turn is a warm-up.
        for name, times in found.items():
            taken[name] += times if begun >= 0 else []
    if client:
        client.stdin.close()
        if client.wait(60) != 0:
            raise measure.Failed(f"sdk_client.py: {client.returncode}")
    service.kill(sandbox)
    return taken


def rates(work, seconds):
    """Returns calls of `work` per second, by the number of callers."""

    def one(until):
        done = 0
        while time.perf_counter() < until:
            work()
            done += 1
        return done

    found = {}
    for width in WIDTHS:
        until = time.perf_counter() + seconds
        with concurrent.futures.ThreadPoolExecutor(width) as threads:
            found[width] = sum(begun.result() for begun in [threads.submit(one, until) for _ in range(width)]) / seconds
    return found


def executions(service, seconds=5):
    """Returns executions per second on one live sandbox."""
    sandbox = service.create()["id"]
    found = rates(lambda: service.run(sandbox, "/bin/true"), seconds)
    service.kill(sandbox)
    return found


def creates(service, seconds=5):
    """Returns sandboxes created and removed per second."""
    return rates(lambda: service.kill(service.create()["id"]), seconds)


def memory_mib(pid, what):
    """Returns a field of proc_pid_status(5): VmRSS is the current size, VmHWM the peak."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{what}:\s+(\d+) kB", text, re.M).group(1)) / 1024


def crowd(service, key, ready, over, outcomes):
    """Runs callers of one key, each with a sandbox and one full output after the other, until `over` is set."""
    body = {"argv": ["head", "-c", str(FULL_MIB << 20), "/dev/zero"], "output": f"{FULL_MIB}m"}
    service.local, begun, answered = threading.local(), threading.Barrier(CALLERS), []

    def work():
        service.local.key = key
        sandbox = None
        while sandbox is None:
            status, answer = service.call("POST", "/v1/sandboxes", {"timeout": 3600})
            sandbox = json.loads(answer)["id"] if status == 201 else None
        begun.wait()
        ready.set()
        while not over.is_set():
            status, answer = service.call("POST", f"/v1/sandboxes/{sandbox}/exec", body)
            answered.append((status, len(answer)))
        service.kill(sandbox)

    with concurrent.futures.ThreadPoolExecutor(CALLERS) as threads:
        for one in [threads.submit(work) for _ in range(CALLERS)]:
            one.result()
    outcomes.put(answered)


def hostile(service, rounds):
    """Measures the server's memory and another key's latency while callers of one key constantly request full outputs."""
    keys = {}
    for name in ("honest", "hostile"):
        made = service.expect(201, "POST", "/v1/keys", {"name": name, "role": "user"})
        keys[name] = made["key"]
    service.local.key = keys["honest"]
    mine = service.create(timeout=3600)["id"]

    execute = lambda: service.run(mine, "/bin/true")
    look = lambda: service.expect(200, "GET", f"/v1/sandboxes/{mine}")

    def times(action, least):
        taken = []
        until = time.perf_counter() + least
        while len(taken) < rounds or time.perf_counter() < until:
            begin = time.perf_counter()
            action()
            taken.append(time.perf_counter() - begin)
        return taken

    times(execute, 0)
    alone, alone_look = times(execute, 0), times(look, 0)
    pathlib.Path(f"/proc/{service.process.pid}/clear_refs").write_text("5")
    before = memory_mib(service.process.pid, "VmRSS")
    # In a separate process, so that it does not delay the measurements.
    context = multiprocessing.get_context("fork")
    ready, over, outcomes = context.Event(), context.Event(), context.Queue()
    greedy = context.Process(target=crowd, args=(service, keys["hostile"], ready, over, outcomes))
    greedy.start()
    ready.wait(60)
    beside, beside_look = times(execute, 5), times(look, 5)
    most = memory_mib(service.process.pid, "VmHWM")
    over.set()
    answered = outcomes.get(timeout=120)
    greedy.join()
    time.sleep(2)
    service.kill(mine)
    del service.local.key
    full = [size for status, size in answered if status == 200]
    if not full or min(full) < FULL_MIB << 20:
        raise measure.Failed(f"incomplete outputs: {answered[:5]}")
    return {
        "alone": alone,
        "beside": beside,
        "alone_look": alone_look,
        "beside_look": beside_look,
        "before": before,
        "most": most,
        "after": memory_mib(service.process.pid, "VmRSS"),
        "full": len(full),
        "refused": len(answered) - len(full),
    }


def proportional_kib(pids):
    """Returns the memory of processes, with shared pages divided among them (smaps_rollup, proc_pid_smaps(5))."""
    total = 0
    for pid in pids:
        try:
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        if found := re.search(r"^Pss:\s+(\d+) kB", text, re.M):
            total += int(found.group(1))
    return total


def available_kib():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(r"^MemAvailable:\s+(\d+) kB", text, re.M).group(1))


def idle(service, count):
    """Measures the memory of idle sandboxes: of their processes, and of the whole machine."""
    one = service.create(timeout=3600)["id"]
    service.run(one, "/bin/true")
    time.sleep(1)
    before, available_before = proportional_kib(service.processes()), available_kib()
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        made = [info["id"] for info in threads.map(lambda _: service.create(timeout=3600), range(count))]
    took = time.perf_counter() - begin
    time.sleep(2)
    after, available_after = proportional_kib(service.processes()), available_kib()
    checked = service.run(made[-1], "/bin/true")["exit_code"] == 0
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(service.kill, made))
    service.kill(one)
    return {
        "count": count,
        "a_second": count / took,
        "processes_mib": (after - before) / 1024 / count,
        "machine_mib": (available_before - available_after) / 1024 / count,
        "usable": checked,
    }


def row(name, seconds):
    good = sorted(one * 1000 for one in seconds if one is not None)
    share = f"{len(good)}/{len(seconds)}"
    figures = [f"{measure.percentile(good, part):.2f}" for part in (0.5, 0.95, 0.99)] if good else ["", "", ""]
    return [name, *figures, share]


def target(text, reached, limit, unit):
    met = reached <= limit
    verdict = "met" if met else f"missed by factor {reached / limit:.2f}"
    return [text, f"{reached:.2f} {unit}", verdict]


def execution_targets(times):
    """Returns rows for one execution on a live sandbox, as multiples of a bare process at p50."""
    bare = measure.median(times["bare"])
    texts = {"raw": ("an execution over raw HTTP ≤ 1.8 × a bare process", 1.8), "sdk": ("the same through the Python SDK ≤ 2.5 ×", 2.5)}
    rows = [target(text, measure.median(times[name]) / bare, limit, "×") for name, (text, limit) in texts.items() if name in times]
    if "sdk" in times:
        more = (measure.median(times["sdk"]) - measure.median(times["raw"])) * 1000
        rows.append(target("the SDK adds ≤ 0.5 ms", more, 0.5, "ms"))
    return rows


def render(results, load, rounds):
    pooled, cold = results["pooled"], results["cold"]
    milliseconds = lambda seconds, part: measure.percentile(sorted(one * 1000 for one in seconds if one), part)
    greed = results["hostile"]
    slower = milliseconds(greed["beside"], 0.99) / milliseconds(greed["alone"], 0.99)
    failures = sum(one is None for one in [*pooled["burst"], *cold["burst"]])
    lines = ["# The service: results of the last run", ""]
    lines += [f"{report.machine()}, load {load:.1f} before; {rounds} rounds. Generated by `make bench-service`.", ""]
    lines += ["Pooled: eight pre-warmed sandboxes are kept ready; the next one is created while the last is in use. Cold: none is.", ""]
    lines += ["Time to the first command done (create a sandbox, run `/bin/true` in it, read its result), over HTTP on loopback with", "a client in Python, in milliseconds.", ""]
    lines += ["## Targets", ""]
    lines += report.table(["target", "reached", ""], [
        target("pre-warmed, one after the other, p50 ≤ 4 ms", milliseconds(pooled["sequential"], 0.5), 4, "ms"),
        target("the same, p99 ≤ 20 ms", milliseconds(pooled["sequential"], 0.99), 20, "ms"),
        target("cold, p50 ≤ 8 ms", milliseconds(cold["sequential"], 0.5), 8, "ms"),
        [f"a burst of {BURST} without a failure", f"{failures} failures", "met" if failures == 0 else "missed"],
        target("an idle sandbox costs ≤ 1 MiB", results["idle"]["machine_mib"], 1, "MiB"),
        *execution_targets(results["times"]),
        target(f"the server's memory, {CALLERS} callers with full outputs, ≤ 128 MiB", greed["most"], 128, "MiB"),
        target("an honest key's executions beside them, p99 ≤ 3 × alone", slower, 3, "×"),
    ])
    lines += ["", "## Time to the first command done", ""]
    rows = [row(f"{kind}, {how}", results[kind][how]) for kind in ("pooled", "cold") for how in ("sequential", "staggered", "burst")]
    rows += [row(name, times) for name, times in results["peers"].items()]
    lines += report.table(["", "p50", "p95", "p99", "done"], rows)
    bare = milliseconds(results["peers"]["bare"], 0.5)
    ratios = [[kind, f"{milliseconds(results[kind]['sequential'], 0.5) / bare:.2f}"] for kind in ("pooled", "cold")]
    ratios += [[name, f"{milliseconds(times, 0.5) / bare:.2f}"] for name, times in results["peers"].items()]
    lines += ["", "## × bare `true`, p50", "", *report.table(["", "×"], ratios)]
    names = {"bare": "a bare process, spawned and waited for", "raw": "an execution, raw HTTP", "sdk": "an execution, Python SDK"}
    lines += ["", "## One execution of `/bin/true` on a live sandbox, in milliseconds", ""]
    lines += report.table(["", "p50", "p95", "p99", "done"], [row(names[name], times) for name, times in results["times"].items()])
    lines += ["", "## Throughput, a second", ""]
    kinds = {"executions": "executions on one sandbox", "creates": "sandboxes created and removed"}
    lines += report.table(
        ["callers", *map(str, WIDTHS)],
        [[text, *(f"{results[kind][width]:.0f}" for width in WIDTHS)] for kind, text in kinds.items()],
    )
    files, lying = results["files"], results["idle"]
    lines += ["", "## Files, idle sandboxes", ""]
    lines += report.table(["", ""], [
        [f"a file of {FILE_MIB} MiB up", f"{files['up']:.0f} MiB/s, {files['up'] / files['cp']:.2f} × cp"],
        [f"a file of {FILE_MIB} MiB down", f"{files['down']:.0f} MiB/s, {files['down'] / files['cp']:.2f} × cp"],
        *[[f"the same with `docker cp`, {way}", f"{files[f'docker {way}']:.0f} MiB/s"] for way in ("up", "down") if f"docker {way}" in files],
        [f"{lying['count']} idle sandboxes, made", f"{lying['a_second']:.0f} a second"],
        ["an idle sandbox, its processes (PSS)", f"{lying['processes_mib']:.2f} MiB"],
        ["an idle sandbox, what the machine has less", f"{lying['machine_mib']:.2f} MiB"],
        ["idle sandboxes per GiB", f"{1024 / lying['machine_mib']:.0f}"],
    ])
    lines += ["", f"## One key with {CALLERS} callers, each with outputs of {FULL_MIB} MiB, beside another key", ""]
    both = lambda part, kind="": f"{milliseconds(greed['alone' + kind], part):.2f} ms alone, {milliseconds(greed['beside' + kind], part):.2f} ms beside them"
    lines += report.table(["", ""], [
        ["the server's memory before, at most and 2 s after (resident)", f"{greed['before']:.0f}, {greed['most']:.0f}, {greed['after']:.0f} MiB"],
        ["full answers they had, and refusals", f"{greed['full']}, {greed['refused']}"],
        ["the other key's executions, p50", both(0.5)],
        ["the other key's executions, p99", both(0.99)],
        ["the other key asks for the state of its sandbox, p50", both(0.5, "_look")],
        ["the other key asks for the state of its sandbox, p99", both(0.99, "_look")],
    ])
    return "\n".join(lines) + "\n"


def measure_all(belljar, options):
    results = {"peers": peers(belljar, options.rounds)}
    for kind, pool in (("pooled", 8), ("cold", 0)):
        service = Service(belljar, pool)
        try:
            if pool:
                service.until(service.pool_is_full, "the pool to be full")
            sequential(service, 10)
            measure.say(f"{kind}: one after the other")
            found = {"sequential": sequential(service, options.rounds)}
            measure.say(f"{kind}: staggered")
            found["staggered"] = staggered(service, min(options.rounds, 50))
            measure.say(f"{kind}: burst")
            found["burst"] = burst(service, BURST)
            results[kind] = found
            if not pool:
                measure.say("files, executions, idle sandboxes")
                results["files"] = {**file_speed(service), **docker_cp()}
                results["times"] = execution_times(service, options.rounds)
                results["executions"] = executions(service)
                results["creates"] = creates(service)
                results["idle"] = idle(service, options.idle)
                measure.say("full outputs")
                results["hostile"] = hostile(service, options.rounds)
        finally:
            service.close()
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    belljar = os.environ.get("BELLJAR") or sys.exit("set BELLJAR to the path of the belljar binary")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        installed = str(measure.install(belljar, directory))
        text = render(measure_all(installed, options), load, options.rounds)
    print(text)
    if options.write:
        (HERE / "RESULTS-service.md").write_text(text)


if __name__ == "__main__":
    main()
