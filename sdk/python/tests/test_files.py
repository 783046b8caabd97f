"""Files, as a user reads and writes them, with both clients."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any, AsyncIterator, List

import httpx
import pytest

import belljar
from belljar import ConflictException, FileEntry, InvalidArgumentException, NotEnoughSpaceException, NotFoundException

pytestmark = pytest.mark.asyncio

NAMES = ["a.txt", "with space.txt", "ü-日本.txt", "a&b=c?d#e%20f+g.txt", "'quotes'\".txt", "deep/er/still.txt", "-dash", "a;b\\c"]


@pytest.mark.parametrize("name", NAMES)
async def test_round_trip(sbx: Any, name: str) -> None:
    entry = await sbx.files.write(name, f"in {name}\n")
    assert isinstance(entry, FileEntry) and entry.is_file and entry.size == len(f"in {name}\n".encode())
    assert await sbx.files.read(name) == f"in {name}\n"
    assert await sbx.files.exists(name)


async def test_names_that_are_not_utf8(sbx: Any) -> None:
    await sbx.files.make_dir("d")
    await sbx.files.write(b"d/\xff\xfe", "x")
    assert await sbx.files.read(b"d/\xff\xfe") == "x"
    found = await sbx.files.list("d")
    assert [entry.path_bytes for entry in found] == [b"d/\xff\xfe"]


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 100, bytes(range(256)) * 4096])
async def test_bytes(sbx: Any, data: bytes) -> None:
    await sbx.files.write("b", data)
    assert await sbx.files.read("b", format="bytes") == data
    async with await sbx.files.read("b", format="stream") as stream:
        assert b"".join([chunk async for chunk in stream]) == data


async def test_text_that_is_not_text(sbx: Any) -> None:
    await sbx.files.write("b", b"a\xff")
    with pytest.raises(UnicodeDecodeError):
        await sbx.files.read("b")
    assert await sbx.files.read("b", errors="replace") == "a\ufffd"


async def test_write_from_a_file_and_from_pieces(sbx: Any) -> None:
    await sbx.files.write("f", io.BytesIO(b"from a file"))
    assert await sbx.files.read("f") == "from a file"
    await sbx.files.write("g", iter([b"from ", b"pieces"]))
    assert await sbx.files.read("g") == "from pieces"


async def test_write_from_asynchronous_pieces(environment: Any) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"b"):
            await asyncio.sleep(0)
            yield piece

    async with await belljar.AsyncSandbox.create() as sbx:
        await sbx.files.write("f", pieces())
        assert await sbx.files.read("f") == "ab"


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(0, 3, "012"), (4, None, "456789"), (None, 2, "01"), (9, 10, "9"), (8, 99, "89")]
)
async def test_ranges(sbx: Any, start: Any, end: Any, expected: str) -> None:
    await sbx.files.write("f", "0123456789")
    assert await sbx.files.read("f", start=start, end=end) == expected


@pytest.mark.parametrize(("start", "end"), [(-1, None), (3, 3), (5, 2)])
async def test_ranges_that_are_none(sbx: Any, start: Any, end: Any) -> None:
    with pytest.raises(InvalidArgumentException):
        await sbx.files.read("f", start=start, end=end)


async def test_range_behind_the_end(sbx: Any) -> None:
    await sbx.files.write("f", "abc")
    with pytest.raises(InvalidArgumentException) as caught:
        await sbx.files.read("f", start=99)
    assert caught.value.status == 416


@pytest.mark.parametrize("mode", [0o755, "0755", "755"])
async def test_modes(sbx: Any, mode: Any) -> None:
    entry = await sbx.files.write("run", "#!/bin/sh\necho ran\n", mode=mode)
    assert entry.mode == 0o755 and entry.permissions == "rwxr-xr-x"
    assert (await sbx.commands.run("./run")).stdout == "ran\n"


async def test_append_and_exclusive(sbx: Any) -> None:
    await sbx.files.write("f", "a", exclusive=True)
    await sbx.files.write("f", "b", append=True)
    assert await sbx.files.read("f") == "ab"
    with pytest.raises(ConflictException) as caught:
        await sbx.files.write("f", "c", exclusive=True)
    assert caught.value.code == "path_exists" and await sbx.files.read("f") == "ab"


async def test_no_parents(sbx: Any) -> None:
    with pytest.raises(NotFoundException):
        await sbx.files.write("no/such/f", "a", make_parents=False)


async def test_missing(sbx: Any) -> None:
    for call in (sbx.files.read, sbx.files.get_info, sbx.files.remove, sbx.files.list):
        with pytest.raises(NotFoundException) as caught:
            await call("missing")
        assert caught.value.code == "path_not_found" and caught.value.request_id
    assert not await sbx.files.exists("missing")


async def test_directory_is_no_file(sbx: Any) -> None:
    await sbx.files.make_dir("d")
    with pytest.raises(ConflictException) as caught:
        await sbx.files.read("d")
    assert caught.value.code == "not_regular"


async def test_write_files(sbx: Any) -> None:
    files = [{"path": name, "data": name} for name in NAMES] + [{"path": "run.sh", "data": b"echo x", "mode": 0o755}]
    entries = await sbx.files.write_files(files)
    assert len(entries) == len(files) and entries[-1].mode == 0o755
    for name in NAMES:
        assert await sbx.files.read(name) == name
    assert await sbx.files.write_files([]) == []
    with pytest.raises(InvalidArgumentException):
        await sbx.files.write_files([{"path": "a"}])


async def test_write_files_to_absolute_paths(sbx: Any) -> None:
    home = sbx.info.home
    await sbx.files.write_files([{"path": f"{home}/x/{n}", "data": str(n)} for n in range(3)] + [{"path": "y", "data": "y"}])
    assert await sbx.files.read("x/2") == "2" and await sbx.files.read("y") == "y"


async def test_list(sbx: Any) -> None:
    await sbx.files.write("d/a", "1")
    await sbx.files.write("d/sub/b", "22")
    assert sorted((entry.name, entry.kind) for entry in await sbx.files.list("d")) == [("a", "file"), ("sub", "directory")]
    assert sorted(entry.path for entry in await sbx.files.list("d", depth=2)) == ["d/a", "d/sub", "d/sub/b"]


async def test_list_of_many(sbx: Any) -> None:
    await sbx.commands.run("mkdir many; cd many; i=0; while [ $i -lt 2500 ]; do : > f$i; i=$((i+1)); done")
    assert len({entry.name for entry in await sbx.files.list("many")}) == 2500


async def test_info(sbx: Any) -> None:
    await sbx.files.write("f", "abc")
    await sbx.commands.run("ln -s f link; mkfifo pipe; ln -s nowhere broken")
    info = await sbx.files.get_info("f")
    assert (info.kind, info.size, info.is_file, info.is_dir) == ("file", 3, True, False)
    assert info.modified_at is not None and info.modified_at.tzinfo is not None
    link = await sbx.files.get_info("link", follow=False)
    assert (link.kind, link.symlink_target) == ("symlink", "f")
    assert (await sbx.files.get_info("link")).kind == "file"
    assert (await sbx.files.get_info("pipe")).kind == "fifo"
    assert await sbx.files.exists("broken")


async def test_make_dir(sbx: Any) -> None:
    assert await sbx.files.make_dir("a/b/c") is True
    assert await sbx.files.make_dir("a/b/c") is False
    with pytest.raises(NotFoundException):
        await sbx.files.make_dir("x/y/z", parents=False)
    await sbx.files.write("f", "")
    with pytest.raises(belljar.SandboxException):
        await sbx.files.make_dir("f")


async def test_remove(sbx: Any) -> None:
    await sbx.files.write("d/f", "")
    with pytest.raises(belljar.SandboxException):
        await sbx.files.remove("d", recursive=False)
    await sbx.files.remove("d/f")
    assert await sbx.files.exists("d") and not await sbx.files.exists("d/f")
    await sbx.files.write("d/f", "")
    await sbx.files.remove("d")
    assert not await sbx.files.exists("d")


async def test_rename(sbx: Any) -> None:
    await sbx.files.write("a", "a")
    await sbx.files.write("b", "b")
    with pytest.raises(ConflictException) as caught:
        await sbx.files.rename("a", "b")
    assert caught.value.code == "path_exists"
    await sbx.files.rename("a", "b", overwrite=True)
    assert await sbx.files.read("b") == "a" and not await sbx.files.exists("a")


async def test_chmod(sbx: Any) -> None:
    await sbx.files.write("f", "")
    assert (await sbx.files.chmod("f", 0o600)).mode == 0o600
    assert (await sbx.files.chmod("f", "0640")).permissions == "rw-r-----"


async def test_upload_and_download(sbx: Any, tmp_path: Path) -> None:
    data = os.urandom(5_000_000)
    (tmp_path / "up").write_bytes(data)
    seen: List[Any] = []
    entry = await sbx.files.upload(tmp_path / "up", "big", lambda done, total: seen.append((done, total)))
    assert entry.size == len(data) and seen[-1] == (len(data), len(data)) and len(seen) > 3
    seen.clear()
    size = await sbx.files.download("big", tmp_path / "down", lambda done, total: seen.append((done, total)))
    assert size == len(data) and (tmp_path / "down").read_bytes() == data and seen[-1] == (len(data), len(data))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["down", "up"]


async def test_download_into_a_directory_that_is_missing(sbx: Any, tmp_path: Path) -> None:
    await sbx.files.write("f", "x")
    assert await sbx.files.download("f", tmp_path / "new" / "deep" / "f") == 1
    assert (tmp_path / "new" / "deep" / "f").read_text() == "x"


async def test_download_that_fails_leaves_nothing(sbx: Any, tmp_path: Path) -> None:
    (tmp_path / "down").write_text("old")
    await sbx.files.write("f", "x" * 1000)
    with pytest.raises(NotFoundException):
        await sbx.files.download("missing", tmp_path / "down")
    with pytest.raises(NotEnoughSpaceException):
        await sbx.files.download("f", tmp_path / "down", max_bytes=999)
    assert [path.name for path in tmp_path.iterdir()] == ["down"] and (tmp_path / "down").read_text() == "old"


async def test_directories(sbx: Any, tmp_path: Path, real: None) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "a").write_text("a")
    (source / "sub" / "ü b").write_bytes(b"\x00\xff")
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("sub/ü b")
    await sbx.files.upload_dir(source, "project")
    assert (await sbx.commands.run("project/run")).stdout == "ran\n"
    await sbx.commands.run("cd project && ln -s /etc/passwd out && ln -s ../../x up && echo new > new")
    result = await sbx.files.download_dir("project", tmp_path / "target")
    target = tmp_path / "target"
    assert (target / "sub" / "ü b").read_bytes() == b"\x00\xff" and (target / "new").read_text() == "new\n"
    assert (target / "sub" / "empty").is_dir() and (target / "link").read_bytes() == b"\x00\xff"
    assert os.access(target / "run", os.X_OK)
    assert not os.path.lexists(target / "out") and not os.path.lexists(target / "up")
    assert {Path(name).name for name in result.skipped} == {"out", "up"}


async def test_archives(sbx: Any, real: None) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("top/a.txt", "from a zip")
    result = await sbx.files.put_archive("z", packed.getvalue(), strip=1)
    assert await sbx.files.read("z/a.txt") == "from a zip" and result.entries >= 1
    async with await sbx.files.get_archive("z", format="tar") as stream:
        with tarfile.open(fileobj=io.BytesIO(await stream.read())) as tar:
            assert any(name.endswith("a.txt") for name in tar.getnames())


async def test_broken_archive(sbx: Any, real: None) -> None:
    with pytest.raises(belljar.SandboxException) as caught:
        await sbx.files.put_archive("z", b"this is no archive")
    assert caught.value.status is not None and 400 <= caught.value.status < 500


async def test_search(sbx: Any, real: None) -> None:
    await sbx.files.write("s/a.py", "import os\nprint('needle')\n")
    await sbx.files.write("s/b.txt", "needle\nNEEDLE\n")
    by_name = await sbx.files.search("*.py", path="s")
    assert [Path(match.path).name for match in by_name.matches] == ["a.py"] and not by_name.truncated
    by_content = await sbx.files.search("*.py", content="needle", path="s")
    assert [(match.line_number, match.line) for match in by_content.matches] == [(2, "print('needle')")]
    ignoring = await sbx.files.search(content="needle", ignore_case=True, path="s")
    assert len(ignoring.matches) == 3
    pattern = await sbx.files.search(content="^n.+e$", regex=True, path="s")
    assert [match.line for match in pattern.matches] == ["needle"]
    assert (await sbx.files.search(content="needle", ignore_case=True, path="s", limit=1)).truncated
    with pytest.raises(InvalidArgumentException):
        await sbx.files.search()


async def test_watch(sbx: Any, real: None) -> None:
    await sbx.files.make_dir("w")
    async with await sbx.files.watch_dir("w") as watch:
        await sbx.files.write("w/a", "1")
        seen = []
        async for event in watch:
            seen.append((event.type, event.name))
            if event.name == "a":
                break
        assert seen[0][0] == "created"
        await sbx.commands.run("mv w/a w/b; rm w/b")
        found: List[Any] = []
        deadline = asyncio.get_running_loop().time() + 10
        while not any(event.type == "removed" and event.name == "b" for event in found):
            assert asyncio.get_running_loop().time() < deadline, found
            found.extend(watch.get_new_events())
            await asyncio.sleep(0.02)
        kinds = {(event.type, event.name) for event in found}
        assert {("moved_from", "a"), ("moved_to", "b")} <= kinds


async def test_watch_with_callback(sbx: Any, real: None) -> None:
    seen: List[Any] = []
    watch = await sbx.files.watch_dir(".", seen.append, recursive=True)
    await sbx.files.write("deep/er/f", "1")
    deadline = asyncio.get_running_loop().time() + 10
    while not any(event.name == "f" for event in seen):
        assert asyncio.get_running_loop().time() < deadline, seen
        await asyncio.sleep(0.02)
    await watch.stop()


async def test_watch_of_nothing(sbx: Any, real: None) -> None:
    with pytest.raises(NotFoundException):
        await sbx.files.watch_dir("missing")


async def test_signed_urls(sbx: Any, real: None) -> None:
    up, down = await sbx.upload_url("f"), await sbx.download_url("f", expires=60)
    async with httpx.AsyncClient(trust_env=False) as anybody:
        assert (await anybody.put(up, content=b"by url")).is_success
        assert (await anybody.get(down)).content == b"by url"
        assert (await anybody.put(down, content=b"no")).status_code in (401, 403, 404, 405)
        assert (await anybody.get(up)).status_code in (401, 403, 404, 405)
    assert await sbx.files.read("f") == "by url"
