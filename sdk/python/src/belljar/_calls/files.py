"""Files."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, AsyncIterable, Iterable, List, Mapping, Optional, Tuple, Union

from .. import _json as read
from .._arguments import wrong_type
from ..errors import InvalidArgumentException
from ..models import ArchiveResult, FileEntry, FilesystemEvent, SearchResult
from ._call import (
    Call,
    Duration,
    RemotePath,
    delete,
    duration,
    flag,
    get,
    given_query,
    nothing,
    number,
    octal,
    path_body,
    path_query,
    path_text,
    post,
)

Mode = Union[int, str]
"""Permission bits: `0o644` or `"0644"`."""

Page = Tuple[List[FileEntry], Optional[str]]

_OCTETS = {"Content-Type": "application/octet-stream"}


def content(
    place: str,
    path: RemotePath,
    start: Optional[int] = None,
    end: Optional[int] = None,
    *,
    if_range: Optional[str] = None,
) -> Call[None]:
    """Reads the bytes `start` to `end` (exclusive) of a file; all of them if its tag is not `if_range`."""
    headers = {} if if_range is None else {"If-Range": if_range}
    if start is not None or end is not None:
        begin = start or 0
        if begin < 0 or (end is not None and end <= begin):
            raise InvalidArgumentException("a range must begin at 0 or later and must not be empty", field="start")
        headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
    return get(_files(place, "content"), nothing, path_query(path), headers=headers)


def write(
    place: str,
    path: RemotePath,
    *,
    mode: Optional[Mode],
    make_parents: bool,
    append: bool,
    exclusive: bool,
) -> Call[FileEntry]:
    """Writes the body to a file."""
    query = given_query(
        path_query(path),
        ("mode", octal(mode)),
        ("make_parents", flag(make_parents)),
        ("append", "true" if append else None),
        ("exclusive", "true" if exclusive else None),
    )
    return Call("PUT", _files(place, "content"), FileEntry.from_json, query=query, headers=_OCTETS)


def upload_many(place: str, directory: RemotePath) -> Call[List[FileEntry]]:
    """Writes the parts of the body as files below a directory."""
    return Call(
        "POST",
        _files(place, "upload"),
        lambda value: read.list_of(value, "files", FileEntry.from_json),
        query=(path_query(directory),),
    )


def stat(place: str, path: RemotePath, follow: bool) -> Call[FileEntry]:
    """Returns information about a path."""
    return get(_files(place, "stat"), FileEntry.from_json, path_query(path), ("follow", flag(follow)))


def page(place: str, path: RemotePath, depth: int, limit: Optional[int], cursor: Optional[str]) -> Call[Page]:
    """Lists one page of a directory."""
    return get(
        _files(place),
        lambda value: _page(value, path),
        path_query(path),
        ("depth", number(depth)),
        ("limit", number(limit)),
        ("cursor", cursor),
    )


def make_dir(place: str, path: RemotePath, parents: bool, mode: Optional[Mode]) -> Call[FileEntry]:
    """Creates a directory."""
    return post(_files(place, "mkdir"), FileEntry.from_json, path=path_body(path), parents=parents, mode=octal(mode))


def rename(place: str, old: RemotePath, new: RemotePath, overwrite: bool) -> Call[FileEntry]:
    """Moves a file or directory."""
    # `from` is a keyword in Python.
    body: Mapping[str, Any] = {"from": path_body(old), "to": path_body(new), "overwrite": overwrite}
    return Call("POST", _files(place, "move"), FileEntry.from_json, body=body)


def remove(place: str, path: RemotePath, recursive: bool) -> Call[None]:
    """Removes a file or directory."""
    return delete(_files(place), path_query(path), ("recursive", flag(recursive)))


def chmod(place: str, path: RemotePath, mode: Mode) -> Call[FileEntry]:
    """Sets permission bits."""
    return post(_files(place, "chmod"), FileEntry.from_json, path=path_body(path), mode=octal(mode))


def get_archive(place: str, path: RemotePath, archive_format: str) -> Call[None]:
    """Returns a directory as an archive."""
    return get(_files(place, "archive"), nothing, path_query(path), ("format", archive_format))


def put_archive(place: str, path: RemotePath, archive_format: str, strip: int) -> Call[ArchiveResult]:
    """Unpacks the body, an archive, into a directory."""
    query = given_query(path_query(path), ("format", archive_format), ("strip", number(strip)))
    call = Call("PUT", _files(place, "archive"), ArchiveResult.from_json, query=query, headers=_OCTETS)
    # Unpacking may continue after the last byte has arrived.
    return replace(call, takes=float("inf"))


def watch(place: str, path: RemotePath, recursive: bool) -> Call[None]:
    """Watches a directory; the response is a stream of events."""
    return get(
        _files(place, "watch"),
        nothing,
        path_query(path),
        ("recursive", flag(recursive)),
        headers={"Accept": "text/event-stream"},
    )


def search(
    place: str,
    *,
    path: RemotePath,
    name: Optional[str],
    content: Optional[str],
    regex: bool,
    ignore_case: bool,
    limit: Optional[int],
) -> Call[SearchResult]:
    """Searches files by name and content."""
    if name is None and content is None:
        raise InvalidArgumentException("a search needs a name, a content or both", field="name")
    call = post(
        _files(place, "search"),
        lambda value: SearchResult.from_json(value, path_text(path)),
        path=path_body(path),
        name=name,
        content=content,
        regex=regex or None,
        ignore_case=ignore_case or None,
        limit=limit,
    )
    return replace(call, takes=float("inf"))


def sign(place: str, path: RemotePath, operation: str, expires: Duration) -> Call[str]:
    """Creates a URL for one operation on one file, usable without a key."""
    return post(
        _files(place, "sign"),
        lambda value: read.text(read.mapping(value, "the answer"), "url"),
        path=path_body(path),
        operation=operation,
        expires=duration(expires, "expires"),
    )


def watch_event(name: str, data: Mapping[str, Any]) -> FilesystemEvent:
    """Parses an event of a watch."""
    return FilesystemEvent(type=name, path=read.optional_text(data, "path"), is_dir=bool(data.get("directory")))


def check_stream(data: Any) -> None:
    """Refuses data that has no pieces."""
    streamed = hasattr(data, "read") or (isinstance(data, (Iterable, AsyncIterable)) and not isinstance(data, Mapping))
    if not streamed:
        raise wrong_type("data", data, "a string, bytes, an open file, or an iterator over bytes")


def check_data(data: Any) -> None:
    """Refuses data that no file can be written from, as far as this can be known before it is sent."""
    check_stream(data)
    if isinstance(data, io.TextIOBase):
        raise wrong_type("data", data, 'a file opened with the mode "rb"')
    if isinstance(data, (list, tuple)):
        for chunk in data:
            check_chunk(chunk)


def check_chunk(chunk: Any) -> bytes:
    """Returns a piece of streamed data."""
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise wrong_type("a piece of data", chunk, "bytes")
    return bytes(chunk)


def fits_multipart(path: RemotePath) -> bool:
    """Whether a path can be the name of a form part: relative, and without characters that clients encode differently."""
    text = path_text_or_none(path)
    return (
        text is not None
        and not text.startswith("/")
        and not any(character in '"\\%' or ord(character) < 0x20 or ord(character) == 0x7F for character in text)
    )


def path_text_or_none(path: RemotePath) -> Optional[str]:
    """Returns a path as text, or None if it is not UTF-8."""
    name, value = path_query(path)
    return value if name == "path" else None


def _files(place: str, *route: str) -> str:
    """Returns a route for the files of a place, the path of a sandbox or a volume."""
    return "/".join([place, "files", *route])


def _page(value: Any, directory: RemotePath) -> Page:
    entries = read.list_of(value, "entries", FileEntry.from_json)
    return [entry.below(path_text(directory)) for entry in entries], read.optional_text(value, "next_cursor")
