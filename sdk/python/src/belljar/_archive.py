"""Packs and unpacks local directories as tar files.

An archive from a sandbox is not trusted: its entries are written below the target or not at all.
"""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path
from typing import IO, List, Optional, Tuple

from .errors import InvalidArgumentException, NotEnoughSpaceException, SandboxException
from .models import ArchiveResult


def pack(directory: Path, target: IO[bytes]) -> int:
    """Writes the contents of `directory` to `target` as a tar file, and returns its size in bytes."""
    if not directory.is_dir():
        raise InvalidArgumentException(f"{directory} is not a directory", field="local")
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(os.listdir(directory)):
            archive.add(directory / name, arcname=name, filter=_packed)
    size = target.tell()
    target.seek(0)
    return size


def unpack(source: IO[bytes], directory: Path, max_bytes: Optional[int]) -> ArchiveResult:
    """Unpacks a tar file into `directory`, which is created if it is missing.

    Only files, directories and links that stay inside are created. `max_bytes` limits the total size of the files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    root = directory.resolve()
    links: List[Tuple[Path, str]] = []
    skipped: List[str] = []
    entries = total = 0
    try:
        with tarfile.open(fileobj=source, mode="r:*") as archive:
            for member in archive:
                parts = _safe_parts(member.name)
                if parts is None:
                    skipped.append(member.name)
                    continue
                if not parts:
                    continue
                target = root.joinpath(*parts)
                if member.isdir():
                    _make_directory(root, parts)
                elif member.issym():
                    if not _stays_inside(parts, member.linkname):
                        skipped.append(member.name)
                        continue
                    _make_directory(root, parts[:-1])
                    # Created last, so that nothing is ever written through a link.
                    links.append((target, member.linkname))
                elif member.isfile() or member.islnk():
                    content = archive.extractfile(member)
                    if content is None:
                        skipped.append(member.name)
                        continue
                    _make_directory(root, parts[:-1])
                    total += _write(content, target, member.mode, None if max_bytes is None else max_bytes - total)
                else:
                    skipped.append(member.name)
                    continue
                entries += 1
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise SandboxException(f"the archive from the sandbox cannot be read: {error}") from None
    for target, linked in links:
        _remove_file(target)
        os.symlink(linked, target)
    return ArchiveResult(entries=entries, size=total, skipped=tuple(skipped))


def _packed(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    # Local owners have no meaning in the sandbox.
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def _safe_parts(name: str) -> Optional[List[str]]:
    """Returns the parts of a member's name, or None if it leads out of the target."""
    if name.startswith("/") or "\0" in name or ("\\" in name and os.sep == "\\"):
        return None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or (os.sep == "\\" and any(":" in part for part in parts)):
        return None
    return parts


def _stays_inside(parts: List[str], target: str) -> bool:
    """Reports whether a link leads to a place below the target, whatever other links exist.

    Its directory is a real one, so leading `..` are literal. After a name they are not, because the name may be a link.
    """
    if target.startswith("/") or not target or "\0" in target or os.sep == "\\":
        return False
    steps = [step for step in target.split("/") if step not in ("", ".")]
    up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    return up < len(parts) and ".." not in steps[up:]


def _make_directory(root: Path, parts: List[str]) -> None:
    """Creates nested directories. None of them may be an existing link."""
    place = root
    for part in parts:
        place = place / part
        try:
            mode = os.lstat(place).st_mode
        except FileNotFoundError:
            os.mkdir(place)
            continue
        if not stat.S_ISDIR(mode):
            raise SandboxException(f"the archive has a directory where {place} is a file or a link")


def _write(source: IO[bytes], target: Path, mode: int, room: Optional[int]) -> int:
    _remove_file(target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    written = 0
    # Never with set-user-ID or set-group-ID bits.
    with open(os.open(target, flags, mode & 0o777 | 0o600), "wb") as file:
        while True:
            chunk = source.read(1 << 20)
            if not chunk:
                return written
            written += len(chunk)
            if room is not None and written > room:
                raise NotEnoughSpaceException("the archive holds more than max_bytes", field="max_bytes")
            file.write(chunk)


def _remove_file(target: Path) -> None:
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise SandboxException(f"the archive has a file where {target} is a directory")
    os.unlink(target)
