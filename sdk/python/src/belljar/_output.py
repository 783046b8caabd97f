"""Streamed output: text from bytes that may be split anywhere, and the kept part of a long stream."""

from __future__ import annotations

import codecs
from collections import deque
from typing import Deque, List, Optional

from .errors import InvalidArgumentException
from .models import StreamOutput

DEFAULT_KEPT_BYTES = 16 << 20
"""Default number of bytes that a handle of a background command keeps of each stream."""


class OutputCollector:
    """One stream of a process: returns text piece by piece, and keeps head and tail of the bytes."""

    def __init__(self, max_kept_bytes: Optional[int] = None) -> None:
        """Creates an empty collector. `max_kept_bytes` is split evenly between head and tail."""
        kept = DEFAULT_KEPT_BYTES if max_kept_bytes is None else max_kept_bytes
        if kept < 0:
            raise InvalidArgumentException("the number of bytes to keep must not be negative", field="output")
        self._head_room = kept - kept // 2
        self._tail_room = kept // 2
        self._head: List[bytes] = []
        self._head_bytes = 0
        self._tail: Deque[bytes] = deque()
        self._tail_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.offset = 0
        """Offset up to which the stream has been read, to resume after a broken connection."""

    def feed(self, offset: int, data: bytes) -> bytes:
        """Adds bytes that begin at `offset` and returns the new ones among them."""
        if offset < self.offset:
            data = data[self.offset - offset :]
            offset = self.offset
        if not data:
            return b""
        if offset > self.offset:
            # The server did not keep the bytes in between. These are the tail.
            self._head_room = self._head_bytes
        self.offset = offset + len(data)
        self._keep(data)
        return data

    def text(self, data: bytes, final: bool = False) -> str:
        """Decodes bytes in order; an incomplete character is returned with the next bytes."""
        return self._decoder.decode(data, final)

    def result(self) -> StreamOutput:
        """Returns the kept output."""
        data = b"".join([*self._head, *self._tail])
        omitted = self.offset - len(data)
        return StreamOutput(
            data=data,
            total_bytes=self.offset,
            truncated=omitted > 0,
            omitted_bytes=omitted,
            head_bytes=self._head_bytes,
        )

    def _keep(self, data: bytes) -> None:
        room = self._head_room - self._head_bytes
        if room > 0:
            self._head.append(data[:room])
            self._head_bytes += len(data[:room])
            data = data[room:]
        if not data or not self._tail_room:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes > self._tail_room:
            excess = self._tail_bytes - self._tail_room
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
                self._tail_bytes -= excess
            else:
                self._tail_bytes -= len(first)
