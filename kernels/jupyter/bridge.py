"""Belljar's bridge to a Jupyter kernel: uses kernels/PROTOCOL.md with the guest, and Jupyter's protocol with the kernel.

It runs inside the sandbox as the kernel's parent and needs Python's standard library only. Facts: ZMTP 3.0
(rfc.zeromq.org/spec/23), and Jupyter's messages, connection files and kernelspecs (jupyter-client.readthedocs.io).
"""

import base64
import errno
import hashlib
import hmac
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

MIB = 1 << 20
MAX_FRAME = 32 * MIB
MAX_FORM = 8 * MIB
MAX_SHOWN = 24 * MIB
MAX_RESULTS = 1000
MAX_VALUE = 64 << 10
MAX_TRACEBACK = 256 << 10
MAX_PROMPT = 4 << 10
# Maximum size of a kernel's message; a longer one has a result that cannot be delivered.
MAX_MESSAGE = 64 * MIB
# In seconds. A kernel that opens no socket files in this time is tried with TCP.
SOCKET_TIMEOUT = 10
# In seconds: how long a kernel whose sockets are closed may take to end.
END_TIMEOUT = 5
# Interval of readiness checks of a starting kernel.
ASK_INTERVAL = 0.5
# Terminal colours (ECMA-48, CSI).
COLOUR = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]")
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


class Failed(Exception):
    """The reason why no kernel could be started, as a sentence for the user."""


class Wire:
    """The control socket to the guest."""

    def __init__(self, fd):
        """Takes over the socket, which no child inherits."""
        self.socket = socket.socket(fileno=fd)
        self.socket.set_inheritable(False)
        self.buffer = bytearray()
        self.marks = 0

    def send_marked(self, frame, token):
        """Writes one frame as `send` does, and before it its mark to the output streams."""
        self.marks = (self.marks + 1) & 0xFFFFFFFF
        for fd in (1, 2):
            _write(fd, f"\x1e{token}{self.marks:08x}")
        self.send({**frame, "mark": self.marks})

    def send(self, frame):
        """Writes one frame. Exits if the guest is gone."""
        body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        try:
            self.socket.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:
            os._exit(1)

    def receive(self):
        """Reads available data, and returns complete frames. Raises EOFError at the end."""
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise EOFError
        self.buffer += chunk
        frames = []
        while len(self.buffer) >= 4:
            length = int.from_bytes(self.buffer[:4], "big")
            if length > MAX_FRAME:
                raise EOFError
            if len(self.buffer) < 4 + length:
                break
            frames.append(json.loads(bytes(self.buffer[4 : 4 + length])))
            del self.buffer[: 4 + length]
        return frames


