"""Arguments of git, and its credentials."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from .._arguments import text
from ..errors import InvalidArgumentException

ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
"""Variables of each command: git asks no questions, and its messages can be recognized."""

_AUTH_FAILURES = (
    "authentication failed",
    "could not read username",
    "could not read password",
    "terminal prompts disabled",
    "invalid username or",
    "permission denied (publickey",
    "the requested url returned error: 401",
    "the requested url returned error: 403",
)

# The values stay out of the command line, of the repository's configuration and of the file system.
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$BELLJAR_GIT_USERNAME" "$BELLJAR_GIT_PASSWORD"; }; f'


def plain(value: str, name: str) -> str:
    """Returns an argument that git must not take for an option."""
    if not text(value, name) or value.startswith("-"):
        raise InvalidArgumentException(f"{name} is {value!r}; it must not be empty or begin with `-`", field=name)
    return value


def split_url(url: str) -> Tuple[str, Optional[str], Optional[str]]:
    """Splits the URL of a repository into the URL without credentials, and these. Others than HTTP and HTTPS are unchanged."""
    plain(url, "url")
    parts = urlsplit(url) if re.match(r"https?://", url, re.IGNORECASE) else None
    if parts is None or "@" not in parts.netloc:
        return url, None, None
    userinfo, _, host = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    return urlunsplit(parts._replace(netloc=host)), unquote(username) or None, unquote(password) or None


def credentials(url: str, username: Optional[str], password: Optional[str]) -> Tuple[List[str], Dict[str, str]]:
    """Returns the arguments and the variables with which git uses these credentials, for the host of this URL alone."""
    if username is None and password is None:
        return [], {}
    if username is None:
        raise InvalidArgumentException(
            "a password needs a username; for a token it is often any name, such as `git`", field="username"
        )
    values = (text(username, "username"), text(password or "", "password"))
    if any(character in value for value in values for character in "\0\n\r"):
        raise InvalidArgumentException("username and password must not contain line breaks", field="password")
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("http", "https"):
        raise InvalidArgumentException(f"a username and a password are for HTTP and HTTPS, and not for {url}", field="username")
    place = f"credential.{parts.scheme.lower()}://{quote(parts.netloc.rpartition('@')[2], safe=':[]')}.helper"
    # The empty value discards other helpers, which might store what they see.
    return (
        ["-c", f"{place}=", "-c", f"{place}={_HELPER}"],
        {"BELLJAR_GIT_USERNAME": values[0], "BELLJAR_GIT_PASSWORD": values[1]},
    )


def config_scope(scope: str, path: Optional[str]) -> Tuple[str, Optional[str]]:
    """Returns the argument of a scope of `git config`, and the repository."""
    if scope not in ("global", "local"):
        raise InvalidArgumentException(f"scope is {scope!r}; it must be `global` or `local`", field="scope")
    if (scope == "local") != (path is not None):
        raise InvalidArgumentException("a repository (`path`) belongs to the scope `local`, and only to it", field="path")
    return f"--{scope}", path


def paths_after(files: Optional[Sequence[str]]) -> List[str]:
    """Returns paths as arguments after the options."""
    if isinstance(files, str):
        raise InvalidArgumentException("a list of paths is needed, not a single string", field="files")
    return [] if not files else ["--", *files]


def is_auth_failure(stderr: str) -> bool:
    """Reports whether git failed because of missing or wrong credentials."""
    said = stderr.lower()
    return any(phrase in said for phrase in _AUTH_FAILURES)
