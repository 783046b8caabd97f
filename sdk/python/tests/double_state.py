"""State and behaviour of the test double, without requests and responses."""

from __future__ import annotations

import base64
import fcntl
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import termios
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Optional, Tuple

from double_code import Contexts
from double_problem import Problem

KEY = "bj_" + "0" * 64


def now() -> str:
    return stamp(datetime.now(timezone.utc))


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def span(value: Any) -> float:
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+)(ms|s|m|h)?", value)
        if not match:
            raise Problem(400, "invalid_field", f"{value!r} is not a time span", "timeout")
        return int(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, None: 1}[match[2]]
    return float(value)


def encoded(data: bytes) -> Dict[str, Any]:
    try:
        return {"encoding": "utf-8", "data": data.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(data).decode()}


class Process:
    """A command and its output."""

    def __init__(self, number: int, sandbox: Sandbox, body: Dict[str, Any], keep_stdin: bool) -> None:
        self.number = number
        self.argv = body.get("argv") or ["/bin/sh", "-c", body["command"]]
        self.started = time.monotonic()
        self.changed = threading.Condition()
        self.output = {"stdout": b"", "stderr": b"", "terminal": b""}
        self.timed_out = False
        self.wall = 0.0
        self.done = False
        self.master = -1
        env = {"PATH": os.environ["PATH"], "HOME": sandbox.home, **sandbox.env, **(body.get("env") or {})}
        cwd = os.path.join(sandbox.home, body.get("cwd") or ".")
        given = body.get("stdin", "").encode() or base64.b64decode(body.get("stdin_base64", ""))
        terminal = body.get("terminal")
        streams: Dict[str, Any]
        if terminal:
            self.master, slave = os.openpty()
            self.resize(terminal)
            streams = {"stdin": slave, "stdout": slave, "stderr": slave, "preexec_fn": _own_terminal}
        else:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            self.child = subprocess.Popen(self.argv, cwd=cwd, env=env, start_new_session=not terminal, **streams)
        except OSError as error:
            raise Problem(400, "invalid_argument", f"cannot start {self.argv[0]}: {error}", "argv") from None
        if terminal:
            os.close(slave)
            readers = [self._reader("terminal", self.master)]
        else:
            assert self.child.stdin is not None
            try:
                self.child.stdin.write(given)
                self.child.stdin.flush()
                if not keep_stdin:
                    self.child.stdin.close()
            except BrokenPipeError:
                pass
            readers = [self._reader(name, getattr(self.child, name).fileno()) for name in ("stdout", "stderr")]
        timeout = span(body.get("timeout") or 0)
        threading.Thread(target=self._wait, args=(readers, timeout), daemon=True).start()

    def resize(self, size: Dict[str, int]) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", size["rows"], size["columns"], 0, 0))

    def signal(self, number: int) -> None:
        if self.done:
            raise Problem(404, "process_not_found", "it does not run")
        os.killpg(self.child.pid, number)

    def write(self, data: bytes) -> None:
        if self.master >= 0:
            os.write(self.master, data)
        elif self.child.stdin is None or self.child.stdin.closed:
            raise Problem(409, "failed_precondition", "its standard input is closed")
        else:
            self.child.stdin.write(data)
            self.child.stdin.flush()

    def outcome(self) -> Dict[str, Any]:
        code = self.child.returncode
        if self.timed_out:
            return {"kind": "timed_out"}
        if code < 0:
            return {"kind": "signalled", "signal": -code, "name": signal.Signals(-code).name}
        return {"kind": "exited", "code": code}

    def end(self) -> Dict[str, Any]:
        outcome = self.outcome()
        return {
            "outcome": outcome,
            "exit_code": outcome.get("code"),
            "signal": "SIGKILL" if self.timed_out else outcome.get("name"),
            "wall_ms": self.wall * 1000,
        }

    def info(self) -> Dict[str, Any]:
        end = self.end() if self.done else {"outcome": None, "exit_code": None, "signal": None}
        end.pop("wall_ms", None)
        sizes = {f"{name}_bytes": len(data) for name, data in self.output.items()}
        return {
            "process": self.number,
            "pid": self.child.pid,
            "argv": self.argv,
            "running": not self.done,
            **end,
            **sizes,
        }

    def result(self, sandbox: str) -> Dict[str, Any]:
        def stream(name: str) -> Dict[str, Any]:
            data = self.output[name]
            return {
                **encoded(data),
                "bytes": len(data),
                "truncated": False,
                "omitted_bytes": 0,
                "head_bytes": len(data),
                "log": None,
            }

        return {
            "schema": 1,
            "process": self.number,
            "sandbox": sandbox,
            **self.end(),
            "stdout": stream("stdout"),
            "stderr": stream("stderr"),
            "cpu_ms": None,
            "peak_memory_bytes": None,
            "left_behind": 0,
            "hint": None,
        }

    def follow(self, offsets: Dict[str, int], follow: bool, emit: Callable[[str, int, bytes], None]) -> None:
        """Yields output as it arrives, until the end."""
        while True:
            with self.changed:
                fresh = [(name, at, self.output[name][at:]) for name, at in offsets.items() if len(self.output[name]) > at]
                if not fresh:
                    if self.done or not follow:
                        return
                    self.changed.wait(0.5)
                    continue
            for name, at, data in fresh:
                emit(name, at, data[:65536])
                offsets[name] = at + len(data[:65536])

    def _reader(self, name: str, descriptor: int) -> threading.Thread:
        def read() -> None:
            while True:
                try:
                    data = os.read(descriptor, 65536)
                except OSError:
                    data = b""
                with self.changed:
                    self.output[name] += data
                    self.changed.notify_all()
                if not data:
                    return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def _wait(self, readers: List[threading.Thread], timeout: float) -> None:
        try:
            self.child.wait(timeout or None)
        except subprocess.TimeoutExpired:
            self.timed_out = True
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        for reader in readers:
            reader.join(2)
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        if self.master >= 0:
            os.close(self.master)
        with self.changed:
            self.wall = time.monotonic() - self.started
            self.done = True
            self.changed.notify_all()


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Sandbox:
    """A directory and a name."""

    def __init__(self, number: int, body: Dict[str, Any], root: str) -> None:
        timeout = span(body.get("timeout") or 300)
        if not 1 <= timeout <= 86400:
            raise Problem(400, "invalid_field", "timeout is from 1 s to 24 h", "timeout")
        self.id = f"a{number:019d}"
        self.home = os.path.join(root, self.id)
        os.makedirs(self.home)
        self.env = body.get("env") or {}
        self.processes: Dict[int, Process] = {}
        self.contexts = Contexts()
        self.log: List[Dict[str, Any]] = []
        self.info: Dict[str, Any] = {
            "id": self.id,
            "name": body.get("name"),
            "state": "running",
            "template": body.get("template") or "default",
            "labels": body.get("labels") or {},
            "created_at": now(),
            "started_at": now(),
            "expires_at": stamp(datetime.now(timezone.utc) + timedelta(seconds=timeout)),
            "idle_timeout_s": span(body["idle_timeout"]) if "idle_timeout" in body else None,
            "on_timeout": body.get("on_timeout") or "kill",
            "auto_resume": body.get("auto_resume") is not False,
            "paused_at": None,
            "ended_at": None,
            "reason": None,
            "engine": "local",
            "limits": {"memory_bytes": 512 << 20, "cpus": 1, "timeout_s": 60, "pids": 64},
            "network": "disabled",
            "isolation": {"engine": "local", "grade": "cgroup", "tree": "host", "layers": []},
            "home": self.home,
            "hostname": "sandbox",
            "ports": [],
            "host": None,
            "pooled": False,
            "start_ms": 1.0,
            "tenant": "default",
            "key": "k",
        }
        self.note("created")

    def note(self, event: str, process: Optional[int] = None) -> None:
        self.log.append({"at": now(), "seq": len(self.log) + 1, "event": event, "process": process, "detail": {}})

    def start(self, body: Dict[str, Any], keep_stdin: bool = False) -> Process:
        if (body.get("command") is None) == (body.get("argv") is None):
            raise Problem(400, "invalid_field", "give command or argv", "command")
        number = len(self.processes) + 1
        process = self.processes[number] = Process(number, self, body, keep_stdin)
        self.note("exec", number)
        return process

    def path(self, query: Dict[str, str], key: str = "path") -> str:
        if f"{key}_base64" in query:
            return os.path.join(self.home, os.fsdecode(base64.b64decode(query[f"{key}_base64"])))
        return os.path.join(self.home, query[key])

    def entry(self, path: str, shown: str, follow: bool = True) -> Dict[str, Any]:
        try:
            found = os.stat(path) if follow else os.lstat(path)
        except OSError:
            raise Problem(404, "path_not_found", f"there is no {shown}") from None
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo"}
        entry = {
            "path": os.fsencode(shown).decode("utf-8", "replace"),
            "kind": kinds.get(stat.S_IFMT(found.st_mode), "device"),
            "bytes": found.st_size,
            "mode": f"{found.st_mode & 0o7777:04o}",
            "modified_at": stamp(datetime.fromtimestamp(found.st_mtime, timezone.utc)),
        }
        if "\udc80" <= max(shown, default=" ") <= "\udcff":
            entry["path_base64"] = base64.b64encode(os.fsencode(shown)).decode()
        if entry["kind"] == "symlink":
            entry["symlink_target"] = os.readlink(path)
        return entry


