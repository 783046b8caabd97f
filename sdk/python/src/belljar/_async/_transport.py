"""Sends calls, with retries where that is safe, and reads responses."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Tuple, TypeVar, Union

import httpx

from .. import _calls as calls
from .. import _own_server
from .._calls._call import check_user
from .._config import STREAM_TIMEOUT, ConnectionConfig
from .._retry import RetryPolicy, parse_retry_after
from .._sse import EventReader, ServerEvent
from .._transport_options import request_limits, ssl_context
from ..errors import (
    ConnectionException,
    InvalidArgumentException,
    SandboxException,
    ServerException,
    TimeoutException,
    error_from_problem,
)
from . import _io

T = TypeVar("T")

Body = Union[bytes, AsyncIterator[bytes]]
Parts = List[Tuple[str, Tuple[str, Any]]]

_NOT_OPENED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class AsyncTransport:
    """A pool of connections to one server."""

    def __init__(self, config: ConnectionConfig, transport: Optional[httpx.AsyncBaseTransport] = None) -> None:
        """Creates a transport. `transport` replaces the network, for tests."""
        self.config = config
        self.retries = RetryPolicy(config.max_retries)
        self._custom = transport
        self._tls = ssl_context(config)
        self._headers = dict(config.headers())
        # httpx's client would add redirects, cookies and authentication, which cost time and are not needed.
        self._pool: Optional[httpx.AsyncBaseTransport] = None
        self._lock = threading.Lock()
        # Whether the server of this user's home has to be found, and started if none is running.
        self._is_missing = config.own_server and transport is None

    async def request(
        self,
        call: calls.Call[T],
        body: Optional[Body] = None,
        parts: Optional[Parts] = None,
        *,
        request_timeout: Optional[float] = None,
        user: Optional[str] = None,
    ) -> T:
        """Sends a call and returns its response."""
        check_user(user)
        response = await self._send(call, body, parts, request_timeout, stream=False)
        if response is None or not response.content:
            return call.parse(None)
        try:
            value = response.json()
        except ValueError:
            raise ServerException(f"the response to {call.method} {call.path} is not JSON", status=response.status_code) from None
        return call.parse(value)

    async def stream(
        self, call: calls.Call[Any], *, request_timeout: Optional[float] = None, user: Optional[str] = None
    ) -> AsyncByteStream:
        """Sends a call and returns its response as a stream of bytes."""
        check_user(user)
        response = await self._send(call, None, None, request_timeout, stream=True)
        if response is None:
            raise ServerException(f"no response to {call.method} {call.path}")
        return AsyncByteStream(response, call)

    async def events(
        self, call: calls.Call[Any], *, request_timeout: Optional[float] = None, user: Optional[str] = None
    ) -> AsyncEventStream:
        """Sends a call and returns its response as a stream of events."""
        stream = await self.stream(call, request_timeout=request_timeout, user=user)
        kind = stream.headers.get("Content-Type", "")
        if not kind.startswith("text/event-stream"):
            await stream.close()
            raise ServerException(f"the response to {call.method} {call.path} is not an event stream but {kind!r}")
        return AsyncEventStream(stream)

    async def open_socket(self, path: str, query: Mapping[str, str]) -> _io.Socket:
        """Opens a WebSocket."""
        self.config.require_key()
        await self._find_server()
        return await _io.Socket.open(self.config, self._tls, path, query)

    async def close(self) -> None:
        """Closes all connections. The next request opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    def _open_pool(self) -> httpx.AsyncBaseTransport:
        with self._lock:
            if self._pool is None:
                self._pool = self._custom or _io.make_pool(self.config, self._tls)
            return self._pool

    async def _find_server(self) -> None:
        """Finds the server of this user's home, if this client uses it."""
        if self._is_missing:
            url, address = await _io.run_blocking(_own_server.reach)
            if (url, address) != (self.config.api_url, self.config.address):
                await self.close()
                self.config = replace(self.config, api_url=url, address=address)
            self._is_missing = False

    async def _attempt(self, request: httpx.Request, stream: bool) -> httpx.Response:
        response = await self._open_pool().handle_async_request(request)
        if not stream:
            try:
                await response.aread()
            except BaseException:
                await response.aclose()
                raise
        return response

    async def _send(
        self,
        call: calls.Call[Any],
        body: Optional[Body],
        parts: Optional[Parts],
        request_timeout: Optional[float],
        *,
        stream: bool,
    ) -> Optional[httpx.Response]:
        """Returns the successful response to a call; None for a deletion that an earlier attempt has already done."""
        if call.needs_key:
            self.config.require_key()
        replayable = body is None or isinstance(body, bytes)
        attempt, maybe_done = 0, False
        while True:
            delay: Optional[float]
            failure: SandboxException
            await self._find_server()
            request = self._build(call, body, parts, request_timeout)
            try:
                response = await self._attempt(request, stream)
            except httpx.HTTPError as error:
                opened = not isinstance(error, _NOT_OPENED)
                failure = self._failure(call, error)
                # A server in the background ends when it has had no sandboxes for a while.
                self._is_missing = self.config.own_server and self._custom is None and not opened
                slow = isinstance(error, httpx.TimeoutException) and opened
                delay = None if slow else self.retries.after_break(attempt, safe=call.safe, opened=opened)
                maybe_done = maybe_done or opened
            else:
                if response.is_success:
                    return response
                failure = await self._refusal(response)
                if call.method == "DELETE" and maybe_done and response.status_code in (404, 410):
                    return None
                if maybe_done and failure.code == "idempotency_running":
                    # The lost attempt is still being executed, and this one has the same key.
                    delay = self.retries.after_break(attempt, safe=call.safe, opened=True)
                else:
                    delay = self.retries.after_status(attempt, response.status_code, failure.retry_after, safe=call.safe)
                # Except with 503 the server, or one behind a proxy, may have begun.
                maybe_done = maybe_done or (response.status_code >= 500 and response.status_code != 503)
            if delay is None or not replayable:
                raise failure from None
            await _io.sleep(delay)
            attempt += 1

    def _build(
        self, call: calls.Call[Any], body: Optional[Body], parts: Optional[Parts], request_timeout: Optional[float]
    ) -> httpx.Request:
        headers = {**self._headers, **call.headers}
        content = body
        try:
            if call.body is not None:
                content = json.dumps(call.body, ensure_ascii=False, allow_nan=False).encode("utf-8")
                headers["Content-Type"] = "application/json"
            return httpx.Request(
                call.method,
                f"{self.config.base_url}{call.path}",
                params=list(call.query) or None,
                content=content,
                files=parts,
                headers=headers,
                extensions={"timeout": self._limits(call, request_timeout)},
            )
        except (httpx.InvalidURL, ValueError) as error:
            # For example a string that UTF-8 cannot encode, or a number that JSON cannot.
            raise InvalidArgumentException(f"{call.method} {call.path} cannot be sent: {error}") from None

    def _limits(self, call: calls.Call[Any], request_timeout: Optional[float]) -> Dict[str, Optional[float]]:
        if call.headers.get("Accept") == "text/event-stream":
            # A stream of events has keep-alives, so even an endless one may not be silent forever.
            return request_limits(STREAM_TIMEOUT, 0.0)
        return request_limits(self.config.request_timeout if request_timeout is None else request_timeout, call.takes)

    def _failure(self, call: calls.Call[Any], error: httpx.HTTPError) -> SandboxException:
        what = f"{call.method} {call.path}"
        if isinstance(error, _NOT_OPENED):
            return ConnectionException(
                f"cannot connect to {self.config.api_url} for {what}: {_said(error)}; is `belljar serve` running there?"
            )
        if isinstance(error, httpx.TimeoutException):
            return TimeoutException(f"{what}: the server did not respond in time")
        return ConnectionException(f"the connection broke during {what}: {_said(error)}")

    async def _refusal(self, response: httpx.Response) -> SandboxException:
        try:
            problem = json.loads(await response.aread())
        except (ValueError, httpx.HTTPError):
            problem = {}
        finally:
            await response.aclose()
        return refusal(problem, response)


