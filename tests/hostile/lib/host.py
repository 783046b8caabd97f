"""Helpers for expect.py, which runs on the host: start sandboxes with the belljar under test, and print probe lines."""

import atexit
import ctypes
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

BELLJAR = os.environ["BELLJAR"]
CASE = os.environ["CASE"]
LIB = os.path.dirname(os.path.abspath(__file__))
# Flags of case.toml, and those that every run needs on this machine.
FLAGS = json.loads(os.environ.get("BELLJAR_FLAGS", "[]"))
# Maximum duration of the case, in seconds.
BUDGET = int(os.environ.get("BUDGET_MS", "20000")) / 1000


def say(name, answer):
    """Prints a probe's line."""
    print(f"{name}: {answer}", flush=True)


def skip(why):
    """Ends the case as skipped."""
    print(f"SKIPPED: {why}", flush=True)
    sys.exit(0)


def path(name):
    """Returns the path of a file of the case."""
    return os.path.join(CASE, name)


def command(program=None, *args, code=None, language=None, flags=(), json_result=True):
    """Returns the arguments of a `belljar run`."""
    argv = [BELLJAR, "run", "--quiet", *FLAGS, *flags]
    if json_result:
        argv.append("--json")
    if language:
        argv += ["-l", language]
    if language == "python" or (program or "").endswith(".py"):
        argv += ["-f", os.path.join(LIB, "probe.py") + ":probe.py"]
    if code is not None:
        return [*argv, "-c", code, *args]
    return [*argv, path(program), *args]


class Run:
    """Result of `belljar run`."""

    def __init__(self, status, stdout, stderr):
        self.status = status
        self.stderr = stderr.decode(errors="replace")
        try:
            self.result = json.loads(stdout)
        except ValueError:
            self.result = None
        self.output = self.result["stdout"]["data"] if self.result else stdout.decode(errors="replace")

    @property
    def kind(self):
        """Kind of outcome, such as exited, timed_out or out_of_memory; without a result, the status."""
        return self.result["outcome"]["kind"] if self.result else f"status {self.status}"

    def __str__(self):
        return f"status {self.status}, {self.output!r}, {self.stderr!r}"


def run(program=None, *args, stdin=b"", timeout=None, cwd=None, env=None, **options):
    """Runs a program of the case (or `code=`) in a sandbox until it ends. `flags=` are for belljar run."""
    done = subprocess.run(
        command(program, *args, **options), input=stdin, capture_output=True, timeout=timeout or BUDGET, cwd=cwd,
        env={**os.environ, **env} if env else None, check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def spawn(program=None, *args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options):
    """Starts a run, and returns its process. Without `json_result=True` its output can be read while it runs."""
    options.setdefault("json_result", False)
    return subprocess.Popen(command(program, *args, **options), stdin=stdin, stdout=stdout, stderr=stderr)


def finish(process, timeout=None):
    """Waits for the end of a run that was started with spawn, and returns its result."""
    stdout, stderr = process.communicate(timeout=timeout or BUDGET)
    return Run(process.returncode, stdout or b"", stderr or b"")


def relay(done):
    """Forwards the probe lines that a run printed inside."""
    for line in done.output.splitlines():
        if ": " in line:
            print(line, flush=True)


def wait_for(condition, seconds=10.0):
    """Waits until `condition()` returns a true value, and returns it; None if it times out."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def percentile(values, part):
    """Returns the value below which this part (0 to 1) of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


class Neighbour:
    """A sandbox beside the attacker's that echoes each line of its input."""

    CODE = "while IFS= read -r line; do printf '%s\\n' \"$line\"; done"

    def __init__(self, *flags):
        self.process = spawn(code=self.CODE, language="sh", flags=["--timeout", "5m", *flags], stderr=None)
        self.ask()

    def ask(self):
        """Sends one line, and returns the seconds until the answer."""
        begin = time.monotonic()
        self.process.stdin.write(b"ping\n")
        self.process.stdin.flush()
        if self.process.stdout.readline() != b"ping\n":
            raise RuntimeError("the neighbour does not answer")
        return time.monotonic() - begin

    def latencies(self, count=200, until=None):
        """Returns the seconds of `count` answers, or of those received until `until()` is true."""
        values = []
        while len(values) < count and not (until and values and until()):
            values.append(self.ask())
        return values

    def stop(self):
        """Ends the sandbox."""
        self.process.stdin.close()
        self.process.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def scratch(mode=0o755):
    """Creates a directory on the host that every user may enter, removed when the script ends."""
    os.chmod(tempfile.gettempdir(), 0o711)
    made = tempfile.mkdtemp(prefix="case-")
    os.chmod(made, mode)
    atexit.register(shutil.rmtree, made, True)
    return made


def write(*parts, content="", mode=0o644):
    """Writes a file on the host, regardless of the umask, and returns its path."""
    name = os.path.join(*parts)
    with open(name, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    os.chmod(name, mode)
    return name


def read(*parts):
    """Returns the content of a file on the host as text; None if it cannot be read."""
    try:
        with open(os.path.join(*parts), "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return None


def own_network(*addresses):
    """Moves this process into its own network namespace, with these IPv4 addresses on its loopback: nothing sent to them leaves it.
    For later runs this network is the host's. Other addresses have no route there."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")
    new_link, new_address, up, loopback = 16, 20, 1, 1
    _route(new_link, 0x5, struct.pack("=BBHiII", 0, 0, 0, loopback, up, up))
    for address in addresses:
        # The address is local (IFA_LOCAL and IFA_ADDRESS); NLM_F_CREATE is among the flags.
        value = b"".join(struct.pack("=HH", 8, kind) + socket.inet_aton(address) for kind in (1, 2))
        _route(new_address, 0x405, struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, loopback) + value)


def _route(kind, flags, body):
    """Sends a netlink request that changes the network, and waits for the answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        route.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        error = -struct.unpack("=i", route.recv(4096)[16:20])[0]
        if error:
            raise OSError(error, os.strerror(error))


class Listener:
    """Answers and counts TCP connections and UDP datagrams, on all addresses, at one free port."""

    def __init__(self):
        self.connections, self.datagrams = 0, 0
        self.stream = socket.create_server(("0.0.0.0", 0))
        self.port = self.stream.getsockname()[1]
        self.datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagram.bind(("0.0.0.0", self.port))
        for target in (self._accept, self._receive):
            threading.Thread(target=target, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self.stream.accept()
            self.connections += 1
            with connection:
                connection.sendall(b"reached\n")

    def _receive(self):
        while True:
            _, sender = self.datagram.recvfrom(1 << 16)
            self.datagrams += 1
            self.datagram.sendto(b"reached\n", sender)
