"""Throughput of standard output, and of files copied in and out."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
import time

import contenders
import measure

CHUNK = 64 * 1024
FILE_BYTES = 100_000_000
WRITER = "import os\nb = bytes({chunk})\nfor _ in range({count}): os.write(1, b)"


def drain(argv, env, stdin="/dev/null", keep=False):
    """Runs a command and reads all of its output; returns seconds from start to end, seconds from its first byte to its
    last, the number of bytes, and with `keep` their digest."""
    command = measure.Command(argv[0], argv, env, b"")
    buffer = bytearray(1 << 20)
    pieces = []
    got = 0
    run = measure.Run(command, stdin)
    first = last = time.perf_counter_ns()
    while count := os.readv(run.reader, [buffer]):
        last = time.perf_counter_ns()
        if not got:
            first = last
        got += count
        if keep:
            pieces.append(bytes(buffer[:count]))
    wall, _ = run.wait()
    digest = hashlib.sha256(b"".join(pieces)).hexdigest() if keep else ""
    return wall / 1000, (last - first) / 1e9, got, digest


def standard_output(belljar, megabytes, rounds):
    """Returns rates in MB/s by name, from the first byte to the last, of the same writer with writes of 64 KiB."""
    count = megabytes * 1_000_000 // CHUNK
    code = WRITER.format(chunk=CHUNK, count=count)
    commands = {"plain pipe": [contenders.PYTHON, "-c", code]}
    if shutil.which("bwrap"):
        commands["bubblewrap"] = [contenders.which("bwrap"), *contenders.BWRAP, contenders.PYTHON, "-c", code]
    commands["belljar"] = [belljar, "run", "-c", code]
    rates = {name: [] for name in commands}
    for _ in range(rounds):
        for name, argv in commands.items():
            _, seconds, got, _ = drain(argv, contenders.ENV)
            if got != count * CHUNK:
                raise measure.Failed(f"{name}: {got} bytes received instead of {count * CHUNK}")
            rates[name].append(got / 1e6 / seconds)
    return rates


def files(belljar, rounds):
    """Returns the seconds from start to end for 100 MB, by operation and name."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="belljar-bench-") as directory:
        return Files(belljar, pathlib.Path(directory)).measure(rounds)


class Files:
    """A file of 100 MB of random data, in memory if possible, and the measured operations."""

    def __init__(self, belljar, directory):
        self.belljar = belljar
        self.source = directory / "source.bin"
        self.target = directory / "target.bin"
        data = os.urandom(FILE_BYTES)
        self.source.write_bytes(data)
        self.digest = hashlib.sha256(data).hexdigest()

    def measure(self, rounds):
        ways = {
            ("in", "cp"): lambda: self.copy(["/bin/cp", str(self.source), str(self.target)]),
            ("in", "belljar run -f"): self.put_in,
            ("in and out", "cp, twice"): self.copy_twice,
            ("in and out", "belljar run -f -o"): self.in_and_out,
            ("standard input to output", "cat"): lambda: self.through(["/bin/cat"]),
            ("standard input to output", "belljar run, cat"): lambda: self.through(
                [self.belljar, "run", "-l", "sh", "-c", "exec cat"]
            ),
        }
        if shutil.which("bwrap"):
            ways["standard input to output", "bubblewrap, cat"] = lambda: self.through(
                [contenders.which("bwrap"), *contenders.BWRAP, "/bin/cat"]
            )
        seconds = {way: [] for way in ways}
        for _ in range(rounds):
            for way, go in ways.items():
                with contextlib.suppress(FileNotFoundError):
                    self.target.unlink()
                seconds[way].append(go())
        return seconds

    def put_in(self):
        """Copies the file in; the program prints its size."""
        argv = [self.belljar, "run", "-f", f"{self.source}:data.bin", "-l", "sh", "-c", "stat -c %s data.bin"]
        return self.timed(argv, f"{FILE_BYTES}\n".encode())

    def in_and_out(self):
        argv = [self.belljar, "run", "-f", f"{self.source}:data.bin", "-o", f"data.bin:{self.target}", "-l", "sh", "-c", ":"]
        seconds = self.timed(argv)
        self.check(hashlib.sha256(self.target.read_bytes()).hexdigest())
        return seconds

    def copy(self, argv):
        seconds = self.timed(argv)
        self.check(hashlib.sha256(self.target.read_bytes()).hexdigest())
        return seconds

    def copy_twice(self):
        between = f"{self.target}.between"
        seconds = self.timed(["/bin/cp", str(self.source), between]) + self.copy(["/bin/cp", between, str(self.target)])
        os.unlink(between)
        return seconds

    def through(self, argv):
        seconds, _, _, digest = drain(argv, contenders.ENV, str(self.source), keep=True)
        self.check(digest)
        return seconds

    def timed(self, argv, output=b""):
        wall, _ = measure.Run(measure.Command(argv[0], argv, contenders.ENV, output)).wait()
        return wall / 1000

    def check(self, digest):
        if digest != self.digest:
            raise measure.Failed("the output differs from the input")
