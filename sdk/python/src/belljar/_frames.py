"""The frames of the WebSocket of an attached process. No I/O here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Mapping, Union

from . import _json as read
from .errors import ServerException
from .models import PtySize

STDOUT = 1
STDERR = 2
TERMINAL = 3

_HEADER_BYTES = 9


@dataclass(frozen=True)
class OutputFrame:
    """Bytes of a stream, and their offset in the stream."""

    stream: int
    offset: int
    data: bytes


def parse_frame(frame: Union[str, bytes]) -> Union[OutputFrame, Mapping[str, Any]]:
    """Parses output from a binary frame, or an event (a JSON object) from a text frame."""
    if isinstance(frame, str):
        try:
            value = json.loads(frame)
        except ValueError:
            raise ServerException("the server sent a text frame that is not JSON") from None
        return read.mapping(value, "the event")
    if len(frame) < _HEADER_BYTES or frame[0] not in (STDOUT, STDERR, TERMINAL):
        raise ServerException("the server sent an invalid binary frame")
    return OutputFrame(frame[0], int.from_bytes(frame[1:_HEADER_BYTES], "big"), bytes(frame[_HEADER_BYTES:]))


def resize_frame(size: PtySize) -> str:
    """Requests another terminal size."""
    return json.dumps({"resize": {"rows": size.rows, "columns": size.cols}})


def signal_frame(signal: str) -> str:
    """Requests a signal to the process."""
    return json.dumps({"signal": signal})
