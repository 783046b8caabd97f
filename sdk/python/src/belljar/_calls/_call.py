"""What a request is, before anybody sends it."""

from __future__ import annotations

import base64
import os
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable, Dict, Generic, Mapping, Optional, Tuple, TypeVar, Union
from urllib.parse import quote

from .._arguments import wrong_type
from ..errors import InvalidArgumentException

T = TypeVar("T")

Duration = Union[int, float, str, timedelta]
"""A time span: seconds, a text such as `10m`, or a `timedelta`."""

Size = Union[int, str]
"""A size: bytes, or a text such as `256m`."""

RemotePath = Union[str, bytes, "os.PathLike[str]"]
"""A path in a sandbox: absolute, or relative to the home directory there. Bytes for names that are not UTF-8."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request and how its answer is read.

    Attributes:
        parse: Makes the result of the JSON of a good answer; it gets None when there is no body.
        body: The JSON body, if there is one.
        safe: Whether carrying it out twice does no harm, so that it may be sent again.
        takes: Seconds that the work itself may take; they come on top of `request_timeout`. Infinity: as long as it takes.
        needs_key: Whether it goes nowhere without an API key.
    """

    method: str
    path: str
    parse: Callable[[Any], T] = field(repr=False)
    query: Tuple[Tuple[str, str], ...] = ()
    body: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    safe: bool = False
    takes: float = 0.0
    needs_key: bool = True


def get(path: str, parse: Callable[[Any], T], *query: Tuple[str, Optional[str]], **changes: Any) -> Call[T]:
    """A call that changes nothing. Query parameters that are None are left out."""
    return Call("GET", path, parse, query=given_query(*query), safe=True, **changes)


def post(route: str, parse: Callable[[Any], T], /, **body: Any) -> Call[T]:
    """A call with a JSON body. Keys that are None are left out."""
    return Call("POST", route, parse, body=given(**body))


def delete(path: str, *query: Tuple[str, Optional[str]]) -> Call[None]:
    """A call that takes something away."""
    return Call("DELETE", path, nothing, query=given_query(*query), safe=True)


def nothing(_: Any) -> None:
    """Reads an answer that says nothing."""


def given(**values: Any) -> Dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def given_query(*values: Tuple[str, Optional[str]]) -> Tuple[Tuple[str, str], ...]:
    """The query parameters that are not None."""
    return tuple((name, value) for name, value in values if value is not None)


def segment(value: Union[str, int], what: str) -> str:
    """`value` as one segment of a path. An empty one, or dots, would make it another path."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise wrong_type(what, value, "a string or a number")
    said = str(value)
    if said in ("", ".", ".."):
        raise InvalidArgumentException(f"{said!r} is not a {what}", field=what)
    return quote(said, safe="")


def sandbox_path(sandbox_id: str, *rest: str) -> str:
    """The path of a sandbox's route."""
    return "/".join(["/v1/sandboxes", segment(sandbox_id, "sandbox_id"), *rest])


def volume_path(volume: str) -> str:
    """Returns the path of a volume, by id or name."""
    return f"/v1/volumes/{segment(volume, 'volume')}"


def path_query(path: RemotePath, name: str = "path") -> Tuple[str, str]:
    """The query parameter for a path: as text, or in base64 when it is not UTF-8."""
    text = path_text(path)
    if isinstance(text, str):
        return name, text
    return f"{name}_base64", base64.b64encode(text).decode("ascii")


def path_text(path: RemotePath) -> Union[str, bytes]:
    """A path as text where it is UTF-8, else as bytes."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise wrong_type("path", path, "a path: a string, bytes or a PurePosixPath")
    path = path if isinstance(path, bytes) else os.fspath(path)
    if isinstance(path, str):
        try:
            path.encode("utf-8")
            return path
        except UnicodeEncodeError:
            path = path.encode("utf-8", "surrogateescape")
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        return path


def path_body(path: RemotePath) -> str:
    """A path in a JSON body, where only UTF-8 has a form."""
    text = path_text(path)
    if isinstance(text, bytes):
        raise InvalidArgumentException("this call takes only paths that are UTF-8", field="path")
    return text


def duration(value: Optional[Duration], name: str) -> Optional[Union[float, str]]:
    """A time span as the server reads it."""
    if value is None or isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    wanted = 'seconds, or a string such as "10m", or a timedelta'
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise wrong_type(name, seconds, wanted)
    if not 0 <= seconds < float("inf"):
        raise InvalidArgumentException(f"{name} is {seconds}; it must be {wanted}, and not negative", field=name)
    return seconds


def octal(mode: Optional[Union[int, str]]) -> Optional[str]:
    """Permission bits as the server reads them: `0o644` and `"0644"` are the same."""
    if mode is None or isinstance(mode, str):
        return mode
    if not 0 <= mode <= 0o7777:
        raise InvalidArgumentException(f"{oct(mode)} is not a mode; give one such as 0o644", field="mode")
    return f"{mode:04o}"


def flag(value: Optional[bool]) -> Optional[str]:
    """A boolean in a query."""
    return None if value is None else "true" if value else "false"


def number(value: Optional[int]) -> Optional[str]:
    """A number in a query."""
    return None if value is None else str(value)


def check_user(user: Optional[str]) -> None:
    """Refuses another user than the sandbox's own where that is the only one; the argument is there because E2B has it."""
    if user not in (None, "user"):
        raise InvalidArgumentException(
            f"user is {user!r}, but this call is done as the sandbox's own user, `user`; omit the argument, or use "
            "`commands.run` in a machine",
            field="user",
        )


def new_idempotency_key() -> str:
    """Returns an idempotency key, with which the server executes a request once."""
    return f"py-{uuid.uuid4().hex}"