class Service:
    """All sandboxes."""

    def __init__(self) -> None:
        self.root = tempfile.mkdtemp(prefix="belljar-double-")
        self.sandboxes: Dict[str, Sandbox] = {}
        self.kept: Dict[str, str] = {}
        self.lock = threading.Lock()

    def find(self, name: str, gone: bool = False) -> Sandbox:
        for sandbox in self.sandboxes.values():
            if sandbox.id == name or (sandbox.info["name"] == name and sandbox.info["state"] != "gone"):
                if sandbox.info["state"] == "gone" and not gone:
                    raise Problem(410, "sandbox_gone", f"the sandbox {name} has ended")
                return sandbox
        raise Problem(404, "sandbox_not_found", f"there is no sandbox {name}")

    def create(self, body: Dict[str, Any], key: Optional[str]) -> Tuple[int, Dict[str, Any]]:
        known = (
            "template name if_exists timeout idle_timeout on_timeout auto_resume labels env limits network engine grade "
            "machine hostname port_host mounts files"
        ).split()
        for field in body:
            if field not in known:
                raise Problem(400, "invalid_field", f"{field} is not known", field)
        if body.get("template") not in (None, "default"):
            raise Problem(404, "template_not_found", "there is no such template")
        with self.lock:
            if key in self.kept:
                return 201, self.sandboxes[self.kept[key]].info
            for sandbox in self.sandboxes.values():
                if body.get("name") and sandbox.info["name"] == body["name"] and sandbox.info["state"] != "gone":
                    if body.get("if_exists") == "return":
                        return 200, sandbox.info
                    raise Problem(409, "name_taken", "a sandbox has the name", "name")
            made = Sandbox(len(self.sandboxes) + 1, body, self.root)
            self.sandboxes[made.id] = made
            if key:
                self.kept[key] = made.id
        for file in body.get("files") or []:
            path = os.path.join(made.home, file["path"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                out.write(file["content"].encode() if "content" in file else base64.b64decode(file["content_base64"]))
        return 201, made.info

    def kill(self, sandbox: Sandbox) -> None:
        for process in sandbox.processes.values():
            if not process.done:
                process.signal(signal.SIGKILL)
        sandbox.info.update(state="gone", ended_at=now(), reason="killed")
        shutil.rmtree(sandbox.home, ignore_errors=True)
