"""Files, directories, watching."""

import io
import uuid

import httpx
import pytest
from conftest import until
from e2b import (
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    SandboxException,
)


@pytest.fixture
def place(sbx):
    """A directory for one test."""
    path = f"/home/user/{uuid.uuid4().hex}"
    assert sbx.files.make_dir(path) is True
    return path


def test_write_and_read(sbx, place):
    info = sbx.files.write(f"{place}/a.txt", "hello ü")
    assert (info.path, info.name, info.type) == (f"{place}/a.txt", "a.txt", FileType.FILE)
    assert sbx.files.read(f"{place}/a.txt") == "hello ü"
    assert sbx.files.read(f"{place}/a.txt", format="bytes") == "hello ü".encode()
    assert b"".join(sbx.files.read(f"{place}/a.txt", format="stream")) == "hello ü".encode()


def test_overwrite(sbx, place):
    sbx.files.write(f"{place}/a.txt", "a longer text")
    sbx.files.write(f"{place}/a.txt", "short")
    assert sbx.files.read(f"{place}/a.txt") == "short"


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 10, b"x" * 3_000_000, io.BytesIO(b"from a file")])
@pytest.mark.parametrize("gzip", [False, True])
def test_contents(sbx, place, content, gzip):
    expected = content.getvalue() if isinstance(content, io.BytesIO) else content
    if isinstance(content, io.BytesIO):
        content.seek(0)
    sbx.files.write(f"{place}/content", content, gzip=gzip)
    assert bytes(sbx.files.read(f"{place}/content", format="bytes", gzip=gzip)) == expected


def test_octet_stream(sbx, place):
    sbx.files.write(f"{place}/a.bin", b"abc", use_octet_stream=True)
    assert sbx.files.read(f"{place}/a.bin") == "abc"


def test_paths(sbx):
    name = uuid.uuid4().hex
    assert sbx.files.write(name, "relative").path == f"/home/user/{name}"
    assert sbx.files.read(f"/home/user/{name}") == "relative"
    assert sbx.files.read(f"~/{name}") == "relative"
    assert sbx.files.write(f"/tmp/{name}/with spaces/ü.txt", "deep").path == f"/tmp/{name}/with spaces/ü.txt"
    assert sbx.files.read(f"/tmp/{name}/with spaces/ü.txt") == "deep"


def test_write_many(sbx, place):
    entries = [{"path": f"{place}/d{number}/f.txt", "data": f"content {number}"} for number in range(5)]
    written = sbx.files.write_files(entries)
    assert [info.path for info in written] == [f"{place}/d{number}/f.txt" for number in range(5)]
    assert sbx.files.read(f"{place}/d3/f.txt") == "content 3"
    assert sbx.files.write_files([]) == []


def test_missing_file(sbx, place):
    with pytest.raises(FileNotFoundException):
        sbx.files.read(f"{place}/none")
    with pytest.raises(FileNotFoundException):
        sbx.files.get_info(f"{place}/none")
    with pytest.raises(FileNotFoundException):
        sbx.files.list(f"{place}/none")
    assert sbx.files.exists(f"{place}/none") is False


def test_directories_are_not_files(sbx, place):
    with pytest.raises(InvalidArgumentException):
        sbx.files.read(place)
    with pytest.raises(InvalidArgumentException):
        sbx.files.write(place, "x")


def test_info(sbx, place):
    sbx.files.write(f"{place}/a.txt", "12345")
    info = sbx.files.get_info(f"{place}/a.txt")
    assert (info.name, info.path, info.type, info.size) == ("a.txt", f"{place}/a.txt", FileType.FILE, 5)
    assert (info.mode, info.permissions) == (0o644, "-rw-r--r--")
    assert (info.owner, info.group) == ("user", "user")
    assert info.modified_time is not None
    info = sbx.files.get_info(place)
    assert (info.type, info.permissions) == (FileType.DIR, "drwxr-xr-x")


def test_links(sbx, place):
    sbx.files.write(f"{place}/a.txt", "linked")
    sbx.commands.run("ln -s a.txt good; ln -s none bad; ln -s . dir", cwd=place)
    assert sbx.files.get_info(f"{place}/good").symlink_target == f"{place}/a.txt"
    assert sbx.files.get_info(f"{place}/good").type == FileType.SYMLINK
    assert sbx.files.get_info(f"{place}/bad").symlink_target == f"{place}/none"
    assert sbx.files.get_info(f"{place}/dir").symlink_target == place
    assert sbx.files.read(f"{place}/good") == "linked"


def test_list_depth(sbx, place):
    sbx.files.write(f"{place}/a/b/c.txt", "x")
    names = lambda depth: sorted(entry.path.removeprefix(place) for entry in sbx.files.list(place, depth=depth))
    assert names(1) == ["/a"]
    assert names(2) == ["/a", "/a/b"]
    assert names(3) == ["/a", "/a/b", "/a/b/c.txt"]
    with pytest.raises(InvalidArgumentException):
        sbx.files.list(f"{place}/a/b/c.txt")


def test_make_dir(sbx, place):
    assert sbx.files.make_dir(f"{place}/x/y/z") is True
    assert sbx.files.make_dir(f"{place}/x/y/z") is False
    sbx.files.write(f"{place}/file", "x")
    with pytest.raises(InvalidArgumentException):
        sbx.files.make_dir(f"{place}/file")


def test_rename(sbx, place):
    sbx.files.write(f"{place}/old", "content")
    info = sbx.files.rename(f"{place}/old", f"{place}/new/name")
    assert info.path == f"{place}/new/name"
    assert sbx.files.exists(f"{place}/old") is False
    assert sbx.files.read(f"{place}/new/name") == "content"
    with pytest.raises(FileNotFoundException):
        sbx.files.rename(f"{place}/none", f"{place}/other")


