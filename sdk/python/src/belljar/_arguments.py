"""Checks of arguments: an unknown name or a wrong type is an error that names the right one."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ._dual import dual
from .errors import ArgumentTypeException
from .models import Limits

_LIMITS = tuple(Limits.__annotations__)

# Names that other libraries have, or that are expected at this level: the argument that must exist, and what to write.
_HINTS: Mapping[str, Tuple[str, str]] = {
    **{name: ("limits", f'limits={{"{name}": …}}') for name in _LIMITS},
    **{name: ("limits", 'limits={"memory": "1g"}') for name in ("mem", "memory_mb", "memory_limit", "ram")},
    **{name: ("limits", 'limits={"cpus": 2}') for name in ("cpu", "cpu_count", "vcpus")},
    **{name: ("limits", 'limits={"disk": "4g"}') for name in ("disk_mb", "disk_size", "storage")},
    **{name: ("envs", "envs") for name in ("env", "env_vars", "environment", "variables")},
    **{name: ("cwd", "cwd") for name in ("workdir", "working_dir", "working_directory", "directory")},
    **{name: ("timeout", "timeout, in seconds") for name in ("timeout_ms", "timeout_s", "time_limit", "ttl")},
    **{name: ("request_timeout", "request_timeout, in seconds") for name in ("request_timeout_ms", "read_timeout")},
    **{name: ("template", "template") for name in ("template_id", "template_name", "snapshot", "snapshot_id")},
    "image": ("template", "template, with the name that `belljar image ls` shows for an image that has been pulled"),
    **{name: ("network", 'network="open"') for name in ("allow_internet_access", "internet", "internet_access")},
    **{name: ("api_url", "api_url") for name in ("url", "base_url", "server", "host", "sandbox_url")},
    **{name: ("api_key", "api_key") for name in ("key", "token", "access_token")},
    "lifecycle": ("on_timeout", 'on_timeout="pause"'),
    "auto_pause": ("on_timeout", 'on_timeout="pause"'),
    "tags": ("labels", "labels"),
    "volume_mounts": ("volumes", "volumes"),
    "lang": ("language", "language"),
}

_OPTIONS: Dict[str, FrozenSet[str]] = {}


def register_options(*kinds: Any) -> None:
    """Registers typed dictionaries of keyword arguments, which signatures name only for type checkers."""
    for kind in kinds:
        _OPTIONS[kind.__name__] = frozenset(kind.__annotations__)


def check_names(call: str, given: Iterable[str], accepted: Iterable[str]) -> None:
    """Refuses names that are not accepted, and suggests the nearest."""
    known = sorted(accepted)
    for name in given:
        if name not in known:
            raise ArgumentTypeException(f"{call} has no argument {name!r}; {_suggestion(name, known)}", field=name)


def check_arguments(kind: type) -> None:
    """Makes each public method of a class, also of its bases in this package, check the names of its arguments."""
    for base in kind.__mro__:
        if not base.__module__.startswith(f"{__package__}."):
            continue
        for name, member in list(vars(base).items()):
            if name.startswith("_") and name != "__init__":
                continue
            label = base.__name__ if name == "__init__" else name
            if isinstance(member, dual):
                setattr(base, name, dual(_checked(member.on_object, label), _checked(member.on_class, label)))
            elif isinstance(member, (classmethod, staticmethod)):
                setattr(base, name, type(member)(_checked(member.__func__, label)))
            elif inspect.isfunction(member):
                setattr(base, name, _checked(member, label))


def text(value: Any, name: str) -> str:
    """Returns an argument that must be a string."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "a string")
    return value


def texts(value: Optional[Mapping[str, Any]], name: str, *, removable: bool = False) -> Optional[Dict[str, Any]]:
    """Returns an argument that must map strings to strings, or to None if they are `removable`."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, 'a mapping of strings, such as {"NAME": "value"}')
    for key, item in value.items():
        if not isinstance(key, str):
            raise wrong_type(f"a key of {name}", key, "a string")
        if not isinstance(item, str) and not (removable and item is None):
            raise wrong_type(f"{name}[{key!r}]", item, "a string")
    return dict(value)


def mapping(value: Any, name: str, example: str) -> Mapping[str, Any]:
    """Returns an argument that must be a mapping."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, f"a mapping, such as {example}")
    return value


def text_list(value: Optional[Sequence[Any]], name: str, example: str) -> Optional[List[str]]:
    """Returns an argument that must be a list of strings. A single string would be a list of its characters."""
    if value is None:
        return None
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise wrong_type(name, value, f'a list of strings, such as ["{example}"]')
    return [text(item, f"{name}[{at}]") for at, item in enumerate(value)]


def wrong_type(name: str, value: Any, wanted: str) -> ArgumentTypeException:
    """Returns the exception for an argument of a wrong type."""
    shown = "None" if value is None else f"{_cut(repr(value))} ({type(value).__name__})"
    return ArgumentTypeException(f"{name} must be {wanted}, not {shown}", field=name)


def _cut(shown: str) -> str:
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _suggestion(name: str, known: Iterable[str]) -> str:
    lowered = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    needed, hint = _HINTS.get(lowered, ("", ""))
    if needed in known:
        return f"did you mean {hint}?"
    nearest = difflib.get_close_matches(lowered, known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"its arguments are {', '.join(known)}"


def _accepted(function: Callable[..., Any]) -> Optional[FrozenSet[str]]:
    """Returns the names of the arguments of a function; None if it takes any."""
    names: Set[str] = set()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
            if options is None:
                return None
            names |= _OPTIONS[options[1]]
        else:
            names.add(parameter.name)
    return frozenset(names - {"self", "cls"})


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if hasattr(function, "__wrapped__"):
        # A base of several classes.
        return function
    accepted = functools.lru_cache(maxsize=1)(lambda: _accepted(function))

    def check(given: Mapping[str, Any]) -> None:
        names = accepted() if given else None
        if names is not None and not given.keys() <= names:
            check_names(f"{name}()", given, names)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            check(kwargs)
            return await function(*args, **kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return function(*args, **kwargs)

    return call
