"""Connection settings: arguments first, then the environment, then defaults."""

from __future__ import annotations

import os
import re
import ssl
import urllib.request
from dataclasses import dataclass, field
from typing import Mapping, Optional, TypedDict
from urllib.parse import unquote, urljoin, urlsplit

from ._own_server import can_start
from ._version import __version__
from .errors import AuthenticationException, InvalidArgumentException, SandboxException


class ConnectionOptions(TypedDict, total=False):
    """Options of every call that opens a connection.

    `api_key`, `api_url` and `domain` default to the environment. `request_timeout` is the number of seconds without data
    from the server, 0 for no limit. `max_retries` is the number of retries of a request that is safe to repeat.
    `ssl_context` is for a server whose certificate the machine does not trust.
    """

    api_key: Optional[str]
    api_url: Optional[str]
    domain: Optional[str]
    request_timeout: Optional[float]
    max_retries: int
    ssl_context: Optional[ssl.SSLContext]


class RequestOptions(TypedDict, total=False):
    """Options of a single call.

    `request_timeout` is the number of seconds without data from the server, 0 for no limit; default: the client's own.
    `user` is the user who does it, by default `user`, the sandbox's own. In machines, commands and terminals can have another.
    """

    request_timeout: Optional[float]
    user: Optional[str]


DEFAULT_API_URL = "http://127.0.0.1:8787"
"""Default address of `belljar serve`."""

DEFAULT_REQUEST_TIMEOUT = 60.0
"""Seconds without data from the server."""

DEFAULT_MAX_RETRIES = 5
"""Retries of a request that is safe to repeat: for at least 3 seconds, longer than a restart of the server takes."""

CONNECT_TIMEOUT = 10.0
"""Timeout for opening a connection, in seconds."""

STREAM_TIMEOUT = 60.0
"""Seconds without data in a stream of events. The server sends a keep-alive every 15 seconds."""

_NO_HOST = "http://localhost"
"""The URL of a server that is reached over its socket and has no other."""

_KEY_FORM = re.compile(r"[\x21-\x7e]+\Z")


class Secret(str):
    """A string that debugging tools do not show."""

    def __repr__(self) -> str:
        """Hides the value."""
        return "'[secret]'"


@dataclass(frozen=True)
class ConnectionConfig:
    """Connection settings. The `repr` does not show the key."""

    api_url: str
    api_key: Optional[str] = field(repr=False)
    domain: Optional[str] = None
    request_timeout: float = DEFAULT_REQUEST_TIMEOUT
    max_retries: int = DEFAULT_MAX_RETRIES
    ssl_context: Optional[ssl.SSLContext] = field(default=None, repr=False)
    own_server: bool = False
    """Whether neither a server nor a key is named: the one of this user's home is used, and started if none is running."""
    address: Optional[str] = None
    """The URL of a server that is reached over its socket, if it has one."""

    @classmethod
    def resolve(
        cls,
        *,
        api_key: Optional[str] = None,
        api_url: Optional[str] = None,
        domain: Optional[str] = None,
        request_timeout: Optional[float] = None,
        max_retries: int = DEFAULT_MAX_RETRIES,
        ssl_context: Optional[ssl.SSLContext] = None,
        environ: Optional[Mapping[str, str]] = None,
    ) -> ConnectionConfig:
        """Fills missing settings from `BELLJAR_API_KEY`, `BELLJAR_API_URL` and `BELLJAR_DOMAIN`, and checks them."""
        environ = os.environ if environ is None else environ
        # A key from a file often ends in a line break.
        key = (api_key if api_key is not None else environ.get("BELLJAR_API_KEY", "")).strip() or None
        if key is not None and not _KEY_FORM.match(key):
            raise InvalidArgumentException("the API key contains invalid characters", field="api_key")
        named = api_url or environ.get("BELLJAR_API_URL")
        url = (named or DEFAULT_API_URL).rstrip("/")
        _check_url(url)
        timeout = DEFAULT_REQUEST_TIMEOUT if request_timeout is None else float(request_timeout)
        if not timeout >= 0:
            raise InvalidArgumentException("request_timeout must not be negative", field="request_timeout")
        if max_retries < 0:
            raise InvalidArgumentException("max_retries must not be negative", field="max_retries")
        return cls(
            api_url=url,
            api_key=None if key is None else Secret(key),
            domain=domain or environ.get("BELLJAR_DOMAIN") or None,
            request_timeout=timeout,
            max_retries=max_retries,
            ssl_context=ssl_context,
            own_server=not named and key is None and can_start(),
        )

    @property
    def default_grade(self) -> Optional[str]:
        """The grade of limits that the user's environment asks for, which does not concern other users' servers."""
        return (os.environ.get("BELLJAR_LIMITS") or None) if self.own_server else None

    @property
    def socket_path(self) -> Optional[str]:
        """The path of the Unix socket to connect to, if the URL names one."""
        parts = urlsplit(self.api_url)
        return unquote(parts.path) if parts.scheme == "unix" else None

    @property
    def base_url(self) -> str:
        """The URL that paths are appended to."""
        if self.socket_path is None:
            return self.api_url
        # The server names itself in URLs as requests do.
        return self.address.rstrip("/") if self.address and self.address.startswith("http:") else _NO_HOST

    def public_url(self, url: str) -> str:
        """Returns the URL under which other programs reach what the server has named with `url`.

        Raises:
            SandboxException: The server has no address but its socket.
        """
        full = urljoin(f"{self.base_url}/", url)
        if self.socket_path is None or not full.startswith(f"{_NO_HOST}/"):
            return full
        if self.address is None:
            raise SandboxException(
                "this server has no address but its socket, so no URL leads to it; start one with `belljar serve`, or use "
                "`belljar sandbox port-forward`"
            )
        return f"{self.address.rstrip('/')}{full[len(_NO_HOST) :]}"

    @property
    def websocket_url(self) -> str:
        """The same for WebSockets."""
        return "ws" + self.base_url[len("http") :]

    @property
    def tls(self) -> bool:
        """Reports whether the connection is encrypted."""
        return self.base_url.startswith("https:")

    @property
    def proxy(self) -> Optional[str]:
        """The HTTP proxy in the environment for this server. Not used for this machine."""
        host = urlsplit(self.base_url).hostname or ""
        if host == "localhost" or host == "::1" or host.startswith("127.") or urllib.request.proxy_bypass(host):
            return None
        proxies = urllib.request.getproxies()
        return proxies.get("https" if self.tls else "http") or proxies.get("all")

    def headers(self) -> Mapping[str, str]:
        """The headers of every request."""
        headers = {"User-Agent": f"belljar-python/{__version__}", "Accept-Encoding": "identity"}
        if self.api_key is not None:
            headers["Authorization"] = Secret(f"Bearer {self.api_key}")
        return headers

    def require_key(self) -> None:
        """Raises unless there is a key, or a Unix socket, which needs none."""
        if self.api_key is None and self.socket_path is None and not self.own_server:
            raise AuthenticationException("no API key; pass api_key or set BELLJAR_API_KEY (`belljar key create` creates one)")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidArgumentException(f"api_url is not a URL: {error}", field="api_url") from None
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/"):
            raise InvalidArgumentException("a Unix socket is written unix:///path", field="api_url")
        return
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgumentException("api_url must begin with http://, https:// or unix:///", field="api_url")
    if parts.username is not None or parts.password is not None:
        # It would appear in messages and logs.
        raise InvalidArgumentException("api_url must not contain a user or password; pass api_key", field="api_url")
    if parts.query or parts.fragment:
        raise InvalidArgumentException("api_url must have neither a query nor a fragment", field="api_url")
