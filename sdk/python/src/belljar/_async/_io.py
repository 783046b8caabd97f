"""The differences between the synchronous and the asynchronous client. The rest of `_sync` is generated from `_async`."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import ssl
import threading
from typing import (
    IO,
    Any,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    Generic,
    Iterable,
    List,
    Mapping,
    Optional,
    Tuple,
    TypeVar,
    Union,
)

import httpx
import websockets
import websockets.asyncio.client as websocket_client
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from .._calls.files import check_chunk
from .._config import ConnectionConfig
from .._transport_options import transport_options
from .._websocket import websocket_options, websocket_refusal, websocket_trouble
from ..errors import ConnectionException, SandboxException
from ..models import Question

T = TypeVar("T")
R = TypeVar("R")

OutputCallback = Callable[[str], Union[object, Awaitable[object]]]
"""Callback for a piece of text; may be a coroutine function."""

BytesCallback = Callable[[bytes], Union[object, Awaitable[object]]]
"""Callback for a piece of a terminal's output; may be a coroutine function."""

ProgressCallback = Callable[[int, Optional[int]], Union[object, Awaitable[object]]]
"""Callback for progress: bytes transferred, and the total, if known; may be a coroutine function."""

EventCallback = Callable[[T], Union[object, Awaitable[object]]]
"""Callback for an event; may be a coroutine function."""

InputCallback = Callable[[Question], Union[Optional[str], Awaitable[Optional[str]]]]
"""Callback that answers a question with a line, or with None to refuse; may be a coroutine function."""

FileData = Union[str, bytes, IO[bytes], Iterable[bytes], AsyncIterable[bytes]]
"""Sources from which a file can be written."""

InputData = Union[str, bytes, IO[str], IO[bytes], Iterable[Union[str, bytes]], AsyncIterable[Union[str, bytes]]]
"""Sources from which the input of a command can be streamed."""

CHUNK_BYTES = 256 * 1024
"""Number of bytes read from a local file at a time."""


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


async def notify(callback: Callable[..., object], *values: Any) -> None:
    """Calls a user callback, and awaits it if it is a coroutine."""
    result = callback(*values)
    if inspect.isawaitable(result):
        await result


async def ask(callback: Callable[[T], Any], value: T) -> Any:
    """Calls a user callback for an answer, and awaits it if it is a coroutine."""
    result = callback(value)
    return await result if inspect.isawaitable(result) else result


async def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a user's function with its arguments by name, and awaits it if it is a coroutine."""
    result = function(**arguments)
    return await result if inspect.isawaitable(result) else result


async def run_blocking(function: Callable[..., R], *arguments: Any) -> R:
    """Calls a blocking function, such as reading a local file, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    return await loop.run_in_executor(None, lambda: context.run(function, *arguments))


def make_pool(config: ConnectionConfig, context: Optional[ssl.SSLContext]) -> httpx.AsyncBaseTransport:
    """A pool of connections."""
    return httpx.AsyncHTTPTransport(**transport_options(config, context))


async def pieces(data: Union[IO[Any], Iterable[T], AsyncIterable[T]]) -> AsyncIterator[T]:
    """Yields the content of a file or of an iterator, piece by piece."""
    if isinstance(data, AsyncIterable):
        async for chunk in data:
            yield chunk
        return
    read = getattr(data, "read", None)
    if read is not None:
        while True:
            chunk = await run_blocking(read, CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    for chunk in data:
        yield chunk


async def body_chunks(data: Union[IO[bytes], Iterable[bytes], AsyncIterable[bytes]]) -> AsyncIterator[bytes]:
    """Yields the bytes of a file or of an iterator, piece by piece."""
    async for chunk in pieces(data):
        yield check_chunk(chunk)


class Background(Generic[T]):
    """Background task. `join` waits for its end."""

    def __init__(self, function: Callable[[], Awaitable[T]], interrupt: Callable[[], Awaitable[None]]) -> None:
        """Starts `function`. `interrupt` must make it end quickly."""
        self._task = asyncio.ensure_future(_as_coroutine(function))
        self._interrupt = interrupt
        # Without a waiter, its exception is ignored.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def done(self) -> bool:
        """Reports whether it has ended."""
        return self._task.done()

    async def join(self, timeout: Optional[float] = None) -> T:
        """Waits for the end and returns the result, or raises its exception. Raises `TimeoutError` of asyncio."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._task), timeout)
        except asyncio.CancelledError:
            # Either the caller was cancelled, or the reader that it waits for was stopped.
            if self._task.cancelled():
                raise SandboxException("it was disconnected meanwhile") from None
            raise

    async def stop(self) -> None:
        """Interrupts it and waits for its end."""
        await self._interrupt()
        if self._task is asyncio.current_task():
            return
        self._task.cancel()
        await asyncio.wait([self._task])


