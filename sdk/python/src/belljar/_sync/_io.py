"""What differs between the synchronous and the asynchronous client. Everything else of `_sync` is made from `_async`."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
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

from .._config import ConnectionConfig
from .._transport_options import transport_options
from .._websocket import websocket_options, websocket_refusal, websocket_trouble
from ..errors import ConnectionException
from ..models import Question

T = TypeVar("T")
R = TypeVar("R")

OutputCallback = Callable[[str], object]
"""Takes a piece of text."""

BytesCallback = Callable[[bytes], object]
"""Takes a piece of a terminal's output."""

ProgressCallback = Callable[[int, Optional[int]], object]
"""Takes how many bytes have gone so far, and of how many, if that is known."""

EventCallback = Callable[[T], object]
"""Takes an event."""

InputCallback = Callable[[Question], Optional[str]]
"""Answers a question with a line, or with None: nobody will."""

FileData = Union[str, bytes, IO[bytes], Iterable[bytes]]
"""What a file can be written from."""

CHUNK_BYTES = 256 * 1024
"""Bytes that are read from a local file at a time."""


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


def notify(callback: Callable[..., object], *values: Any) -> None:
    """Calls a callback of the user."""
    callback(*values)


def ask(callback: Callable[[T], Any], value: T) -> Any:
    """Calls a callback of the user for an answer."""
    return callback(value)


def run_blocking(function: Callable[..., R], *arguments: Any) -> R:
    """Calls something that blocks."""
    return function(*arguments)


def make_pool(config: ConnectionConfig, context: Optional[ssl.SSLContext]) -> httpx.BaseTransport:
    """A pool of connections."""
    return httpx.HTTPTransport(**transport_options(config, context))


def body_chunks(data: Union[IO[bytes], Iterable[bytes]]) -> Iterator[bytes]:
    """The bytes of a file or of an iterator, piece by piece."""
    read = getattr(data, "read", None)
    if read is not None:
        while True:
            chunk = read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    yield from data


class Background(Generic[T]):
    """Something that goes on beside the caller, in a thread. Its end is waited for with `join`."""

    def __init__(self, function: Callable[[], T], interrupt: Callable[[], None]) -> None:
        """Starts `function`. `interrupt` must make it end soon."""
        self._future: Future[T] = Future()
        self._interrupt = interrupt
        context = contextvars.copy_context()
        # A daemon, so that a forgotten reader does not keep the program from ending.
        self._thread = threading.Thread(target=context.run, args=(self._run, function), name="belljar", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()

    def join(self, timeout: Optional[float] = None) -> T:
        """Waits for the end and hands back the result, or raises what it raised."""
        return self._future.result(timeout)

    def stop(self) -> None:
        """Makes it end, and waits for that."""
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
    """Hands items from a background reader to the caller. The end is said once and stays."""

    def __init__(self, size: int) -> None:
        """Makes a mailbox for at most `size` items."""
        self._items: List[T] = []
        self._size = size
        self._ended = False
        self._error: Optional[BaseException] = None
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Adds an item. False: there was no room."""
        with self._changed:
            if len(self._items) >= self._size:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: Optional[BaseException] = None) -> None:
        """Says that nothing more comes, because of `error` if there is one."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def drain(self) -> List[T]:
        """Takes all that is there. Raises what the reader failed with, if there is nothing else."""
        with self._changed:
            found, self._items = self._items, []
            if not found and self._error is not None:
                raise self._error
            return found

    def take(self) -> Tuple[bool, Optional[T]]:
        """Waits for one item. (False, None): nothing more comes."""
        with self._changed:
            while not self._items:
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return False, None
                self._changed.wait()
            return True, self._items.pop(0)


def interrupt_response(response: httpx.Response) -> None:
    """Makes a reader of this response in another thread end: closing a socket wakes nobody, shutting it down does."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is None:
        return
    try:
        # A TLS socket's own `shutdown` would speak TLS from this thread; only the connection below is to end.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        # It has ended already.
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
        """Waits for one frame. None: the connection has ended as it should."""
        try:
            return self._connection.recv()
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as closed:
            raise websocket_trouble(closed) from None

    def close(self) -> None:
        """Ends the connection."""
        self._end.close()


def at_exit(close: Callable[[], None]) -> None:
    """Has something closed when the program ends."""
    atexit.register(close)


class SharedClients(Generic[T]):
    """One connection pool for each server and key, for callers who made no client of their own. All threads share it."""

    def __init__(self) -> None:
        """Makes an empty register."""
        self._lock = threading.Lock()
        self._clients: Dict[Tuple[object, ...], T] = {}

    def get(self, config: ConnectionConfig, make: Callable[[ConnectionConfig], T]) -> T:
        """The pool for this configuration, made if there is none. A forked process has its own."""
        key = (os.getpid(), config)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = make(config)
            return self._clients[key]


CLOSE_SHARED_WHEN_UNUSED = False
"""Threads do not mind open connections, and the next sandbox will need one."""

__all__ = [
    "CHUNK_BYTES",
    "CLOSE_SHARED_WHEN_UNUSED",
    "Background",
    "BytesCallback",
    "EventCallback",
    "FileData",
    "Mailbox",
    "OutputCallback",
    "ProgressCallback",
    "SharedClients",
    "Socket",
    "at_exit",
    "body_chunks",
    "interrupt_response",
    "make_pool",
    "notify",
    "run_blocking",
    "sleep",
]
