"""A test double of the server. It implements the parts of its interface that the tests need, without walls.

It runs the tests' own harmless commands in temporary directories of this machine. It runs no code in contexts,
and supports no sessions, searches, watches, ports,
archives, keys or audit log; tests of these need the real server.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import re
import shutil
import signal
import socket
import threading
import types
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List
from urllib.parse import parse_qsl, unquote, urlsplit

from double_problem import Problem
from double_state import KEY, Process, Sandbox, Service, encoded, now, span, stamp
from websockets.exceptions import ConnectionClosed
from websockets.server import ServerProtocol
from websockets.sync.server import ServerConnection


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    service: Service

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        # A WebSocket is handled by another library, from its first byte on.
        try:
            head = self.connection.recv(65536, socket.MSG_PEEK)
        except OSError:
            head = b""
        if b"upgrade: websocket" in head.lower():
            self.close_connection = True
            self.attach(head)
            return
        super().handle_one_request()

    def attach(self, head: bytes) -> None:
        url = urlsplit(head.split(b" ")[1].decode())
        parts = url.path.split("/")
        sandbox = self.service.find(parts[3])
        process = sandbox.processes[int(parts[5])]
        options: Dict[str, Any] = {}
        if "server" in inspect.signature(ServerConnection).parameters:
            # Newer versions of the library query a close state, which does not exist here.
            options["server"] = types.SimpleNamespace(socket_closed=threading.Event())
        socket_ = ServerConnection(self.connection, ServerProtocol(), **options)
        socket_.handshake()
        query = dict(parse_qsl(url.query))

        def emit(name: str, at: int, data: bytes) -> None:
            number = {"stdout": 1, "stderr": 2, "terminal": 3}[name]
            socket_.send(bytes([number]) + at.to_bytes(8, "big") + data)

        def send() -> None:
            try:
                process.follow({name: int(query.get(name, 0)) for name in process.output}, True, emit)
                socket_.send(json.dumps({"event": "exited", **process.end()}))
                socket_.close()
            except ConnectionClosed:
                pass

        threading.Thread(target=send, daemon=True).start()
        try:
            for frame in socket_:
                if isinstance(frame, bytes):
                    process.write(frame)
                    continue
                said = json.loads(frame)
                if "resize" in said:
                    process.resize(said["resize"])
                elif "signal" in said:
                    process.signal(getattr(signal, said["signal"]))
        except (ConnectionClosed, Problem):
            pass

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def answer(self) -> None:
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        self.labels = [value for name, value in parse_qsl(url.query) if name == "label"]
        self.raw = self.body()
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        try:
            if parts[0] in ("health", "ready", "version"):
                self.reply(200, {"status": "ok", "version": "0"})
                return
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                raise Problem(401, "unauthenticated", "there is no such key")
            self.route(parts[1:])
        except Problem as problem:
            self.reply(problem.status, {**problem.body, "request_id": "r1"}, "application/problem+json")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while True:
                size = int(self.rfile.readline(), 16)
                data += self.rfile.read(size)
                self.rfile.readline()
                if not size:
                    return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def json(self) -> Dict[str, Any]:
        found = json.loads(self.raw or b"{}")
        assert isinstance(found, dict)
        return {key: value for key, value in found.items() if value is not None}

    def reply(self, status: int, value: Any = None, kind: str = "application/json", **headers: str) -> None:
        data = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("X-Request-Id", "r1")
        for name, content in headers.items():
            self.send_header(name.replace("_", "-"), content)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self) -> Callable[[str, Any], None]:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

        def emit(name: str, value: Any) -> None:
            self.wfile.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())
            self.wfile.flush()

        return emit

    def route(self, parts: List[str]) -> None:
        service, verb = self.service, self.command
        if parts == ["me"]:
            return self.reply(200, {"key": "k", "tenant": "default", "role": "admin", "quotas": {}, "usage": {}})
        if parts == ["templates"]:
            template = {"id": "default", "name": "default", "kind": "builtin", "bytes": 0, "created_at": now()}
            return self.reply(200, {"templates": [template]})
        if parts == ["sandboxes"] and verb == "POST":
            return self.reply(*service.create(self.json(), self.headers.get("Idempotency-Key")))
        if parts == ["sandboxes"]:
            return self.list()
        sandbox = service.find(parts[1], gone=verb == "GET" and len(parts) == 2)
        if len(parts) == 2:
            return self.one(sandbox)
        if sandbox.info["state"] == "paused" and parts[2] not in ("resume", "pause", "logs", "timeout"):
            sandbox.info["state"] = "running"
        if parts[2] == "files":
            return self.files(sandbox, parts[3:])
        if parts[2] == "contexts":
            return sandbox.contexts.route(verb, parts[3:], self.json(), self.reply)
        if parts[2] == "processes" and len(parts) > 3:
            return self.process(sandbox, parts[3:])
        route = getattr(self, f"{verb.lower()}_{parts[2]}", None)
        if route is None:
            raise Problem(404, "path_not_found", "the stand-in does not know this route")
        route(sandbox)

    def list(self) -> None:
        states = self.query.get("state", "running,paused").split(",")
        found = [
            sandbox.info
            for sandbox in self.service.sandboxes.values()
            if sandbox.info["state"] in states
            and all(sandbox.info["labels"].get(label.split("=", 1)[0]) == label.split("=", 1)[1] for label in self.labels)
            and self.query.get("name") in (None, sandbox.info["name"])
        ]
        if self.query.get("order") != "asc":
            found.reverse()
        start, limit = int(self.query.get("cursor", 0)), int(self.query.get("limit", 50))
        following = str(start + limit) if len(found) > start + limit else None
        self.reply(200, {"sandboxes": found[start : start + limit], "next_cursor": following})

    def one(self, sandbox: Sandbox) -> None:
        if self.command == "DELETE":
            self.service.kill(sandbox)
            return self.reply(204)
        if self.command == "PATCH":
            body = self.json()
            for key, value in (body.get("labels") or {}).items():
                sandbox.info["labels"].pop(key, None) if value is None else sandbox.info["labels"].update({key: value})
            if "on_timeout" in body:
                sandbox.info["on_timeout"] = body["on_timeout"]
            for key, value in (body.get("limits") or {}).items():
                sandbox.info["limits"]["memory_bytes" if key == "memory" else key] = value
        self.reply(200, sandbox.info)

    def post_timeout(self, sandbox: Sandbox) -> None:
        seconds = span(self.json()["timeout"])
        sandbox.info["expires_at"] = stamp(datetime.now(timezone.utc) + timedelta(seconds=seconds))
        if not seconds:
            self.service.kill(sandbox)
        self.reply(200, sandbox.info)

    def post_pause(self, sandbox: Sandbox) -> None:
        if sandbox.info["state"] == "paused":
            raise Problem(409, "wrong_state", "it is paused already")
        sandbox.info.update(state="paused", paused_at=now())
        self.reply(200, sandbox.info)

    def post_resume(self, sandbox: Sandbox) -> None:
        sandbox.info.update(state="running", paused_at=None)
        self.reply(200, sandbox.info)

    def post_fork(self, sandbox: Sandbox) -> None:
        made = []
        for _ in range(self.json()["count"]):
            _, info = self.service.create({name: self.json().get(name) for name in ("labels", "env", "timeout")}, None)
            shutil.copytree(sandbox.home, self.service.find(info["id"]).home, dirs_exist_ok=True)
            made.append({"sandbox": info})
        self.reply(201, {"sandboxes": made})

    def get_metrics(self, sandbox: Sandbox) -> None:
        self.reply(200, {"at": now(), "cpu_s": 0.1, "memory_bytes": 1, "cpus": 1, "pids": 1, "disks": [], "uptime_s": 1})

    def get_logs(self, sandbox: Sandbox) -> None:
        after = int(self.query.get("after", 0))
        entries = [entry for entry in sandbox.log if entry["seq"] > after][: int(self.query.get("limit", 100))]
        self.reply(200, {"entries": entries, "next": entries[-1]["seq"] if entries else after})

    def post_tokens(self, sandbox: Sandbox) -> None:
        self.reply(201, {"token": "bjs_x", "expires_at": now()})

    def post_exec(self, sandbox: Sandbox) -> None:
        process = sandbox.start(self.json())
        if "text/event-stream" in self.headers.get("Accept", ""):
            emit = self.stream()
            emit("started", {"process": process.number, "pid": process.child.pid})
            self.send_output(process, {"stdout": 0, "stderr": 0}, True, emit)
            emit("result", process.result(sandbox.id))
            return
        with process.changed:
            while not process.done:
                process.changed.wait(0.2)
                if _gone(self.connection):
                    process.signal(signal.SIGKILL)
        self.reply(200, process.result(sandbox.id))

    def post_code(self, sandbox: Sandbox) -> None:
        streamed = "text/event-stream" in self.headers.get("Accept", "")
        done = sandbox.contexts.run(self.json(), self.stream if streamed else None)
        if not streamed:
            self.reply(200, done)

    def send_output(self, process: Process, offsets: Dict[str, int], follow: bool, emit: Callable[[str, Any], None]) -> None:
        try:
            process.follow(offsets, follow, lambda name, at, data: emit(name, {"offset": at, **encoded(data)}))
        except (BrokenPipeError, ConnectionResetError):
            raise

    def post_processes(self, sandbox: Sandbox) -> None:
        body = self.json()
        self.reply(201, sandbox.start(body, bool(body.get("stdin_open"))).info())

    def get_processes(self, sandbox: Sandbox) -> None:
        self.reply(200, {"processes": [process.info() for process in sandbox.processes.values()]})

    def process(self, sandbox: Sandbox, parts: List[str]) -> None:
        process = sandbox.processes.get(int(parts[0]))
        if process is None:
            raise Problem(404, "process_not_found", "there is no such process")
        if len(parts) == 1:
            return self.reply(200, process.info())
        if parts[1] == "output":
            emit = self.stream()
            offsets = {name: int(self.query.get(name, 0)) for name in process.output}
            self.send_output(process, offsets, self.query.get("follow") == "true", emit)
            if process.done:
                emit("exited", process.end())
        elif parts[1] == "stdin":
            process.write(self.raw)
            if self.query.get("close") == "true" and process.child.stdin is not None:
                process.child.stdin.close()
            self.reply(200, {"bytes": len(self.raw)})
        elif parts[1] == "signal":
            wanted = self.json()["signal"]
            process.signal(wanted if isinstance(wanted, int) else getattr(signal, wanted))
            self.reply(200, {"signalled": 1})
        elif parts[1] == "resize":
            process.resize(self.json())
            self.reply(204)

    def files(self, sandbox: Sandbox, parts: List[str]) -> None:
        route = parts[0] if parts else "root"
        function = getattr(self, f"{self.command.lower()}_files_{route}", None)
        if function is None:
            raise Problem(404, "path_not_found", "the stand-in does not know this route")
        function(sandbox)

    def get_files_content(self, sandbox: Sandbox) -> None:
        path = sandbox.path(self.query)
        entry = sandbox.entry(path, self.query.get("path", "?"))
        if entry["kind"] != "file":
            raise Problem(409, "not_regular", "it is not a regular file")
        with open(path, "rb") as file:
            data = file.read()
        tag = f'"{entry["bytes"]}-{entry["modified_at"]}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and self.headers.get("If-Range", tag) == tag:
            start, end = int(wanted[1]), int(wanted[2] or len(data) - 1)
            if start >= len(data):
                raise Problem(416, "range_not_satisfiable", "the file is shorter")
            return self.reply(206, data[start : end + 1], "application/octet-stream", ETag=tag)
        self.reply(200, data, "application/octet-stream", ETag=tag)

    def put_files_content(self, sandbox: Sandbox) -> None:
        path = sandbox.path(self.query)
        if self.query.get("exclusive") == "true" and os.path.lexists(path):
            raise Problem(409, "path_exists", "it is there")
        if self.query.get("make_parents") == "true":
            os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(path, "ab" if self.query.get("append") == "true" else "wb") as file:
                file.write(self.raw)
        except IsADirectoryError:
            raise Problem(409, "not_regular", "it is a directory") from None
        except FileNotFoundError:
            raise Problem(404, "path_not_found", "its directory is not there") from None
        if "mode" in self.query:
            os.chmod(path, int(self.query["mode"], 8))
        self.reply(200, sandbox.entry(path, self.query.get("path", "?")))

    def post_files_upload(self, sandbox: Sandbox) -> None:
        boundary = b"--" + self.headers["Content-Type"].partition("boundary=")[2].encode()
        made = []
        for part in self.raw.split(boundary)[1:-1]:
            head, _, data = part.partition(b"\r\n\r\n")
            found = re.search(rb'filename="([^"]*)"', head)
            assert found is not None
            name = found[1].decode()
            path = os.path.join(sandbox.path(self.query), name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data[:-2])
            made.append(sandbox.entry(path, name))
        self.reply(200, {"files": made})

    def get_files_stat(self, sandbox: Sandbox) -> None:
        follow = self.query.get("follow", "true") == "true"
        shown = self.query.get("path") or os.fsdecode(base64.b64decode(self.query["path_base64"]))
        self.reply(200, sandbox.entry(sandbox.path(self.query), shown, follow))

    def get_files_root(self, sandbox: Sandbox) -> None:
        top = sandbox.path(self.query)
        sandbox.entry(top, self.query["path"])
        entries = []
        for directory, directories, files in os.walk(top):
            at = os.path.relpath(directory, top)
            if at != "." and at.count("/") + 1 >= int(self.query.get("depth", 1)):
                directories[:] = []
                continue
            for name in sorted(directories + files):
                path = os.path.join(directory, name)
                entries.append(sandbox.entry(path, os.path.relpath(path, top), False))
        self.reply(200, {"entries": entries, "next_cursor": None})

    def post_files_mkdir(self, sandbox: Sandbox) -> None:
        path = sandbox.path(self.json())
        try:
            os.makedirs(path) if self.json().get("parents") else os.mkdir(path)
        except FileExistsError:
            raise Problem(409, "path_exists", "it is there") from None
        except FileNotFoundError:
            raise Problem(404, "path_not_found", "its directory is not there") from None
        self.reply(201, sandbox.entry(path, self.json()["path"]))

    def post_files_move(self, sandbox: Sandbox) -> None:
        body = self.json()
        old, new = sandbox.path(body, "from"), sandbox.path(body, "to")
        sandbox.entry(old, body["from"], False)
        if os.path.lexists(new) and not body.get("overwrite"):
            raise Problem(409, "path_exists", "it is there")
        os.replace(old, new)
        self.reply(200, sandbox.entry(new, body["to"]))

    def delete_files_root(self, sandbox: Sandbox) -> None:
        path = sandbox.path(self.query)
        entry = sandbox.entry(path, self.query.get("path", "?"), False)
        if entry["kind"] == "directory":
            if self.query.get("recursive") != "true" and os.listdir(path):
                raise Problem(409, "failed_precondition", "it is not empty")
            shutil.rmtree(path)
        else:
            os.unlink(path)
        self.reply(204)

    def post_files_chmod(self, sandbox: Sandbox) -> None:
        path = sandbox.path(self.json())
        sandbox.entry(path, self.json()["path"])
        os.chmod(path, int(self.json()["mode"], 8))
        self.reply(200, sandbox.entry(path, self.json()["path"]))


def _gone(connection: socket.socket) -> bool:
    """Reports whether the client has disconnected."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)


class Double:
    """A test double that listens on its own port until it is closed."""

    def __init__(self) -> None:
        self.service = Service()
        handler = type("BoundHandler", (Handler,), {"service": self.service})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.key = KEY
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for sandbox in self.service.sandboxes.values():
            if sandbox.info["state"] != "gone":
                self.service.kill(sandbox)
        self.server.shutdown()
        self.server.server_close()
        shutil.rmtree(self.service.root, ignore_errors=True)