class Channel:
    """A connection to one of a kernel's sockets: ZMTP 3.0 with the mechanism NULL."""

    MORE, LONG, COMMAND = 1, 2, 4

    def __init__(self, kind, address, identity=b""):
        """Connects; raises OSError if nothing listens."""
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(SOCKET_TIMEOUT)
        self.buffer = bytearray()
        self.parts = []
        self.size = 0
        try:
            self.socket.connect(address)
            if family == socket.AF_INET:
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(kind, identity)
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(None)

    def _greet(self, kind, identity):
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        self.socket.sendall(greeting)
        theirs = self._exactly(64)
        if theirs[0] != 0xFF or theirs[10] < 3 or theirs[12:16] != b"NULL":
            raise OSError(errno.EPROTO, "the kernel's sockets do not support ZMTP 3")
        properties = _property(b"Socket-Type", kind) + (_property(b"Identity", identity) if identity else b"")
        self._frame(self.COMMAND, b"\x05READY" + properties)
        flags, body = self._one()
        if not flags & self.COMMAND or not body.startswith(b"\x05READY"):
            raise OSError(errno.EPROTO, "the kernel's socket refuses the connection")
        if kind == b"SUB":
            # Subscribe to everything.
            self._frame(0, b"\x01")

    def _exactly(self, count):
        while len(self.buffer) < count:
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise OSError(errno.ECONNRESET, "the kernel has closed its socket")
            self.buffer += chunk
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def _one(self):
        flags, length = self._exactly(2)
        if flags & self.LONG:
            length = int.from_bytes(bytes([length]) + self._exactly(7), "big")
        if length > MAX_MESSAGE:
            raise OSError(errno.EMSGSIZE, "the kernel sent too much at once")
        return flags, self._exactly(length)

    def _frame(self, flags, body):
        length = len(body)
        head = bytes([flags, length]) if length < 256 else bytes([flags | self.LONG]) + length.to_bytes(8, "big")
        self.socket.sendall(head + body)

    def send(self, parts):
        """Sends one message of several parts."""
        for index, part in enumerate(parts):
            self._frame(self.MORE if index + 1 < len(parts) else 0, part)

    def receive(self):
        """Reads available data, and returns complete messages, each a list of parts. Raises OSError at the end."""
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise OSError(errno.ECONNRESET, "the kernel has closed its socket")
        self.buffer += chunk
        messages = []
        start = 0
        while True:
            rest = len(self.buffer) - start
            if rest < 2:
                break
            flags, length, head = self.buffer[start], self.buffer[start + 1], 2
            if flags & self.LONG:
                if rest < 9:
                    break
                length, head = int.from_bytes(self.buffer[start + 1 : start + 9], "big"), 9
            if length > MAX_MESSAGE or self.size + length > MAX_MESSAGE:
                raise OSError(errno.EMSGSIZE, f"the kernel sent a message of more than {MAX_MESSAGE // MIB} MiB")
            if rest < head + length:
                break
            body = bytes(self.buffer[start + head : start + head + length])
            start += head + length
            if flags & self.COMMAND:
                continue
            self.parts.append(body)
            self.size += length
            if not flags & self.MORE:
                messages.append(self.parts)
                self.parts, self.size = [], 0
        del self.buffer[:start]
        return messages


def _property(name, value):
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


class Session:
    """Encodes and decodes Jupyter's messages, signed with the connection's key."""

    def __init__(self):
        """Generates a new key."""
        self.id = uuid.uuid4().hex
        self.key = uuid.uuid4().hex.encode()

    def make(self, kind, content, parent=None):
        """Returns the parts of a message, and its id."""
        number = uuid.uuid4().hex
        header = {
            "msg_id": number,
            "session": self.id,
            "username": "belljar",
            "date": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
            "msg_type": kind,
            "version": "5.3",
        }
        parts = [
            json.dumps(part, ensure_ascii=False).encode("utf-8", "surrogatepass") for part in (header, parent or {}, {}, content)
        ]
        return [b"<IDS|MSG>", self._sign(parts), *parts], number

    def read(self, parts):
        """Returns type, content, header and parent id of a message; None if it is unsigned or malformed."""
        try:
            begin = parts.index(b"<IDS|MSG>")
            signature, *signed = parts[begin + 1 : begin + 6]
            if len(signed) != 4 or not hmac.compare_digest(signature, self._sign(signed)):
                return None
            header, parent, _, content = (json.loads(part) for part in signed)
            return header["msg_type"], content, header, parent.get("msg_id")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _sign(self, parts):
        digest = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.hexdigest().encode()


def data_directories():
    """Returns the directories of kernelspecs, in Jupyter's search order."""
    home = os.path.expanduser("~")
    listed = os.environ.get("JUPYTER_PATH", "").split(os.pathsep)
    own = os.environ.get("JUPYTER_DATA_DIR") or os.path.join(home, ".local", "share", "jupyter")
    # The Python of the search path, which may be that of an environment or of a template.
    prefixes = [sys.prefix]
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.basename(directory) == "bin" and os.access(os.path.join(directory, "python3"), os.X_OK):
            prefixes.append(os.path.dirname(directory))
    shared = [os.path.join(prefix, "share", "jupyter") for prefix in prefixes]
    found = [*listed, own, *shared, "/usr/local/share/jupyter", "/usr/share/jupyter"]
    return list(dict.fromkeys(path for path in found if path))


