"""Frames over the control socket, and the handling of signals."""

import collections
import json
import os
import select
import signal
import socket
import threading

from _belljar.streams import write_mark

MAX_FRAME = 32 * 1024 * 1024


class Interrupts:
    """Handling of SIGINT: it interrupts the running code, and nothing else.

    The handler runs between two steps of the main thread. Where the kernel must not be interrupted it holds a shield; the
    interrupt is then delivered when the last shield is released.
    """

    def __init__(self):
        """Installs the handler; nothing runs yet."""
        self.pid = os.getpid()
        self.running = False
        self.seen = False
        self.wake = None
        self.task = None
        self._shields = 0
        self._pending = False
        self._cancelled = False

    def install(self):
        """Restores this handler of SIGINT, whatever the code has set."""
        signal.signal(signal.SIGINT, self._handle)

    def begin(self):
        """Enables interrupts."""
        self.install()
        self.seen = self._pending = self._cancelled = False
        self.running = True

    def end(self):
        """Disables interrupts."""
        self.running = False
        self.task = None
        self._pending = False
        self.install()

    def _handle(self, _number, frame):
        if os.getpid() != self.pid:
            raise KeyboardInterrupt
        if not self.running:
            if self.wake is not None:
                self.wake()
            return
        self.seen = True
        if self._shields:
            self._pending = True
            return
        if self.task is not None and not self._cancelled and _waits(frame):
            self._cancelled = True
            self.task.cancel()
            # Wakes the event loop, which is still waiting.
            self.task.get_loop().call_soon_threadsafe(int)
            return
        raise KeyboardInterrupt

    def __enter__(self):
        """Defers interrupts, in the main thread; other threads never get them."""
        if threading.current_thread() is threading.main_thread():
            self._shields += 1
        return self

    def __exit__(self, *_exc):
        """Delivers an interrupt that arrived meanwhile."""
        if threading.current_thread() is threading.main_thread():
            self._shields -= 1
            if not self._shields and self._pending:
                self._pending = False
                if self.running:
                    raise KeyboardInterrupt


def _waits(frame):
    """Reports whether the event loop is idle and no code runs."""
    back = frame.f_back
    return back is not None and back.f_code.co_name == "_run_once" and back.f_code.co_filename.endswith("base_events.py")


class Wire:
    """The control socket: one reader, the main thread, and any number of writers."""

    def __init__(self, fd, interrupts):
        """Moves the socket to a number above 9 that no child inherits."""
        import fcntl

        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(fd)
        self._pid = os.getpid()
        self._socket = socket.socket(fileno=moved)
        self._socket.setblocking(True)
        self._identity = self._identify()
        self._lock = threading.RLock()
        self._queue = collections.deque()
        self._is_writing = False
        self._interrupts = interrupts
        self._buffer = bytearray()
        self._marks = 0

    def fileno(self):
        """Returns the descriptor's number."""
        return self._socket.fileno()

    def _identify(self):
        found = os.fstat(self._socket.fileno())
        return found.st_dev, found.st_ino

    def forget(self):
        """In a forked child: closes this copy of the socket, and disables writing."""
        self._lock = threading.RLock()
        self._queue.clear()
        try:
            if self._identify() == self._identity:
                self._socket.close()
            else:
                self._socket.detach()
        except (OSError, ValueError):
            pass

    def send(self, frame):
        """Writes one whole frame. Exits if the guest is gone."""
        if os.getpid() == self._pid:
            self._put(_encode(frame), None)

    def send_marked(self, frame, token):
        """Writes one frame as `send` does, and before it its mark to the code's streams."""
        if os.getpid() == self._pid:
            self._put(_encode(frame)[:-1], token)

    def _put(self, body, token):
        with self._interrupts, self._lock:
            self._queue.append((body, token))
            # A frame of a signal handler, or of a callback of the garbage collector, that interrupts this thread here follows the
            # one that it interrupts.
            while self._queue and not self._is_writing:
                self._is_writing = True
                try:
                    while self._queue:
                        self._write(*self._queue.popleft())
                finally:
                    self._is_writing = False

    def _write(self, body, token):
        if token is None:
            self._send(body)
            return
        self._marks += 1
        number = self._marks & 0xFFFFFFFF
        body += b',"mark":%d}' % number
        try:
            write_mark(f"\x1e{token}{number:08x}".encode())
        finally:
            self._send(body)

    def _send(self, body):
        try:
            if self._identify() != self._identity:
                os._exit(1)
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
        except (OSError, ValueError):
            # Closed by the guest, or by the code: no peer is left.
            os._exit(1)

    def readable(self):
        """Reports whether input is available."""
        return bool(self._buffer) or bool(_poll(self._socket.fileno(), 0))

    def receive(self):
        """Returns the next frame. Exits at the end of the stream."""
        while True:
            frame = self._next_frame()
            if frame is not None:
                return frame
            try:
                # Only the wait may be interrupted: data that was read is never lost.
                _poll(self._socket.fileno(), None)
                with self._interrupts:
                    chunk = self._socket.recv(1 << 16)
                    if self._identify() != self._identity:
                        chunk = b""
                    self._buffer += chunk
            except (OSError, ValueError):
                chunk = b""
            if not chunk:
                os._exit(0)

    def _next_frame(self):
        with self._interrupts:
            if len(self._buffer) < 4:
                return None
            length = int.from_bytes(self._buffer[:4], "big")
            if length > MAX_FRAME:
                os._exit(1)
            if len(self._buffer) < 4 + length:
                return None
            body = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
        try:
            frame = json.loads(body)
        except ValueError:
            try:
                frame = json.loads(body, parse_int=_number)
            except ValueError:
                os._exit(1)
        return frame if isinstance(frame, dict) else {}


def _encode(frame):
    body = json.dumps(frame, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
    return body.encode("utf-8", "backslashreplace")


def _number(digits):
    """Returns an integer; one with more digits than `int` takes (CVE-2020-10735) as JavaScript reads it, which is infinite."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def _poll(fd, timeout):
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    events = poll.poll(timeout)
    if any(event & select.POLLNVAL for _, event in events):
        raise OSError("the control socket is closed")
    return events
