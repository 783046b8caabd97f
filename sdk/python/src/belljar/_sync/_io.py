"""The differences between the synchronous and the asynchronous client. The rest of `_sync` is generated from `_async`."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import inspect
import os
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from typing import IO, Any, Callable, Dict, Generic, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

import httpx
import websockets
import websockets.sync.client as websocket_client
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from .._calls.files import check_chunk
from .._config import ConnectionConfig
from .._transport_options import transport_options
from .._websocket import websocket_options, websocket_refusal, websocket_trouble
from ..errors import ConnectionException
from ..models import Question

T = TypeVar("T")
R = TypeVar("R")

OutputCallback = Callable[[str], object]
"""Callback for a piece of text."""

BytesCallback = Callable[[bytes], object]
"""Callback for a piece of a terminal's output."""

ProgressCallback = Callable[[int, Optional[int]], object]
"""Callback for progress: bytes transferred, and the total, if known."""

EventCallback = Callable[[T], object]
"""Callback for an event."""

InputCallback = Callable[[Question], Optional[str]]
"""Callback that answers a question with a line, or with None to refuse."""

FileData = Union[str, bytes, IO[bytes], Iterable[bytes]]
"""Sources from which a file can be written."""

InputData = Union[str, bytes, IO[str], IO[bytes], Iterable[Union[str, bytes]]]
"""Sources from which the input of a command can be streamed."""

CHUNK_BYTES = 256 * 1024
"""Number of bytes read from a local file at a time."""


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


def notify(callback: Callable[..., object], *values: Any) -> None:
    """Calls a user callback."""
    callback(*values)


def ask(callback: Callable[[T], Any], value: T) -> Any:
    """Calls a user callback for an answer."""
    return callback(value)


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a user's function with its arguments by name."""
    result = function(**arguments)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the function is asynchronous; use AsyncSandbox")
    return result


def run_blocking(function: Callable[..., R], *arguments: Any) -> R:
    """Calls a blocking function."""
    return function(*arguments)


def make_pool(config: ConnectionConfig, context: Optional[ssl.SSLContext]) -> httpx.BaseTransport:
    """A pool of connections."""
    return httpx.HTTPTransport(**transport_options(config, context))


def pieces(data: Union[IO[Any], Iterable[T]]) -> Iterator[T]:
    """Yields the content of a file or of an iterator, piece by piece."""
    read = getattr(data, "read", None)
    if read is not None:
        while True:
            chunk = read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    yield from data


def body_chunks(data: Union[IO[bytes], Iterable[bytes]]) -> Iterator[bytes]:
    """Yields the bytes of a file or of an iterator, piece by piece."""
    for chunk in pieces(data):
        yield check_chunk(chunk)


class Background(Generic[T]):
    """Background thread. `join` waits for its end."""

    def __init__(self, function: Callable[[], T], interrupt: Callable[[], None]) -> None:
        """Starts `function`. `interrupt` must make it end quickly."""
        self._future: Future[T] = Future()
        self._interrupt = interrupt
        context = contextvars.copy_context()
        # A daemon, so that a forgotten reader does not keep the program from ending.
        self._thread = threading.Thread(target=context.run, args=(self._run, function), name="belljar", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Reports whether it has ended."""
        return self._future.done()

    def join(self, timeout: Optional[float] = None) -> T:
        """Waits for the end and returns the result, or raises its exception."""
        return self._future.result(timeout)

    def stop(self) -> None:
        """Interrupts it and waits for its end."""
        self._interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            result = function()
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)


class Mailbox(Generic[T]):
    """Queue from a background reader to the caller. It is closed once, for good."""

    def __init__(self, size: int) -> None:
        """Creates a mailbox for at most `size` items."""
        self._items: List[T] = []
        self._size = size
        self._ended = False
        self._error: Optional[BaseException] = None
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Adds an item. Returns False if the mailbox is full."""
        with self._changed:
            if len(self._items) >= self._size:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: Optional[BaseException] = None) -> None:
        """Closes the mailbox, because of `error` if there is one."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def drain(self) -> List[T]:
        """Takes all items. If there are none, raises the error of the reader, if it failed."""
        with self._changed:
            found, self._items = self._items, []
            if not found and self._error is not None:
                raise self._error
            return found

    def take(self) -> Tuple[bool, Optional[T]]:
        """Waits for one item. Returns (False, None) if the mailbox is closed."""
        with self._changed:
            while not self._items:
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return False, None
                self._changed.wait()
            return True, self._items.pop(0)


def interrupt_response(response: httpx.Response) -> None:
    """Interrupts a reader of this response in another thread. Closing a socket does not wake it, shutting it down does."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is None:
        return
    try:
        # A TLS socket's own `shutdown` would use TLS in this thread; only the underlying connection must end.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        # It has already ended.
        pass


class Socket:
    """A WebSocket."""

    def __init__(self, connection: websocket_client.ClientConnection, end: contextlib.ExitStack) -> None:
        """Wraps an open connection; `end` closes it."""
        self._connection = connection
        self._end = end

    @classmethod
    def open(cls, config: ConnectionConfig, context: Optional[ssl.SSLContext], path: str, query: Mapping[str, str]) -> Socket:
        """Connects."""
        uri, options = websocket_options(config, context, path, query)
        end = contextlib.ExitStack()
        try:
            if config.socket_path is not None:
                connection = end.enter_context(websocket_client.unix_connect(config.socket_path, uri, **options))
            else:
                connection = end.enter_context(websocket_client.connect(uri, **options))
        except websockets.exceptions.InvalidStatus as refusal:
            raise websocket_refusal(refusal.response) from None
        except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
            raise ConnectionException(f"cannot open a WebSocket to {config.api_url}: {error}") from None
        return cls(connection, end)

    def send(self, frame: Union[str, bytes]) -> None:
        """Sends one frame."""
        try:
            self._connection.send(frame)
        except ConnectionClosed as closed:
            raise websocket_trouble(closed) from None

    def receive(self) -> Optional[Union[str, bytes]]:
        """Waits for one frame. Returns None if the connection was closed normally."""
        try:
            return self._connection.recv()
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as closed:
            raise websocket_trouble(closed) from None

    def close(self) -> None:
        """Closes the connection."""
        self._end.close()


def at_exit(close: Callable[[], None]) -> None:
    """Registers a resource to be closed at exit."""
    atexit.register(close)


class SharedClients(Generic[T]):
    """One connection pool for each server and key, for callers without their own client. All threads share it."""

    def __init__(self) -> None:
        """Creates an empty registry."""
        self._lock = threading.Lock()
        self._clients: Dict[Tuple[object, ...], T] = {}

    def get(self, config: ConnectionConfig, make: Callable[[ConnectionConfig], T]) -> T:
        """Returns the pool for this configuration; creates it if there is none. A forked process has its own."""
        key = (os.getpid(), config)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = make(config)
            return self._clients[key]


CLOSE_SHARED_WHEN_UNUSED = False
"""Keeps connections open: threads are not affected, and the next sandbox needs one."""

__all__ = [
    "CHUNK_BYTES",
    "CLOSE_SHARED_WHEN_UNUSED",
    "Background",
    "BytesCallback",
    "EventCallback",
    "FileData",
    "InputData",
    "Mailbox",
    "OutputCallback",
    "ProgressCallback",
    "SharedClients",
    "Socket",
    "at_exit",
    "body_chunks",
    "call",
    "interrupt_response",
    "make_pool",
    "notify",
    "pieces",
    "run_blocking",
    "sleep",
]
