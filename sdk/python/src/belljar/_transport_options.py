"""Settings of httpx for both clients."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Dict, List, Optional, Tuple

import httpx

from ._config import CONNECT_TIMEOUT, ConnectionConfig

KEEP_ALIVE_SECONDS = 5.0
"""Seconds to keep an idle connection. Shorter than the server's 10 seconds, so that no request meets a closing connection."""

MAX_TIMEOUT = float((1 << 31) - 1)
"""Maximum number of seconds that a request, or its work, can take. Much larger ones are an overflow in sockets."""


def ssl_context(config: ConnectionConfig) -> Optional[ssl.SSLContext]:
    """Returns the TLS context, or None without TLS; loading the certificates takes a while."""
    if not config.tls:
        return None
    return config.ssl_context or httpx.create_ssl_context()


def transport_options(config: ConnectionConfig, context: Optional[ssl.SSLContext]) -> Dict[str, Any]:
    """Returns the arguments for httpx's transports."""
    # Without TLS there is nothing to verify; the transport follows no redirects to TLS.
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
    """Returns the timeouts of a request for work of up to `takes` seconds. A `request_timeout` of 0 means none."""
    whole = min(request_timeout, MAX_TIMEOUT) or None
    read = None if whole is None or takes == float("inf") else whole + min(takes, MAX_TIMEOUT)
    return {"connect": min(CONNECT_TIMEOUT, request_timeout or CONNECT_TIMEOUT), "read": read, "write": whole, "pool": whole}


def _socket_options() -> List[Tuple[int, int, int]]:
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    # A command may be silent for hours; this detects a server that has vanished.
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        number = getattr(socket, name, None)
        if number is not None:
            options.append((socket.IPPROTO_TCP, number, value))
    return options
