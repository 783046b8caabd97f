"""Volumes: files that outlive sandboxes, mounted into several."""

import io
import os
import socket
import uuid
from datetime import datetime, timedelta, timezone

import httpx
import pytest
from conftest import SMALL_VOLUMES, until
from e2b import AsyncVolume, NotFoundException, Sandbox, SandboxException, Volume
from e2b.exceptions import AuthenticationException, VolumeException, VolumeNotFoundException, VolumePathNotFoundException
from service import Service
from test_wire import new_key


def fresh():
    return f"volume-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def volume():
    made = Volume.create(fresh())
    yield made
    # Sandboxes that mount it may still be ending.
    until(lambda: destroyed(made), "the volume to be free")


def destroyed(volume):
    try:
        Volume.destroy(volume.volume_id)
    except VolumeException as error:
        assert "in use" in str(error)
        return False
    return True


def test_lifecycle():
    name = fresh()
    made = Volume.create(name)
    assert made.name == name and made.volume_id and made.token
    assert (made.volume_id, name) in [(one.volume_id, one.name) for one in Volume.list()]
    info = Volume.get_info(made.volume_id)
    assert (info.volume_id, info.name) == (made.volume_id, name)
    made.write_file("a.txt", "hello")
    assert Volume.connect(made.volume_id).read_file("/a.txt") == "hello"
    assert Volume.destroy(made.volume_id) is True
    assert Volume.destroy(made.volume_id) is False
    with pytest.raises(VolumeNotFoundException):
        Volume.get_info(made.volume_id)
    with pytest.raises(VolumeNotFoundException):
        Volume.connect(made.volume_id)
    assert made.volume_id not in [one.volume_id for one in Volume.list()]
    with pytest.raises(NotFoundException):
        made.read_file("a.txt")


def test_names(volume):
    with pytest.raises(VolumeException, match="400.*already exists"):
        Volume.create(volume.name)
    for name in ("", "a b", "a/b", "../up", "ü", "x" * 129):
        with pytest.raises(VolumeException, match="400"):
            Volume.create(name)


def test_files_between_sandboxes(volume):
    with Sandbox.create(volume_mounts={"/mnt/data": volume}) as first:
        assert first.commands.run("echo first > /mnt/data/a.txt; cat /mnt/data/a.txt").stdout == "first\n"
        # At the same time in another sandbox, by name and at another path.
        with Sandbox.create(volume_mounts={"/home/user/shared": volume.name}) as second:
            second.commands.run("echo second >> shared/a.txt")
            assert first.files.read("/mnt/data/a.txt") == "first\nsecond\n"
            found = [[(one["name"], one["path"]) for one in box.get_info().volume_mounts] for box in (first, second)]
            assert found == [[(volume.name, "/mnt/data")], [(volume.name, "/home/user/shared")]]
        assert volume.read_file("a.txt") == "first\nsecond\n"
        volume.write_file("b.txt", "from outside")
        assert first.commands.run("cat /mnt/data/b.txt; id -u > /mnt/data/id").stdout == "from outside"
        with pytest.raises(VolumeException, match="in use"):
            Volume.destroy(volume.volume_id)
        first.pause()
        assert volume.read_file("id") == "1000\n"
        first.connect()
        assert first.commands.run("cat /mnt/data/id").stdout == "1000\n"


def test_two_volumes(volume):
    other = Volume.create(fresh())
    try:
        with Sandbox.create(volume_mounts={"/mnt/a": volume, "/mnt/b": other}) as sandbox:
            sandbox.commands.run("echo a > /mnt/a/f; cp /mnt/a/f /mnt/b/f")
        assert other.read_file("f") == "a\n"
    finally:
        until(lambda: destroyed(other), "the volume to be free")


@pytest.mark.parametrize(
    "mounts",
    [
        {"/mnt/a": "volume-that-is-not-there"},
        {"relative": None},
        {"/": None},
        {"/proc": None},
        {"/mnt/../../etc": None},
        {"/tmp": None},
        {"/mnt/a": None, "/mnt/a/b": None},
    ],
)
def test_invalid_mounts_are_refused(volume, mounts):
    with pytest.raises(SandboxException, match="400: .*volume"):
        Sandbox.create(volume_mounts={path: name or volume for path, name in mounts.items()})
    # Nothing mounts it.
    assert volume.name not in [mount["name"] for page in Sandbox.list().next_items() for mount in page.volume_mounts]


