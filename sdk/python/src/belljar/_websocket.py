"""Settings of websockets for both clients."""

from __future__ import annotations

import json
import logging
import ssl
from typing import Any, Dict, Mapping, Optional, Tuple
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.version import version as websockets_version

from ._config import CONNECT_TIMEOUT, ConnectionConfig
from ._retry import parse_retry_after
from .errors import ConnectionException, SandboxException, error_from_problem

MAX_FRAME_BYTES = 2 << 20
"""Maximum size of a frame, in bytes; the server sends none of more than 1 MiB."""


def quiet_logger() -> logging.Logger:
    """A logger that never logs traffic, which contains the key, whatever the program has configured."""
    logger = logging.Logger("belljar.websocket", level=logging.CRITICAL)
    logger.addHandler(logging.NullHandler())
    return logger


def websocket_options(
    config: ConnectionConfig, context: Optional[ssl.SSLContext], path: str, query: Mapping[str, str]
) -> Tuple[str, Dict[str, Any]]:
    """Returns the URI and the arguments of `connect`."""
    uri = f"{config.websocket_url}{path}" + (f"?{urlencode(query)}" if query else "")
    headers = dict(config.headers())
    options: Dict[str, Any] = {
        "user_agent_header": headers.pop("User-Agent"),
        "additional_headers": headers,
        "open_timeout": CONNECT_TIMEOUT,
        "close_timeout": 2.0,
        "max_size": MAX_FRAME_BYTES,
        "compression": None,
        "logger": quiet_logger(),
    }
    if context is not None:
        options["ssl"] = context
    if int(websockets_version.split(".")[0]) >= 15:
        options["proxy"] = config.proxy
    return uri, options


def websocket_refusal(response: Response) -> SandboxException:
    """Returns the exception for a response that does not open a WebSocket."""
    request_id = response.headers.get("X-Request-Id")
    try:
        problem = json.loads(response.body or b"")
    except ValueError:
        problem = {}
    error = error_from_problem(problem if isinstance(problem, dict) else {}, response.status_code, request_id)
    if error.retry_after is None:
        error.retry_after = parse_retry_after(response.headers.get("Retry-After"))
    return error


def websocket_trouble(closed: ConnectionClosed) -> SandboxException:
    """Returns the exception for a WebSocket that ended prematurely."""
    if closed.rcvd is None:
        return ConnectionException("the WebSocket broke")
    return ConnectionException(f"the server closed the WebSocket: {closed.rcvd.code} {closed.rcvd.reason}".rstrip())