def find_spec(name):
    """Returns the kernelspec with this case-insensitive name, and its directory."""
    known = {}
    for data in data_directories():
        kernels = os.path.join(data, "kernels")
        try:
            names = sorted(os.listdir(kernels))
        except OSError:
            continue
        for one in names:
            if os.path.isfile(os.path.join(kernels, one, "kernel.json")):
                known.setdefault(one.lower(), os.path.join(kernels, one))
    directory = known.get(name.lower())
    if directory is None:
        listed = ", ".join(sorted(known)) or "none"
        raise Failed(f"no kernelspec is called {name!r}; installed are: {listed}")
    path = os.path.join(directory, "kernel.json")
    try:
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
        argv = [str(word) for word in spec["argv"]]
        env = {str(key): str(value) for key, value in (spec.get("env") or {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failed(f"{path} is no kernelspec: {error!r}") from None
    if not argv:
        raise Failed(f"{path} has an empty argv")
    return argv, env, spec.get("interrupt_mode") or "signal", directory


class Kernel:
    """A Jupyter kernel and its channels."""

    def __init__(self, spec):
        """Creates a kernel, which is not started yet."""
        self.argv, self.env, self.interrupt_mode, self.directory = spec
        self.session = Session()
        self.process = None
        self.runtime_dir = None
        self.channels = {}
        # The end of a channel, once it was noticed.
        self.failure = None

    def start(self, transport):
        """Starts the process. Over `ipc` its sockets are files that only this user can reach."""
        self.runtime_dir = tempfile.mkdtemp(prefix="belljar-jupyter-")
        ports = list(range(1, 6)) if transport == "ipc" else _free_ports(5)
        self.ip = os.path.join(self.runtime_dir, "s") if transport == "ipc" else "127.0.0.1"
        self.transport = transport
        self.ports = dict(zip(CHANNELS, ports))
        connection = {f"{name}_port": port for name, port in self.ports.items()}
        connection.update(transport=transport, ip=self.ip, key=self.session.key.decode(), signature_scheme="hmac-sha256")
        path = os.path.join(self.runtime_dir, "connection.json")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(connection, file)
        replaced = {"{connection_file}": path, "{resource_dir}": self.directory}
        argv = []
        for word in self.argv:
            for name, value in replaced.items():
                word = word.replace(name, value)
            argv.append(word)
        if os.path.basename(argv[0]) == argv[0] and argv[0] in ("python", "python3"):
            argv[0] = self._python(argv[0])
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BELLJAR_KERNEL")}
        environment.update(self.env, JPY_PARENT_PID=str(os.getpid()))
        try:
            # A separate session: an interrupt reaches the kernel and its children, but not this process.
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
        except OSError as error:
            raise Failed(f"{argv[0]} cannot be started: {error.strerror}") from None

    def _python(self, name):
        """A Python without a path is that of the environment that contains the kernelspec."""
        own = os.path.join(self.directory.partition("/share/jupyter/")[0], "bin", name)
        return own if os.access(own, os.X_OK) else shutil.which(name) or sys.executable

    def _address(self, name):
        port = self.ports[name]
        return f"{self.ip}-{port}" if self.transport == "ipc" else (self.ip, port)

    def connect(self, deadline):
        """Connects to all channels. Raises TimeoutError if they do not open in time."""
        identity = uuid.uuid4().hex.encode()
        kinds = {
            "iopub": (b"SUB", b""),
            "shell": (b"DEALER", identity),
            "stdin": (b"DEALER", identity),
            "control": (b"DEALER", b""),
        }
        for name, (kind, own) in kinds.items():
            while True:
                if self.process.poll() is not None:
                    raise Failed(f"it {_ended(self.process.returncode)} while it started")
                try:
                    self.channels[name] = Channel(kind, self._address(name), own)
                    break
                except OSError as error:
                    if error.errno in (errno.EACCES, errno.EPERM):
                        raise Failed("Jupyter kernels need sockets, which this sandbox denies; use the engine local") from None
                    if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
                        raise Failed(error.strerror or str(error)) from None
                    if time.monotonic() > deadline:
                        raise TimeoutError from None
                    time.sleep(0.01)

    def send(self, channel, kind, content, parent=None):
        """Sends a message, and returns its id. If the channel has ended, `receive` raises that."""
        parts, number = self.session.make(kind, content, parent)
        try:
            self.channels[channel].send(parts)
        except OSError as error:
            self.failure = error
        return number

    def receive(self, timeout, besides=()):
        """Returns received messages as pairs of channel and message, and those of `besides` that are readable.

        Raises OSError at the end of a channel, in the call after the one that returns what was read before.
        """
        if self.failure is not None:
            raise self.failure
        poll = select.poll()
        names = {channel.socket.fileno(): name for name, channel in self.channels.items()}
        for fd in [*names, *besides]:
            poll.register(fd, select.POLLIN)
        messages, others = [], []
        for fd, _ in poll.poll(None if timeout is None else timeout * 1000):
            if fd not in names:
                others.append(fd)
                continue
            try:
                messages += self._received(names[fd])
            except OSError as error:
                self.failure = error
        return messages, others

    def rest(self):
        """Yields what iopub still has, of a kernel that has ended or is about to."""
        poll = select.poll()
        poll.register(self.channels["iopub"].socket, select.POLLIN)
        deadline = time.monotonic() + END_TIMEOUT
        while time.monotonic() < deadline:
            # All that an ended kernel has sent can be read.
            has_ended = self.process.poll() is not None
            if poll.poll(0 if has_ended else 50):
                try:
                    yield from self._received("iopub")
                except OSError:
                    return
            elif has_ended:
                return

    def _received(self, name):
        messages = map(self.session.read, self.channels[name].receive())
        return [(name, message) for message in messages if message is not None]

    def info(self):
        """Waits until the kernel responds on all channels; returns its information about itself."""
        sent, info, is_subscribed, last = set(), None, False, 0.0
        while info is None or not is_subscribed:
            if self.process.poll() is not None:
                raise Failed(f"it {_ended(self.process.returncode)} while it started")
            if time.monotonic() - last > ASK_INTERVAL:
                # A subscription takes effect after a delay, so the request is repeated until a response arrives there as well.
                sent.add(self.send("shell", "kernel_info_request", {}))
                last = time.monotonic()
            for channel, (kind, content, _, parent) in self.receive(ASK_INTERVAL)[0]:
                if channel == "shell" and kind == "kernel_info_reply" and parent in sent:
                    info = content
                is_subscribed = is_subscribed or (channel == "iopub" and parent in sent)
        return info

    def interrupt(self):
        """Interrupts the running code, as specified in the kernelspec."""
        if self.interrupt_mode == "message":
            self.send("control", "interrupt_request", {})
            return
        try:
            os.killpg(self.process.pid, signal.SIGINT)
        except OSError:
            pass

    def end(self):
        """Kills the process and its children."""
        for channel in self.channels.values():
            channel.socket.close()
        self.channels = {}
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except OSError:
                pass
            self.process.wait()
        if self.runtime_dir is not None:
            shutil.rmtree(self.runtime_dir, ignore_errors=True)


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _ended(code):
    return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"


def short(text, limit):
    """Shortens a text to this many bytes, keeping both ends."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return text
    half = limit // 2 - 16
    return data[:half].decode("utf-8", "ignore") + "\n[...]\n" + data[-half:].decode("utf-8", "ignore")


class Execution:
    """Handles the messages of one execution, from its request to its end."""

    def __init__(self, bridge, frame):
        """Sends the execution request."""
        self.bridge, self.id, self.token = bridge, frame["id"], frame.get("mark")
        self.is_interrupted = False
        self.has_error = False
        self.is_idle = False
        self.status = None
        self.shown = 0
        self.results = 0
        self.asks = None
        content = {
            "code": frame["code"],
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": bool(frame.get("input")),
            # Otherwise ipykernel aborts whatever arrives for a moment after an error, so also the next execution.
            "stop_on_error": False,
        }
        self.request = bridge.kernel.send("shell", "execute_request", content)
        self.has_started = False

    def handle(self, channel, message):
        """Handles one message of this execution; returns True at its end."""
        kind, content, header, _ = message
        if channel == "iopub":
            self._published(kind, content)
        elif channel == "shell" and kind == "execute_reply":
            self._started(content.get("execution_count"))
            self.status = content.get("status")
            # An error that a kernel reports only in its reply.
            if self.status == "error" and not self.has_error:
                self._error(content)
        elif channel == "stdin" and kind == "input_request":
            self.asks = header
            prompt = short(str(content.get("prompt", "")), MAX_PROMPT)
            self._send({"op": "input", "prompt": prompt, "password": bool(content.get("password"))})
        if self.status is None or not self.is_idle:
            return False
        self._done()
        return True

    def answer(self, frame):
        """Forwards an answer. An end of file becomes an empty line, because Jupyter has none."""
        if self.asks is not None:
            self.bridge.kernel.send("stdin", "input_reply", {"value": str(frame.get("value", ""))}, self.asks)
            self.asks = None

    def _send(self, frame):
        self.bridge.wire.send({**frame, "id": self.id})

    def _started(self, count):
        if not self.has_started:
            self.has_started = True
            self._send({"op": "started", "count": count if isinstance(count, int) else 0})

    def _published(self, kind, content):
        if kind == "status":
            self.is_idle = self.is_idle or content.get("execution_state") == "idle"
        elif kind == "execute_input":
            self._started(content.get("execution_count"))
        elif kind == "stream":
            _write(2 if content.get("name") == "stderr" else 1, str(content.get("text", "")))
        elif kind in ("execute_result", "display_data", "update_display_data"):
            self._result(kind, content)
        elif kind == "error":
            self._error(content)

    def _result(self, kind, content):
        self.results += 1
        if self.results > MAX_RESULTS:
            return
        data, cut = {}, []
        for mime, value in (content.get("data") or {}).items():
            form = _form(mime, value)
            size = len(form.encode("utf-8", "backslashreplace")) if isinstance(form, str) else len(json.dumps(form))
            if size > MAX_FORM or self.shown + size > MAX_SHOWN:
                limit = "8 MiB of one form" if size > MAX_FORM else "24 MiB of one execution"
                cut.append(f"{mime}: {size / 1e6:.1f} MB are more than the {limit}")
                continue
            self.shown += size
            data[mime] = form
        frame = {"op": "result", "main": kind == "execute_result", "data": data, "metadata": content.get("metadata") or {}}
        display = (content.get("transient") or {}).get("display_id")
        if display is not None:
            frame["display_id"] = str(display)
        if kind == "update_display_data":
            frame["update"] = True
        if cut:
            frame["cut"] = cut
        if self.token is None:
            self._send(frame)
        else:
            self.bridge.wire.send_marked({**frame, "id": self.id}, self.token)

    def _error(self, content):
        if self.has_error:
            return
        self.has_error = True
        traceback = COLOUR.sub("", "\n".join(str(line) for line in content.get("traceback") or []))
        name, value = str(content.get("ename", "Error")), str(content.get("evalue", ""))
        self._send(
            {
                "op": "error",
                "name": name,
                "value": short(value, MAX_VALUE),
                "traceback": short(traceback or f"{name}: {value}", MAX_TRACEBACK),
            }
        )

    def _done(self):
        status = "ok" if self.status == "ok" else "error"
        if self.is_interrupted and status == "error":
            status = "interrupted"
        if status != "ok" and not self.has_error:
            self._error({"ename": "KeyboardInterrupt" if self.is_interrupted else "Aborted", "evalue": ""})
        self._send({"op": "done", "status": status})


def _form(mime, value):
    if mime == "application/json" or mime.endswith("+json"):
        return value
    if isinstance(value, list):
        value = "".join(str(part) for part in value)
    if not isinstance(value, str):
        value = json.dumps(value)
    is_text = mime.startswith("text/") or mime in ("image/svg+xml", "application/javascript", "application/xml")
    if is_text:
        return value
    # Some kernels insert line breaks in base64, or send invalid base64.
    joined = "".join(value.split())
    try:
        base64.b64decode(joined, validate=True)
        return joined
    except ValueError:
        return base64.b64encode(value.encode("utf-8", "backslashreplace")).decode()


def _write(fd, text):
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(fd, data) :]


class Bridge:
    """Connects the guest and the kernel; at most one execution at a time."""

    def __init__(self, wire):
        """Creates a bridge without a kernel."""
        self.wire = wire
        self.execution = None
        self.kernel = None
        self.info = {}

    def start(self, name):
        """Starts the kernel; raises Failed if it cannot."""
        spec = find_spec(name)
        self.kernel = Kernel(spec)
        try:
            self.kernel.start("ipc")
            self.kernel.connect(time.monotonic() + SOCKET_TIMEOUT)
        except (Failed, TimeoutError):
            # Some kernels support only TCP.
            self.kernel.end()
            self.kernel = Kernel(spec)
            try:
                self.kernel.start("tcp")
                self.kernel.connect(time.monotonic() + SOCKET_TIMEOUT)
            except TimeoutError:
                raise Failed(f"it opened no sockets within {SOCKET_TIMEOUT} seconds") from None
        self.info = self.kernel.info()

    def run(self):
        """Serves until one side ends; returns the kernel's exit status, if it was the kernel."""
        wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        # Interrupts arrive here as bytes, so that they interrupt nothing; so does the end of the kernel.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        language = self.info.get("language_info") or {}
        version = str(language.get("version") or self.info.get("implementation_version") or "")
        self.wire.send({"op": "ready", "protocol": 1, "language": str(language.get("name", "")), "version": version})
        while True:
            code = self.kernel.process.poll()
            if code is not None:
                self._handle_rest()
                return code
            try:
                messages, others = self.kernel.receive(None, (wake, self.wire.socket.fileno()))
            except OSError as error:
                self._handle_rest()
                try:
                    # Its sockets close shortly before it ends.
                    return self.kernel.process.wait(END_TIMEOUT)
                except subprocess.TimeoutExpired:
                    # It has violated the protocol, or closed a socket: it cannot run more code.
                    sys.stderr.write(f"lost the connection to the Jupyter kernel: {error.strerror}\n")
                    return 1
            for channel, message in messages:
                self._handle_message(channel, message)
            if wake in others and signal.SIGINT in os.read(wake, 4096) and self.execution is not None:
                self.execution.is_interrupted = True
                self.kernel.interrupt()
            if self.wire.socket.fileno() in others:
                for frame in self.wire.receive():
                    self._handle_frame(frame)

    def _handle_rest(self):
        for channel, message in self.kernel.rest():
            self._handle_message(channel, message)

    def _handle_message(self, channel, message):
        execution = self.execution
        if execution is None or message[3] != execution.request:
            # Output of a thread between executions is output too.
            if channel == "iopub" and message[0] == "stream":
                _write(2 if message[1].get("name") == "stderr" else 1, str(message[1].get("text", "")))
            return
        if execution.handle(channel, message):
            self.execution = None

    def _handle_frame(self, frame):
        op = frame.get("op")
        if op == "execute":
            refused = next((name for name in ("env", "cwd") if frame.get(name)), None)
            if refused is None:
                self.execution = Execution(self, frame)
                return
            value = f"{refused}: not supported for one execution of a Jupyter kernel; set it for the context"
            for answer in (
                {"op": "started", "count": 0},
                {"op": "error", "name": "NotSupported", "value": value, "traceback": f"NotSupported: {value}"},
                {"op": "done", "status": "error"},
            ):
                self.wire.send({**answer, "id": frame["id"]})
        elif op == "input" and self.execution is not None and frame.get("id") == self.execution.id:
            self.execution.answer(frame)


def main():
    """Serves one context until its end."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)
    wire = Wire(int(os.environ["BELLJAR_KERNEL_FD"]))
    # Until there is code to interrupt. A started program inherits ignored signals, but not handlers.
    signal.signal(signal.SIGINT, lambda *_: None)
    bridge = Bridge(wire)
    try:
        bridge.start(os.environ["BELLJAR_KERNEL_LANGUAGE"].partition(":")[2])
        code = bridge.run()
    except Failed as error:
        wire.send({"op": "failed", "message": str(error)})
        code = 1
    except EOFError:
        code = 0
    if bridge.kernel is not None:
        bridge.kernel.end()
    if code < 0:
        # Exits like the kernel, so that observers of this process see the same status.
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