@pytest.mark.parametrize("data", ["", "text ü", b"\x00\xff" * 10, b"x" * 3_000_000, io.BytesIO(b"from a file"), io.StringIO("text")])
def test_contents(volume, data):
    expected = data.getvalue() if isinstance(data, (io.BytesIO, io.StringIO)) else data
    expected = expected.encode() if isinstance(expected, str) else expected
    if hasattr(data, "seek"):
        data.seek(0)
    written = volume.write_file("deep/er/content", data)
    assert (written.path, written.name, written.type.value, written.size) == ("/deep/er/content", "content", "file", len(expected))
    assert bytes(volume.read_file("/deep/er/content", format="bytes")) == expected
    assert b"".join(volume.read_file("deep/er/content", format="stream")) == expected
    if b"\xff" not in expected:
        assert volume.read_file("deep/er/content") == expected.decode()


def test_overwriting(volume):
    volume.write_file("a", "a longer text")
    assert volume.write_file("a", "short").size == 5
    volume.write_file("a", "other", force=True)
    with pytest.raises(VolumeException, match="409"):
        volume.write_file("a", "no", force=False)
    assert volume.read_file("a") == "other"
    volume.write_file("new", "yes", force=False)
    volume.make_dir("dir")
    with pytest.raises(VolumeException):
        volume.write_file("dir", "no")


def test_entry_metadata(volume):
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    written = volume.write_file("a.txt", "hello", mode=0o640)
    assert (written.mode, written.uid, written.gid, written.target) == (0o640, 1000, 1000, None)
    for at in (written.atime, written.mtime, written.ctime):
        assert before < at < datetime.now(timezone.utc) + timedelta(seconds=5)
    assert volume.get_info("/a.txt") == written
    assert volume.get_info("/").type.value == "directory" and volume.get_info("/").path == "/"
    with Sandbox.create(volume_mounts={"/mnt/data": volume}) as sandbox:
        sandbox.commands.run("cd /mnt/data && ln -s a.txt link && mkfifo fifo && ln -s /etc/passwd out && touch $'new\\nline'")
        assert sandbox.commands.run("stat -c '%a %U' /mnt/data/a.txt").stdout == "640 user\n"
    found = {entry.name: entry for entry in volume.list("/")}
    assert set(found) == {"a.txt", "link", "fifo", "out", "new\nline"}
    assert [found[name].type.value for name in ("link", "fifo", "out")] == ["symlink", "unknown", "symlink"]
    assert (found["link"].target, found["out"].target) == ("a.txt", "/etc/passwd")
    assert volume.read_file("link") == "hello"
    # Its target is resolved where only the volume exists.
    with pytest.raises(VolumePathNotFoundException):
        volume.read_file("out")
    with pytest.raises(VolumeException, match="409.*not a regular file"):
        volume.read_file("fifo")


def test_owner_and_mode(volume):
    written = volume.write_file("a", "x", uid=500, gid=501, mode=0o600)
    assert (written.uid, written.gid, written.mode) == (500, 501, 0o600)
    changed = volume.update_metadata("a", mode=0o444)
    assert (changed.uid, changed.gid, changed.mode) == (500, 501, 0o444)
    changed = volume.update_metadata("a", gid=7)
    assert (changed.uid, changed.gid, changed.mode) == (500, 7, 0o444)
    written = volume.write_file("b", "x", uid=1, gid=2, mode=0o444)
    assert (written.uid, written.gid, written.mode) == (1, 2, 0o444)
    volume.remove("b")
    made = volume.make_dir("d", uid=1, gid=2, mode=0o500)
    assert (made.type.value, made.uid, made.gid, made.mode) == ("directory", 1, 2, 0o500)
    assert [(entry.uid, entry.gid) for entry in volume.list("/")] == [(500, 7), (1, 2)]
    with pytest.raises(VolumePathNotFoundException):
        volume.update_metadata("none", mode=0o600)
    with pytest.raises(VolumeException, match="400.*mode"):
        volume.update_metadata("a", mode=0o100000)


def test_directories(volume):
    assert volume.make_dir("d").path == "/d"
    with pytest.raises(VolumeException, match="409"):
        volume.make_dir("d")
    assert volume.make_dir("d", force=True).type.value == "directory"
    with pytest.raises(VolumePathNotFoundException):
        volume.make_dir("x/y/z")
    assert volume.make_dir("x/y/z", force=True).path == "/x/y/z"
    volume.write_file("x/f", "f")
    assert [entry.path for entry in volume.list("/")] == ["/d", "/x"]
    assert [entry.path for entry in volume.list("x")] == ["/x/f", "/x/y"]
    assert [entry.path for entry in volume.list("/", depth=2)] == ["/d", "/x", "/x/f", "/x/y"]
    assert [entry.path for entry in volume.list("/x/", depth=10)] == ["/x/f", "/x/y", "/x/y/z"]
    with pytest.raises(VolumePathNotFoundException):
        volume.list("none")
    with pytest.raises(VolumeException, match="400|409"):
        volume.list("x/f")
    for number in range(30):
        volume.write_file(f"many/{number:03}", "")
    assert [entry.name for entry in volume.list("many")] == [f"{number:03}" for number in range(30)]


