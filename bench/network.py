"""Measures the network of a sandbox: a large download, many connections and requests, start, memory.

Server and clients are in a separate network namespace, whose addresses exist nowhere else. The contenders run the same client in turn:
directly, through a plain copying relay, in a sandbox through its gateway, and, if bench/peers.sh provides them, in namespaces behind
pasta and slirp4netns."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import contenders
import measure
import report

HERE = pathlib.Path(__file__).resolve().parent
INSIDE = "BELLJAR_BENCH_NETWORK"
# Reserved for documentation (RFC 5737). The gateway denies them and the machine's own addresses: the policy file makes an exception.
NET = "192.0.2"
HOST = f"{NET}.1"
NAME = "bench.example"
PORT, RELAY_PORT = 8000, 8001
CHUNK = 64 * 1024
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

# Run by all contenders. A download is timed from the first byte to the last; a connection from its start to the first response.
CLIENT = r"""
import json, socket, sys, time
what, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def opened():
    one = socket.create_connection((host, port), timeout=60)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one
def ask(one):
    one.sendall(b"GET / HTTP/1.1\r\nHost: bench.example\r\n\r\n")
    assert one.recv(4096).endswith(b"ok")
took = []
if what == "download":
    one = opened()
    one.sendall(b"GET /%d HTTP/1.1\r\n\r\n" % count)
    got, buffer = one.recv_into(bytearray(1)), bytearray(1 << 18)
    begin = time.perf_counter()
    while some := one.recv_into(buffer):
        got += some
    took.append(time.perf_counter() - begin)
    assert got == count, got
else:
    one = opened()
    for _ in range(count):
        begin = time.perf_counter()
        if what == "connections":
            one = opened()
        ask(one)
        took.append(time.perf_counter() - begin)
print(json.dumps(took))
"""


def serve():
    """Serves requests; `/N` returns N bytes, and closes the connection. One thread: its cost is part of all measurements."""
    listener = socket.create_server((HOST, PORT), backlog=512)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    block = memoryview(bytes(1 << 20))
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                one, _ = listener.accept()
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(one, selectors.EVENT_READ)
                continue
            with contextlib.suppress(OSError):
                asked = key.fileobj.recv(4096)
                size = asked.split()[1][1:] if asked else b""
                if asked and not size:
                    key.fileobj.sendall(ANSWER)
                    continue
                left = int(size or 0)
                while left:
                    left -= key.fileobj.send(block[:left])
            selector.unregister(key.fileobj)
            key.fileobj.close()


def relay():
    """Runs a minimal gateway for comparison: reads up to 64 KiB from one side, and writes them to the other."""
    listener = socket.create_server((HOST, RELAY_PORT), backlog=512)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    buffer = memoryview(bytearray(CHUNK))
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                near, _ = listener.accept()
                far = socket.create_connection((HOST, PORT))
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(one, selectors.EVENT_READ, other)
                continue
            if key.fileobj.fileno() < 0:
                continue
            with contextlib.suppress(OSError):
                if got := key.fileobj.recv_into(buffer):
                    key.data.sendall(buffer[:got])
                    continue
            for one in (key.fileobj, key.data):
                selector.unregister(one)
                one.close()


@contextlib.contextmanager
def background(function):
    """Runs a function in a child process until the block ends."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        function()
        os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wait_for(port):
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)):
            return
        if time.monotonic() > deadline:
            raise measure.Failed(f"no listener on port {port}")
        time.sleep(0.01)


def in_sandbox(belljar, words, *flags):
    """Returns the command that runs the client in a sandbox, started by bash."""
    quoted = " ".join(f"'{word}'" for word in words)
    line = f"exec {contenders.PYTHON} -c \"$(cat <<'END'\n{CLIENT}\nEND\n)\" {quoted}"
    return [belljar, "run", "--allow", f"{NAME}:*", "--timeout", "10m", *flags, "-l", "bash", "-c", line]


@contextlib.contextmanager
def behind_slirp4netns(path):
    """Yields the prefix of commands that run in namespaces behind slirp4netns."""
    with contextlib.ExitStack() as stack:
        inside = stack.enter_context(started(["unshare", "--user", "--map-root-user", "--net", "sleep", "infinity"]))
        until(lambda: os.readlink(f"/proc/{inside}/ns/net") != os.readlink("/proc/self/ns/net"), "the namespace")
        stack.enter_context(started([path, "--configure", "--mtu=65520", str(inside), "tap0"]))
        enter = ["nsenter", f"--target={inside}", "--user", "--preserve-credentials", "--net", "--"]
        until(lambda: subprocess.run([*enter, *ROUTES], capture_output=True).stdout.strip(), "slirp4netns")
        yield enter


