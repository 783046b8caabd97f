"""Starts commands and takes their times. No threads: the harness is to cost the same for all, and little."""

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

# What a command leaves behind becomes a child of this process (bubblewrap's first process inside is such a one): so its CPU
# time is known, and its end is waited for before the next command starts.
PR_SET_CHILD_SUBREAPER = 36
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    sys.exit(f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}")
REST_SECONDS = 0.2


def install(belljar, directory):
    """Copies the program, and the guest's beside it, as they are installed; returns the copy's path.

    What a linker has written lies in the page cache in small pieces, and each start would pay for that.
    """
    guest = pathlib.Path(belljar).with_name("belljar-guest")
    if guest.exists():
        shutil.copy(guest, directory)
    return shutil.copy(belljar, pathlib.Path(directory, "belljar"))


@dataclasses.dataclass(frozen=True)
class Command:
    """What is run, and how its end is judged. `{id}` in an argument becomes another number for each run."""

    name: str
    argv: list[str]
    env: dict[str, str]
    output: bytes
    # Whether the CPU time of all that the command started comes back to who waits for it.
    counts_cpu: bool = True
    # What goes on after its end is not to be put on the account of the next.
    settle: float = 0.0


@dataclasses.dataclass
class Times:
    """Milliseconds of each run: from start to end, and of CPU."""

    wall: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)

    def add(self, wall, cpu):
        self.wall.append(wall)
        self.cpu.append(cpu)


class Failed(Exception):
    """A command did not end with status 0, or did not print what it should have."""

    def __init__(self, text, said=""):
        super().__init__(f"{text}: {said}" if said else text)
        # The last line of what the command itself said of it.
        self.said = said.splitlines()[-1] if said else text


class Run:
    """One run of a command, from its start on."""

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
        # posix_spawn, as it does not copy this process.
        self.pid = os.posix_spawn(argv[0], argv, command.env, file_actions=actions, setsigdef=[signal.SIGPIPE])
        os.close(writer)

    def wait(self):
        """Waits for the end, and returns milliseconds of time and of CPU."""
        _, status, usage = os.wait4(self.pid, 0)
        wall = self.ended(time.perf_counter_ns(), status)
        return wall, cpu(usage) + rest()

    def ended(self, now, status):
        """Judges a run that ended `now`, and returns milliseconds of time."""
        output = os.read(self.reader, 4096) if self.command.output else b""
        os.close(self.reader)
        self.judge(status, output)
        return (now - self.begin) / 1e6

    def judge(self, status, output):
        if os.waitstatus_to_exitcode(status) != 0 or output != self.command.output:
            ERRORS.seek(0)
            said = ERRORS.read().decode(errors="replace").strip()
            ERRORS.truncate(0)
            code = os.waitstatus_to_exitcode(status)
            raise Failed(f"{self.command.name} ended with {code} and printed {output[:80]!r}", said)


def cpu(usage):
    return (usage.ru_utime + usage.ru_stime) * 1e3


def rest():
    """Waits a little for the end of what a command left behind, and returns its milliseconds of CPU."""
    used = 0.0
    deadline = time.perf_counter() + REST_SECONDS
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
    """None if the command does what it should, or what it said."""
    try:
        Run(command).wait()
    except Failed as error:
        return error.said[:200]
    except OSError as error:
        return str(error)
    return None


def in_turn(commands, rounds):
    """Every round runs each command once. The order changes from round to round: each comes after each of the others."""
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
    """Runs `width` at a time, by blocks in turn; returns times, and runs a second."""
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
            times.add(going.pop(pid).ended(now, status), cpu(usage))
    return time.perf_counter() - begin


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)
