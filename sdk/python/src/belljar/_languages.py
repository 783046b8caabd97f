"""Which program runs a language."""

from __future__ import annotations

from typing import Mapping, Tuple

from .errors import InvalidArgumentException

_INTERPRETERS: Mapping[str, Tuple[str, str]] = {
    "python": ("python3", ".py"),
    "javascript": ("node", ".js"),
    "bash": ("bash", ".sh"),
}
_ALIASES: Mapping[str, str] = {"python3": "python", "py": "python", "js": "javascript", "node": "javascript"}


def interpreter(language: str) -> Tuple[str, str]:
    """The program for a language, and how names of its files end."""
    name = language.lower()
    found = _INTERPRETERS.get(_ALIASES.get(name, name))
    if found is None:
        known = ", ".join(_INTERPRETERS)
        raise InvalidArgumentException(f"{language!r} is not a language that run_code knows ({known})", field="language")
    return found
