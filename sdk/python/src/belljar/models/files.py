"""Files."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Optional, Tuple, Union

from .. import _json as read


def joined(directory: Union[str, bytes], path: str) -> str:
    """Converts a path relative to a directory to one that can be passed to other calls."""
    whole = joined_bytes(directory, path.encode("utf-8", "surrogatepass"))
    return whole.decode("utf-8", "replace")


def joined_bytes(directory: Union[str, bytes], path: bytes) -> bytes:
    """The same for any bytes."""
    base = directory.encode("utf-8", "surrogatepass") if isinstance(directory, str) else bytes(directory)
    if base in (b"", b".") or path.startswith(b"/"):
        return path
    # A search in a single file returns no relative path.
    return base + (b"" if base.endswith(b"/") or not path else b"/") + path


@dataclass(frozen=True)
class FileEntry:
    """A file, directory, link or other thing in the tree of a sandbox.

    `kind` is `file`, `directory`, `symlink`, `fifo`, `socket` or `device`. `mode` holds the permission bits. `path_bytes`
    is the exact path; `path` has U+FFFD in place of invalid UTF-8.
    """

    path: str
    kind: str
    size: int
    mode: int
    modified_at: Optional[datetime]
    symlink_target: Optional[str]
    path_bytes: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rstrip("/").rpartition("/")[2] or self.path

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    @property
    def permissions(self) -> str:
        """The permission bits as `ls` writes them, such as `rw-r--r--`."""
        return "".join(letter if self.mode & (0o400 >> position) else "-" for position, letter in enumerate("rwxrwxrwx"))

    def below(self, directory: Union[str, bytes]) -> FileEntry:
        """Returns a copy with a path that can be passed to other calls."""
        return replace(self, path=joined(directory, self.path), path_bytes=joined_bytes(directory, self.path_bytes))

    @classmethod
    def from_json(cls, value: Any) -> FileEntry:
        """Parses a file."""
        value = read.mapping(value, "the file")
        path = read.text(value, "path")
        exact = read.optional_text(value, "path_base64")
        return cls(
            path=path,
            kind=read.text(value, "kind"),
            size=read.integer(value, "bytes", 0),
            mode=int(str(value.get("mode") or "0"), 8),
            modified_at=read.optional_time(value, "modified_at"),
            symlink_target=read.optional_text(value, "symlink_target"),
            path_bytes=path.encode("utf-8", "surrogatepass") if exact is None else base64.b64decode(exact),
        )


@dataclass(frozen=True)
class FilesystemEvent:
    """An event in a watched directory.

    `type` is `created`, `changed`, `removed`, `moved_from`, `moved_to`, or `overflow`: events were lost, so list the directory
    again. `path` is None for an overflow.
    """

    type: str
    path: Optional[str]
    is_dir: bool

    @property
    def name(self) -> str:
        """The last component of the path, or an empty string."""
        return (self.path or "").rpartition("/")[2]


@dataclass(frozen=True)
class SearchMatch:
    """A match of a search, with its position. Lines and columns count from 1; None for a search by name only."""

    path: str
    line_number: Optional[int]
    line: Optional[str]
    column: Optional[int]


@dataclass(frozen=True)
class SearchResult:
    """Matches of a search. `truncated`: there are more than the limit."""

    matches: Tuple[SearchMatch, ...]
    truncated: bool

    @classmethod
    def from_json(cls, value: Any, directory: Union[str, bytes] = ".") -> SearchResult:
        """Parses the result of a search below `directory`."""
        return cls(
            matches=tuple(
                SearchMatch(
                    path=joined(directory, read.text(match, "path")),
                    line_number=read.optional_integer(match, "line_number"),
                    line=read.optional_text(match, "line"),
                    column=read.optional_integer(match, "column"),
                )
                for match in read.items(value, "matches")
            ),
            truncated=bool(value.get("truncated")),
        )


@dataclass(frozen=True)
class ArchiveResult:
    """Result of unpacking an archive. `skipped` lists entries that were omitted because they could lead out of the target."""

    entries: int
    size: int
    skipped: Tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> ArchiveResult:
        """Parses the result of unpacking an archive."""
        value = read.mapping(value, "the archive")
        return cls(entries=read.integer(value, "entries", 0), size=read.integer(value, "bytes", 0))
