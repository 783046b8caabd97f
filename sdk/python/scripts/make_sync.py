#!/usr/bin/env python3
"""Makes the synchronous client from the asynchronous one: `src/belljar/_sync` from `src/belljar/_async`.

With `--check` it changes nothing and fails if something would change. `_io.py` is written by hand on both sides.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict, Iterator, Tuple

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "belljar"
BY_HAND = {"_io.py"}
NOTE = "# Made by scripts/make_sync.py from ../_async/{name}. Change that one.\n"

REPLACEMENTS: Tuple[Tuple[str, str], ...] = (
    (r"\basync with await \b", "with "),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bawait_", "await_"),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsync(Iterator|Iterable)\b", r"\1"),
    (r"\bhandle_async_request\b", "handle_request"),
    (r"\bhttpx\.AsyncBaseTransport\b", "httpx.BaseTransport"),
    (r"\ba(close|read|iter_bytes)\(", r"\1("),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basynchronous\b", "synchronous"),
)


def synchronous(source: str) -> str:
    """The synchronous form of a module."""
    for pattern, replacement in REPLACEMENTS:
        source = re.sub(pattern, replacement, source)
    return _sorted_imports(source)


def made() -> Iterator[Tuple[Path, str]]:
    """Each file of the synchronous client, and what must be in it."""
    for path in sorted((PACKAGE / "_async").glob("*.py")):
        if path.name in BY_HAND:
            continue
        if path.name == "__init__.py":
            yield PACKAGE / "_sync" / path.name, '"""The synchronous client, made from `_async`."""\n'
        else:
            yield PACKAGE / "_sync" / path.name, NOTE.format(name=path.name) + synchronous(path.read_text("utf-8"))


def stale() -> Dict[Path, str]:
    """The files that are not as they must be, with what must be in them."""
    return {path: text for path, text in made() if not path.exists() or path.read_text("utf-8") != text}


def _sorted_imports(source: str) -> str:
    """Names of an import in order, and none of them twice."""

    def ordered(match: re.Match[str]) -> str:
        names = sorted({name.strip() for name in match.group(2).split(",")}, key=_import_order)
        return f"{match.group(1)}{', '.join(names)}"

    return re.sub(r"^(from \S+ import )(\w+(?:, \w+)*)$", ordered, source, flags=re.MULTILINE)


def _import_order(name: str) -> Tuple[int, str]:
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def main() -> int:
    """Writes or checks the files."""
    changed = stale()
    if "--check" in sys.argv[1:]:
        for path in changed:
            print(f"{path} is not what scripts/make_sync.py makes of its asynchronous form", file=sys.stderr)
        return 1 if changed else 0
    for path, text in changed.items():
        path.write_text(text, "utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
