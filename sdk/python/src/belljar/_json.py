"""Parsing of JSON responses: a missing key or a wrong type is an error that names the key."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, Callable, Dict, List, Mapping, Optional, TypeVar

from .errors import ServerException

T = TypeVar("T")


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Returns `value` as a JSON object; `what` names it in the error."""
    if not isinstance(value, dict):
        raise ServerException(f"unexpected response from the server: {what} is not an object")
    return value


def items(value: Any, key: str) -> List[Mapping[str, Any]]:
    """Returns the list of objects under `key`."""
    found = mapping(value, "the answer").get(key)
    if not isinstance(found, list):
        raise ServerException(f"unexpected response from the server: `{key}` is not a list")
    return [mapping(item, f"an item of `{key}`") for item in found]


def list_of(value: Any, key: str, parse: Callable[[Any], T]) -> List[T]:
    """Returns the list under `key`, each item parsed by `parse`."""
    return [parse(item) for item in items(value, key)]


def text(value: Mapping[str, Any], key: str) -> str:
    """Returns the string under `key`."""
    found = value.get(key)
    if not isinstance(found, str):
        raise ServerException(f"unexpected response from the server: `{key}` is not a string")
    return found


def optional_text(value: Mapping[str, Any], key: str) -> Optional[str]:
    """Returns the string under `key`, or None."""
    return None if value.get(key) is None else text(value, key)


def integer(value: Mapping[str, Any], key: str, default: Optional[int] = None) -> int:
    """Returns the integer under `key`; `default` if there is none."""
    found = value.get(key, default)
    if found is None:
        found = default
    if isinstance(found, bool) or not isinstance(found, int):
        raise ServerException(f"unexpected response from the server: `{key}` is not an integer")
    return found


def optional_integer(value: Mapping[str, Any], key: str) -> Optional[int]:
    """Returns the integer under `key`, or None."""
    return None if value.get(key) is None else integer(value, key)


def optional_number(value: Mapping[str, Any], key: str) -> Optional[float]:
    """Returns the number under `key`, or None."""
    found = value.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ServerException(f"unexpected response from the server: `{key}` is not a number")
    return float(found)


def number(value: Mapping[str, Any], key: str) -> float:
    """Returns the number under `key`; 0 if there is none."""
    return optional_number(value, key) or 0.0


def time(value: Mapping[str, Any], key: str) -> datetime:
    """Returns the time under `key`, with its time zone."""
    return parse_time(text(value, key))


def optional_time(value: Mapping[str, Any], key: str) -> Optional[datetime]:
    """Returns the time under `key`, or None."""
    return None if value.get(key) is None else time(value, key)


def parse_time(said: str) -> datetime:
    """Parses an RFC 3339 time with any number of decimals."""
    # Before Python 3.11 `fromisoformat` accepts neither `Z` nor other than 3 or 6 decimals.
    said = said[:-1] + "+00:00" if said[-1:] in "Zz" else said
    head, dot, rest = said.partition(".")
    if dot:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        said = f"{head}.{digits[:6].ljust(6, '0')}{rest[len(digits) :]}"
    try:
        return datetime.fromisoformat(said)
    except ValueError:
        raise ServerException(f"unexpected response from the server: {said!r} is not a time") from None


def texts(value: Mapping[str, Any], key: str) -> Dict[str, str]:
    """Returns the object of strings under `key`; empty if there is none."""
    return {str(name): str(item) for name, item in mapping(value.get(key) or {}, f"`{key}`").items()}


def data(value: Mapping[str, Any]) -> bytes:
    """Returns the bytes of an object with `encoding` and `data`."""
    said = text(value, "data")
    if value.get("encoding") != "base64":
        return said.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(said, validate=True)
    except ValueError:
        raise ServerException("unexpected response from the server: `data` is not base64") from None
