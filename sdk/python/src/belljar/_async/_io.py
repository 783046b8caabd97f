"""What differs between the synchronous and the asynchronous client. Everything else of `_sync` is made from `_async`."""

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

from .._config import ConnectionConfig
from .._transport_options import transport_options
from .._websocket import websocket_options, websocket_refusal, websocket_trouble
from ..errors import ConnectionException, SandboxException
from ..models import Question

T = TypeVar("T")
R = TypeVar("R")

OutputCallback = Callable[[str], Union[object, Awaitable[object]]]
"""Takes a piece of text; may be a coroutine function."""

BytesCallback = Callable[[bytes], Union[object, Awaitable[object]]]
"""Takes a piece of a terminal's output; may be a coroutine function."""

ProgressCallback = Callable[[int, Optional[int]], Union[object, Awaitable[object]]]
"""Takes how many bytes have gone so far, and of how many, if that is known; may be a coroutine function."""

EventCallback = Callable[[T], Union[object, Awaitable[object]]]
"""Takes an event; may be a coroutine function."""

InputCallback = Callable[[Question], Union[Optional[str], Awaitable[Optional[str]]]]
"""Answers a question with a line, or with None: nobody will; may be a coroutine function."""

FileData = Union[str, bytes, IO[bytes], Iterable[bytes], AsyncIterable[bytes]]
"""What a file can be written from."""

CHUNK_BYTES = 256 * 1024
"""Bytes that are read from a local file at a time."""


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


async def notify(callback: Callable[..., object], *values: Any) -> None:
    """Calls a callback of the user, and waits for it if it is a coroutine."""
    result = callback(*values)
    if inspect.isawaitable(result):
        await result


async def ask(callback: Callable[[T], Any], value: T) -> Any:
    """Calls a callback of the user for an answer, and waits for it if it is a coroutine."""
    result = callback(value)
    return await result if inspect.isawaitable(result) else result


async def run_blocking(function: Callable[..., R], *arguments: Any) -> R:
    """Calls something that blocks, such as reading a local file, without holding up anybody else."""
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    return await loop.run_in_executor(None, lambda: context.run(function, *arguments))


def make_pool(config: ConnectionConfig, context: Optional[ssl.SSLContext]) -> httpx.AsyncBaseTransport:
    """A pool of connections."""
    return httpx.AsyncHTTPTransport(**transport_options(config, context))


async def body_chunks(data: Union[IO[bytes], Iterable[bytes], AsyncIterable[bytes]]) -> AsyncIterator[bytes]:
    """The bytes of a file or of an iterator, piece by piece."""
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


class Background(Generic[T]):
    """Something that goes on beside the caller. Its end is waited for with `join`."""

    def __init__(self, function: Callable[[], Awaitable[T]], interrupt: Callable[[], Awaitable[None]]) -> None:
        """Starts `function`. `interrupt` must make it end soon."""
        self._task = asyncio.ensure_future(_as_coroutine(function))
        self._interrupt = interrupt
        # If nobody ever waits for it, its failure is nobody's.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    async def join(self, timeout: Optional[float] = None) -> T:
        """Waits for the end and hands back the result, or raises what it raised. Raises `TimeoutError` of asyncio."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._task), timeout)
        except asyncio.CancelledError:
            # Either the caller was cancelled, or somebody stopped the reader that the caller waits for.
            if self._task.cancelled():
                raise SandboxException("it was disconnected meanwhile") from None
            raise

    async def stop(self) -> None:
        """Makes it end, and waits for that."""
        await self._interrupt()
        if self._task is asyncio.current_task():
            return
        self._task.cancel()
        await asyncio.wait([self._task])


async def _as_coroutine(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


class Mailbox(Generic[T]):
    """Hands items from a background reader to the caller. The end is said once and stays."""

    def __init__(self, size: int) -> None:
        """Makes a mailbox for at most `size` items."""
        self._items: List[T] = []
        self._size = size
        self._ended = False
        self._error: Optional[BaseException] = None
        self._changed = asyncio.Event()

    def put(self, item: T) -> bool:
        """Adds an item. False: there was no room."""
        if len(self._items) >= self._size:
            return False
        self._items.append(item)
        self._changed.set()
        return True

    def end(self, error: Optional[BaseException] = None) -> None:
        """Says that nothing more comes, because of `error` if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
        self._changed.set()

    def drain(self) -> List[T]:
        """Takes all that is there. Raises what the reader failed with, if there is nothing else."""
        found, self._items = self._items, []
        if not found and self._error is not None:
            raise self._error
        return found

    async def take(self) -> Tuple[bool, Optional[T]]:
        """Waits for one item. (False, None): nothing more comes."""
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._ended:
                return False, None
            self._changed.clear()
            await self._changed.wait()
        return True, self._items.pop(0)


async def interrupt_response(response: httpx.Response) -> None:
    """Makes a reader of this response end, whoever it is. Tasks are cancelled instead, so nothing is to be done."""


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
        """Waits for one frame. None: the connection has ended as it should."""
        try:
            return await self._connection.recv()
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as closed:
            raise websocket_trouble(closed) from None

    async def close(self) -> None:
        """Ends the connection."""
        await self._connection.close()


def at_exit(close: Callable[[], Awaitable[None]]) -> None:
    """Has something closed when the program ends. No event loop runs then, so the last one to need it closes it."""


class SharedClients(Generic[T]):
    """One connection pool for each server, key and event loop, for callers who made no client of their own.

    Its connections are closed when the last sandbox that leased it has ended.
    """

    def __init__(self) -> None:
        """Makes an empty register."""
        self._lock = threading.Lock()
        self._clients: Dict[Tuple[object, ...], Tuple[asyncio.AbstractEventLoop, T]] = {}

    def get(self, config: ConnectionConfig, make: Callable[[ConnectionConfig], T]) -> T:
        """The pool for this configuration, made if there is none."""
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
"""An event loop does not end cleanly while it has open connections, so they are closed as soon as nobody needs them."""

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
