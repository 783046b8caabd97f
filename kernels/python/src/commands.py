"""`!command`: a shell command, which receives interrupts as well."""

import os
import signal
import subprocess
import sys


def _start(command, **streams):
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return subprocess.Popen([shell, "-c", command], stdin=subprocess.DEVNULL, process_group=0, **streams)


def _finish(process, step):
    """Runs `step`; an interrupt goes to the command's process group."""
    try:
        return step()
    except BaseException:
        _end(process)
        raise


def _end(process):
    for number, timeout in ((signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
        except OSError:
            pass
        try:
            process.wait(timeout)
            return
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            # On a repeated interrupt the next signal is stronger.
            continue


def run(command):
    """Runs a command and returns its exit status; a negative one is the signal that ended it."""
    inside = getattr(sys.stdout, "fileno", None)
    try:
        direct = inside is not None and inside() == 1
    except Exception:
        direct = False
    if direct:
        process = _start(command)
        return _finish(process, process.wait)
    # The code's output is being captured, so the command's is as well.
    process = _start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def pump():
        for line in iter(process.stdout.readline, b""):
            sys.stdout.write(line.decode("utf-8", "backslashreplace"))
        return process.wait()

    with process.stdout:
        return _finish(process, pump)


def output(command):
    """Runs a command and returns its output, including standard error."""
    process = _start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process.stdout:
        data = _finish(process, lambda: process.communicate()[0])
    return data.decode("utf-8", "backslashreplace")