def behind_pasta(path):
    """Returns the prefix of commands that run behind pasta, which creates the namespaces itself.

    Started as root, pasta changes to `nobody`, which may not access the namespaces of its own processes: so it runs as root of a user
    namespace. By default its command gets the machine's own address, which would make the server's address local: so it gets another
    one of that network."""
    address = [f"--address={NET}.2", "--netmask=24", f"--gateway={NET}.254"]
    return ["unshare", "--user", "--map-root-user", path, "--config-net", "--quiet", *address, "--"]


ROUTES = ["ip", "-4", "route", "show", "default"]


@contextlib.contextmanager
def started(argv):
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def until(done, what):
    deadline = time.monotonic() + 10
    while not done():
        if time.monotonic() > deadline:
            raise measure.Failed(f"timed out after 10 s waiting for {what}")
        time.sleep(0.01)


def find_contenders(belljar, stack):
    """Returns a function of each contender from the client's arguments to a command, and why some are missing."""
    client = [contenders.PYTHON, "-c", CLIENT]
    found = {
        "direct": lambda what, count: [*client, what, HOST, str(PORT), str(count)],
        "plain relay": lambda what, count: [*client, what, HOST, str(RELAY_PORT), str(count)],
        "belljar": lambda what, count: in_sandbox(belljar, [what, NAME, str(PORT), str(count)]),
    }
    skipped = {}
    for name in ("pasta", "slirp4netns"):
        path = shutil.which(name)
        if not path:
            skipped[name] = "not on the path; `make bench-network-peers` gets it from Debian"
            continue
        before = behind_pasta(path) if name == "pasta" else stack.enter_context(behind_slirp4netns(path))
        command = lambda what, count, before=before: [*before, *client, what, HOST, str(PORT), str(count)]  # noqa: E731
        try:
            run(name, command("requests", 1), timeout=20)
            found[name] = command
        except measure.Failed as error:
            skipped[name] = error.reason
    return found, skipped


def run(name, argv, timeout=600):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise measure.Failed(f"{name} timed out", f"took more than {timeout} s") from None
    if done.returncode != 0 or not done.stdout:
        raise measure.Failed(f"{name} ended with {done.returncode}", done.stderr.strip() or "no error output")
    return json.loads(done.stdout)


def in_turn(found, what, count, rounds):
    """Runs each contender once per round, in a different order each time; returns all times by name."""
    took = {name: [] for name in found}
    names = list(found)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            took[name] += run(name, found[name](what, count))
    return took


def starts(belljar, rounds):
    """Returns milliseconds of `belljar run` with and without a network."""
    plain = [belljar, "run", "-l", "bash", "-c", ":"]
    commands = [
        measure.Command("without", plain, contenders.ENV | paths(), b""),
        measure.Command("with", [*plain[:2], "--allow", f"{NAME}:*", *plain[2:]], contenders.ENV | paths(), b""),
    ]
    return {name: times.wall for name, times in measure.in_turn(commands, rounds).items()}


def paths():
    return {"BELLJAR_POLICY": os.environ["BELLJAR_POLICY"]}


