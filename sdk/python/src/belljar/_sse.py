"""Server-sent events, parsed from bytes that may be split anywhere. No I/O here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Iterator, List, Mapping

from . import _json as read
from .errors import ServerException

MAX_EVENT_BYTES = 64 << 20
"""Maximum size of an event, in bytes. A result contains the kept output of both streams."""


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name and its data."""

    name: str
    data: Mapping[str, Any]


class EventReader:
    """Collects bytes and returns complete events."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        """Creates an empty reader. `max_event_bytes` limits its buffer."""
        self._max_event_bytes = max_event_bytes
        self._parts: List[bytes] = []
        self._line_bytes = 0
        self._name = ""
        self._data: List[bytes] = []
        self._data_bytes = 0
        self._skip_newline = False

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Adds bytes and returns the events that they complete."""
        if self._skip_newline and chunk:
            # The previous line ended with a carriage return at the end of its bytes.
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._skip_newline = False
        start = 0
        while True:
            end = _line_end(chunk, start)
            if end < 0:
                self._keep(chunk[start:])
                return
            line = b"".join([*self._parts, chunk[start:end]])
            self._parts, self._line_bytes = [], 0
            start = end + 1
            if chunk[end : end + 1] == b"\r":
                if start == len(chunk):
                    self._skip_newline = True
                elif chunk[start : start + 1] == b"\n":
                    start += 1
            if line:
                self._field(line)
            elif self._data or self._name:
                yield self._event()

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        self._line_bytes += len(rest)
        self._check()
        self._parts.append(rest)

    def _check(self) -> None:
        if self._line_bytes + self._data_bytes > self._max_event_bytes:
            raise ServerException(f"the server sent an event of more than {self._max_event_bytes} bytes")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data_bytes += len(value)
            self._check()
            self._data.append(value)
        # A line that begins with a colon is a keep-alive; ids and the like are not used.

    def _event(self) -> ServerEvent:
        name, data = self._name or "message", b"\n".join(self._data)
        self._name, self._data, self._data_bytes = "", [], 0
        try:
            value = json.loads(data) if data else {}
        except ValueError:
            raise ServerException(f"the server sent an event `{name}` that is not JSON") from None
        return ServerEvent(name, read.mapping(value, f"the event `{name}`"))


def _line_end(chunk: bytes, start: int) -> int:
    newline = chunk.find(b"\n", start)
    carriage = chunk.find(b"\r", start, newline if newline >= 0 else len(chunk))
    return carriage if carriage >= 0 else newline
