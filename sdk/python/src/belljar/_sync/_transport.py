# Made by scripts/make_sync.py from ../_async/_transport.py. Change that one.
"""Sends calls, again where that is safe, and reads answers."""

from __future__ import annotations

import json
import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

import httpx

from .. import _calls as calls
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

Body = Union[bytes, Iterator[bytes]]
Parts = List[Tuple[str, Tuple[str, Any]]]

_NOT_OPENED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Transport:
    """A pool of connections to one server."""

    def __init__(self, config: ConnectionConfig, transport: Optional[httpx.BaseTransport] = None) -> None:
        """Makes a transport. `transport` replaces the network, for tests."""
        self.config = config
        self.retries = RetryPolicy(config.max_retries)
        self._custom = transport
        self._tls = ssl_context(config)
        self._headers = dict(config.headers())
        # A client of httpx's would bring redirects, cookies and authentication, which cost time and are not wanted.
        self._pool: Optional[httpx.BaseTransport] = None
        self._lock = threading.Lock()

    def request(
        self,
        call: calls.Call[T],
        body: Optional[Body] = None,
        parts: Optional[Parts] = None,
        *,
        request_timeout: Optional[float] = None,
        user: Optional[str] = None,
    ) -> T:
        """Sends a call and reads its answer."""
        check_user(user)
        response = self._send(call, body, parts, request_timeout, stream=False)
        if response is None or not response.content:
            return call.parse(None)
        try:
            value = response.json()
        except ValueError:
            raise ServerException(f"the answer to {call.method} {call.path} is not JSON", status=response.status_code) from None
        return call.parse(value)

    def stream(
        self, call: calls.Call[Any], *, request_timeout: Optional[float] = None, user: Optional[str] = None
    ) -> ByteStream:
        """Sends a call and hands back its answer's bytes as they come."""
        check_user(user)
        response = self._send(call, None, None, request_timeout, stream=True)
        if response is None:
            raise ServerException(f"there is no answer to {call.method} {call.path}")
        return ByteStream(response, call)

    def events(
        self, call: calls.Call[Any], *, request_timeout: Optional[float] = None, user: Optional[str] = None
    ) -> EventStream:
        """Sends a call and hands back its answer's events as they come."""
        stream = self.stream(call, request_timeout=request_timeout, user=user)
        kind = stream.headers.get("Content-Type", "")
        if not kind.startswith("text/event-stream"):
            stream.close()
            raise ServerException(f"the answer to {call.method} {call.path} is no stream of events but {kind!r}")
        return EventStream(stream)

    def open_socket(self, path: str, query: Mapping[str, str]) -> _io.Socket:
        """Opens a WebSocket."""
        self.config.require_key()
        return _io.Socket.open(self.config, self._tls, path, query)

    def close(self) -> None:
        """Closes all connections. The next request opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _open_pool(self) -> httpx.BaseTransport:
        with self._lock:
            if self._pool is None:
                self._pool = self._custom or _io.make_pool(self.config, self._tls)
            return self._pool

    def _attempt(self, request: httpx.Request, stream: bool) -> httpx.Response:
        response = self._open_pool().handle_request(request)
        if not stream:
            try:
                response.read()
            except BaseException:
                response.close()
                raise
        return response

    def _send(
        self,
        call: calls.Call[Any],
        body: Optional[Body],
        parts: Optional[Parts],
        request_timeout: Optional[float],
        *,
        stream: bool,
    ) -> Optional[httpx.Response]:
        """The good answer to a call; None for something to delete that is gone since an attempt before."""
        if call.needs_key:
            self.config.require_key()
        replayable = body is None or isinstance(body, bytes)
        attempt, maybe_done = 0, False
        while True:
            delay: Optional[float]
            failure: SandboxException
            request = self._build(call, body, parts, request_timeout)
            try:
                response = self._attempt(request, stream)
            except httpx.HTTPError as error:
                opened = not isinstance(error, _NOT_OPENED)
                failure = self._failure(call, error)
                slow = isinstance(error, httpx.TimeoutException) and opened
                delay = None if slow else self.retries.after_break(attempt, safe=call.safe, opened=opened)
                maybe_done = maybe_done or opened
            else:
                if response.is_success:
                    return response
                failure = self._refusal(response)
                if call.method == "DELETE" and maybe_done and response.status_code in (404, 410):
                    return None
                if maybe_done and failure.code == "idempotency_running":
                    # The attempt that was lost is still at work, and this one has the same key.
                    delay = self.retries.after_break(attempt, safe=call.safe, opened=True)
                else:
                    delay = self.retries.after_status(attempt, response.status_code, failure.retry_after, safe=call.safe)
            if delay is None or not replayable:
                raise failure from None
            _io.sleep(delay)
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
            # Such as a text that has no form in UTF-8, or a number that has none in JSON.
            raise InvalidArgumentException(f"{call.method} {call.path} cannot be sent: {error}") from None

    def _limits(self, call: calls.Call[Any], request_timeout: Optional[float]) -> Dict[str, Optional[float]]:
        if call.headers.get("Accept") == "text/event-stream":
            # A stream of events gives a sign of life, so that even one that lasts for ever may not be silent for ever.
            return request_limits(STREAM_TIMEOUT, 0.0)
        return request_limits(self.config.request_timeout if request_timeout is None else request_timeout, call.takes)

    def _failure(self, call: calls.Call[Any], error: httpx.HTTPError) -> SandboxException:
        what = f"{call.method} {call.path}"
        if isinstance(error, _NOT_OPENED):
            return ConnectionException(
                f"cannot connect to {self.config.api_url} for {what}: {_said(error)}; is `belljar serve` running there?"
            )
        if isinstance(error, httpx.TimeoutException):
            return TimeoutException(f"{what}: the server did not answer in time")
        return ConnectionException(f"the connection broke during {what}: {_said(error)}")

    def _refusal(self, response: httpx.Response) -> SandboxException:
        try:
            problem = json.loads(response.read())
        except (ValueError, httpx.HTTPError):
            problem = {}
        finally:
            response.close()
        return refusal(problem, response)


class ByteStream:
    """The bytes of an answer as they come. Close it when you stop before the end; `with` does that."""

    def __init__(self, response: httpx.Response, call: calls.Call[Any]) -> None:
        """Wraps an answer whose body has not been read."""
        self._response = response
        self._what = f"{call.method} {call.path}"
        self._chunks = response.iter_bytes()

    @property
    def headers(self) -> httpx.Headers:
        """The headers of the answer."""
        return self._response.headers

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self._response.status_code

    @property
    def size(self) -> Optional[int]:
        """How many bytes come in all, if the server says."""
        length = self._response.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else None

    def __iter__(self) -> ByteStream:
        """The bytes, piece by piece."""
        return self

    def __next__(self) -> bytes:
        """The next piece."""
        try:
            return self._chunks.__next__()
        except httpx.TimeoutException:
            self.close()
            raise TimeoutException(f"{self._what}: nothing came for too long") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            self.close()
            raise ConnectionException(f"the connection broke during {self._what}: {_said(error)}") from None

    def read(self) -> bytes:
        """All that is left."""
        return b"".join([chunk for chunk in self])

    def close(self) -> None:
        """Ends it, whether all has been read or not."""
        self._response.close()

    def interrupt(self) -> None:
        """Makes a reader in another thread end."""
        _io.interrupt_response(self._response)

    def __enter__(self) -> ByteStream:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


class EventStream:
    """The events of an answer as they come."""

    def __init__(self, stream: ByteStream) -> None:
        """Reads events from these bytes."""
        self._stream = stream
        self._reader = EventReader()
        self._ready: List[ServerEvent] = []

    def receive(self) -> Optional[ServerEvent]:
        """Waits for an event. None: the server has ended the stream."""
        while not self._ready:
            try:
                chunk = self._stream.__next__()
            except StopIteration:
                return None
            self._ready.extend(self._reader.feed(chunk))
        return self._ready.pop(0)

    def close(self) -> None:
        """Ends it."""
        self._stream.close()

    def interrupt(self) -> None:
        """Makes a reader in another thread end."""
        self._stream.interrupt()


def refusal(problem: Any, response: httpx.Response) -> SandboxException:
    """The exception for an error answer."""
    fields = problem if isinstance(problem, dict) else {}
    error = error_from_problem(fields, response.status_code, response.headers.get("X-Request-Id"))
    header = parse_retry_after(response.headers.get("Retry-After"))
    if header is not None:
        error.retry_after = header
    return error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