def test_remove(sbx, place):
    sbx.files.write(f"{place}/d/file", "x")
    sbx.files.remove(f"{place}/d")
    assert sbx.files.exists(f"{place}/d") is False
    sbx.files.remove(f"{place}/d")


def events_of(handle, count):
    seen = []
    until(lambda: (seen.extend(handle.get_new_events()), len(seen) >= count)[1], f"{count} events")
    return [(event.name, event.type) for event in seen]


def test_watch(sbx, place):
    sbx.files.write(f"{place}/old.txt", "x")
    handle = sbx.files.watch_dir(place)
    sbx.files.write(f"{place}/new.txt", "content")
    kinds = [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    assert events_of(handle, 3) == [("new.txt", kind) for kind in kinds]
    sbx.commands.run("echo more >> old.txt", cwd=place)
    assert ("old.txt", FilesystemEventType.WRITE) in events_of(handle, 1)
    sbx.files.remove(f"{place}/old.txt")
    assert ("old.txt", FilesystemEventType.REMOVE) in events_of(handle, 1)
    sbx.files.rename(f"{place}/new.txt", f"{place}/moved.txt")
    assert ("new.txt", FilesystemEventType.RENAME) in events_of(handle, 2)
    handle.stop()
    with pytest.raises(SandboxException):
        handle.get_new_events()


def test_watch_below(sbx, place):
    sbx.files.make_dir(f"{place}/deep/er")
    handle = sbx.files.watch_dir(place, recursive=True)
    sbx.files.write(f"{place}/deep/er/new.txt", "x")
    assert ("deep/er/new.txt", FilesystemEventType.CREATE) in events_of(handle, 1)
    handle.stop()


def test_watch_with_entries(sbx, place):
    handle = sbx.files.watch_dir(place, include_entry=True)
    sbx.files.write(f"{place}/new.txt", "x")
    seen = []
    until(lambda: (seen.extend(handle.get_new_events()), seen)[1], "an event")
    assert seen[0].entry.path == f"{place}/new.txt"
    handle.stop()


def test_invalid_watches(sbx, place):
    with pytest.raises(FileNotFoundException):
        sbx.files.watch_dir(f"{place}/none")
    sbx.files.write(f"{place}/file", "x")
    with pytest.raises(InvalidArgumentException):
        sbx.files.watch_dir(f"{place}/file")


def test_signed_addresses(sbx, place):
    sbx.files.write(f"{place}/signed.txt", "signed")
    url = sbx.download_url(f"{place}/signed.txt")
    assert httpx.get(url).text == "signed"
    url = sbx.download_url(f"{place}/signed.txt", use_signature_expiration=60)
    assert httpx.get(url).text == "signed"
    url = sbx.upload_url(f"{place}/up.txt")
    assert httpx.post(url, files={"file": ("up.txt", b"uploaded")}).json()[0]["path"] == f"{place}/up.txt"
    assert sbx.files.read(f"{place}/up.txt") == "uploaded"


def test_signatures_are_valid_for_one_operation(sbx, place):
    sbx.files.write(f"{place}/a.txt", "a")
    url = sbx.download_url(f"{place}/a.txt")
    assert httpx.post(url, files={"file": ("a.txt", b"x")}).status_code == 401
    assert httpx.get(url.replace("a.txt", "b.txt")).status_code == 401
    assert httpx.get(url.replace("v1_", "v1_x")).status_code == 401
    expired = sbx.download_url(f"{place}/a.txt", use_signature_expiration=-60)
    answer = httpx.get(expired)
    assert (answer.status_code, answer.json()) == (401, {"code": 401, "message": "signature is already expired"})


def test_range(sbx, place):
    sbx.files.write(f"{place}/a.txt", "0123456789")
    answer = httpx.get(sbx.download_url(f"{place}/a.txt"), headers={"Range": "bytes=2-4"})
    assert (answer.status_code, answer.text) == (206, "234")


@pytest.mark.parametrize("octet", [False, True])
def test_metadata(sbx, place, octet):
    kept = {"author": "ada", "purpose": "a test"}
    path = f"{place}/a.txt"
    assert sbx.files.write(path, "x", metadata=kept, use_octet_stream=octet).metadata == kept
    assert sbx.files.get_info(path).metadata == kept
    assert [entry.metadata for entry in sbx.files.list(place)] == [kept]
    assert sbx.files.rename(path, f"{place}/b.txt").metadata == kept
    # A rewritten file has the new metadata.
    assert sbx.files.write(f"{place}/b.txt", "y").metadata is None
    assert sbx.files.get_info(f"{place}/b.txt").metadata is None


def test_metadata_of_many(sbx, place):
    entries = [{"path": f"{place}/{number}", "data": "x"} for number in range(3)]
    written = sbx.files.write_files(entries, metadata={"of": "all"})
    assert [info.metadata for info in written] == [{"of": "all"}] * 3


def test_metadata_set_by_a_program(sbx, place):
    path = f"{place}/a.txt"
    sbx.files.write(path, "x")
    sbx.commands.run(f"""python3 -c "import os; os.setxattr('{path}', 'user.e2b.author', b'ada')" """)
    sbx.commands.run(f"""python3 -c "import os; os.setxattr('{path}', 'user.other', b'x')" """)
    assert sbx.files.get_info(path).metadata == {"author": "ada"}


def test_metadata_that_is_too_large(sbx, place):
    for metadata in ({"k": "x" * 5000}, {"k" * 300: "x"}):
        with pytest.raises(SandboxException, match="metadata"):
            sbx.files.write(f"{place}/a.txt", "x", metadata=metadata)
    assert sbx.files.list(place) == []
