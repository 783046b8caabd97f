"""Starts commands and measures their times. No threads: the harness must cost little, and the same for all."""

import ctypes
import dataclasses
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

ERRORS = tempfile.TemporaryFile()

# Leftover processes of a command (such as bubblewrap's first process inside) become children of this process: their CPU time is
# counted, and they are waited for before the next command starts.
PR_SET_CHILD_SUBREAPER = 36
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    sys.exit(f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}")
LEFTOVER_TIMEOUT = 0.2


def install(belljar, directory):
    """Copies the programs, as on installation; returns the path of `belljar`.

    The linker's output is in the page cache in small pieces, which would slow down each start.
    """
    for name in ("belljar-service", "belljar-guest"):
        other = pathlib.Path(belljar).with_name(name)
        if other.exists():
            shutil.copy(other, directory)
    return shutil.copy(belljar, pathlib.Path(directory, "belljar"))


@dataclasses.dataclass(frozen=True)
class Command:
    """A command and its expected output. `{id}` in an argument is replaced with a number unique to each run."""

    name: str
    argv: list[str]
    env: dict[str, str]
    output: bytes
    # Whether the CPU time of all its processes is reported when it is waited for.
    counts_cpu: bool = True
    # Seconds to pause after each run, so that background work does not slow down the next one.
    settle: float = 0.0


@dataclasses.dataclass
class Times:
    """Wall and CPU time of each run, in milliseconds."""

    wall: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)

    def add(self, wall, cpu):
        self.wall.append(wall)
        self.cpu.append(cpu)


class Failed(Exception):
    """A command failed or printed unexpected output."""

    def __init__(self, text, errors=""):
        super().__init__(f"{text}: {errors}" if errors else text)
        # The last line of the command's own error output.
        self.reason = errors.splitlines()[-1] if errors else text


class Run:
    """One run of a command, which is started on creation."""

    count = 0

    def __init__(self, command, stdin="/dev/null"):
        Run.count += 1
        self.command = command
        self.reader, writer = os.pipe()
        argv = [word.replace("{id}", f"{os.getpid()}-{Run.count}") for word in command.argv]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writer, 1),
            (os.POSIX_SPAWN_DUP2, ERRORS.fileno(), 2),
        ]
        self.begin = time.perf_counter_ns()
        # posix_spawn, because it does not copy this process.
        self.pid = os.posix_spawn(argv[0], argv, command.env, file_actions=actions, setsigdef=[signal.SIGPIPE])
        os.close(writer)

    def wait(self):
        """Waits for the end; returns wall and CPU time in milliseconds."""
        _, status, usage = os.wait4(self.pid, 0)
        wall = self.finish(time.perf_counter_ns(), status)
        return wall, cpu(usage) + reap_leftovers()

    def finish(self, now, status):
        """Checks a run that ended at `now`; returns its wall time in milliseconds."""
        output = os.read(self.reader, 4096) if self.command.output else b""
        os.close(self.reader)
        self.check(status, output)
        return (now - self.begin) / 1e6

    def check(self, status, output):
        if os.waitstatus_to_exitcode(status) != 0 or output != self.command.output:
            ERRORS.seek(0)
            errors = ERRORS.read().decode(errors="replace").strip()
            ERRORS.truncate(0)
            code = os.waitstatus_to_exitcode(status)
            raise Failed(f"{self.command.name} ended with {code} and printed {output[:80]!r}", errors)


def cpu(usage):
    return (usage.ru_utime + usage.ru_stime) * 1e3


def reap_leftovers():
    """Waits briefly for leftover processes of a command; returns their CPU time in milliseconds."""
    used = 0.0
    deadline = time.perf_counter() + LEFTOVER_TIMEOUT
    while time.perf_counter() < deadline:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid:
            used += cpu(usage)
        else:
            time.sleep(0.0005)
    return used


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values):
    return percentile(values, 0.5)


def works(command):
    """Returns None if the command works, otherwise the reason."""
    try:
        Run(command).wait()
    except Failed as error:
        return error.reason[:200]
    except OSError as error:
        return str(error)
    return None


def in_turn(commands, rounds):
    """Runs each command once per round, starting with a different one each time."""
    times = {command.name: Times() for command in commands}
    for _ in range(3):
        for command in commands:
            Run(command).wait()
    for number in range(rounds):
        shift = number % len(commands)
        for command in commands[shift:] + commands[:shift]:
            times[command.name].add(*Run(command).wait())
            if command.settle:
                time.sleep(command.settle)
    return times


def at_once(commands, width, rounds):
    """Runs `width` commands in parallel, in alternating blocks; returns times, and runs per second."""
    block = max(20, 5 * width)
    times = {command.name: Times() for command in commands}
    seconds = {command.name: 0.0 for command in commands}
    for number in range(-(-rounds // block)):
        shift = number % len(commands)
        for command in commands[shift:] + commands[:shift]:
            seconds[command.name] += run_block(command, width, block, times[command.name])
            if command.settle:
                time.sleep(10 * command.settle)
    return times, {name: len(times[name].wall) / taken for name, taken in seconds.items()}


def run_block(command, width, count, times):
    begin = time.perf_counter()
    going = {}
    left = count
    while left or going:
        while left and len(going) < width:
            run = Run(command)
            going[run.pid] = run
            left -= 1
        pid, status, usage = os.wait4(-1, 0)
        now = time.perf_counter_ns()
        if pid in going:
            times.add(going.pop(pid).finish(now, status), cpu(usage))
    return time.perf_counter() - begin


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)
