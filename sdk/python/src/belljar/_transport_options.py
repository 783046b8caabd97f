"""How httpx is set up, in one place for both clients."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Dict, List, Optional, Tuple

import httpx

from ._config import CONNECT_TIMEOUT, ConnectionConfig

KEEP_ALIVE_SECONDS = 5.0
"""How long an idle connection is kept. The server closes one after 10 seconds, and a request must not meet that."""


def ssl_context(config: ConnectionConfig) -> Optional[ssl.SSLContext]:
    """What is needed for TLS, or None where there is none; loading the certificates takes a while."""
    if not config.tls:
        return None
    return config.ssl_context or httpx.create_ssl_context()


def transport_options(config: ConnectionConfig, context: Optional[ssl.SSLContext]) -> Dict[str, Any]:
    """Arguments for httpx's transports."""
    # Without TLS there is nothing to verify; the transport follows no redirect to where there would be.
    options: Dict[str, Any] = {
        "verify": context if context is not None else False,
        "http1": True,
        "http2": False,
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEP_ALIVE_SECONDS),
        "trust_env": False,
    }
    if config.socket_path is not None:
        options["uds"] = config.socket_path
    else:
        options["proxy"] = config.proxy
        options["socket_options"] = _socket_options()
    return options


def request_limits(request_timeout: float, takes: float) -> Dict[str, Optional[float]]:
    """How long each part of a request may take, for work that may take `takes` seconds. A `request_timeout` of 0 is none."""
    whole = request_timeout or None
    read = None if whole is None or takes == float("inf") else whole + takes
    return {"connect": min(CONNECT_TIMEOUT, request_timeout or CONNECT_TIMEOUT), "read": read, "write": whole, "pool": whole}


def _socket_options() -> List[Tuple[int, int, int]]:
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    # A command may be silent for hours; this is how a server that has vanished shows.
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        number = getattr(socket, name, None)
        if number is not None:
            options.append((socket.IPPROTO_TCP, number, value))
    return options