def idle_memory(belljar):
    """Returns the private memory of a gateway after some traffic, in MiB (smaps_rollup in proc(5))."""
    code = f"exec 3<>/dev/tcp/{NAME}/{PORT}; printf 'GET / HTTP/1.1\r\n\r\n' >&3; head -c 5 <&3 >/dev/null; exec 3>&-; echo; exec sleep 60"
    argv = [belljar, "run", "--allow", f"{NAME}:*", "-l", "bash", "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            if not process.stdout.readline():
                raise measure.Failed("the sandbox ended", process.stderr.read().decode())
            (gateway,) = [pid for pid in find_processes(belljar) if b"gateway" in read_arguments(pid)[1:2]]
            lines = pathlib.Path(f"/proc/{gateway}/smaps_rollup").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
        finally:
            process.terminate()


def find_processes(path):
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.path.samefile(entry / "exe", path):
                yield entry.name


def read_arguments(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def measure_all(belljar, options):
    with contextlib.ExitStack() as stack:
        for function, port in ((serve, PORT), (relay, RELAY_PORT)):
            stack.enter_context(background(function))
            wait_for(port)
        found, skipped = find_contenders(belljar, stack)
        size = options.megabytes * 1_000_000
        measure.say("downloads")
        rates = {name: [size / 1e6 / one for one in took] for name, took in in_turn(found, "download", size, options.rounds).items()}
        measure.say("connections and requests")
        # A sandbox may make 200 connections at once, and then 50 per second.
        connections = in_turn(found, "connections", 100, options.rounds)
        requests = in_turn(found, "requests", 1000, options.rounds)
        measure.say("start and memory")
        return rates, connections, requests, starts(belljar, 20 * options.rounds), idle_memory(belljar), skipped


HEAD = """# Results of the last run: the network

{date}, {machine}. {rounds} rounds; each downloads {megabytes} MB once, makes 100 connections and 1,000 requests on one connection. Generated by `{made_by}`.

Server and clients are on one machine and share its processors. Compare within a run, not between runs.
"""


def render(measured, options):
    rates, connections, requests, started_in, memory, skipped = measured
    made_by = "make bench-network-peers" if shutil.which("pasta") else "make bench-network"
    yield HEAD.format(
        date=datetime.date.today(), machine=report.machine(), rounds=options.rounds, megabytes=options.megabytes, made_by=made_by
    )
    rows = []
    for name in rates:
        micros = [1e6 * measure.percentile(took[name], share) for took in (connections, requests) for share in (0.5, 0.99)]
        rows.append([name, f"{measure.median(rates[name]):.0f}", *(f"{one:.0f}" for one in micros)])
    yield from report.table(
        ["", "download, MB/s", "connection and answer, p50 µs", "p99", "request and answer, p50 µs", "p99"], rows
    )
    rate = {name: measure.median(took) for name, took in rates.items()}
    added = 1e3 * (measure.median(connections["belljar"]) - measure.median(connections["direct"]))
    slower = measure.median(started_in["with"]) - measure.median(started_in["without"])
    targets = [("download, × a plain relay", rate["belljar"] / rate["plain relay"], "≥", 0.7)]
    targets += [(f"download, × {name}", rate["belljar"] / rate[name], "≥", 1.5) for name in ("slirp4netns", "pasta") if name in rate]
    targets += [
        ("added to a connection, ms", added, "≤", 0.3),
        ("an idle gateway's own memory, MiB", memory, "≤", 2.0),
        ("added to the start of a sandbox, ms", slower, "≤", 3.0),
    ]
    rows = []
    for what, reached, sign, target in targets:
        met = reached >= target if sign == "≥" else reached <= target
        rows.append([what, f"{sign} {target:g}", f"{reached:.2f}", "met" if met else "not met"])
    yield from report.table(["", "target", "reached", ""], rows)
    for name, why in skipped.items():
        yield f"Not measured: {name}: {why}."


def inside(options, belljar):
    """Configures the addresses, and measures; runs in separate namespaces."""
    for line in ("link set lo up", "tuntap add world mode tap", f"addr add {HOST}/24 dev world", "link set world up",
                 f"route add default via {NET}.254"):
        subprocess.run(["ip", *line.split()], check=True)
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        here = pathlib.Path(directory)
        # A copy, as on installation: see measure.py.
        installed = measure.install(belljar, here)
        (here / "hosts").write_text(f"127.0.0.1 localhost\n{HOST} {NAME}\n")
        subprocess.run(["mount", "--bind", here / "hosts", "/etc/hosts"], check=True)
        (here / "policy.toml").write_text(f'[network]\nexceptions = ["{NET}.0/24"]\n')
        os.environ["BELLJAR_POLICY"] = str(here / "policy.toml")
        return "\n".join(render(measure_all(str(installed), options), options))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of each download (default: 1000)")
    parser.add_argument("--write", action="store_true", help="write bench/RESULTS-network.md")
    options = parser.parse_args()
    belljar = os.environ.get("BELLJAR") or shutil.which("belljar")
    if not belljar:
        sys.exit("set BELLJAR to the path of the belljar binary")
    if INSIDE not in os.environ:
        if os.geteuid() != 0:
            sys.exit("needs root, to create a network namespace")
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])
    try:
        text = inside(options, belljar)
    except measure.Failed as error:
        sys.exit(f"{error}")
    print(text)
    if options.write:
        (HERE / "RESULTS-network.md").write_text(text)


if __name__ == "__main__":
    main()
