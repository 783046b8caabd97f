# Made by scripts/make_sync.py from ../_async/files.py. Change that one.
"""Files of a sandbox, and of a volume."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Literal, Mapping, Optional, Tuple, Union, overload

from .. import _archive
from .. import _calls as calls
from .._calls._call import RemotePath, sandbox_path
from .._calls.files import Mode
from ..errors import (
    ConnectionException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
)
from ..models import ArchiveResult, FileEntry, FilesystemEvent, SearchResult
from . import _io
from ._io import EventCallback, FileData, ProgressCallback
from ._transport import ByteStream, Transport
from .watch import WatchHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import RequestOptions

LocalPath = Union[str, "os.PathLike[str]"]
"""A path on this machine."""


class VolumeFiles:
    """Files of a volume. Paths start at its root; `..` is refused."""

    def __init__(self, transport: Transport, place: str) -> None:
        """Files below this path of the server."""
        self._transport = transport
        self._place = place

    @overload
    def read(
        self,
        path: RemotePath,
        format: Literal["text"] = "text",
        *,
        start: Optional[int] = None,
        end: Optional[int] = None,
        errors: str = "strict",
        **options: Unpack[RequestOptions],
    ) -> str: ...

    @overload
    def read(
        self,
        path: RemotePath,
        format: Literal["bytes"],
        *,
        start: Optional[int] = None,
        end: Optional[int] = None,
        errors: str = "strict",
        **options: Unpack[RequestOptions],
    ) -> bytes: ...

    @overload
    def read(
        self,
        path: RemotePath,
        format: Literal["stream"],
        *,
        start: Optional[int] = None,
        end: Optional[int] = None,
        errors: str = "strict",
        **options: Unpack[RequestOptions],
    ) -> ByteStream: ...

    def read(
        self,
        path: RemotePath,
        format: Literal["text", "bytes", "stream"] = "text",
        *,
        start: Optional[int] = None,
        end: Optional[int] = None,
        errors: str = "strict",
        **options: Unpack[RequestOptions],
    ) -> Union[str, bytes, ByteStream]:
        """Reads a file, or the part of it from byte `start` up to but without byte `end`.

        `format` is `text` (UTF-8; `errors` as in `bytes.decode`), `bytes`, or `stream`: pieces of bytes to iterate over, which
        holds no more than one of them in memory. Close a stream that you do not read to its end.
        """
        if format not in ("text", "bytes", "stream"):
            raise InvalidArgumentException("format is text, bytes or stream", field="format")
        stream = self._transport.stream(calls.files.content(self._place, path, start, end), **options)
        if format == "stream":
            return stream
        with stream:
            data = stream.read()
        return data if format == "bytes" else data.decode("utf-8", errors)

    def write(
        self,
        path: RemotePath,
        data: FileData,
        *,
        mode: Optional[Mode] = None,
        make_parents: bool = True,
        append: bool = False,
        exclusive: bool = False,
        **options: Unpack[RequestOptions],
    ) -> FileEntry:
        """Writes a file, all of it or nothing of it.

        Args:
            path: The file.
            data: Text, bytes, an open file, or an iterator over bytes. The last two are streamed.
            mode: Permission bits, such as `0o755`.
            make_parents: Whether to make directories that are not there.
            append: Whether to add to what is there.
            exclusive: Whether to fail if there is something already.
            options: `request_timeout` and `user`, as every call for files takes them.
        """
        call = calls.files.write(self._place, path, mode=mode, make_parents=make_parents, append=append, exclusive=exclusive)
        if isinstance(data, str):
            return self._transport.request(call, data.encode("utf-8"), **options)
        if isinstance(data, (bytes, bytearray, memoryview)):
            return self._transport.request(call, bytes(data), **options)
        return self._transport.request(call, _io.body_chunks(data), **options)

    def list(self, path: RemotePath = ".", depth: int = 1, **options: Unpack[RequestOptions]) -> List[FileEntry]:
        """What is in a directory, and below it down to `depth` levels. Paths are such as every call takes."""
        found: List[FileEntry] = []
        cursor: Optional[str] = None
        while True:
            page = self._transport.request(calls.files.page(self._place, path, depth, None, cursor), **options)
            found.extend(page[0])
            cursor = page[1]
            if cursor is None:
                return found

    def exists(self, path: RemotePath, **options: Unpack[RequestOptions]) -> bool:
        """Whether there is something. A link that leads nowhere counts."""
        try:
            self.get_info(path, follow=False, **options)
        except NotFoundException as error:
            if error.code != "path_not_found":
                raise
            return False
        return True

    def get_info(self, path: RemotePath, *, follow: bool = True, **options: Unpack[RequestOptions]) -> FileEntry:
        """What a path leads to; with `follow=False` a link is told as a link."""
        return self._transport.request(calls.files.stat(self._place, path, follow), **options)

    def make_dir(
        self, path: RemotePath, *, parents: bool = True, mode: Optional[Mode] = None, **options: Unpack[RequestOptions]
    ) -> bool:
        """Makes a directory, and those above it if `parents`. False: there is one already."""
        if self._is_directory(path, **options):
            return False
        self._transport.request(calls.files.make_dir(self._place, path, parents, mode), **options)
        return True

    def remove(self, path: RemotePath, *, recursive: bool = True, **options: Unpack[RequestOptions]) -> None:
        """Takes a file or directory away; a directory that is not empty only if `recursive`."""
        self._transport.request(calls.files.remove(self._place, path, recursive), **options)

    def rename(
        self, old_path: RemotePath, new_path: RemotePath, *, overwrite: bool = False, **options: Unpack[RequestOptions]
    ) -> FileEntry:
        """Gives a file or directory another place. Fails if something is there, unless `overwrite`."""
        call = calls.files.rename(self._place, old_path, new_path, overwrite)
        return self._transport.request(call, **options)

    def chmod(self, path: RemotePath, mode: Mode, **options: Unpack[RequestOptions]) -> FileEntry:
        """Sets permission bits, such as `0o755`."""
        return self._transport.request(calls.files.chmod(self._place, path, mode), **options)

    def upload(
        self,
        local_path: LocalPath,
        path: RemotePath,
        on_progress: Optional[ProgressCallback] = None,
        *,
        mode: Optional[Mode] = None,
        **options: Unpack[RequestOptions],
    ) -> FileEntry:
        """Sends a file of this machine, however large. `on_progress` gets bytes so far and bytes in all."""
        call = calls.files.write(self._place, path, mode=mode, make_parents=True, append=False, exclusive=False)
        with open(local_path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return self._transport.request(call, _watched(_io.body_chunks(file), size, on_progress), **options)

    def download(
        self,
        path: RemotePath,
        local_path: LocalPath,
        on_progress: Optional[ProgressCallback] = None,
        *,
        max_bytes: Optional[int] = None,
        **options: Unpack[RequestOptions],
    ) -> int:
        """Fetches a file to this machine, however large, and says how many bytes it has.

        The local file is replaced when all has arrived. A broken connection is taken up where it broke. `max_bytes` is for
        files of programs that are not trusted. `on_progress` gets bytes so far and bytes in all.
        """
        target = Path(local_path)
        part = target.parent / f".{target.name[:100]}.{uuid.uuid4().hex}.part"
        try:
            with open(part, "xb") as file:
                size = self._fetch(path, file, on_progress, max_bytes, **options)
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return size

    def _is_directory(self, path: RemotePath, **options: Unpack[RequestOptions]) -> bool:
        try:
            return (self.get_info(path, **options)).is_dir
        except NotFoundException as error:
            if error.code != "path_not_found":
                raise
            return False

    def _fetch(
        self,
        path: RemotePath,
        file: IO[bytes],
        on_progress: Optional[ProgressCallback],
        max_bytes: Optional[int],
        **options: Unpack[RequestOptions],
    ) -> int:
        etag: Optional[str] = None
        breaks = done = 0
        while True:
            call = calls.files.content(self._place, path, done or None, if_range=etag if done else None)
            with self._transport.stream(call, **options) as stream:
                if done and stream.status != 206:
                    done = 0
                    file.seek(0)
                    file.truncate()
                etag = stream.headers.get("ETag")
                try:
                    return _copy(stream, file, done, on_progress, max_bytes)
                except ConnectionException:
                    now = file.tell()
                    breaks = 0 if now > done else breaks
                    delay = self._transport.retries.after_break(breaks, safe=True, opened=True)
                    if delay is None:
                        raise
                    done = now if etag is not None else 0
                    file.seek(done)
            breaks += 1
            _io.sleep(delay)


class Files(VolumeFiles):
    """The files of a sandbox. Paths are absolute, or relative to the home directory in it."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        """Belongs to a sandbox."""
        super().__init__(transport, sandbox_path(sandbox_id))

    def write_files(self, files: Iterable[Mapping[str, Any]], **options: Unpack[RequestOptions]) -> List[FileEntry]:
        """Writes many files in few requests. Each is a mapping with `path` and `data`, and `mode` if it needs one.

        `data` is text, bytes or an open file. One that fails does not undo those before it.
        """
        entries = [dict(file) for file in files]
        written: Dict[int, FileEntry] = OrderedDict()
        together: List[Tuple[int, str, Union[bytes, IO[bytes]]]] = []
        for index, file in enumerate(entries):
            unknown = sorted(set(file) - {"path", "data", "mode"})
            if unknown or "path" not in file or "data" not in file:
                raise InvalidArgumentException("a file has `path` and `data`, and may have `mode`", field="files")
            data = file["data"]
            if file.get("mode") is None and isinstance(data, (str, bytes)) and calls.files.fits_multipart(file["path"]):
                content = data.encode("utf-8") if isinstance(data, str) else data
                together.append((index, os.fspath(file["path"]), content))
        if len(together) < 2:
            together = []
        if together:
            parts = [("file", (name, content)) for _, name, content in together]
            made = self._transport.request(calls.files.upload_many(self._place, "."), parts=parts, **options)
            written.update((index, entry) for (index, _, _), entry in zip(together, made))
        for index, file in enumerate(entries):
            if index not in written:
                written[index] = self.write(file["path"], file["data"], mode=file.get("mode"), **options)
        return [written[index] for index in sorted(written)]

    def search(
        self,
        name: Optional[str] = None,
        *,
        content: Optional[str] = None,
        path: RemotePath = ".",
        regex: bool = False,
        ignore_case: bool = False,
        limit: Optional[int] = None,
        **options: Unpack[RequestOptions],
    ) -> SearchResult:
        """Looks for files below `path`: by `name` (such as `*.py`), and by a line that has `content` in it.

        `regex`: `content` is a regular expression. `limit` bounds the matches.
        """
        call = calls.files.search(
            self._place,
            path=path,
            name=name,
            content=content,
            regex=regex,
            ignore_case=ignore_case,
            limit=limit,
        )
        return self._transport.request(call, **options)

    def watch_dir(
        self,
        path: RemotePath = ".",
        on_event: Optional[EventCallback[FilesystemEvent]] = None,
        *,
        recursive: bool = False,
        **options: Unpack[RequestOptions],
    ) -> WatchHandle:
        """Watches a directory, and those below it if `recursive`. What happens after this has come back is told.

        Events go to `on_event`; without it iterate over the handle, or ask it with `get_new_events`.
        """
        stream = self._transport.events(calls.files.watch(self._place, path, recursive), **options)
        return WatchHandle._begin(stream, on_event)

    def upload_dir(
        self,
        local_path: LocalPath,
        path: RemotePath,
        on_progress: Optional[ProgressCallback] = None,
        **options: Unpack[RequestOptions],
    ) -> ArchiveResult:
        """Sends what is in a directory of this machine to below a directory of the sandbox."""
        with tempfile.TemporaryFile() as packed:
            size = _io.run_blocking(_archive.pack, Path(local_path), packed)
            call = calls.files.put_archive(self._place, path, "tar", 0)
            return self._transport.request(call, _watched(_io.body_chunks(packed), size, on_progress), **options)

    def download_dir(
        self,
        path: RemotePath,
        local_path: LocalPath,
        on_progress: Optional[ProgressCallback] = None,
        *,
        max_bytes: Optional[int] = None,
        **options: Unpack[RequestOptions],
    ) -> ArchiveResult:
        """Fetches what is in a directory of the sandbox to below a directory of this machine.

        Nothing gets outside of `local_path`, whatever the sandbox sends: devices, and links that lead out, are left out and
        named in `skipped`. `max_bytes` bounds it all.
        """
        with tempfile.TemporaryFile() as packed:
            call = calls.files.get_archive(self._place, path, "tar.gz")
            with self._transport.stream(call, **options) as stream:
                _copy(stream, packed, 0, on_progress, max_bytes)
            packed.seek(0)
            return _io.run_blocking(_archive.unpack, packed, Path(local_path), max_bytes)

    def get_archive(
        self, path: RemotePath = ".", format: Literal["tar", "tar.gz"] = "tar.gz", **options: Unpack[RequestOptions]
    ) -> ByteStream:
        """A directory as an archive, as a stream of bytes."""
        return self._transport.stream(calls.files.get_archive(self._place, path, format), **options)

    def put_archive(
        self,
        path: RemotePath,
        data: FileData,
        format: Literal["auto", "tar", "tar.gz", "zip"] = "auto",
        *,
        strip: int = 0,
        **options: Unpack[RequestOptions],
    ) -> ArchiveResult:
        """Unpacks an archive below a directory, without the first `strip` parts of each name."""
        call = calls.files.put_archive(self._place, path, format, strip)
        if isinstance(data, str):
            raise InvalidArgumentException("an archive is bytes; open the file and give that", field="data")
        body = data if isinstance(data, bytes) else _io.body_chunks(data)
        return self._transport.request(call, body, **options)


def _copy(
    stream: ByteStream,
    file: IO[bytes],
    done: int,
    on_progress: Optional[ProgressCallback],
    max_bytes: Optional[int],
) -> int:
    """Copies a stream to a file, and says how many bytes it has with those that were there."""
    total = None if stream.size is None else done + stream.size
    for chunk in stream:
        done += len(chunk)
        if max_bytes is not None and done > max_bytes:
            raise NotEnoughSpaceException(f"there are more than {max_bytes} bytes", field="max_bytes")
        _io.run_blocking(file.write, chunk)
        if on_progress is not None:
            _io.notify(on_progress, done, total)
    return done


def _watched(
    chunks: Iterator[bytes], size: Optional[int], on_progress: Optional[ProgressCallback]
) -> Iterator[bytes]:
    """The same chunks; tells how far it is before each next one."""
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        if on_progress is not None:
            _io.notify(on_progress, done, size)