class AsyncByteStream:
    """Stream of the bytes of a response. Close it if you stop before the end; `async with` does that."""

    def __init__(self, response: httpx.Response, call: calls.Call[Any]) -> None:
        """Wraps a response whose body has not been read."""
        self._response = response
        self._what = f"{call.method} {call.path}"
        self._chunks = response.aiter_bytes()

    @property
    def headers(self) -> httpx.Headers:
        """The headers of the response."""
        return self._response.headers

    @property
    def status(self) -> int:
        """The status of the response."""
        return self._response.status_code

    @property
    def size(self) -> Optional[int]:
        """Total number of bytes, if the server reports it."""
        length = self._response.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else None

    def __aiter__(self) -> AsyncByteStream:
        """The bytes, piece by piece."""
        return self

    async def __anext__(self) -> bytes:
        """The next piece."""
        try:
            return await self._chunks.__anext__()
        except httpx.TimeoutException:
            await self.close()
            raise TimeoutException(f"{self._what}: no data received for too long") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            await self.close()
            raise ConnectionException(f"the connection broke during {self._what}: {_said(error)}") from None

    async def read(self) -> bytes:
        """Returns the remaining bytes."""
        return b"".join([chunk async for chunk in self])

    async def close(self) -> None:
        """Closes the stream, even if it has not been read to its end."""
        await self._response.aclose()

    async def interrupt(self) -> None:
        """Interrupts a reader in another thread."""
        await _io.interrupt_response(self._response)

    async def __aenter__(self) -> AsyncByteStream:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the stream."""
        await self.close()


class AsyncEventStream:
    """Stream of the events of a response."""

    def __init__(self, stream: AsyncByteStream) -> None:
        """Reads events from these bytes."""
        self._stream = stream
        self._reader = EventReader()
        self._ready: List[ServerEvent] = []

    async def receive(self) -> Optional[ServerEvent]:
        """Waits for an event. Returns None if the server has ended the stream."""
        while not self._ready:
            try:
                chunk = await self._stream.__anext__()
            except StopAsyncIteration:
                return None
            self._ready.extend(self._reader.feed(chunk))
        return self._ready.pop(0)

    async def close(self) -> None:
        """Closes the stream."""
        await self._stream.close()

    async def interrupt(self) -> None:
        """Interrupts a reader in another thread."""
        await self._stream.interrupt()


def refusal(problem: Any, response: httpx.Response) -> SandboxException:
    """Returns the exception for an error response."""
    fields = problem if isinstance(problem, dict) else {}
    error = error_from_problem(fields, response.status_code, response.headers.get("X-Request-Id"))
    header = parse_retry_after(response.headers.get("Retry-After"))
    if header is not None:
        error.retry_after = header
    return error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