def test_exists_and_remove(volume):
    assert volume.exists("a") is False
    volume.write_file("a", "x")
    volume.write_file("d/e/f", "x")
    assert volume.exists("a") and volume.exists("/d/e")
    volume.remove("a")
    volume.remove("/d")
    assert not volume.exists("a") and volume.list("/") == []
    for path in ("a", "d/e/f"):
        with pytest.raises(VolumePathNotFoundException):
            volume.remove(path)
    with pytest.raises(VolumePathNotFoundException):
        volume.read_file("a")


@pytest.mark.parametrize("path", ["../etc/passwd", "/../../etc/passwd", "a/../../b", ".."])
def test_paths_out_of_the_volume_are_refused(volume, path):
    attempts = [
        lambda: volume.read_file(path),
        lambda: volume.write_file(path, "x"),
        lambda: volume.get_info(path),
        lambda: volume.list(path),
        lambda: volume.make_dir(path, force=True),
        lambda: volume.update_metadata(path, mode=0o777),
        lambda: volume.remove(path),
    ]
    for attempt in attempts:
        with pytest.raises(VolumeException, match="400.*lead out of the volume"):
            attempt()


def test_root_is_not_removed(volume):
    volume.write_file("a", "x")
    with pytest.raises(VolumeException, match="400"):
        volume.remove("/")
    assert volume.exists("a")
    assert volume.update_metadata("/", mode=0o700).mode == 0o700


def test_tokens(volume, own):
    other = Volume.create(fresh())
    try:
        volume.write_file("secret", "secret")
        box = own.connection_config.sandbox_headers["X-Access-Token"]
        for token in ("junk", "bjs_junk", volume.token[:-1]):
            with pytest.raises(AuthenticationException):
                volume.read_file("secret", token=token)
        # Those of another volume and of a sandbox are valid, but not here.
        for token in (other.token, box):
            for attempt in (
                lambda: volume.read_file("secret", token=token),
                lambda: volume.list("/", token=token),
                lambda: volume.write_file("secret", "x", token=token),
            ):
                with pytest.raises(VolumePathNotFoundException):
                    attempt()
        url = os.environ["E2B_API_URL"]
        for headers in ({}, {"Authorization": "Basic eDp5"}):
            answer = httpx.get(f"{url}/volumecontent/{volume.volume_id}/file", params={"path": "secret"}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, 401)
        # It gives no other access.
        bearer = {"Authorization": f"Bearer {volume.token}"}
        for method, path in (("GET", "/volumes"), ("POST", "/v2/sandboxes"), ("DELETE", f"/volumes/{volume.volume_id}")):
            answer = httpx.request(method, url + path, headers=bearer, json={"templateID": "base"} if method == "POST" else None)
            assert answer.status_code == 403, (path, answer.text)
        assert volume.read_file("secret") == "secret"
    finally:
        Volume.destroy(other.volume_id)


def test_volumes_of_other_tenants_are_invisible(server):
    def attack(at):
        """Returns the responses to another tenant for a volume, by its id, its name and its sandboxes."""
        given = {"api_url": at.url, "sandbox_url": at.url}
        made = Volume.create(fresh(), api_key=at.key, **given)
        url = {"api_url": at.url}
        made.write_file("secret", "secret", **url)
        foreign = {**given, "api_key": new_key(at, tenant="other-tenant")["key"]}
        got = set()
        assert made.volume_id not in [one.volume_id for one in Volume.list(**foreign)]
        for name in (made.volume_id, made.name):
            try:
                opened = Volume.connect(name, **foreign)
                got.add(opened.read_file("secret", **url))
            except (VolumeNotFoundException, VolumePathNotFoundException):
                pass
            try:
                with Sandbox.create(volume_mounts={"/mnt/a": name}, **foreign) as sandbox:
                    got.add(sandbox.files.read("/mnt/a/secret"))
            except SandboxException as refused:
                assert "400: " in str(refused) and "not found" in str(refused)
            try:
                got.add(Volume.destroy(name, **foreign))
            except VolumeException as refused:
                # Without the wall it exists, and one of the sandboxes above has it.
                assert "in use" in str(refused)
        return got

    assert attack(server) == {False}
    lacking = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b", *SMALL_VOLUMES], without="service:tenants")
    try:
        assert "secret" in attack(lacking)
    finally:
        lacking.close()


