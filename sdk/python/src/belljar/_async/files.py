"""Files of a sandbox, and of a volume."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, AsyncIterator, Dict, Iterable, List, Literal, Mapping, Optional, Tuple, Union, overload

from .. import _archive
from .. import _calls as calls
from .._calls._call import RemotePath, sandbox_path
from .._calls.files import Mode
from ..errors import (
    ConnectionException,
    FileNotFoundException,
    InvalidArgumentException,
    NotEnoughSpaceException,
)
from ..models import ArchiveResult, FileEntry, FilesystemEvent, SearchResult
from . import _io
from ._io import EventCallback, FileData, ProgressCallback
from ._transport import AsyncByteStream, AsyncTransport
from .watch import AsyncWatchHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._config import RequestOptions

LocalPath = Union[str, "os.PathLike[str]"]
"""A local path."""


class AsyncVolumeFiles:
    """Files of a volume. Paths start at its root; `..` is refused."""

    def __init__(self, transport: AsyncTransport, place: str) -> None:
        """Files below this path of the server."""
        self._transport = transport
        self._place = place

    @overload
    async def read(
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
    async def read(
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
    async def read(
        self,
        path: RemotePath,
        format: Literal["stream"],
        *,
        start: Optional[int] = None,
        end: Optional[int] = None,
        errors: str = "strict",
        **options: Unpack[RequestOptions],
    ) -> AsyncByteStream: ...

    async def read(
        self,
        path: RemotePath,
        format: Literal["text", "bytes", "stream"] = "text",
        *,
        start: Optional[int] = None,
        end: Optional[int] = None,
        errors: str = "strict",
        **options: Unpack[RequestOptions],
    ) -> Union[str, bytes, AsyncByteStream]:
        """Reads a file, or its bytes `start` to `end` (exclusive).

        `format` is `text` (UTF-8; `errors` as in `bytes.decode`), `bytes`, or `stream`: an iterator over pieces of bytes, only
        one of which is in memory. Close a stream that you do not read to its end.
        """
        if format not in ("text", "bytes", "stream"):
            raise InvalidArgumentException("format is text, bytes or stream", field="format")
        stream = await self._transport.stream(calls.files.content(self._place, path, start, end), **options)
        if format == "stream":
            return stream
        async with stream:
            data = await stream.read()
        return data if format == "bytes" else data.decode("utf-8", errors)

    async def write(
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
        """Writes a file, completely or not at all.

        Args:
            path: The file.
            data: Text, bytes, an open file, or an iterator over bytes. The last two are streamed.
            mode: Permission bits, such as `0o755`.
            make_parents: Whether to create missing directories.
            append: Whether to append to an existing file.
            exclusive: Whether to fail if the path already exists.
            options: `request_timeout` and `user`, as for every file call.
        """
        call = calls.files.write(self._place, path, mode=mode, make_parents=make_parents, append=append, exclusive=exclusive)
        if isinstance(data, str):
            return await self._transport.request(call, data.encode("utf-8"), **options)
        if isinstance(data, (bytes, bytearray, memoryview)):
            return await self._transport.request(call, bytes(data), **options)
        calls.files.check_data(data)
        return await self._transport.request(call, _io.body_chunks(data), **options)

    async def list(self, path: RemotePath = ".", depth: int = 1, **options: Unpack[RequestOptions]) -> List[FileEntry]:
        """Lists a directory, and its subdirectories down to `depth` levels. The paths can be passed to other calls."""
        found: List[FileEntry] = []
        cursor: Optional[str] = None
        while True:
            page = await self._transport.request(calls.files.page(self._place, path, depth, None, cursor), **options)
            found.extend(page[0])
            cursor = page[1]
            if cursor is None:
                return found

    async def exists(self, path: RemotePath, **options: Unpack[RequestOptions]) -> bool:
        """Reports whether a path exists. A dangling link counts."""
        try:
            await self.get_info(path, follow=False, **options)
        except FileNotFoundException:
            return False
        return True

    async def get_info(self, path: RemotePath, *, follow: bool = True, **options: Unpack[RequestOptions]) -> FileEntry:
        """Returns information about a path; with `follow=False` about a link itself."""
        return await self._transport.request(calls.files.stat(self._place, path, follow), **options)

    async def make_dir(
        self, path: RemotePath, *, parents: bool = True, mode: Optional[Mode] = None, **options: Unpack[RequestOptions]
    ) -> bool:
        """Creates a directory, and its parents if `parents`. Returns False if it already exists."""
        if await self._is_directory(path, **options):
            return False
        await self._transport.request(calls.files.make_dir(self._place, path, parents, mode), **options)
        return True

    async def remove(self, path: RemotePath, *, recursive: bool = True, **options: Unpack[RequestOptions]) -> None:
        """Removes a file or directory; a directory that is not empty only if `recursive`."""
        await self._transport.request(calls.files.remove(self._place, path, recursive), **options)

    async def rename(
        self, old_path: RemotePath, new_path: RemotePath, *, overwrite: bool = False, **options: Unpack[RequestOptions]
    ) -> FileEntry:
        """Moves a file or directory. Fails if the target exists, unless `overwrite`."""
        call = calls.files.rename(self._place, old_path, new_path, overwrite)
        return await self._transport.request(call, **options)

    async def chmod(self, path: RemotePath, mode: Mode, **options: Unpack[RequestOptions]) -> FileEntry:
        """Sets permission bits, such as `0o755`."""
        return await self._transport.request(calls.files.chmod(self._place, path, mode), **options)

    async def upload(
        self,
        local_path: LocalPath,
        path: RemotePath,
        on_progress: Optional[ProgressCallback] = None,
        *,
        mode: Optional[Mode] = None,
        **options: Unpack[RequestOptions],
    ) -> FileEntry:
        """Uploads a local file of any size. `on_progress` gets the bytes so far and the total."""
        call = calls.files.write(self._place, path, mode=mode, make_parents=True, append=False, exclusive=False)
        with open(local_path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return await self._transport.request(call, _watched(_io.body_chunks(file), size, on_progress), **options)

    async def download(
        self,
        path: RemotePath,
        local_path: LocalPath,
        on_progress: Optional[ProgressCallback] = None,
        *,
        max_bytes: Optional[int] = None,
        **options: Unpack[RequestOptions],
    ) -> int:
        """Downloads a file of any size, and returns its size in bytes.

        The local file is replaced when everything has arrived; missing directories are created. A broken connection is resumed.
        `max_bytes` limits files of untrusted programs. `on_progress` gets the bytes so far and the total.
        """
        target = Path(local_path)
        part = target.parent / f".{target.name[:100]}.{uuid.uuid4().hex}.part"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "xb") as file:
                size = await self._fetch(path, file, on_progress, max_bytes, **options)
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return size

    async def _is_directory(self, path: RemotePath, **options: Unpack[RequestOptions]) -> bool:
        try:
            return (await self.get_info(path, **options)).is_dir
        except FileNotFoundException:
            return False

    async def _fetch(
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
            async with await self._transport.stream(call, **options) as stream:
                if done and stream.status != 206:
                    done = 0
                    file.seek(0)
                    file.truncate()
                etag = stream.headers.get("ETag")
                try:
                    return await _copy(stream, file, done, on_progress, max_bytes)
                except ConnectionException:
                    now = file.tell()
                    breaks = 0 if now > done else breaks
                    delay = self._transport.retries.after_break(breaks, safe=True, opened=True)
                    if delay is None:
                        raise
                    done = now if etag is not None else 0
                    file.seek(done)
            breaks += 1
            await _io.sleep(delay)


class AsyncFiles(AsyncVolumeFiles):
    """The files of a sandbox. Paths are absolute, or relative to the home directory in it."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        """Created by a sandbox."""
        super().__init__(transport, sandbox_path(sandbox_id))

    async def write_files(self, files: Iterable[Mapping[str, Any]], **options: Unpack[RequestOptions]) -> List[FileEntry]:
        """Writes many files in few requests. Each is a mapping with `path` and `data`, and optionally `mode`.

        `data` is text, bytes or an open file. A failure does not undo earlier files.
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
            made = await self._transport.request(calls.files.upload_many(self._place, "."), parts=parts, **options)
            written.update((index, entry) for (index, _, _), entry in zip(together, made))
        for index, file in enumerate(entries):
            if index not in written:
                written[index] = await self.write(file["path"], file["data"], mode=file.get("mode"), **options)
        return [written[index] for index in sorted(written)]

    async def search(
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
        """Searches files below `path`: by `name` (such as `*.py`), and by lines that contain `content`.

        `regex`: `content` is a regular expression. `limit` is the maximum number of matches.
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
        return await self._transport.request(call, **options)

    async def watch_dir(
        self,
        path: RemotePath = ".",
        on_event: Optional[EventCallback[FilesystemEvent]] = None,
        *,
        recursive: bool = False,
        **options: Unpack[RequestOptions],
    ) -> AsyncWatchHandle:
        """Watches a directory, and its subdirectories if `recursive`. Reports everything that happens after this call returns.

        Events are passed to `on_event`; without it iterate over the handle, or poll it with `get_new_events`.
        """
        stream = await self._transport.events(calls.files.watch(self._place, path, recursive), **options)
        return await AsyncWatchHandle._begin(stream, on_event)

    async def upload_dir(
        self,
        local_path: LocalPath,
        path: RemotePath,
        on_progress: Optional[ProgressCallback] = None,
        **options: Unpack[RequestOptions],
    ) -> ArchiveResult:
        """Uploads the contents of a local directory into a directory of the sandbox."""
        with tempfile.TemporaryFile() as packed:
            size = await _io.run_blocking(_archive.pack, Path(local_path), packed)
            call = calls.files.put_archive(self._place, path, "tar", 0)
            return await self._transport.request(call, _watched(_io.body_chunks(packed), size, on_progress), **options)

    async def download_dir(
        self,
        path: RemotePath,
        local_path: LocalPath,
        on_progress: Optional[ProgressCallback] = None,
        *,
        max_bytes: Optional[int] = None,
        **options: Unpack[RequestOptions],
    ) -> ArchiveResult:
        """Downloads the contents of a directory of the sandbox into a local directory.

        Nothing is written outside `local_path`, whatever the sandbox sends: devices, and links that lead out, are omitted and
        listed in `skipped`. `max_bytes` limits the total size.
        """
        with tempfile.TemporaryFile() as packed:
            call = calls.files.get_archive(self._place, path, "tar.gz")
            async with await self._transport.stream(call, **options) as stream:
                await _copy(stream, packed, 0, on_progress, max_bytes)
            packed.seek(0)
            return await _io.run_blocking(_archive.unpack, packed, Path(local_path), max_bytes)

    async def get_archive(
        self, path: RemotePath = ".", format: Literal["tar", "tar.gz"] = "tar.gz", **options: Unpack[RequestOptions]
    ) -> AsyncByteStream:
        """Returns a directory as an archive, as a stream of bytes."""
        return await self._transport.stream(calls.files.get_archive(self._place, path, format), **options)

    async def put_archive(
        self,
        path: RemotePath,
        data: FileData,
        format: Literal["auto", "tar", "tar.gz", "zip"] = "auto",
        *,
        strip: int = 0,
        **options: Unpack[RequestOptions],
    ) -> ArchiveResult:
        """Unpacks an archive into a directory, without the first `strip` components of each name."""
        call = calls.files.put_archive(self._place, path, format, strip)
        if isinstance(data, str):
            raise InvalidArgumentException("an archive must be bytes; open the file and pass that", field="data")
        if not isinstance(data, bytes):
            calls.files.check_data(data)
        body = data if isinstance(data, bytes) else _io.body_chunks(data)
        return await self._transport.request(call, body, **options)


async def _copy(
    stream: AsyncByteStream,
    file: IO[bytes],
    done: int,
    on_progress: Optional[ProgressCallback],
    max_bytes: Optional[int],
) -> int:
    """Copies a stream to a file, and returns its size including the existing bytes."""
    total = None if stream.size is None else done + stream.size
    async for chunk in stream:
        done += len(chunk)
        if max_bytes is not None and done > max_bytes:
            raise NotEnoughSpaceException(f"there are more than {max_bytes} bytes", field="max_bytes")
        await _io.run_blocking(file.write, chunk)
        if on_progress is not None:
            await _io.notify(on_progress, done, total)
    return done


async def _watched(
    chunks: AsyncIterator[bytes], size: Optional[int], on_progress: Optional[ProgressCallback]
) -> AsyncIterator[bytes]:
    """Yields the chunks, and reports progress before each."""
    done = 0
    async for chunk in chunks:
        yield chunk
        done += len(chunk)
        if on_progress is not None:
            await _io.notify(on_progress, done, size)