async def _as_coroutine(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


class Mailbox(Generic[T]):
    """Queue from a background reader to the caller. It is closed once, for good."""

    def __init__(self, size: int) -> None:
        """Creates a mailbox for at most `size` items."""
        self._items: List[T] = []
        self._size = size
        self._ended = False
        self._error: Optional[BaseException] = None
        self._changed = asyncio.Event()

    def put(self, item: T) -> bool:
        """Adds an item. Returns False if the mailbox is full."""
        if len(self._items) >= self._size:
            return False
        self._items.append(item)
        self._changed.set()
        return True

    def end(self, error: Optional[BaseException] = None) -> None:
        """Closes the mailbox, because of `error` if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
        self._changed.set()

    def drain(self) -> List[T]:
        """Takes all items. If there are none, raises the error of the reader, if it failed."""
        found, self._items = self._items, []
        if not found and self._error is not None:
            raise self._error
        return found

    async def take(self) -> Tuple[bool, Optional[T]]:
        """Waits for one item. Returns (False, None) if the mailbox is closed."""
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._ended:
                return False, None
            self._changed.clear()
            await self._changed.wait()
        return True, self._items.pop(0)


async def interrupt_response(response: httpx.Response) -> None:
    """Interrupts a reader of this response in another task."""
    await response.aclose()


class Socket:
    """A WebSocket."""

    def __init__(self, connection: websocket_client.ClientConnection) -> None:
        """Wraps an open connection."""
        self._connection = connection

    @classmethod
    async def open(
        cls, config: ConnectionConfig, context: Optional[ssl.SSLContext], path: str, query: Mapping[str, str]
    ) -> Socket:
        """Connects."""
        uri, options = websocket_options(config, context, path, query)
        try:
            connect = websocket_client.connect
            if config.socket_path is not None:
                connection = await websocket_client.unix_connect(config.socket_path, uri, **options)
            else:
                connection = await connect(uri, **options)
        except websockets.exceptions.InvalidStatus as refusal:
            raise websocket_refusal(refusal.response) from None
        except (OSError, asyncio.TimeoutError, websockets.exceptions.WebSocketException) as error:
            raise ConnectionException(f"cannot open a WebSocket to {config.api_url}: {error}") from None
        return cls(connection)

    async def send(self, frame: Union[str, bytes]) -> None:
        """Sends one frame."""
        try:
            await self._connection.send(frame)
        except ConnectionClosed as closed:
            raise websocket_trouble(closed) from None

    async def receive(self) -> Optional[Union[str, bytes]]:
        """Waits for one frame. Returns None if the connection was closed normally."""
        try:
            return await self._connection.recv()
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as closed:
            raise websocket_trouble(closed) from None

    async def close(self) -> None:
        """Closes the connection."""
        await self._connection.close()


def at_exit(close: Callable[[], Awaitable[None]]) -> None:
    """Registers a resource to be closed. No event loop runs at exit, so the last user closes it."""


class SharedClients(Generic[T]):
    """One connection pool for each server, key and event loop, for callers without their own client.

    Its connections are closed when the last sandbox that leased it has ended.
    """

    def __init__(self) -> None:
        """Creates an empty registry."""
        self._lock = threading.Lock()
        self._clients: Dict[Tuple[object, ...], Tuple[asyncio.AbstractEventLoop, T]] = {}

    def get(self, config: ConnectionConfig, make: Callable[[ConnectionConfig], T]) -> T:
        """Returns the pool for this configuration; creates it if there is none."""
        loop = asyncio.get_running_loop()
        key = (id(loop), os.getpid(), config)
        with self._lock:
            for old in [old for old, (owner, _) in self._clients.items() if owner.is_closed()]:
                del self._clients[old]
            found = self._clients.get(key)
            if found is None or found[0] is not loop:
                found = self._clients[key] = (loop, make(config))
            return found[1]


CLOSE_SHARED_WHEN_UNUSED = True
"""Closes unused connections immediately: an event loop does not end cleanly while it has open connections."""

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
