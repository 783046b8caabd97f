"""Starts a kernel like the guest, over a socket pair, and talks to it."""

import atexit
import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

KERNEL = pathlib.Path(__file__).resolve().parent.parent / "kernel.py"
# In seconds. Generous, because the machine may be busy.
TIMEOUT = 120.0


class Ended(Exception):
    """The kernel has ended."""


class Outcome:
    """The outcome of one execution."""

    def __init__(self):
        self.started = None
        self.results = []
        self.questions = []
        self.error = None
        self.status = None
        self.stdout = ""
        self.stderr = ""
        self.frames = []

    @property
    def main(self):
        return next((one for one in self.results if one["main"]), None)

    @property
    def text(self):
        return self.main["data"].get("text/plain") if self.main else None

    @property
    def shown(self):
        return [one for one in self.results if not one["main"]]

    def chart(self):
        return next(
            (one["data"][CHART] for one in self.results if CHART in one["data"]),
            None,
        )

    def png(self):
        found = next((one["data"]["image/png"] for one in self.results if "image/png" in one["data"]), None)
        return base64.b64decode(found) if found else None


CHART = "application/vnd.belljar.chart.v1+json"
TABLE = "application/vnd.belljar.table.v1+json"


def home():
    """Creates a temporary home directory for these tests."""
    path = tempfile.mkdtemp(prefix="kernel-home-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


class Kernel:
    """A running kernel."""

    def __init__(self, python=None, cwd=None, env=None, args=None, wait=True, program=KERNEL):
        self.home = cwd or home()
        ours, theirs = socket.socketpair()
        self.socket = ours
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": self.home,
            "TMPDIR": self.home,
            "LANG": "C.UTF-8",
            "MPLCONFIGDIR": os.environ.get("BELLJAR_TEST_MPL", "/tmp/belljar-test-mpl"),
            **(env or {}),
        }
        source = os.open(program, os.O_RDONLY)
        # The guest puts the control socket at 3 and the source at 4.
        fds = (theirs.fileno(), source)
        high = [os.dup(fd) for fd in fds]
        high = [_above(fd, 50) for fd in high]
        python = python or os.environ.get("BELLJAR_TEST_PYTHON") or sys.executable
        words = args or ["/dev/fd/4"]
        script = f'exec 3<&{high[0]} 4<&{high[1]} {high[0]}<&- {high[1]}<&-; exec "$@"'
        environment["BELLJAR_KERNEL_FD"] = "3"
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", python, *words],
            stdin=subprocess.DEVNULL,
            stdout=out_write,
            stderr=err_write,
            pass_fds=high,
            cwd=self.home,
            env=environment,
            # As the guest does, so that all that it has started ends with it.
            start_new_session=True,
        )
        for fd in (out_write, err_write, source, *high):
            os.close(fd)
        theirs.close()
        self._pipes = {out_read: bytearray(), err_read: bytearray()}
        self._out, self._err = out_read, err_read
        for fd in self._pipes:
            os.set_blocking(fd, False)
        self._buffer = b""
        self._next = 0
        # Answers a call of a tool, given its frame.
        self.answer_call = None
        self.ready = self.frame() if wait else None

    def close(self):
        self.socket.close()
        try:
            self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for fd in self._pipes:
            os.close(fd)
        self._pipes = {}

    def kill(self):
        self.process.kill()
        self.close()

    def send(self, frame):
        body = json.dumps(frame).encode()
        self.socket.sendall(len(body).to_bytes(4, "big") + body)

    def drain(self):
        for fd, data in self._pipes.items():
            while True:
                try:
                    chunk = os.read(fd, 1 << 16)
                except BlockingIOError:
                    break
                if not chunk:
                    break
                data += chunk

    def printed(self):
        """Returns the output since the last call: standard output and error."""
        self.drain()
        texts = tuple(self._pipes[fd].decode("utf-8") for fd in (self._out, self._err))
        for fd in self._pipes:
            self._pipes[fd].clear()
        return texts

    def wait_printed(self, text, timeout=TIMEOUT):
        """Waits until standard output contains the text."""
        end = time.monotonic() + timeout
        while text.encode() not in self._pipes[self._out]:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"not printed: {text!r}; instead {bytes(self._pipes[self._out])!r} {bytes(self._pipes[self._err])!r}"
                )
            select.select(list(self._pipes), [], [], 1)
            self.drain()

    def frame(self, timeout=TIMEOUT, tick=None):
        """Returns the next frame; `tick` is called about once per second meanwhile."""
        end = time.monotonic() + timeout
        beat = time.monotonic() + 1
        while True:
            if len(self._buffer) >= 4:
                length = int.from_bytes(self._buffer[:4], "big")
                if length > 32 << 20:
                    raise Ended(f"a frame of {length} bytes")
                if len(self._buffer) >= 4 + length:
                    body, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
                    self.drain()
                    return json.loads(body.decode("utf-8"), parse_constant=_refuse)
            now = time.monotonic()
            if now > end:
                raise TimeoutError(f"no frame; printed: {self.printed()}")
            if tick and now >= beat:
                beat = now + 1
                tick()
            ready, _, _ = select.select([self.socket, *self._pipes], [], [], min(1, end - now))
            self.drain()
            if self.socket in ready:
                try:
                    chunk = self.socket.recv(1 << 20)
                except ConnectionError:
                    chunk = b""
                if not chunk:
                    raise Ended("end of file")
                self._buffer += chunk

    def start(self, code, **more):
        self._next += 1
        self.send({"op": "execute", "id": self._next, "code": code, **more})
        return self._next

    def run(self, code, answers=(), interrupt=None, timeout=TIMEOUT, **more):
        """Runs the code to its end. The code prints `interrupt` when it should be interrupted."""
        return self.finish(self.start(code, **more), answers, interrupt, timeout)

    def finish(self, number, answers=(), interrupt=None, timeout=TIMEOUT):
        outcome = Outcome()
        answers = list(answers)
        interrupted = threading.Event()

        def tick():
            if interrupt is None:
                return
            if interrupt.encode() in self._pipes[self._out]:
                interrupted.set()
            if interrupted.is_set():
                os.kill(self.process.pid, signal.SIGINT)

        if interrupt is not None:
            self.wait_printed(interrupt)
            self._settle()
            tick()
        while True:
            frame = self.frame(timeout, tick)
            outcome.frames.append(frame)
            assert frame["id"] == number, frame
            if frame["op"] == "started":
                outcome.started = frame
            elif frame["op"] == "result":
                outcome.results.append(frame)
            elif frame["op"] == "error":
                assert outcome.error is None
                outcome.error = frame
            elif frame["op"] == "input":
                outcome.questions.append(frame)
                answer = answers.pop(0) if answers else None
                reply = {"op": "input", "id": number}
                self.send({**reply, "eof": True} if answer is None else {**reply, "value": answer})
            elif frame["op"] == "tool" and self.answer_call is not None:
                self.send({"op": "tool", "id": number, "call": frame["call"], **self.answer_call(frame)})
            elif frame["op"] == "done":
                outcome.status = frame["status"]
                break
        outcome.stdout, outcome.stderr = self.printed()
        check_frames(outcome.frames)
        return outcome

    def _settle(self):
        """Waits briefly until the process blocks; code that computes never does."""
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
            if stat.rpartition(")")[2].split()[0] == "S":
                return
            time.sleep(0.01)

    def ended(self, timeout=TIMEOUT):
        """Waits for the end of the process; returns its status."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise TimeoutError("the kernel does not end")
            self.drain()
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        return self.process.returncode


def check_frames(frames):
    """Checks the invariants of the frames of every execution."""
    assert [one["op"] for one in frames].count("done") == 1
    assert frames[0]["op"] == "started"
    assert sum(1 for one in frames if one["op"] == "result" and one["main"]) <= 1
    assert len([one for one in frames if one["op"] == "result"]) <= 1000
    for one in frames:
        if one["op"] == "result":
            for mime, value in one["data"].items():
                if mime == "application/json" or mime.endswith("+json"):
                    continue
                assert isinstance(value, str), mime
                if not mime.startswith("text/") and mime not in ("application/javascript", "image/svg+xml"):
                    base64.b64decode(value, validate=True)
        if one["op"] == "error":
            assert "<belljar" not in one["traceback"], one["traceback"]
            assert "\x1b" not in one["traceback"]


def _refuse(word):
    raise AssertionError(f"{word} is not JSON")


def _above(fd, least):
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD, least)
    os.close(fd)
    return moved