def test_token_opens_one_volume_only(server):
    def attack(at):
        given = {"api_url": at.url, "api_key": at.key}
        one, other = Volume.create(fresh(), **given), Volume.create(fresh(), **given)
        other.write_file("secret", "secret", api_url=at.url)
        try:
            return other.read_file("secret", token=one.token, api_url=at.url)
        except VolumePathNotFoundException:
            return None

    assert attack(server) is None
    lacking = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b", *SMALL_VOLUMES], without="service:token-scope")
    try:
        assert attack(lacking) == "secret"
    finally:
        lacking.close()


def test_interrupted_upload_keeps_the_old_file(server, volume):
    volume.write_file("a", "old")
    head = (
        f"PUT /volumecontent/{volume.volume_id}/file?path=a HTTP/1.1\r\nHost: {server.address}\r\n"
        f"Authorization: Bearer {volume.token}\r\nContent-Length: 1000000\r\n\r\n"
    )
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"x" * 1000)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert volume.read_file("a") == "old"
    assert [entry.name for entry in volume.list("/")] == ["a"]


def test_full_volume_is_reported(server):
    small = Service(os.environ["BELLJAR_BIN"], arguments=["--e2b", "--set", "sandboxes.volumes.size=16m"])
    try:
        given = {"api_url": small.url, "api_key": small.key, "sandbox_url": small.url}
        volume = Volume.create(fresh(), **given)
        url = {"api_url": small.url}
        with pytest.raises(VolumeException, match="507"):
            volume.write_file("large", b"x" * (20 << 20), **url)
        assert volume.list("/", **url) == []
        with Sandbox.create(volume_mounts={"/mnt/a": volume}, **given) as sandbox:
            done = sandbox.commands.run("head -c 20m /dev/zero > /mnt/a/large || true; wc -c < /mnt/a/large; rm /mnt/a/large")
            assert "No space left on device" in done.stderr and int(done.stdout) < 16 << 20
        volume.write_file("small", "x", **url)
    finally:
        small.close()


def test_roles(server, volume):
    reader = {"api_key": new_key(server, role="read")["key"]}
    assert volume.volume_id in [one.volume_id for one in Volume.list(**reader)]
    for attempt in (
        lambda: Volume.create(fresh(), **reader),
        lambda: Volume.get_info(volume.volume_id, **reader),
        lambda: Volume.destroy(volume.volume_id, **reader),
    ):
        with pytest.raises(VolumeException, match="403"):
            attempt()


async def test_async():
    name = fresh()
    made = await AsyncVolume.create(name)
    assert (await AsyncVolume.get_info(made.volume_id)).name == name
    assert made.volume_id in [one.volume_id for one in await AsyncVolume.list()]
    again = await AsyncVolume.connect(made.volume_id)
    assert (await again.write_file("d/a.txt", "hello", mode=0o600)).mode == 0o600
    assert await again.read_file("d/a.txt") == "hello"
    assert bytes(await again.read_file("d/a.txt", format="bytes")) == b"hello"
    assert b"".join([piece async for piece in await again.read_file("d/a.txt", format="stream")]) == b"hello"

    assert (await again.write_file("pieces", io.BytesIO(b"in pieces"))).size == 9
    assert (await again.make_dir("e/f", force=True)).path == "/e/f"
    assert [entry.path for entry in await again.list("/", depth=2)] == ["/d", "/d/a.txt", "/e", "/e/f", "/pieces"]
    assert (await again.update_metadata("d/a.txt", uid=5)).uid == 5
    assert (await again.get_info("d/a.txt")).uid == 5
    await again.remove("d")
    assert await again.exists("d/a.txt") is False
    with pytest.raises(VolumePathNotFoundException):
        await again.read_file("d/a.txt")
    with pytest.raises(VolumePathNotFoundException):
        await again.list("d")
    with pytest.raises(AuthenticationException):
        await again.read_file("pieces", token="junk")
    with pytest.raises(VolumeException, match="400.*already exists"):
        await AsyncVolume.create(name)
    assert await AsyncVolume.destroy(made.volume_id) is True
    assert await AsyncVolume.destroy(made.volume_id) is False
    with pytest.raises(VolumeNotFoundException):
        await AsyncVolume.connect(made.volume_id)
